"""Records what an unclean shutdown left in a state directory, before the start repairs or removes it.

A node that ends in order leaves nothing: the write-ahead log is folded into the database, and the folders of work under
way are empty. What is found here is mended by the start itself; the doctor tells of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from chain.store.wal import pages_promised

OBJECTS: Final = "objects"
WORK: Final = (f"{OBJECTS}/.staging", "staging", "uploads")
"""Folders that are emptied at the start."""


class CrashRecovery(msgspec.Struct, kw_only=True):
    """The report of one recovery; it grows while the node starts."""

    was_killed: bool = False
    promised: int = 0
    """Pages that the database's log says were committed to it."""
    lost: int = 0
    """Those of them that could not be read back: the state is an older one."""
    files: int = 0
    bytes: int = 0
    """Of work under way."""
    settled: Sequence[str] = ()
    """Datasets whose import had been cut off."""
    unsettled: Sequence[str] = ()
    """What could not be settled, and why."""

    def __str__(self) -> str:
        """For people."""
        told = ["the node was killed" if self.was_killed else "the node was stopped in order"]
        if self.files:
            told.append(f"{self.files} unfinished files ({max(1, self.bytes >> 10):,} KiB) were removed")
        if self.lost:
            told.append(f"{self.lost} pages of the database's log are damaged: what was committed last is lost")
        if self.settled:
            told.append(f"an import that was cut off is settled: {', '.join(self.settled)}")
        return "; ".join([*told, *self.unsettled])


def look_back(directory: Path, database: str) -> CrashRecovery:
    """Before the database is opened. Costs in proportion to what was left."""
    log = directory / f"{database}-wal"
    found = CrashRecovery(was_killed=log.exists() and log.stat().st_size > 0, promised=pages_promised(log))
    for folder in WORK:
        for file in (directory / folder).rglob("*"):
            if file.is_file() and not file.is_symlink():
                found.files += 1
                found.bytes += file.stat().st_size
    return found
