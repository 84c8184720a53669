"""Keeps the bytes of a batch as objects, as they came from their source, before their blocks are committed. Blocking.

The batch's files are copied, so those of a source stay in place. The caller that commits checks that they did not
change meanwhile.
"""

from __future__ import annotations

import shutil

from chain.errors import Environment
from chain.store.base import ObjectStore
from chain.store.objects import staged_in
from odfd.ingest.plan import Batch
from odfd.store.captures import Capture, CapturedFile


def keep_raw(objects: ObjectStore, batch: Batch, source: str, given: str = "") -> Capture:
    """Stores the files of a batch. Returns the capture to commit with the blocks.

    ``source``: name of the push source, or empty. ``given``: id of the Source, or empty. Raises Environment.
    """
    files = []
    for number, path in enumerate(batch.raw or batch.paths):
        name = batch.names[number] if number < len(batch.names) else path.name
        with staged_in(objects) as staged:
            try:
                shutil.copyfile(path, staged)
                size = staged.stat().st_size
            except OSError as error:
                raise Environment(f"cannot keep {name}: {error.strerror}", rule="capture") from error
            files.append(CapturedFile(name, objects.add_file(staged), size))
    return Capture(
        files=tuple(files),
        source=source,
        given=given,
        label=batch.state,
        event_time=batch.event_time,
        fills_event_time=batch.fills_event_time,
        decoded=batch.decoded,
    )
