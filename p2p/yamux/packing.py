"""Packs frames into messages of the layer below: joins small ones, and cuts large bodies without copying them."""

from __future__ import annotations

from typing import Final

SMALL: Final = 4 * 1024
"""Bytes that are cheaper to copy than to seal alone."""


class Packing:
    """Takes frames in pieces, in order; ``messages`` are at most ``room`` bytes each. Made for one batch."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._messages: list[bytes | memoryview] = []
        self._open: list[bytes | memoryview] = []
        self._size = 0

    def add(self, piece: bytes | memoryview) -> None:
        """The next bytes."""
        if len(piece) > min(SMALL, self._room) and isinstance(piece, memoryview):
            self._close()
            self._messages += [piece[at : at + self._room] for at in range(0, len(piece), self._room)]
        elif piece:
            if self._size + len(piece) > self._room:
                self._close()
            self._open.append(piece)
            self._size += len(piece)

    def messages(self) -> list[bytes | memoryview]:
        """All of them."""
        self._close()
        return self._messages

    def _close(self) -> None:
        if self._open:
            self._messages.append(b"".join(self._open))
            self._open, self._size = [], 0
