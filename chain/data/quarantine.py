"""Builds the rows of a quarantine dataset, which keeps the records that another dataset could not read. Pure.

A row is a record: its place in the file, its text, and why it could not be read. ``event_time`` is the time of the
transaction that read it, and ``follows`` the block of the other dataset that this transaction followed.
"""

from __future__ import annotations

import functools
from typing import Final

from chain.data.arrow_schema import to_arrow
from chain.instant import Instant, to_millis
from chain.libraries import np, pa
from chain.model import schema as odf
from chain.model.schema import DataField, DataSchema, Option, TimeUnit

_TIME: Final = odf.Timestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
_APPEND: Final = 0
SCHEMA: Final = DataSchema(
    fields=(
        DataField(name="offset", type=odf.Int64()),
        DataField(name="op", type=odf.Int32()),
        DataField(name="system_time", type=_TIME),
        DataField(name="event_time", type=_TIME),
        DataField(name="file", type=odf.String()),
        DataField(name="line", type=odf.Int64()),
        DataField(name="column", type=Option(inner=odf.String())),
        DataField(name="raw", type=odf.String()),
        DataField(name="reason", type=odf.String()),
        DataField(name="rule", type=odf.String()),
        DataField(name="follows", type=odf.String()),
    )
)
_TOLD: Final = ("file", "line", "column", "raw", "reason", "rule")


@functools.cache
def arrow_schema() -> pa.Schema:
    """Returns ``SCHEMA`` as an Arrow schema, without its metadata."""
    return to_arrow(SCHEMA).remove_metadata()


def quarantined(records: pa.Table, offset: int, time: Instant, follows: str) -> pa.Table:
    """Turns ``records`` (file, line, column, raw, reason, rule) into the dataset's rows, from ``offset`` on."""
    count = records.num_rows
    stamp = pa.repeat(pa.scalar(to_millis(time), arrow_schema().field("event_time").type), count)
    columns = [
        pa.array(np.arange(offset, offset + count, dtype=np.int64)),
        pa.repeat(pa.scalar(_APPEND, pa.int32()), count),
        stamp,
        stamp,
        *(records.column(name) for name in _TOLD),
        pa.repeat(pa.scalar(follows), count),
    ]
    return pa.Table.from_arrays(columns, schema=arrow_schema())
