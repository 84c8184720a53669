"""Converts times of columns to instants without numpy, which the process of a query does not have. Pure."""

from __future__ import annotations

import pyarrow as pa

from chain.errors import Invalid
from chain.instant import Instant


def to_instant(value: int, kind: pa.DataType) -> Instant:
    """A date's or timestamp's stored number as nanoseconds. Raises Invalid for another type."""
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise Invalid(f"an event time is a date or a timestamp, not {kind}", rule="event-time-type")
    scale = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
    if pa.types.is_date32(kind):
        return Instant(value * 86_400 * 10**9)
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    return Instant(value * scale[unit])
