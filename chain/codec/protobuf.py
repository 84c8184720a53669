"""Writes and reads messages of Protocol Buffers that need no schema: fields are numbers or bytes. Does no I/O.

What frames of engines, libp2p's protocols, IPNS records and traces need of the format is this module, so there is no
compiler and no runtime of it. Callers bound the size of a message. Spec: Protocol Buffers, Encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from chain.errors import Invalid
from chain.multibase import varint

Field: TypeAlias = bytes | int
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}


def field(number: int, content: Field) -> bytes:
    if isinstance(content, int):
        return varint(number << 3 | _VARINT) + varint(content)
    return varint(number << 3 | _BYTES) + varint(len(content)) + content


def fixed64_field(number: int, content: int) -> bytes:
    return varint(number << 3 | _FIXED64) + content.to_bytes(8, "little")


def delimited(body: bytes) -> bytes:
    """Returns a message with its length before it, as it is sent on a stream."""
    return varint(len(body)) + body


def number_of(content: Field, rule: str) -> int:
    """Returns a field that must be a number. Raises Invalid for bytes."""
    if isinstance(content, bytes):
        raise Invalid("bytes in place of a number", rule=rule)
    return content


def bytes_of(content: Field, rule: str) -> bytes:
    """Returns a field that must be bytes. Raises Invalid for a number."""
    if isinstance(content, int):
        raise Invalid("a number in place of bytes", rule=rule)
    return content


def read_fields(raw: bytes, rule: str) -> Iterator[tuple[int, Field]]:
    """Yields each field's number and value in order; callers use the last of a repeated field.
    Raises Invalid with ``rule``."""
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at, rule)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            content, at = _read_varint(raw, at, rule)
            yield number, content
            continue
        if kind == _BYTES:
            size, at = _read_varint(raw, at, rule)
        elif (size := _FIXED.get(kind, 0)) == 0:  # groups, which nobody writes any more, and kinds that do not exist
            raise Invalid(f"not a protobuf message: a field of kind {kind} before byte {at}", rule=rule)
        if at + size > len(raw):
            raise Invalid(f"not a protobuf message: a field ends {at + size - len(raw)} bytes after it", rule=rule)
        part = raw[at : at + size]
        yield number, part if kind == _BYTES else int.from_bytes(part, "little")
        at += size


def _read_varint(raw: bytes, at: int, rule: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):  # ten bytes hold 70 bits: without bounds a peer could write a number of any size
        if at >= len(raw):
            break
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80 and value < 1 << 64:
            return value, at
    raise Invalid(f"not a protobuf message: a number without an end before byte {at}", rule=rule)
