"""Saves the peer book to a file and loads it at the next start; a lost file costs only time.

The file is written beside and renamed, so that it is complete or absent. A damaged file is reported and replaced at the
next save.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio

from chain.errors import Invalid
from odfd.runtime.supervision import Logger
from p2p.peers.book import PeerBook

SAVE_SECONDS: Final = 60.0
"""Interval at which changes are saved; a crash loses those since."""
FOUND_SECONDS: Final = 5.0
"""How soon a new peer is saved. A node that is never dialled itself would be alone after a crash without them."""
MAX_FILE: Final = 16 << 20
"""Bytes to read at most; the largest book has about 10 MiB."""


def recall(book: PeerBook, path: Path, now: float, logger: Logger) -> None:
    """Adds the entries of ``path`` to ``book``. Logs any fault of the file, and then adds nothing."""
    try:
        if not path.exists():
            return
        if path.stat().st_size > MAX_FILE:
            raise Invalid(f"{path} is larger than any peer book", rule="peer-book", hint="delete it")
        book.restore(path.read_bytes(), now)
    except (Invalid, OSError) as error:
        logger.error("the peers met before are forgotten", file=str(path), fault=str(error))


def save(book_bytes: bytes, path: Path) -> None:
    """Saves the book. Raises OSError."""
    beside = path.with_suffix(".new")
    beside.write_bytes(book_bytes)
    beside.replace(path)


async def keep_saved(book: PeerBook, path: Path, logger: Logger) -> None:
    """Saves the book periodically while the network is joined, and once more at the end."""
    last, found = b"", book.found

    async def save_changes() -> None:
        nonlocal last, found
        found = book.found
        snapshot = book.snapshot(trio.current_time())
        if snapshot == last:
            return
        try:
            await trio.to_thread.run_sync(save, snapshot, path)
            last = snapshot
        except OSError as error:
            logger.error("the peers we know cannot be saved", file=str(path), fault=str(error))

    try:
        while True:
            for _ in range(int(SAVE_SECONDS / FOUND_SECONDS)):
                await trio.sleep(FOUND_SECONDS)
                if book.found != found:
                    break
            await save_changes()
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(2.0):
            await save_changes()
