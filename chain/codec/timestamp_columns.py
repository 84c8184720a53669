"""Converts many Timestamps at once, as columns, as ``stamp`` converts one. A module of its own, as it needs numpy.

A pure function. Spec: FlatBuffers schema, struct Timestamp.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

import numpy as np
import numpy.typing as npt

from chain.instant import SECOND

_COLUMNS: Final = np.dtype([("year", "<i4"), ("ordinal", "<u2"), ("pad", "V2"), ("second", "<u4"), ("nanos", "<u4")])
_DAY: Final = 86_400
_FIRST_YEAR, _LAST_YEAR = 1700, 2200
"""Years whose every nanosecond an int64 holds."""
_DAYS_BEFORE_EPOCH: Final = dt.date(1970, 1, 1).toordinal() - 1


def unpack_many(raws: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Instants of ``(n, 16)`` bytes, and which of them to believe: others are to be asked of ``stamp.unpack``.

    Doubtful are times that are none, leap seconds, and years whose nanoseconds do not fit an int64.
    """
    parts = raws.view(_COLUMNS)[:, 0]
    year, ordinal = parts["year"].astype(np.int64), parts["ordinal"].astype(np.int64)
    second, nanos = parts["second"].astype(np.int64), parts["nanos"].astype(np.int64)
    sure = (year >= _FIRST_YEAR) & (year <= _LAST_YEAR) & (ordinal >= 1) & (second < _DAY) & (nanos < SECOND)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    sure &= ordinal <= 365 + leap
    before = np.where(sure, year, 1970) - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - _DAYS_BEFORE_EPOCH + ordinal - 1
    return (days * _DAY + second) * SECOND + nanos, sure
