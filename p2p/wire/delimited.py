"""Encodes and decodes frames with a varint length, as protobuf protocols of libp2p use them. Sans-IO.

A reader is made per stream and dies with it. It holds one unfinished frame, never more than its limit. Empty frames are
frames: go-libp2p greets with one who has joined nothing.
"""

from __future__ import annotations

from typing import Final

from chain.errors import Invalid

MAX_PREFIX: Final = 10
"""Bytes of a length: 64 bits, seven in each."""


class DelimitedReader:
    """Pieces of a byte stream in, whole bodies out, whatever the pieces were."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Bodies that ``data`` completes. Raises Invalid for a length that is over the limit or none."""
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
        """Where the body starts whose length begins at ``at``, and that length; None while it is not all here."""
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
