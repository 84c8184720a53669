"""Encodes a value of a model class as exactly the FlatBuffers bytes that the reference writes for it.

Children come first, depth first in field order; then the table's slots in field order, unsorted; equal vtables are
written once. Hashes stay stable only because this order is kept. A writer is compiled from a class's layout on first
use. Spec: FlatBuffers internals; the order is that of the reference's generated code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
from flatbuffers import Builder, number_types

from chain.codec import timestamp
from chain.codec.layout import (
    MAX_DEPTH,
    Choice,
    Entries,
    Field,
    Flag,
    JsonObject,
    Kind,
    Moment,
    Number,
    Octets,
    Table,
    Text,
    Union,
    Vector,
    fields_of,
    slots_of,
    wrapper_of,
)
from chain.errors import Invalid

_FLAGS: Final = {
    "uint8": number_types.Uint8Flags,
    "int16": number_types.Int16Flags,
    "uint16": number_types.Uint16Flags,
    "int32": number_types.Int32Flags,
    "uint32": number_types.Uint32Flags,
    "int64": number_types.Int64Flags,
    "uint64": number_types.Uint64Flags,
}
Prepare: TypeAlias = "Callable[[Sheet, Any], Any]"
"""Turns ``(sheet, value)`` into the slot's content: the offset of a child, written now, or the value itself."""
Put: TypeAlias = "Callable[[Sheet, Any], None]"
"""Writes the slot, given ``(sheet, prepared)``."""
MAX_JSON_DEPTH: Final = 128
"""Most levels of nested JSON values; the reference reads no more."""


@dataclass(slots=True)
class Sheet:
    """The output of one buffer, with its builder. Lives for one encode."""

    builder: Builder
    time_alignment: int
    depth: int = 0


def write_root(value: msgspec.Struct, time_alignment: int) -> bytes:
    """Returns a finished buffer with ``value`` as its root. Raises Invalid for values that the format cannot hold."""
    builder = Builder(512)
    try:
        builder.Finish(_table_writer(type(value))(Sheet(builder, time_alignment), value))
    except Invalid as fault:
        fault.place = "$" + fault.place
        raise
    return bytes(builder.Output())


@functools.cache
def _table_writer(cls: type[msgspec.Struct]) -> Prepare:
    plan = [(each.name, *_writer(each)) for each in fields_of(cls)]
    slots = slots_of(cls)

    def write(sheet: Sheet, value: Any) -> int:
        sheet.depth += 1
        if sheet.depth > MAX_DEPTH:
            raise Invalid(f"nested deeper than {MAX_DEPTH} tables: no reader takes it", rule="flatbuffers-depth")
        prepared = []
        name = ""
        try:
            for name, prepare, put in plan:
                field = getattr(value, name)
                if field is not None:
                    prepared.append((put, prepare(sheet, field)))
        except Invalid as fault:
            fault.place = f".{name}{fault.place}"
            raise
        sheet.depth -= 1
        sheet.builder.StartObject(slots)
        for put, ready in prepared:
            put(sheet, ready)
        offset: int = sheet.builder.EndObject()
        return offset

    return write


def _writer(field: Field) -> tuple[Prepare, Put]:
    slot = field.slot
    match field.kind:
        case Number() as number:
            return _checked_number(number), _scalar_put(slot, number.name, field.optional)
        case Choice(options, number):
            numbers = {option: index for index, option in enumerate(options)}
            return lambda _sheet, value: numbers[value], _scalar_put(slot, number.name, field.optional)
        case Flag():
            default = None if field.optional else False
            return _as_is, lambda sheet, value: sheet.builder.PrependBoolSlot(slot, value, default)
        case Moment():
            return lambda _sheet, value: timestamp.pack(value), _time_put(slot)
        case Union(variants):
            return _union_prepare(variants), _union_put(slot)
        case kind:
            return _child(kind), lambda sheet, value: sheet.builder.PrependUOffsetTRelativeSlot(slot, value, 0)


def _as_is(_sheet: Sheet, value: Any) -> Any:
    return value


def _checked_number(number: Number) -> Prepare:
    low, high = number.low, number.high

    def prepare(_sheet: Sheet, value: int) -> int:
        if not low <= value <= high:
            raise Invalid(f"{value} does not fit {number.name}", rule="number-range", hint=f"{low} to {high}")
        return value

    return prepare


