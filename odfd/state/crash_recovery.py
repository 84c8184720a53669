"""Records the leftovers of an unclean shutdown in a state directory, before the start repairs or removes them.

A node that ends in order leaves nothing: the write-ahead log is folded into the database, and the folders of work under
way are empty. What is found here is mended by the start itself; the doctor tells of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from chain.libraries import np
from chain.wording import agree, plural, size

OBJECTS: Final = "objects"
WORK: Final = (f"{OBJECTS}/.staging", "staging", "uploads")
"""Folders that are emptied at the start."""
_HEADER, _FRAME_HEADER = 32, 24
_MAGIC: Final = 0x377F0682
"""The last bit says in which order words are summed; the file's own numbers are big-endian in both."""
_FLIPPED: Final = 2
"""Bits in which a page's salts may differ from the log's and still be its own: those of other logs differ in half."""
_WORDS: Final = ">u4"


class CrashRecovery(msgspec.Struct, kw_only=True):
    """The report of one recovery, which grows during the start."""

    was_killed: bool = False
    is_first: bool = False
    """Whether there was no node in the directory before."""
    promised: int = 0
    """Pages that the database's log says were committed to it."""
    lost: int = 0
    """Those of them that could not be read back: the state is an older one."""
    files: int = 0
    bytes: int = 0
    """Of work under way."""
    keys: int = 0
    """Of datasets that came to nothing: they were removed."""
    brought_forward: Sequence[tuple[str, int, int]] = ()
    """Tables that an older program wrote, with their version then and now."""
    settled: Sequence[str] = ()
    """Datasets whose import had been cut off."""
    unsettled: Sequence[str] = ()
    """What could not be settled, and why."""

    def __str__(self) -> str:
        """For people."""
        ended = "the node was killed" if self.was_killed else "the node was stopped in order"
        findings = ["none: this is the first start" if self.is_first else ended]
        if self.brought_forward:
            told = ", ".join(f"{room} {here} to {now}" for room, here, now in self.brought_forward)
            findings.append(f"tables of an older version were brought forward: {told}")
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
    """Pages of a write-ahead log up to the last one that ends a commit; 0: the log is empty, or not there.

    SQLite's recovery ends at the first page whose checksum does not fit, and takes those after it for one that
    was cut off. But a killed process leaves nothing after what it wrote last: where pages of the same log and the mark
    of a commit follow, a bit was flipped, or the disk lost what it had confirmed. Only headers are read (SQLite file
    format, section 4). A log whose header is spoilt promises all that there is room for.
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
    """A page size that can be."""
    return stated if stated in {1 << power for power in range(9, 17)} else 4096


def _is_whole(header: np.ndarray) -> bool:
    """Whether the checksum of a log's header fits."""
    if int(header[0]) & ~1 != _MAGIC or int(header[2]) != _pages_of(int(header[2])):
        return False
    words = [int(word) for word in header[:6]]
    if not int(header[0]) & 1:
        words = [int.from_bytes(word.to_bytes(4, "big"), "little") for word in words]
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return (first, second) == (int(header[6]), int(header[7]))
