"""Decodes FlatBuffers bytes to a value of a model class under limits, or raises one Invalid with the place.

Input is hostile. Every offset is checked before it is followed, nesting ends at MAX_DEPTH, and every table, text and
vector visited is charged to a budget that grows with the input, so that buffers whose parts point at each other cost no
more than honest ones. Slots beyond those a class declares are skipped and listed. A reader is compiled from a class's
layout on first use; one read is one call and keeps nothing. Spec: FlatBuffers internals; Reference / schema.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from chain.codec import timestamp
from chain.codec.layout import (
    MAX_DEPTH,
    Choice,
    Entries,
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

_SHARING: Final = 4
"""Bytes that may be visited, per byte of input. Honest writers never share a part (1); foreign ones may share texts."""
MAX_TABLES: Final = 1 << 17
"""Most tables in one buffer: columns, attachments, inputs and headers, at all depths. A schema of as many columns as
we declare has a third of that, and everything that is done with a block is small for as many."""
_MOST_BEYOND: Final = 100
"""Most unknown slots that are listed; more would say no more."""
_U32: Final = struct.Struct("<I").unpack_from
_I32: Final = struct.Struct("<i").unpack_from
_VTABLE_HEAD: Final = struct.Struct("<HH").unpack_from

Read: TypeAlias = "Callable[[Source, int], Any]"
"""Reads a value, given ``(source, position of the slot's value)``; the caller has checked the position."""


class Unknown(Invalid):
    """Raised for a variant or enum member that a newer schema may define."""


class Source:
    """The buffer that is being read, with the rest of its budget. Lives for one decode."""

    __slots__ = ("beyond", "budget", "depth", "raw", "size", "tables")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.size = len(raw)
        self.depth = self.tables = 0
        self.budget = _SHARING * len(raw)
        self.beyond: list[str] = []
        """Slots that have content and that only a newer schema has a name for, as ``AddData[7]``."""

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Invalid(f"nested deeper than {MAX_DEPTH} tables", rule="flatbuffers-depth")
        self.tables += 1
        if self.tables > MAX_TABLES:
            raise Invalid(f"more than {MAX_TABLES:,} parts", rule="flatbuffers-tables")

    def follow(self, position: int) -> int:
        """Returns the target of the offset at ``position``; four bytes there are in the buffer and charged."""
        offset: int = _U32(self.raw, position)[0]
        target = position + offset
        if offset < 4 or target > self.size - 4:
            raise Invalid("an offset points outside", rule="flatbuffers")
        self.spend(4)
        return target

    def vector(self, position: int, width: int) -> tuple[int, int]:
        """Returns the bounds of the vector that the offset at ``position`` points at; in the buffer and charged."""
        start = self.follow(position) + 4
        length = _U32(self.raw, start - 4)[0] * width
        if length > self.size - start:
            raise Invalid("a vector reaches beyond the end", rule="flatbuffers")
        self.spend(length)
        return start, start + length

    def spend(self, size: int) -> None:
        self.budget -= size
        if self.budget < 0:
            raise Invalid("parts overlap: there is more to read than bytes", rule="flatbuffers-budget")


def read_root(cls: type[msgspec.Struct], raw: bytes) -> tuple[Any, list[str]]:
    """Decodes the buffer's root table as class ``cls``; lists the unknown slots that it skipped. Raises Invalid."""
    if len(raw) < 8:
        raise Invalid(f"too short: {len(raw)} bytes", rule="flatbuffers", place="$")
    source = Source(raw)
    try:
        return _table_reader(cls)(source, 0), source.beyond
    except Invalid as fault:
        fault.place = "$" + fault.place
        raise


@functools.cache
def _table_reader(cls: type[msgspec.Struct]) -> Read:
    """Compiles the reader of a table, which is reached through an offset."""
    fields = fields_of(cls)
    plain = [
        (4 + 2 * field.slot, _width(field.kind), field.name, _reader(field.kind))
        for field in fields
        if not isinstance(field.kind, Union)
    ]
    unions = [
        (4 + 2 * field.slot, field.name, _LazyReaders(field.kind.variants))
        for field in fields
        if isinstance(field.kind, Union)
    ]
    defaults = {field.name: field.default for field in fields if field.default is not msgspec.NODEFAULT}
    known = 4 + 2 * slots_of(cls)

    def read(source: Source, position: int) -> Any:
        source.enter()
        at = source.follow(position)
        slots = _slots(source, at)
        values = defaults.copy()
        name = ""
        try:
            for entry, width, name, read_field in plain:
                if place := _place(source.raw, slots, entry, width):
                    values[name] = read_field(source, at + place)
            for entry, name, variants in unions:
                if (place := _place(source.raw, slots, entry, 1)) and (number := source.raw[at + place]):
                    value = _place(source.raw, slots, entry + 2, 4)
                    values[name] = variants.reader(number, value)(source, at + value)
        except Invalid as fault:
            fault.place = f".{name}{fault.place}"
            raise
        source.depth -= 1
        if slots[1] > known:
            _note_beyond(source, cls, slots, known)
        return _made(cls, values)

    return read


def _slots(source: Source, table: int) -> tuple[int, int, int]:
    """Returns position and size of a table's vtable, and the table's own size; all lie in the buffer."""
    vtable = table - _I32(source.raw, table)[0]
    if not 0 <= vtable <= source.size - 4:
        raise Invalid("a vtable lies outside the buffer", rule="flatbuffers")
    size, extent = _VTABLE_HEAD(source.raw, vtable)
    if size < 4 or size & 1 or vtable + size > source.size or extent < 4 or table + extent > source.size:
        raise Invalid("a broken vtable", rule="flatbuffers")
    source.spend(extent - 4)
    return vtable, size, extent


def _note_beyond(source: Source, cls: type[msgspec.Struct], slots: tuple[int, int, int], known: int) -> None:
    vtable, size, _ = slots
    if len(source.beyond) < _MOST_BEYOND and any(source.raw[vtable + known : vtable + size]):
        source.beyond += [
            f"{cls.__name__}[{(entry - 4) // 2}]"
            for entry in range(known, min(size, known + 2 * _MOST_BEYOND), 2)
            if any(source.raw[vtable + entry : vtable + entry + 2])
        ]


def _place(raw: bytes, slots: tuple[int, int, int], entry: int, width: int) -> int:
    """Returns the distance of a field from its table's start, checked to be inside; zero when the field is absent."""
    vtable, size, extent = slots
    if entry >= size:
        return 0
    place = raw[vtable + entry] | raw[vtable + entry + 1] << 8
    if place and (place < 4 or place + width > extent):
        raise Invalid("a field lies outside of its table", rule="flatbuffers")
    return place


def _made(cls: type[msgspec.Struct], values: dict[str, Any]) -> Any:
    try:
        return cls(**values)
    except TypeError as error:
        missing = next(each.name for each in fields_of(cls) if each.name not in values)
        raise Invalid(f"{cls.__name__} lacks it", rule="required-field", place="." + missing) from error


class _LazyReaders:
    """Readers of a union's variants, each compiled at its first use, since types may contain themselves."""

    __slots__ = ("variants",)

    def __init__(self, variants: tuple[type[msgspec.Struct], ...]) -> None:
        self.variants = variants

    def reader(self, number: int, value: int) -> Read:
        if number > len(self.variants):
            raise Unknown(f"variant {number} of a union that has {len(self.variants)}", rule="union-variant")
        if not value:
            raise Invalid(f"variant {number} of a union has no value", rule="union-variant")
        return _table_reader(self.variants[number - 1])


def _width(kind: Kind) -> int:
    match kind:
        case Number(size=size) | Choice(number=Number(size=size)):
            return size
        case Flag():
            return 1
        case Moment():
            return timestamp.SIZE
        case _:
            return 4


def _reader(kind: Kind) -> Read:
    match kind:
        case Number(code=code):
            return _number_reader(code)
        case Choice(options, number):
            return _choice_reader(tuple(options), number.code)
        case Flag():
            return lambda source, position: source.raw[position] != 0
        case Moment():
            return lambda source, position: timestamp.unpack(source.raw, position)
        case Text():
            return _read_text
        case Octets(of):
            return _octets_reader(of)
        case JsonObject():
            return _read_json_object
        case Table(of):
            return lambda source, position: _table_reader(of)(source, position)
        case Vector(item):
            return _vector_reader(item)
        case Union():
            raise TypeError("a union is read with its table")


def _number_reader(code: str) -> Read:
    unpack = struct.Struct("<" + code).unpack_from
    return lambda source, position: unpack(source.raw, position)[0]


def _choice_reader(options: tuple[Any, ...], code: str) -> Read:
    unpack = struct.Struct("<" + code).unpack_from

    def read(source: Source, position: int) -> Any:
        number = unpack(source.raw, position)[0]
        if not 0 <= number < len(options):
            raise Unknown(f"{type(options[0]).__name__} has no member {number}", rule="enum-member")
        return options[number]

    return read


def _read_octets(source: Source, position: int) -> bytes:
    start, end = source.vector(position, 1)
    return source.raw[start:end]


def _read_text(source: Source, position: int) -> str:
    start, end = source.vector(position, 1)
    if end >= source.size or source.raw[end]:
        raise Invalid("a text does not end with a zero byte", rule="flatbuffers")
    try:
        return source.raw[start:end].decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"not UTF-8: {error.reason} at byte {error.start}", rule="utf-8") from error


def _octets_reader(of: type[bytes]) -> Read:
    if of is bytes:
        return _read_octets
    make: Callable[[bytes], bytes] = getattr(of, "from_bytes")  # noqa: B009
    return lambda source, position: make(_read_octets(source, position))


def _read_json_object(source: Source, position: int) -> dict[str, object]:
    text = _table_reader(Entries)(source, position).entries
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(f"not a JSON object: {error}", rule="json") from error


def _vector_reader(item: Text | Table | Union) -> Read:
    read_item = _item_reader(item)
    wrapped = isinstance(item, Union)

    def read(source: Source, position: int) -> tuple[Any, ...]:
        start, end = source.vector(position, 4)
        items: list[Any] = []
        try:
            for slot in range(start, end, 4):
                items.append(read_item(source, slot))
        except Invalid as fault:
            fault.place = f"[{len(items)}]{fault.place}"
            raise
        return tuple(each.value for each in items) if wrapped else tuple(items)

    return read


def _item_reader(item: Text | Table | Union) -> Read:
    if isinstance(item, Text):
        return _read_text
    of = wrapper_of(item.variants) if isinstance(item, Union) else item.of
    return lambda source, position: _table_reader(of)(source, position)
