"""Derives how each model class lies on the wire from its annotations; there is no other list of fields.

Both directions of the FlatBuffers codec and the manifest codec are compiled from it. A layout is made on first use of a
class, never changes, and lives as long as the program. A class that cannot be laid out is a programming mistake and
raises TypeError at once. Spec: Reference / FlatBuffers schema; the model's notation is in ``model.wire``.
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.wire import Mark, Scalar
from chain.multihash import Multihash

MAX_DEPTH: Final = 64
"""Most levels of tables inside tables, read or written; the reference's own verifier stops at the same depth."""
_INTEGERS: Final = {
    "uint8": ("B", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "uint64": ("Q", 8),
}
_SLOTS: Final = 1
_UNION_SLOTS: Final = 2


@dataclass(frozen=True, slots=True)
class Number:
    """An integer of fixed width, little endian."""

    name: str
    code: str
    """Format character of the module ``struct``."""
    size: int

    @property
    def low(self) -> int:
        return -(1 << 8 * self.size - 1) if self.code.islower() else 0

    @property
    def high(self) -> int:
        return (1 << 8 * self.size - self.code.islower()) - 1


@dataclass(frozen=True, slots=True)
class Flag:
    """A boolean, one byte."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An enum, written as the number of the member in the declaration, from zero."""

    options: type[enum.Enum]
    number: Number


@dataclass(frozen=True, slots=True)
class Text:
    """A string, UTF-8."""


@dataclass(frozen=True, slots=True)
class Octets:
    """A vector of bytes; ``of`` is ``bytes``, or an identity class that checks the bytes it is made from."""

    of: type[bytes]


@dataclass(frozen=True, slots=True)
class Moment:
    """The 16-byte struct Timestamp."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The table ExtraAttributes: one string that holds a JSON object."""


class Entries(msgspec.Struct, frozen=True):
    entries: str


@dataclass(frozen=True, slots=True)
class Table:
    of: type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Union:
    """A union. It takes two slots: the number of the variant (from one, zero means absent) and its table."""

    variants: tuple[type[msgspec.Struct], ...]


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector of texts, tables or unions; unions are each wrapped in a table, as the format has no union vectors."""

    item: Text | Table | Union


Kind: TypeAlias = Number | Flag | Choice | Text | Octets | Moment | JsonObject | Table | Union | Vector


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    key: str
    """Name of the field in manifests and JSON, camelCase."""
    slot: int
    kind: Kind
    optional: bool
    """Whether the value may be ``None``; it is then left out of the encoding."""
    default: object
    """Value when the encoding leaves the field out; ``msgspec.NODEFAULT`` when that is an error."""
    required: bool
    """Whether a manifest must state the field, even if its encoding leaves out a zero."""


@functools.cache
def fields_of(cls: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Returns the fields of a model class in wire order."""
    fields = []
    slot = 0
    for info in msgspec.structs.fields(cls):
        kind, optional = _kind_of(info.type, f"{cls.__name__}.{info.name}")
        default = _default(info, kind, optional)
        fields.append(Field(info.name, info.encode_name, slot, kind, optional, default, info.required and not optional))
        slot += _UNION_SLOTS if isinstance(kind, Union) else _SLOTS
    return tuple(fields)


@functools.cache
def slots_of(cls: type[msgspec.Struct]) -> int:
    """Returns the number of slots in a vtable of this class."""
    fields = fields_of(cls)
    return fields[-1].slot + 1 + isinstance(fields[-1].kind, Union) if fields else 0


@functools.cache
def wrapper_of(variants: tuple[type[msgspec.Struct], ...]) -> type[msgspec.Struct]:
    """Makes the one-field table that wraps each union of a vector."""
    return msgspec.defstruct("Wrapper", [("value", typing.Union[variants])], frozen=True)  # noqa: UP007


def _default(info: msgspec.structs.FieldInfo, kind: Kind, optional: bool) -> object:
    if optional and info.required:
        return None
    if not info.required:
        if isinstance(kind, Number | Flag | Choice) and info.default not in (None, 0):
            raise TypeError(f"{info.name}: a scalar's default is zero on the wire")
        return info.default
    if isinstance(kind, Number):
        return 0
    if isinstance(kind, Flag):
        return False
    return next(iter(kind.options)) if isinstance(kind, Choice) else msgspec.NODEFAULT


def _kind_of(annotation: Any, place: str) -> tuple[Kind, bool]:
    marks: tuple[object, ...] = ()
    optional = False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = typing.get_args(annotation)
        kept = tuple(member for member in members if member is not types.NoneType)
        optional = len(kept) < len(members)
        if len(kept) > 1:
            return Union(tuple(_tagged(member, place) for member in kept)), optional
        annotation = kept[0]
    if typing.get_origin(annotation) is Annotated:
        annotation, *rest = typing.get_args(annotation)
        marks = tuple(rest)
    return _plain_kind(annotation, marks, place), optional


def _plain_kind(plain: Any, marks: tuple[object, ...], place: str) -> Kind:
    number = next((_number(mark.name) for mark in marks if isinstance(mark, Scalar)), None)
    names = {mark.name for mark in marks if isinstance(mark, Mark)}
    if typing.get_origin(plain) in (typing.Union, types.UnionType):
        return Union(tuple(_tagged(member, place) for member in typing.get_args(plain)))
    if typing.get_origin(plain) is tuple:
        return _vector(typing.get_args(plain), place)
    if plain is Instant and "timestamp" in names:
        return Moment()
    if typing.get_origin(plain) is dict and "json-object" in names:
        return JsonObject()
    if plain is bool:
        return Flag()
    if plain is str:
        return Text()
    if plain in (bytes, Multihash, DatasetId):
        return Octets(plain)
    if isinstance(plain, type) and issubclass(plain, enum.Enum) and number is not None:
        return Choice(plain, number)
    if plain is int and number is not None:
        return number
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        return Union((plain,)) if plain.__struct_config__.tag is not None else Table(plain)
    raise TypeError(f"{place}: no wire layout for {plain!r}")


def _vector(arguments: tuple[Any, ...], place: str) -> Vector:
    item, _ = _kind_of(arguments[0], place)
    if not isinstance(item, Text | Table | Union):
        raise TypeError(f"{place}: no wire layout for a vector of {item}")
    return Vector(item)


def _tagged(member: Any, place: str) -> type[msgspec.Struct]:
    if isinstance(member, type) and issubclass(member, msgspec.Struct) and member.__struct_config__.tag is not None:
        return member
    raise TypeError(f"{place}: a union's alternatives are tagged structs, not {member!r}")


def _number(name: str) -> Number:
    return Number(name, *_INTEGERS[name])
