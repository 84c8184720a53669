"""Encodes any class of ``chain.model`` (and messages of the engine contract) as FlatBuffers, and decodes it.

Two functions; the layout comes from the class. Decoding bytes that this module wrote gives an equal value; encoding a
value gives the bytes that the reference gives. Spec: Reference / FlatBuffers schema.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from chain.codec.flat_read import Unknown, read_root
from chain.codec.flat_write import write_root
from chain.codec.layout import MAX_DEPTH

__all__ = ["ALIGNED", "MAX_DEPTH", "PACKED", "Unknown", "decode", "decode_noting", "encode"]

ALIGNED: Final = 4
"""Alignment of times since manifest version 3."""
PACKED: Final = 1
"""Alignment of times in version 2, the work of a defect in the library of the time."""

T = TypeVar("T", bound=msgspec.Struct)


def encode(value: msgspec.Struct, *, time_alignment: int = ALIGNED) -> bytes:
    """A finished buffer. Raises Invalid, naming the field, when a number, time or text does not fit the wire."""
    return write_root(value, time_alignment)


def decode(cls: type[T], raw: bytes) -> T:
    """The value that ``raw`` holds. Raises Invalid with ``place`` like ``$.event.newData``.

    Raises Unknown, an Invalid, where a newer schema's variant or enum member stands. Costs time and memory in
    proportion to ``len(raw)``, whatever the bytes are.
    """
    return decode_noting(cls, raw)[0]


def decode_noting(cls: type[T], raw: bytes) -> tuple[T, tuple[str, ...]]:
    """Decodes, and lists what only a newer schema can name in ``raw``: ``AddData[7]``, a table and its slot."""
    value, beyond = read_root(cls, raw)
    return value, tuple(dict.fromkeys(beyond))
