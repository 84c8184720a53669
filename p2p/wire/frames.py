"""Splits streams into frames: ``u32 length, body`` (network order) in all our stream protocols, and a varint length in
those of libp2p that carry protobuf.

Each stream has its own reader. After an invalid length a reader is of no more use, because the position of the next
frame is lost. It holds at most one unfinished frame, never more than its limit. libp2p's frames may be empty: go-libp2p
sends an empty one as a greeting when it has joined no topic.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from chain.errors import Invalid

PREFIX: Final = 4
"""Bytes of the length before a body."""
MAX_PREFIX: Final = 10
"""Bytes of a varint length at most: 64 bits, seven in each byte."""


def prefix(length: int) -> bytes:
    return length.to_bytes(PREFIX, "big")


def frame(body: bytes) -> bytes:
    return prefix(len(body)) + body


class FrameSplitter:
    """Splits a byte stream with ``u32`` lengths into whole bodies, however the bytes are cut on arrival."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._wanted: int | None = None

    @property
    def held(self) -> int:
        """Returns how many bytes of the unfinished frame have arrived."""
        return self._held

    @property
    def pieces(self) -> int:
        """Returns the number of pieces in which the unfinished frame has arrived so far."""
        return len(self._pieces)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the bodies that ``data`` completes. Raises Invalid if a frame is empty or over the limit."""
        if data:
            self._pieces.append(bytes(data))
            self._held += len(data)
        bodies: list[bytes] = []
        while True:
            if self._wanted is None:
                if self._held < PREFIX:
                    return bodies
                self._wanted = self._check(int.from_bytes(self._take(PREFIX), "big"))
            if self._held < self._wanted:
                return bodies
            bodies.append(self._take(self._wanted))
            self._wanted = None

    def end(self) -> None:
        """Notes the end of the stream. Raises Invalid if it ended inside a frame."""
        if self._held or self._wanted is not None:
            raise Invalid("the stream ended inside a frame", rule="frame-cut")

    def _check(self, length: int) -> int:
        if not 0 < length <= self._limit:
            raise Invalid(f"a frame of {length} bytes", rule="frame-length", hint=f"1 to {self._limit} are allowed")
        return length

    def _take(self, count: int) -> bytes:
        """Removes and returns the first ``count`` held bytes; copies each byte once, however small the pieces were."""
        self._held -= count
        first = self._pieces[0]
        if len(first) == count:
            return self._pieces.popleft()
        if len(first) > count:
            self._pieces[0] = first[count:]
            return first[:count]
        parts = []
        while count:
            piece = self._pieces.popleft()
            if len(piece) > count:
                self._pieces.appendleft(piece[count:])
                piece = piece[:count]
            parts.append(piece)
            count -= len(piece)
        return b"".join(parts)


class DelimitedReader:
    """Splits a byte stream with varint lengths into whole bodies, however the bytes are cut on arrival."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the bodies that ``data`` completes. Raises Invalid if a length is over the limit or is no varint."""
        self._held += data
        bodies: list[bytes] = []
        at = 0
        while (head := self._head(at)) is not None:
            start, length = head
            if len(self._held) < start + length:
                break
            bodies.append(bytes(self._held[start : start + length]))
            at = start + length
        del self._held[:at]
        return bodies

    def _head(self, at: int) -> tuple[int, int] | None:
        """Returns the start and the length of the body whose length begins at ``at``; None while that is incomplete."""
        length = 0
        prefix = self._held[at : at + MAX_PREFIX]
        for place, byte in enumerate(prefix):
            length |= (byte & 0x7F) << 7 * place
            if length > self._limit:
                raise Invalid(f"a frame of {length} bytes", rule="frame-length", hint=f"at most {self._limit}")
            if byte < 0x80:
                return at + place + 1, length
        if len(prefix) == MAX_PREFIX:
            raise Invalid(f"a length of more than {MAX_PREFIX} bytes", rule="frame-length")
        return None