def _scalar_put(slot: int, name: str, optional: bool) -> Put:
    flags = _FLAGS[name]
    default = None if optional else 0
    return lambda sheet, value: sheet.builder.PrependSlot(flags, slot, value, default)


def _time_put(slot: int) -> Put:
    def put(sheet: Sheet, raw: bytes) -> None:
        sheet.builder.Prep(sheet.time_alignment, timestamp.SIZE)
        sheet.builder.head -= timestamp.SIZE
        sheet.builder.Bytes[sheet.builder.head : sheet.builder.head + timestamp.SIZE] = raw
        sheet.builder.Slot(slot)

    return put


def _union_prepare(variants: tuple[type[msgspec.Struct], ...]) -> Prepare:
    numbers = {variant: index for index, variant in enumerate(variants, 1)}

    def prepare(sheet: Sheet, value: msgspec.Struct) -> tuple[int, int]:
        number = numbers.get(type(value))
        if number is None:
            raise Invalid(f"{type(value).__name__} cannot be written here", rule="union-variant")
        return number, _table_writer(type(value))(sheet, value)

    return prepare


def _union_put(slot: int) -> Put:
    def put(sheet: Sheet, value: tuple[int, int]) -> None:
        sheet.builder.PrependUint8Slot(slot, value[0], 0)
        sheet.builder.PrependUOffsetTRelativeSlot(slot + 1, value[1], 0)

    return put


def _child(kind: Kind) -> Prepare:
    match kind:
        case Text():
            return _write_text
        case Octets():
            return lambda sheet, value: sheet.builder.CreateByteVector(value)
        case JsonObject():
            return _write_json_object
        case Table(of):
            return lambda sheet, value: _table_writer(of)(sheet, value)
        case Vector(item):
            return _vector_writer(item)
        case _:
            raise TypeError(f"{kind} is not a child")


def _write_text(sheet: Sheet, value: str) -> int:
    try:
        offset: int = sheet.builder.CreateString(value)
    except UnicodeEncodeError as error:
        raise Invalid(f"not Unicode text: {error.reason} at character {error.start}", rule="utf-8") from error
    return offset


def _write_json_object(sheet: Sheet, value: dict[str, object]) -> int:
    offset: int = _table_writer(Entries)(sheet, Entries(json_text(value)))
    return offset


def _vector_writer(item: Text | Table | Union) -> Prepare:
    if isinstance(item, Text):
        write_item: Prepare = _write_text
    elif isinstance(item, Table):
        write_item = _child(item)
    else:
        wrapper: Any = wrapper_of(item.variants)

        def write_item(sheet: Sheet, value: Any) -> Any:
            return _table_writer(wrapper)(sheet, wrapper(value))

    def write(sheet: Sheet, values: tuple[Any, ...]) -> int:
        offsets = []
        try:
            for value in values:
                offsets.append(write_item(sheet, value))
        except Invalid as fault:
            fault.place = f"[{len(offsets)}]{fault.place}"
            raise
        sheet.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            sheet.builder.PrependUOffsetTRelative(offset)
        end: int = sheet.builder.EndVector()
        return end

    return write


def json_text(value: object) -> str:
    """Writes a value as the JSON inside of a block: keys sorted at every level, no spaces, numbers as in the reference.

    The text is hashed, so it depends on the value alone: numbers have the shortest digits that give the number back,
    plain from 1e-5 up to 1e16 and with a signed exponent beyond, like ``1.5e+300`` and ``1e-7``. Spec: FlatBuffers
    schema, ExtraAttributes; serde_json since 1.0.147. Raises Invalid for values that JSON cannot express, and beyond
    MAX_JSON_DEPTH.
    """
    return _text(value, 0)


def _text(value: object, depth: int) -> str:
    if depth > MAX_JSON_DEPTH:
        raise Invalid(f"nested deeper than {MAX_JSON_DEPTH}", rule="json-depth")
    match value:
        case float():
            return _real(value)
        case dict():
            members = (f"{_scalar(str(key))}:{_text(value[key], depth + 1)}" for key in sorted(value))
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join(_text(item, depth + 1) for item in value) + "]"
        case _:
            return _scalar(value)


def _scalar(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, UnicodeEncodeError) as error:
        raise Invalid(f"not a value of JSON: {error}", rule="json") from error


def _real(value: float) -> str:
    mantissa, mark, exponent = msgspec.json.encode(value).decode().partition("e")
    return mantissa + mark + ("+" if exponent[:1].isdecimal() else "") + exponent
