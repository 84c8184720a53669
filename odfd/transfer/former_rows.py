"""Converts rows of ODF 0.18 to the present format, and computes the digest that the former format has of them.

Rows get ``offset`` and ``op``; all else stays. The former digest is SHA-256 of the rows as sorted lines of CSV, with
columns in the order of their names and without the system time, as the engine of the time wrote them (Spark, and
``sort``). The text is known for some types only; for others the result is ``None``. Pure.
"""

from __future__ import annotations

import hashlib
from functools import reduce
from typing import Final

from chain.data.parquet import OFFSET, OP, SYSTEM_TIME
from chain.errors import Invalid
from chain.libraries import np, pa, pc

RULE: Final = "former-data"
MAX_DIGEST_ROWS: Final = 2_000_000
"""Most rows of one slice that are sorted in memory; the digest of a larger one is not computed."""
_SPECIAL: Final = r'[,"\\\n\r]|^\s|\s$|^#'
"""Matches texts that the CSV of that time wrote differently depending on its settings."""


def present_schema(former: pa.Schema, system_time: str, event_time: str) -> pa.Schema:
    """Returns the schema of rows in the present format. Raises Invalid for columns that it cannot have."""
    names = former.names
    for name in (system_time, event_time):
        if name not in names:
            raise Invalid(f"rows have no column {name!r}", rule=RULE, hint="is it a dataset of ODF 0.18?")
    for name in (OFFSET, OP):
        if name in names:
            raise Invalid(
                f"rows have a column {name!r}, which the present format keeps for itself",
                rule=RULE,
                hint="such a dataset is not converted",
            )
    fields = [
        pa.field(OFFSET, pa.int64(), nullable=False),
        pa.field(OP, pa.int32(), nullable=False),
        pa.field(system_time, _present_type(former.field(system_time).type), nullable=False),
        pa.field(event_time, _present_type(former.field(event_time).type), nullable=False),
    ]
    others = [name for name in names if name not in (system_time, event_time)]
    return pa.schema([*fields, *(pa.field(name, _present_type(former.field(name).type)) for name in others)])


def _present_type(former: pa.DataType) -> pa.DataType:
    """Returns the present type: times of that engine were instants, at most in microseconds, whatever its files say."""
    if pa.types.is_timestamp(former):
        return pa.timestamp("us" if former.unit == "ns" else former.unit, "UTC")
    return former


def present_rows(rows: pa.RecordBatch, schema: pa.Schema, start: int) -> pa.RecordBatch:
    """Returns rows under a schema, numbered from ``start``; columns that they lack are null. Raises Invalid."""
    columns, there = [], set(rows.schema.names)
    for field in schema:
        if field.name == OFFSET:
            columns.append(pa.array(np.arange(start, start + rows.num_rows, dtype=np.int64)))
        elif field.name == OP:
            columns.append(pa.array(np.zeros(rows.num_rows, dtype=np.int32)))
        elif field.name in there:
            columns.append(_present(rows.column(field.name), field))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
        if not field.nullable and columns[-1].null_count:
            raise Invalid(f"column {field.name!r} is empty in a row, which the present format does not take", rule=RULE)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _present(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        if pa.types.is_timestamp(column.type) and column.type.tz is None:
            return pc.assume_timezone(column, "UTC").cast(field.type)
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise Invalid(
            f"values of column {field.name!r} do not fit {field.type}: {str(error)[:200]}",
            rule=RULE,
            hint="such rows are not converted, since something of them would be lost",
        ) from error


def former_digest(rows: pa.Table, system_time: str = SYSTEM_TIME) -> str | None:
    """Computes the former digest of rows of the present format; ``None`` where their text is not known."""
    names = sorted(name for name in rows.column_names if name not in (OFFSET, OP, system_time))
    if rows.num_rows > MAX_DIGEST_ROWS or not names:
        return None
    texts = [text for name in names if (text := _text(rows.column(name))) is not None]
    if len(texts) < len(names):
        return None
    lines = reduce(lambda left, right: pc.binary_join_element_wise(left, right, ","), texts)
    if isinstance(lines, pa.ChunkedArray):
        lines = lines.combine_chunks()
    ordered = lines.cast(pa.large_binary()).take(pc.sort_indices(lines.cast(pa.large_binary())))
    digest = hashlib.sha256()
    ended = pc.binary_join_element_wise(ordered, pa.scalar(b"", pa.large_binary()), pa.scalar(b"\n", pa.large_binary()))
    digest.update(memoryview(ended.buffers()[2])[: _size(ended)])
    return digest.hexdigest()


def _size(values: pa.Array) -> int:
    """Returns the bytes of all values together."""
    return int(pc.sum(pc.binary_length(values)).as_py() or 0)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Returns a column as the CSV of that time had it; ``None`` if that is not known."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        text = column.cast(pa.string())
    elif pa.types.is_timestamp(kind):
        text = pc.strftime(column.cast(pa.timestamp("ms", "UTC"), safe=False), "%Y-%m-%dT%H:%M:%SZ")
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = column.cast(pa.string())
        doubtful = pc.or_kleene(pc.match_substring_regex(text, _SPECIAL), pc.equal(text, ""))
        if pc.any(doubtful).as_py():
            return None
    else:
        return None
    return text.fill_null("")
