"""Schemas of every type, nested, optional, with attributes: strategies; and the form that old chains hold."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from chain.model import schema as odf
from chain.model.schema import DataField, DataSchema, DataType, TimeUnit

UNITS = st.sampled_from(TimeUnit)
LEAVES: st.SearchStrategy[DataType] = st.one_of(
    st.sampled_from([odf.Bool(), odf.Date(), odf.Float16(), odf.Float32(), odf.Float64(), odf.String(), odf.Binary()]),
    st.sampled_from([odf.Int8(), odf.Int16(), odf.Int32(), odf.Int64()]),
    st.sampled_from([odf.UInt8(), odf.UInt16(), odf.UInt32(), odf.UInt64()]),
    st.builds(odf.Binary, fixed_length=st.integers(1, 64)),
    st.integers(1, 76).flatmap(lambda p: st.builds(odf.Decimal, precision=st.just(p), scale=st.integers(-5, p))),
    st.builds(odf.Duration, unit=UNITS),
    st.builds(odf.Time, unit=UNITS),
    st.builds(odf.Timestamp, unit=UNITS, timezone=st.sampled_from(["UTC", "Europe/Berlin", "+02:00"])),
)
EXTRA = st.none() | st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=2)


def optional(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    return inner | st.builds(odf.Option, inner=inner)


def fields(inner: st.SearchStrategy[DataType], **size: Any) -> st.SearchStrategy[tuple[DataField, ...]]:
    one = st.builds(DataField, name=st.text(min_size=1, max_size=5), type=optional(inner), extra=EXTRA)
    return st.lists(one, unique_by=lambda field: field.name, **size).map(tuple)


def nested(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    return st.one_of(
        st.builds(odf.List, item_type=optional(inner), fixed_length=st.none() | st.integers(1, 5)),
        st.builds(odf.Map, key_type=inner, value_type=optional(inner), keys_sorted=st.sampled_from([None, True])),
        st.builds(odf.Struct, fields=fields(inner, min_size=1, max_size=3)),
    )


SCHEMAS = st.builds(DataSchema, fields=fields(st.recursive(LEAVES, nested, max_leaves=6), max_size=5), extra=EXTRA)


def legacy(schema: pa.Schema) -> bytes:
    """What ``rawArrowSchema`` holds: the Schema table of an Arrow IPC message, re-rooted as a buffer of its own."""
    message = schema.serialize().to_pybytes()[8:]
    root = struct.unpack_from("<I", message)[0]
    vtable = root - struct.unpack_from("<i", message, root)[0]
    header = root + struct.unpack_from("<H", message, vtable + 8)[0]
    table = header + struct.unpack_from("<I", message, header)[0]
    return struct.pack("<I", table) + bytes(message[4:])
