"""Encodes the frames of an answer: a byte for the kind, four for the length, and the content. Pure.

A whole answer is one ``HEAD`` (JSON), ``ROWS`` (together one Arrow IPC stream), and one ``END`` (JSON) or one ``FAULT``
(JSON). What ends with neither was cut off. Where rows are JSON, ``SCHEMA`` (an Arrow IPC message) comes before them.
Rows to be shown come as ``COLUMNS`` (names and types) and ``PLAIN`` (lists of rows), both JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from chain.errors import Invalid

HEAD: Final = b"H"
ROWS: Final = b"A"
COLUMNS: Final = b"C"
PLAIN: Final = b"J"
SCHEMA: Final = b"S"
END: Final = b"E"
FAULT: Final = b"P"
MEDIA_TYPE: Final = "application/vnd.odfd.query"
MAX_FRAME: Final = 1 << 24
"""Bytes; rows come in far smaller pieces."""
PIECE: Final = 1 << 18
"""Bytes of rows in one frame, at the most."""
_HEADER: Final = struct.Struct(">cI")
_KINDS: Final = (HEAD, SCHEMA, ROWS, COLUMNS, PLAIN, END, FAULT)


def frame(kind: bytes, content: bytes) -> bytes:
    return _HEADER.pack(kind, len(content)) + content


def parted(whole: bytes) -> tuple[bytes, bytes]:
    """Kind and content of a whole frame."""
    return whole[:1], whole[_HEADER.size :]


class FrameReader:
    """Turns bytes as they come into frames; holds one frame at the most."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Raises Invalid for what is no frame."""
        self._rest += data
        while len(self._rest) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._rest)
            if kind not in _KINDS or length > MAX_FRAME:
                raise Invalid("what came is no frame of an answer", rule="query-frame", hint="ask again")
            if len(self._rest) < _HEADER.size + length:
                return
            content = bytes(self._rest[_HEADER.size : _HEADER.size + length])
            del self._rest[: _HEADER.size + length]
            yield kind, content
