"""Converts logical types of ODF to types of Arrow and back, without loss in what both can express.

Pure functions. ``Option`` is Arrow's nullable flag; attributes of fields and schemas travel in Arrow metadata under one
key. Encodings (large or viewed text, dictionaries of a file) are not types and are not kept (ODF RFC-016).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Final

import msgspec

from chain.data.type_limits import check_depth, check_schema, check_types, refusal
from chain.data.uuids import EXTRA_KEY, as_uuid
from chain.errors import Invalid
from chain.libraries import pa
from chain.model import schema as odf
from chain.model.schema import DataField, DataSchema, DataType, TimeUnit

_UNITS: Final = {
    TimeUnit.SECOND: "s",
    TimeUnit.MILLISECOND: "ms",
    TimeUnit.MICROSECOND: "us",
    TimeUnit.NANOSECOND: "ns",
}
_NO_ZONE: Final = ""
"""Stands, within this module, for the zone of an Arrow timestamp without one; ODF has no such type."""
_LOCAL: Final = "a timestamp without a time zone"
_UNKNOWN: Final = odf.Null()
"""Stands for a type that ODF does not know; recognized by identity (``is``)."""
_UNIT_OF: Final = {arrow: unit for unit, arrow in _UNITS.items()}


def to_arrow(schema: DataSchema) -> pa.Schema:
    """Returns the Arrow schema of rows of ``schema``. Raises Invalid, with the place, for types that Arrow lacks."""
    check_schema(schema)
    return pa.schema([_to_field(field) for field in schema.fields], metadata=_to_metadata(schema.extra))


def from_arrow(schema: pa.Schema) -> DataSchema:
    """Returns the logical types of an Arrow schema. Raises Invalid for types that ODF does not know."""
    fields = tuple(_from_field(field, 0) for field in schema)
    for field in fields:
        if _has_local_time(field.type):
            error = refusal(_LOCAL, "say the zone: timestamps of a dataset are in UTC")
            error.place = field.name
            raise error
    return DataSchema(fields=fields, extra=_from_metadata(schema.metadata, "schema"))


class Difference(msgspec.Struct, frozen=True):
    """A place at which the type of the data is not the declared one."""

    place: str
    expected: str
    actual: str


def differences(declared: DataSchema, actual: pa.Schema) -> list[Difference]:
    """Lists where rows of ``actual`` do not fit ``declared``: columns in order, by name and type.

    Rows without nulls fit where nulls are allowed, not the other way round. Encodings and attributes are ignored. Where
    the declared schema names no zone, times without one fit, since engines wrote them so. Raises Invalid for declared
    types that rows cannot have.
    """
    check_types(declared.fields)
    columns: list[DataField] = []
    found: list[Difference] = []
    for field in actual:
        try:
            columns.append(_from_field(field, 0))
        except Invalid:
            columns.append(DataField(name=field.name, type=_UNKNOWN))
            found.append(Difference(field.name, "a type that ODF knows", str(field.type)))
    return found + list(_compare_fields(declared.fields, tuple(columns), ""))


def _compare_fields(declared: tuple[DataField, ...], actual: tuple[DataField, ...], above: str) -> Iterator[Difference]:
    for one, other in itertools.zip_longest(declared, actual):
        if one is None or other is None or one.name != other.name:
            place = above + (one or other).name
            yield Difference(place, one.name if one else "no column", other.name if other else "no column")
            return
        if other.type is not _UNKNOWN:
            yield from _compare(one.type, other.type, above + one.name)


def _compare(declared: DataType, actual: DataType, place: str) -> Iterator[Difference]:
    expected_inner = declared.inner if isinstance(declared, odf.Option) else declared
    actual_inner = actual.inner if isinstance(actual, odf.Option) else actual
    if isinstance(actual, odf.Option) and not isinstance(declared, odf.Option):
        yield Difference(place, f"{_word(declared)} without nulls", f"{_word(actual)} with nulls")
    elif isinstance(expected_inner, odf.Struct) and isinstance(actual_inner, odf.Struct):
        yield from _compare_fields(expected_inner.fields, actual_inner.fields, place + ".")
    elif (
        isinstance(expected_inner, odf.List)
        and isinstance(actual_inner, odf.List)
        and expected_inner.fixed_length == actual_inner.fixed_length
    ):
        yield from _compare(expected_inner.item_type, actual_inner.item_type, place + "[]")
    elif isinstance(expected_inner, odf.Map) and isinstance(actual_inner, odf.Map):
        yield from _compare(expected_inner.key_type, actual_inner.key_type, place + ".key")
        yield from _compare(expected_inner.value_type, actual_inner.value_type, place + ".value")
    elif isinstance(actual_inner, odf.Timestamp) and actual_inner.timezone == _NO_ZONE:
        unsaid = odf.Timestamp(unit=actual_inner.unit)
        if expected_inner not in (unsaid, odf.Timestamp() if unsaid.unit is TimeUnit.MILLISECOND else unsaid):
            yield Difference(place, _word(expected_inner), _LOCAL)
    elif _to_type(expected_inner) != _to_type(actual_inner):
        yield Difference(place, _word(expected_inner), _word(actual_inner))


def _word(type_: DataType) -> str:
    inner = type_.inner if isinstance(type_, odf.Option) else type_
    return _LOCAL if _has_local_time(inner) else str(_to_type(inner))


def _has_local_time(type_: DataType) -> bool:
    match type_:
        case odf.Timestamp(timezone=zone):
            return zone == _NO_ZONE
        case odf.Option(inner=inner) | odf.List(item_type=inner):
            return _has_local_time(inner)
        case odf.Map(key_type=key, value_type=value):
            return _has_local_time(key) or _has_local_time(value)
        case odf.Struct(fields=fields):
            return any(_has_local_time(field.type) for field in fields)
    return False


def _to_field(field: DataField) -> pa.Field:
    return _named(field.name, field.type).with_metadata(_to_metadata(field.extra))


def _named(name: str, type_: DataType) -> pa.Field:
    nullable = isinstance(type_, odf.Option)
    inner = type_.inner if isinstance(type_, odf.Option) else type_
    return pa.field(name, _to_type(inner), nullable=nullable or isinstance(inner, odf.Null))


def _to_type(type_: DataType) -> pa.DataType:
    """Returns the type of Arrow for one that ``check_types`` has passed, or that Arrow gave."""
    if (plain := _plain_types().get(type(type_))) is not None:
        return plain
    match type_:
        case odf.Binary(fixed_length=None):
            return pa.binary()
        case odf.Binary(fixed_length=size):
            return pa.binary(size)
        case odf.Decimal(precision=precision, scale=scale):
            return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
        case odf.Duration(unit=unit):
            return pa.duration(_unit(unit))
        case odf.Time(unit=unit):
            short = _unit(unit)
            return pa.time32(short) if short in ("s", "ms") else pa.time64(short)
        case odf.Timestamp(unit=unit, timezone=zone):
            return pa.timestamp(_unit(unit), zone or "UTC")
        case odf.List(item_type=item, fixed_length=size):
            element = _named("item", item)
            return pa.list_(element) if size is None else pa.list_(element, size)
        case odf.Map(key_type=key, value_type=value, keys_sorted=is_sorted):
            return pa.map_(_named("key", key), _named("value", value), keys_sorted=bool(is_sorted))
        case odf.Struct(fields=fields):
            return pa.struct([_to_field(field) for field in fields])
    raise TypeError(f"no type of Arrow for {type(type_).__name__}")


def _unit(unit: TimeUnit | None) -> str:
    return _UNITS[unit or TimeUnit.MILLISECOND]


def _from_field(field: pa.Field, depth: int) -> DataField:
    try:
        type_ = _from_slot(field, depth)
        found = DataField(name=field.name, type=type_, extra=_from_metadata(field.metadata, field.name))
        return as_uuid(found) if isinstance(field.type, pa.UuidType) else found
    except Invalid as error:
        error.place = f"{field.name}.{error.place}" if error.place else field.name
        raise


def _from_slot(field: pa.Field, depth: int) -> DataType:
    inner = _from_type(field.type, depth)
    return odf.Option(inner=inner) if field.nullable and not isinstance(inner, odf.Null) else inner


def _from_type(arrow: pa.DataType, depth: int) -> DataType:
    check_depth(depth)
    t = pa.types
    if (plain := _plain_types_of_arrow().get(arrow)) is not None:
        return plain
    if isinstance(arrow, pa.UuidType):
        return odf.Binary(fixed_length=arrow.byte_width)
    if t.is_fixed_size_binary(arrow) and not isinstance(arrow, pa.BaseExtensionType):
        return odf.Binary(fixed_length=arrow.byte_width)
    if t.is_decimal(arrow):
        return odf.Decimal(precision=arrow.precision, scale=arrow.scale)
    if t.is_duration(arrow):
        return odf.Duration(unit=_UNIT_OF[arrow.unit])
    if t.is_time(arrow):
        return odf.Time(unit=_UNIT_OF[arrow.unit])
    if t.is_timestamp(arrow):
        return odf.Timestamp(unit=_UNIT_OF[arrow.unit], timezone=_NO_ZONE if arrow.tz is None else arrow.tz)
    if t.is_list(arrow) or t.is_large_list(arrow) or t.is_list_view(arrow) or t.is_large_list_view(arrow):
        return odf.List(item_type=_from_slot(arrow.value_field, depth + 1))
    if t.is_fixed_size_list(arrow):
        return odf.List(item_type=_from_slot(arrow.value_field, depth + 1), fixed_length=arrow.list_size)
    if t.is_map(arrow):
        return odf.Map(
            key_type=_from_slot(arrow.key_field, depth + 1),
            value_type=_from_slot(arrow.item_field, depth + 1),
            keys_sorted=arrow.keys_sorted or None,
        )
    if t.is_struct(arrow):
        return odf.Struct(fields=tuple(_from_field(arrow.field(i), depth + 1) for i in range(arrow.num_fields)))
    raise refusal(f"the Arrow type {arrow}", "cast the column to a type that ODF knows")


def _to_metadata(extra: dict[str, object] | None) -> dict[bytes, bytes] | None:
    return None if extra is None else {EXTRA_KEY: msgspec.json.encode(extra, order="sorted")}


def _from_metadata(metadata: dict[bytes, bytes] | None, place: str) -> dict[str, object] | None:
    raw = (metadata or {}).get(EXTRA_KEY)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the attributes of {place} are not JSON: {error}", rule="schema-attributes") from error


@functools.cache
def _plain_types() -> dict[type[DataType], pa.DataType]:
    return {type(plain): arrow for plain, arrow in _plain_pairs()}


@functools.cache
def _plain_types_of_arrow() -> dict[pa.DataType, DataType]:
    return {
        **{arrow: plain for plain, arrow in _plain_pairs()},
        pa.date64(): odf.Date(),
        pa.large_string(): odf.String(),
        pa.string_view(): odf.String(),
        pa.binary(): odf.Binary(),
        pa.large_binary(): odf.Binary(),
        pa.binary_view(): odf.Binary(),
    }


def _plain_pairs() -> tuple[tuple[DataType, pa.DataType], ...]:
    return (
        (odf.Bool(), pa.bool_()),
        (odf.Date(), pa.date32()),
        (odf.Float16(), pa.float16()),
        (odf.Float32(), pa.float32()),
        (odf.Float64(), pa.float64()),
        (odf.Int8(), pa.int8()),
        (odf.Int16(), pa.int16()),
        (odf.Int32(), pa.int32()),
        (odf.Int64(), pa.int64()),
        (odf.UInt8(), pa.uint8()),
        (odf.UInt16(), pa.uint16()),
        (odf.UInt32(), pa.uint32()),
        (odf.UInt64(), pa.uint64()),
        (odf.Null(), pa.null()),
        (odf.String(), pa.string()),
    )
