"""Reads what a write-ahead log of SQLite holds, before SQLite recovers it.

Recovery ends at the first page whose checksum does not fit, and says nothing of those after it: they are taken for
a transaction that was cut off. But a process that is killed leaves nothing after what it wrote last. So where pages of
the same log and the mark of a commit follow, something that was committed is lost: a bit was flipped, or the disk did
not keep what it said it had written. Only headers are read. SQLite file format, section 4.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

_HEADER, _FRAME_HEADER = 32, 24
_MAGIC: Final = 0x377F0682
"""The last bit says in which order words are summed; the file's own numbers are big-endian in both."""
_FLIPPED: Final = 2
"""Bits in which a page's salts may differ from the log's and still be its own: those of other logs differ in half."""
_WORDS: Final = np.dtype(">u4")


def pages_promised(log: Path) -> int:
    """Pages up to the last one that ends a commit; 0: the log is empty, or not there. A log whose header is spoilt
    promises all that there is room for.
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


def _pages_of(said: int) -> int:
    """A page size that can be."""
    return said if said in {1 << power for power in range(9, 17)} else 4096


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
