"""Reads the legacy form of a schema, an Arrow IPC ``Schema`` inside of SetDataSchema, as ODF's own types.

Nothing is written in this form. It is read by the same bounded reader as blocks, so that hostile bytes never reach a
native parser. Types that ODF does not have (dictionaries, unions, intervals) are Invalid. Spec: Arrow columnar format,
Schema.fbs; ODF DataSchema.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from chain.codec import flat
from chain.errors import Invalid
from chain.model import schema as odf
from chain.model.events import SetDataSchema
from chain.model.schema import DataField, DataSchema, DataType, TimeUnit
from chain.model.wire import I32, Scalar

_I16: TypeAlias = Annotated[int, Scalar("int16")]
_UNITS: Final = tuple(TimeUnit)
_MILLISECOND: Final = 1
_SIGNED: Final[dict[int, DataType]] = {8: odf.Int8(), 16: odf.Int16(), 32: odf.Int32(), 64: odf.Int64()}
_UNSIGNED: Final[dict[int, DataType]] = {8: odf.UInt8(), 16: odf.UInt16(), 32: odf.UInt32(), 64: odf.UInt64()}
_FLOATS: Final[tuple[DataType, ...]] = (odf.Float16(), odf.Float32(), odf.Float64())


class _Variant(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A variant of Arrow's union Type. A scalar whose default is not zero is ``None`` when the bytes leave it out."""


class _Null(_Variant, frozen=True, kw_only=True, tag="Null"): ...


class _Int(_Variant, frozen=True, kw_only=True, tag="Int"):
    bit_width: I32
    is_signed: bool


class _FloatingPoint(_Variant, frozen=True, kw_only=True, tag="FloatingPoint"):
    precision: _I16


class _Binary(_Variant, frozen=True, kw_only=True, tag="Binary"): ...


class _Utf8(_Variant, frozen=True, kw_only=True, tag="Utf8"): ...


class _Bool(_Variant, frozen=True, kw_only=True, tag="Bool"): ...


class _Decimal(_Variant, frozen=True, kw_only=True, tag="Decimal"):
    precision: I32
    scale: I32


class _Date(_Variant, frozen=True, kw_only=True, tag="Date"): ...


class _Time(_Variant, frozen=True, kw_only=True, tag="Time"):
    unit: _I16 | None = None


class _Timestamp(_Variant, frozen=True, kw_only=True, tag="Timestamp"):
    unit: _I16
    timezone: str | None = None


class _Interval(_Variant, frozen=True, kw_only=True, tag="Interval"): ...


class _List(_Variant, frozen=True, kw_only=True, tag="List"): ...


class _Struct(_Variant, frozen=True, kw_only=True, tag="Struct"): ...


class _Union(_Variant, frozen=True, kw_only=True, tag="Union"): ...


class _FixedSizeBinary(_Variant, frozen=True, kw_only=True, tag="FixedSizeBinary"):
    byte_width: I32


class _FixedSizeList(_Variant, frozen=True, kw_only=True, tag="FixedSizeList"):
    list_size: I32


class _Map(_Variant, frozen=True, kw_only=True, tag="Map"):
    keys_sorted: bool


class _Duration(_Variant, frozen=True, kw_only=True, tag="Duration"):
    unit: _I16 | None = None


class _LargeBinary(_Variant, frozen=True, kw_only=True, tag="LargeBinary"): ...


class _LargeUtf8(_Variant, frozen=True, kw_only=True, tag="LargeUtf8"): ...


class _LargeList(_Variant, frozen=True, kw_only=True, tag="LargeList"): ...


class _RunEndEncoded(_Variant, frozen=True, kw_only=True, tag="RunEndEncoded"): ...


class _BinaryView(_Variant, frozen=True, kw_only=True, tag="BinaryView"): ...


class _Utf8View(_Variant, frozen=True, kw_only=True, tag="Utf8View"): ...


