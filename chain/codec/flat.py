"""Encodes any class of ``chain.model`` (and messages of the engine contract) as FlatBuffers, and decodes it.

The layout comes from the class. Decoding bytes that this module wrote gives an equal value; encoding a value gives the
bytes that the reference gives. Spec: Reference / FlatBuffers schema.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from chain.codec.flat_read import Unknown, read_root
from chain.codec.flat_write import write_root
from chain.codec.layout import MAX_DEPTH

__all__ = ["ALIGNED", "MAX_DEPTH", "PACKED", "Unknown", "decode", "decode_noting", "encode"]

ALIGNED: Final = 4
"""Alignment of times in bytes, since manifest version 3."""
PACKED: Final = 1
"""Alignment of times in bytes in version 2, caused by a defect of the FlatBuffers library at that time."""

T = TypeVar("T", bound=msgspec.Struct)


def encode(value: msgspec.Struct, *, time_alignment: int = ALIGNED) -> bytes:
    """Encodes a value. Raises Invalid, naming the field, when a number, time or text does not fit the wire format."""
    return write_root(value, time_alignment)


def decode(cls: type[T], raw: bytes) -> T:
    """Decodes ``raw`` as a value of ``cls``. Raises Invalid with ``place`` like ``$.event.newData``.

    Raises Unknown, an Invalid, for a variant or enum member of a newer schema. Costs time and memory in proportion to
    ``len(raw)``, whatever the bytes are.
    """
    return decode_noting(cls, raw)[0]


def decode_noting(cls: type[T], raw: bytes) -> tuple[T, tuple[str, ...]]:
    """Decodes, and lists slots that only a newer schema has a name for, as table and slot: ``AddData[7]``."""
    value, beyond = read_root(cls, raw)
    return value, tuple(dict.fromkeys(beyond))
