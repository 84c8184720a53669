"""Buffers the unread bytes of one stream: copies a large piece once, and joins small ones."""

from __future__ import annotations

from collections import deque
from typing import Final

LARGE: Final = 16 * 1024
"""Bytes of a piece that stays for itself: what it costs beside its bytes is then little."""


class Inbox:
    """Bytes in order. ``len`` is how many."""

    __slots__ = ("_pieces", "_read", "_size", "_tail")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._read = 0
        """Bytes of the first piece that were taken."""
        self._tail = bytearray()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, piece: memoryview) -> None:
        """A copy of it."""
        self._size += len(piece)
        if len(piece) < LARGE:
            self._tail += piece
            return
        self._close_tail()
        self._pieces.append(bytes(piece))

    def take(self, size: int) -> bytes:
        """The first of them, at most ``size``: all that are small and together, or some of one large piece."""
        self._close_tail()
        if not size or not self._pieces:
            return b""
        piece = self._pieces[0]
        part = piece[self._read : self._read + size]
        self._size -= len(part)
        self._read += len(part)
        if self._read == len(piece):
            self._pieces.popleft()
            self._read = 0
        return part

    def clear(self) -> None:
        """Forget all."""
        self._pieces.clear()
        self._tail = bytearray()
        self._read = self._size = 0

    def _close_tail(self) -> None:
        if self._tail:
            self._pieces.append(bytes(self._tail))
            self._tail = bytearray()
