"""Converts event times of rows to columns of whole microseconds. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chain.errors import Invalid
from engines.contract import Vocabulary


def microseconds(times: pa.Array) -> pa.Array:
    """Dates or timestamps as int64, nanoseconds rounded towards the past as Spark does. Raises Invalid."""
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("ms"))
    if not pa.types.is_timestamp(times.type):
        raise Invalid(f"an event time is a date or a timestamp, not {times.type}", rule="event-time-type")
    if times.type.unit == "ns":
        times = pc.floor_temporal(times, unit="microsecond")
    return times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())


def event_times(rows: pa.Table, vocab: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds, and which rows have a time at all."""
    times = microseconds(rows.column(vocab.event_time_column).combine_chunks())
    return np.asarray(pc.fill_null(times, 0)), np.asarray(times.is_valid())
