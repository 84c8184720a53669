"""Records the leftovers of an unclean shutdown in a state directory, before the start repairs or removes them.

A node that stops in order leaves nothing: the write-ahead log is merged into the database, and the folders of work in
progress are empty. The start itself repairs what is found here; ``odfctl doctor`` reports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Environment
from chain.libraries import np
from chain.store.database import Database
from chain.store.seals import ROW_DAMAGED
from chain.wording import agree, plural, size
from odfd.resources.store import ResourceStore
from odfd.store.spool import PushSpool

OBJECTS: Final = "objects"
WORK: Final = (f"{OBJECTS}/.staging", "staging", "uploads")
"""Folders that are emptied at the start."""
_HEADER, _FRAME_HEADER = 32, 24
_MAGIC: Final = 0x377F0682
"""The log's magic number without its last bit, which gives the byte order of checksums; numbers are big-endian."""
_FLIPPED: Final = 2
"""Most bits in which a page's salts may differ from those of its log; salts of other logs differ in half of them."""
_WORDS: Final = ">u4"


class CrashRecovery(msgspec.Struct, kw_only=True):
    """The report of one recovery, which grows during the start."""

    was_killed: bool = False
    is_first: bool = False
    """Whether there was no node in the directory before."""
    is_full: bool = False
    """Whether the disk was full at the start."""
    promised: int = 0
    """Number of pages that the database's log shows as committed."""
    lost: int = 0
    """Number of these that could not be read back: the state is an older one."""
    files: int = 0
    bytes: int = 0
    """Bytes of leftover files of work in progress."""
    keys: int = 0
    """Keys of datasets that were never begun; they were removed."""
    brought_forward: Sequence[tuple[str, int, int]] = ()
    """Tables of an older program that were migrated: name, version before, version now."""
    converted: Sequence[str] = ()
    """What was declared otherwise before that, a line for each thing."""
    settled: Sequence[str] = ()
    """Datasets whose interrupted import was completed or removed."""
    unsettled: Sequence[str] = ()
    """Datasets for which that failed, with the reason."""

    def __str__(self) -> str:
        """Describes the findings for people."""
        ended = "the node was killed" if self.was_killed else "the node was stopped in order"
        findings = ["none: this is the first start" if self.is_first else ended]
        if self.is_full:
            findings.append(
                "the disk was full: the data here is served, and nothing new is written until there is space"
            )
        if self.brought_forward:
            told = ", ".join(f"{room} {here} to {now}" for room, here, now in self.brought_forward)
            findings.append(f"tables of an older version were brought forward: {told}")
        findings += self.converted
        if self.files:
            were = agree(self.files, "was", "were")
            findings.append(f"{plural(self.files, 'unfinished file')} ({size(self.bytes)}) {were} removed")
        if self.keys:
            were = agree(self.keys, "was", "were")
            findings.append(f"{plural(self.keys, 'key')} of datasets that came to nothing {were} removed")
        if self.lost:
            findings.append(f"{self.lost} pages of the database's log are damaged: what was committed last is lost")
        if self.settled:
            findings.append(f"an import that was cut off is settled: {', '.join(self.settled)}")
        return "; ".join([*findings, *self.unsettled])


def look_back(directory: Path, database: str) -> CrashRecovery:
    """Inspects a directory before the database is opened. Costs in proportion to the leftovers."""
    log = directory / f"{database}-wal"
    found = CrashRecovery(
        was_killed=log.exists() and log.stat().st_size > 0,
        is_first=not (directory / database).exists(),
        promised=pages_promised(log),
    )
    for folder in WORK:
        for file in (directory / folder).rglob("*"):
            if file.is_file() and not file.is_symlink():
                found.files += 1
                found.bytes += file.stat().st_size
    return found


def pages_promised(log: Path) -> int:
    """Counts the pages of a write-ahead log up to its last commit; 0: the log is empty or absent.

    SQLite's recovery ends at the first page with a wrong checksum, and takes the rest for an interrupted write. But a
    killed process leaves nothing after its last write: if pages of the same log and the mark of a commit follow, a bit
    was flipped, or the disk lost data that it had confirmed. Only headers are read (SQLite file format, section 4). A
    log with a damaged header counts as full.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return 0
    if size < _HEADER + _FRAME_HEADER:
        return 0
    raw = np.memmap(log, np.uint8, "r")
    header = raw[:_HEADER].view(_WORDS).astype(np.uint64)
    page = int(header[2])
    if not _is_whole(header):
        return max(1, (size - _HEADER) // (_FRAME_HEADER + _pages_of(page)))
    frames = (size - _HEADER) // (_FRAME_HEADER + page)
    body = raw[_HEADER : _HEADER + frames * (_FRAME_HEADER + page)].reshape(frames, _FRAME_HEADER + page)
    heads = np.ascontiguousarray(body[:, :_FRAME_HEADER]).view(_WORDS)
    salts = header[4:6].astype(">u4")
    differing = np.unpackbits((heads[:, 2:4] ^ salts).astype(">u4").view(np.uint8).reshape(frames, -1), axis=1).sum(1)
    ends = np.flatnonzero((differing <= _FLIPPED) & (heads[:, 1] != 0))
    return int(ends[-1]) + 1 if len(ends) else 0


def _pages_of(stated: int) -> int:
    """Returns the stated page size if it is possible, else 4096."""
    return stated if stated in {1 << power for power in range(9, 17)} else 4096


def _is_whole(header: np.ndarray) -> bool:
    """Whether the checksum of a log's header is correct."""
    if int(header[0]) & ~1 != _MAGIC or int(header[2]) != _pages_of(int(header[2])):
        return False
    words = [int(word) for word in header[:6]]
    # The last bit of the magic number says in which byte order checksums read words (SQLite file format, section 4.1).
    if not int(header[0]) & 1:
        words = [int.from_bytes(word.to_bytes(4, "big"), "little") for word in words]
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return (first, second) == (int(header[6]), int(header[7]))


def without_orphans(database: Database, spool: PushSpool) -> None:
    """Removes what was pushed to Sources that are not there any more, nor still to be undone.

    Removes nothing if a row is damaged, since that may be the row of a Source.
    """
    try:
        with database.read() as connection:
            store = ResourceStore(connection)
            living = {row.id for row in store.rows("Source")} | {each.id for each in store.deleting()}
            known = {source for (source,) in connection.execute("SELECT source FROM spool_numbers")}
    except Environment as fault:
        if fault.rule != ROW_DAMAGED:
            raise
        return
    for each in sorted(known - living):
        spool.remove(each)
