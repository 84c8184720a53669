"""Declares the logical types of data and the schema of a dataset (spec: DataSchema, DataField, DataType)."""

from __future__ import annotations

import enum
from typing import Annotated, Final, TypeAlias

import msgspec

from chain.model.wire import I32, U32, U64, Extra, Scalar

MAX_COLUMNS: Final = 10_000
"""Most columns and members of structs that a schema of ours declares, at all depths together."""
MAX_NAME: Final = 1024
"""Most characters of a column's name; the longest headers that people publish are questions of surveys."""


class TimeUnit(enum.Enum):
    """Declared in wire order (int16, from zero)."""

    SECOND = "Second"
    MILLISECOND = "Millisecond"
    MICROSECOND = "Microsecond"
    NANOSECOND = "Nanosecond"


Unit = Annotated[TimeUnit, Scalar("int16")]


class _Type(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
):
    """One logical type; in manifests ``{kind: Timestamp, unit: …}`` or just ``Timestamp``."""


class Binary(_Type, frozen=True, kw_only=True, tag="Binary"):
    fixed_length: U64 | None = None


class Bool(_Type, frozen=True, kw_only=True, tag="Bool"): ...


class Date(_Type, frozen=True, kw_only=True, tag="Date"): ...


class Decimal(_Type, frozen=True, kw_only=True, tag="Decimal"):
    precision: U32
    scale: I32


class Duration(_Type, frozen=True, kw_only=True, tag="Duration"):
    unit: Unit | None = None


class Float16(_Type, frozen=True, kw_only=True, tag="Float16"): ...


class Float32(_Type, frozen=True, kw_only=True, tag="Float32"): ...


class Float64(_Type, frozen=True, kw_only=True, tag="Float64"): ...


class Int8(_Type, frozen=True, kw_only=True, tag="Int8"): ...


class Int16(_Type, frozen=True, kw_only=True, tag="Int16"): ...


class Int32(_Type, frozen=True, kw_only=True, tag="Int32"): ...


class Int64(_Type, frozen=True, kw_only=True, tag="Int64"): ...


class UInt8(_Type, frozen=True, kw_only=True, tag="UInt8"): ...


class UInt16(_Type, frozen=True, kw_only=True, tag="UInt16"): ...


class UInt32(_Type, frozen=True, kw_only=True, tag="UInt32"): ...


class UInt64(_Type, frozen=True, kw_only=True, tag="UInt64"): ...


class List(_Type, frozen=True, kw_only=True, tag="List"):
    item_type: DataType
    fixed_length: U64 | None = None


class Map(_Type, frozen=True, kw_only=True, tag="Map"):
    key_type: DataType
    value_type: DataType
    keys_sorted: bool | None = None


class Null(_Type, frozen=True, kw_only=True, tag="Null"): ...


class Option(_Type, frozen=True, kw_only=True, tag="Option"):
    """A value that may be null."""

    inner: DataType


class Struct(_Type, frozen=True, kw_only=True, tag="Struct"):
    fields: tuple[DataField, ...]


class Time(_Type, frozen=True, kw_only=True, tag="Time"):
    unit: Unit | None = None


class Timestamp(_Type, frozen=True, kw_only=True, tag="Timestamp"):
    """A timestamp, by default in milliseconds and UTC."""

    unit: Unit | None = None
    timezone: str | None = None


class String(_Type, frozen=True, kw_only=True, tag="String"): ...


DataType: TypeAlias = (
    Binary
    | Bool
    | Date
    | Decimal
    | Duration
    | Float16
    | Float32
    | Float64
    | Int8
    | Int16
    | Int32
    | Int64
    | UInt8
    | UInt16
    | UInt32
    | UInt64
    | List
    | Map
    | Null
    | Option
    | Struct
    | Time
    | Timestamp
    | String
)
"""Any logical type, in wire order."""


class DataField(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    name: str
    type: DataType
    extra: Extra | None = None


class DataSchema(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    fields: tuple[DataField, ...]
    extra: Extra | None = None