_Type: TypeAlias = (
    _Null
    | _Int
    | _FloatingPoint
    | _Binary
    | _Utf8
    | _Bool
    | _Decimal
    | _Date
    | _Time
    | _Timestamp
    | _Interval
    | _List
    | _Struct
    | _Union
    | _FixedSizeBinary
    | _FixedSizeList
    | _Map
    | _Duration
    | _LargeBinary
    | _LargeUtf8
    | _LargeList
    | _RunEndEncoded
    | _BinaryView
    | _Utf8View
)


class _Dictionary(msgspec.Struct, frozen=True): ...


class _Field(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    nullable: bool
    type: _Type
    dictionary: _Dictionary | None = None
    children: tuple[_Field, ...] = ()


class _Schema(msgspec.Struct, frozen=True, kw_only=True):
    endianness: _I16
    fields: tuple[_Field, ...] = ()


def schema_of(event: SetDataSchema) -> DataSchema:
    """Returns the schema that an event declares, in either form. Raises Invalid when there is no readable one."""
    if event.schema is not None:
        return event.schema
    if event.raw_arrow_schema is None:
        raise Invalid("SetDataSchema holds no schema", rule="schema-present")
    return DataSchema(fields=tuple(_field(field) for field in flat.decode(_Schema, event.raw_arrow_schema).fields))


def _field(field: _Field) -> DataField:
    return DataField(name=field.name or "", type=_nullable(field))


def _nullable(field: _Field) -> DataType:
    inner = _type(field)
    return odf.Option(inner=inner) if field.nullable and not isinstance(inner, odf.Null) else inner


def _type(field: _Field) -> DataType:
    if field.dictionary is not None:
        raise _unsupported(field, "a dictionary")
    match field.type:
        case _Int(bit_width=bits, is_signed=signed) if bits in _SIGNED:
            return (_SIGNED if signed else _UNSIGNED)[bits]
        case _FloatingPoint(precision=precision) if 0 <= precision < len(_FLOATS):
            return _FLOATS[precision]
        case _Decimal(precision=precision, scale=scale) if precision >= 0:
            return odf.Decimal(precision=precision, scale=scale)
        case _Time(unit=unit):
            return odf.Time(unit=_unit(field, unit))
        case _Duration(unit=unit):
            return odf.Duration(unit=_unit(field, unit))
        case _Timestamp(unit=unit, timezone=timezone):
            return odf.Timestamp(unit=_unit(field, unit), timezone=timezone)
        case _FixedSizeBinary(byte_width=width) if width >= 0:
            return odf.Binary(fixed_length=width)
        case _Null():
            return odf.Null()
        case _Bool():
            return odf.Bool()
        case _Date():
            return odf.Date()
        case _Binary() | _LargeBinary() | _BinaryView():
            return odf.Binary()
        case _Utf8() | _LargeUtf8() | _Utf8View():
            return odf.String()
        case _:
            return _nested_type(field)


def _nested_type(field: _Field) -> DataType:
    match field.type, field.children:
        case ((_List() | _LargeList()), (item,)):
            return odf.List(item_type=_nullable(item))
        case _FixedSizeList(list_size=size), (item,) if size >= 0:
            return odf.List(item_type=_nullable(item), fixed_length=size)
        case _Struct(), children:
            return odf.Struct(fields=tuple(_field(child) for child in children))
        case _Map(keys_sorted=keys_sorted), (_Field(children=(key, value)),):
            return odf.Map(key_type=_type(key), value_type=_nullable(value), keys_sorted=keys_sorted)
        case _:
            raise _unsupported(field, f"the Arrow type {field.type.__struct_config__.tag}")


def _unit(field: _Field, number: int | None) -> TimeUnit:
    number = _MILLISECOND if number is None else number
    if not 0 <= number < len(_UNITS):
        raise _unsupported(field, f"time unit {number}")
    return _UNITS[number]


def _unsupported(field: _Field, what: str) -> Invalid:
    return Invalid(f"column {field.name!r} has {what}, for which ODF has no type", rule="legacy-schema")
