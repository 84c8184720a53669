"""Writes and reads the parts of protobuf that this node uses: fields that are numbers or bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from chain.errors import Invalid
from chain.multibase import varint

Field: TypeAlias = bytes | int


def field(number: int, content: Field) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def fixed64_field(number: int, content: int) -> bytes:
    return varint(number << 3 | 1) + content.to_bytes(8, "little")


def delimited(body: bytes) -> bytes:
    """Returns a message with its length before it, as it is sent on a stream."""
    return varint(len(body)) + body


def number_of(found: Field, rule: str) -> int:
    """Returns a field that must be a number. Raises Invalid for bytes."""
    if isinstance(found, bytes):
        raise Invalid("bytes in place of a number", rule=rule)
    return found


def bytes_of(found: Field, rule: str) -> bytes:
    """Returns a field that must be bytes. Raises Invalid for a number."""
    if isinstance(found, int):
        raise Invalid("a number in place of bytes", rule=rule)
    return found


def read_fields(raw: bytes, rule: str) -> Iterator[tuple[int, Field]]:
    """Yields each field's number and value in order; callers use the last of a repeated field.
    Raises Invalid with ``rule``."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at, rule)
        if tag & 7 == 1 and at + 8 <= len(raw):
            yield tag >> 3, int.from_bytes(raw[at : at + 8], "little")
            at += 8
            continue
        content, at = _varint(raw, at, rule)
        if tag & 7 == 0:
            yield tag >> 3, content
        elif tag & 7 == 2 and at + content <= len(raw):
            yield tag >> 3, raw[at : at + content]
            at += content
        else:
            raise Invalid("not a protobuf message of numbers and bytes", rule=rule)


def _varint(raw: bytes, at: int, rule: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(raw):
            break
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80 and value < 1 << 64:
            return value, at
    raise Invalid("not a protobuf message: a number without end", rule=rule)
