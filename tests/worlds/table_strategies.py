"""Hypothesis strategies for Arrow types and tables of every shape that has a logical hash."""

from __future__ import annotations

import decimal

import pyarrow as pa
from hypothesis import strategies as st

NUMBERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TIMES = [
    pa.date32(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.timestamp("s"),
    pa.timestamp("ms", "UTC"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.timestamp("ns", "UTC"),
]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary(3)]
SIMPLE = [
    *NUMBERS, *TIMES, *TEXTS, pa.bool_(), pa.float16(), pa.float32(), pa.float64(),
    pa.decimal32(9, 2), pa.decimal64(18, 3), pa.decimal128(9, 2), pa.decimal128(38, 10), pa.decimal256(60, 7),
]  # fmt: skip


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2, within_list: bool = False) -> pa.DataType:
    shape = draw(st.sampled_from(["simple", "simple", "struct", "list", "fixed"])) if depth else "simple"
    if shape == "simple" or (shape == "struct" and within_list):
        return draw(st.sampled_from(SIMPLE))
    if shape == "struct":
        children = draw(st.lists(st.tuples(kinds(depth - 1), st.booleans()), min_size=1, max_size=3))
        return pa.struct([pa.field(f"f{i}", kind, nullable) for i, (kind, nullable) in enumerate(children)])
    item = pa.field("element", draw(kinds(depth - 1, within_list=True)), draw(st.booleans()))
    return pa.list_(item, 2) if shape == "fixed" else draw(st.sampled_from([pa.list_, pa.large_list]))(item)


def values(kind: pa.DataType) -> st.SearchStrategy[object]:
    """Python values that ``pa.array`` takes for ``kind``, never null."""
    t = pa.types
    if t.is_boolean(kind):
        return st.booleans()
    if t.is_integer(kind):
        low = -(1 << (kind.bit_width - 1)) if t.is_signed_integer(kind) else 0
        return st.integers(low, (1 << (kind.bit_width - t.is_signed_integer(kind))) - 1)
    if t.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if t.is_date(kind):
        return st.integers(-100_000, 100_000)
    if t.is_time(kind):
        return st.integers(0, 86_399)
    if t.is_timestamp(kind):
        return st.integers(-(10**9), 10**9)
    if t.is_decimal(kind):
        top = 10 ** min(kind.precision, 30) - 1
        return st.integers(-top, top).map(
            lambda n: decimal.Decimal(n).scaleb(-kind.scale, decimal.Context(prec=kind.precision))
        )
    if t.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if t.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return st.fixed_dictionaries({field.name: cells(field) for field in fields})
    if t.is_fixed_size_list(kind):
        return st.lists(cells(kind.value_field), min_size=kind.list_size, max_size=kind.list_size)
    if t.is_list(kind) or t.is_large_list(kind):
        return st.lists(cells(kind.value_field), max_size=3)
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return st.text(max_size=5)
    return st.binary(max_size=5)


def cells(field: pa.Field) -> st.SearchStrategy[object]:
    return st.none() | values(field.type) if field.nullable else values(field.type)


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 12) -> pa.Table:
    shapes = draw(st.lists(st.tuples(kinds(), st.booleans()), min_size=1, max_size=4))
    fields = [pa.field(f"c{i}", kind, nullable) for i, (kind, nullable) in enumerate(shapes)]
    rows = draw(st.integers(0, max_rows))
    columns = [pa.array(draw(st.lists(cells(f), min_size=rows, max_size=rows)), f.type) for f in fields]
    return pa.table(columns, schema=pa.schema(fields))
