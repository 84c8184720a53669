"""Where bundles are kept: one file each, named by its id, below the state directory; the oldest make room for new ones.

A bundle is kept whole and apart from the stores its objects came from: evidence must outlive the dataset it is about.
Made once per process; safe to use from any thread, for a file shows under its name only when it is whole.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

from chain.errors import NotFound
from chain.multihash import Multihash
from chain.store.objects import disk
from odfd.trust import bundle
from odfd.trust.bundle import Manifest
from odfd.trust.journal import sync_folder

BUDGET: Final = 1 << 30
"""Bytes of all bundles that are kept."""
SUFFIX: Final = ".odfe"


class Shelf:
    """See the module."""

    def __init__(self, folder: Path, budget: int = BUDGET) -> None:
        self._folder = folder
        self._budget = budget

    def keep(self, manifest: Manifest, sources: Mapping[Multihash, bytes | Path]) -> Multihash:
        """Write a bundle, durably; its id. Raises Invalid when an object is damaged, Environment."""
        name = manifest.id
        target = self._path(name)
        if target.is_file():
            return name
        draft = target.with_suffix(f".{os.getpid()}.part")
        with disk(target):
            try:
                with draft.open("wb") as file:
                    bundle.write(manifest, lambda each: _opened(sources[each.hash]), file)
                    file.flush()
                    os.fsync(file.fileno())
                self._make_room(draft.stat().st_size)
                draft.replace(target)
                sync_folder(self._folder)
            finally:
                draft.unlink(missing_ok=True)
        return name

    def has(self, name: Multihash) -> bool:
        return self._path(name).is_file()

    def path(self, name: Multihash) -> Path:
        """The file of a bundle, by its id. Raises NotFound."""
        path = self._path(name)
        if not path.is_file():
            raise NotFound(
                f"no evidence {name.short} is kept here",
                rule="evidence",
                hint="odfctl trust show REF lists what is known; odfctl trust evidence ID --fetch asks connected peers",
            )
        return path

    def _make_room(self, wanted: int) -> None:
        kept = sorted(self._folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        total = wanted + sum(path.stat().st_size for path in kept)
        for path in kept:
            if total <= self._budget:
                return
            total -= path.stat().st_size
            path.unlink()

    def _path(self, name: Multihash) -> Path:
        return self._folder / f"{name}{SUFFIX}"


def _opened(source: bytes | Path) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
