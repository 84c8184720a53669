"""Functions of time never decrease, agree with the calendar, and can be turned round."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from engines.spark.analysis.monotone import (
    DAY,
    EARLIEST,
    LATEST,
    AddMonths,
    Floor,
    FloorMonths,
    Shift,
    apply,
    enclose_months,
    least,
)

EPOCH = dt.datetime(1970, 1, 1)
MICROSECOND = dt.timedelta(microseconds=1)
times = st.datetimes(dt.datetime(1, 2, 1), dt.datetime(9998, 1, 1)).map(
    lambda t: (t - EPOCH) // dt.timedelta(microseconds=1)
)
steps = st.one_of(
    st.builds(Floor, st.integers(1, 400 * DAY), st.integers(0, DAY)),
    st.builds(FloorMonths, st.integers(1, 48)),
    st.builds(Shift, st.integers(-400 * DAY, 400 * DAY)),
    st.builds(AddMonths, st.integers(-60, 60)),
)
functions = st.lists(steps, max_size=4).map(tuple)


def moment(micros):
    return EPOCH + dt.timedelta(microseconds=micros)


def micros(moment):
    return (moment - EPOCH) // MICROSECOND


@given(functions, times, times)
def test_never_decreasing(function, one, other):
    low, high = sorted((one, other))
    assert apply(function, low) <= apply(function, high)


@given(functions, times)
def test_least_is_the_edge(function, value):
    edge = least(function, value)
    assert edge in (EARLIEST, LATEST) or apply(function, edge - 1) < value <= apply(function, edge)


@given(times, st.sampled_from([1, 3, 12]))
def test_months_are_the_calendar_s(time, size):
    start = moment(time)
    expected = dt.datetime(start.year, (start.month - 1) // size * size + 1, 1)
    assert FloorMonths(size)(time) == micros(expected)


@given(times.filter(lambda time: 3 < moment(time).year < 9996), st.integers(-24, 24))
def test_adding_months_stops_at_the_end_of_the_month(time, months):
    start = moment(time).date()
    index = start.year * 12 + start.month - 1 + months
    first = dt.date(index // 12, index % 12 + 1, 1)
    last = dt.date((index + 1) // 12, (index + 1) % 12 + 1, 1) - dt.timedelta(days=1)
    expected = min(last, first + dt.timedelta(days=start.day - 1))
    assert AddMonths(months)(time) == (expected - EPOCH.date()).days * DAY
    low, high = enclose_months(months)
    exact = AddMonths(months)(time) + time % DAY
    assert apply(low, time) <= exact <= apply(high, time)


def test_weeks_begin_on_monday():
    week = Floor(7 * DAY, origin=4 * DAY)
    assert moment(week(micros(dt.datetime(2024, 2, 29, 13)))) == dt.datetime(2024, 2, 26)


def test_before_the_epoch():
    assert Floor(DAY)(-1) == -DAY
    assert moment(FloorMonths(1)(-1)) == dt.datetime(1969, 12, 1)
