"""Encodes the frames of an answer: a byte for the kind, four for the length, and the content. Pure.

A whole answer is one ``HEAD`` (JSON), ``ROWS`` (together one Arrow IPC stream), and one ``END`` (JSON) or one ``FAULT``
(JSON). An answer that ends with neither was cut off. If rows are JSON, ``SCHEMA`` (an Arrow IPC message) comes before
them. Rows for display come as ``COLUMNS`` (names and types) and ``PLAIN`` (lists of rows), both JSON; rows as text as
``COLUMNS`` and ``LINES``: how many rows end in it (four bytes), and the text. If the Arrow stream has a pipe of its
own, no ``ROWS`` come, and ``SCHEMA`` says that the stream begins.
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
LINES: Final = b"T"
SCHEMA: Final = b"S"
END: Final = b"E"
FAULT: Final = b"P"
MEDIA_TYPE: Final = "application/vnd.odfd.query"
MAX_FRAME: Final = 1 << 24
"""Most bytes of a frame; rows come in far smaller pieces."""
PIECE: Final = 1 << 20
"""Most bytes of rows in one frame."""
_HEADER: Final = struct.Struct(">cI")
_KINDS: Final = (HEAD, SCHEMA, ROWS, COLUMNS, PLAIN, LINES, END, FAULT)


def header(kind: bytes, length: int) -> bytes:
    return _HEADER.pack(kind, length)


def frame(kind: bytes, content: bytes) -> bytes:
    return _HEADER.pack(kind, len(content)) + content


def split_frame(whole: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    """Splits a whole frame into kind and content."""
    return bytes(whole[:1]), whole[_HEADER.size :]


class AnswerFrameReader:
    """Splits incoming bytes into frames; holds at most one frame."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._have, self._need = 0, _HEADER.size
        """Number of bytes in ``_rest``, and the number needed before it is examined again."""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields (kind, content) of each complete frame. Raises Invalid for a malformed frame."""
        return ((kind, bytes(whole[_HEADER.size :])) for kind, whole in self.wholes(data))

    def wholes(self, data: bytes) -> Iterator[tuple[bytes, memoryview]]:
        """Yields (kind, whole frame), not copied, of each complete frame. Raises Invalid for a malformed frame."""
        self._rest.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        whole, at = memoryview(b"".join(self._rest)), 0
        while len(whole) - at >= _HEADER.size:
            kind, length = _HEADER.unpack_from(whole, at)
            if kind not in _KINDS or length > MAX_FRAME:
                raise Invalid("the bytes are no frame of an answer", rule="query-frame", hint="ask again")
            if len(whole) - at < _HEADER.size + length:
                break
            yield kind, whole[at : at + _HEADER.size + length]
            at += _HEADER.size + length
        rest = bytes(whole[at:])
        self._rest, self._have = [rest], len(rest)
        self._need = _HEADER.size + (_HEADER.unpack_from(rest)[1] if len(rest) >= _HEADER.size else 0)
