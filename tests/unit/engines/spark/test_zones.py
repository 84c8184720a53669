"""What is read, and zones of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from engines.contract import Vocab
from engines.spark.analysis.monotone import DAY, SECOND, Floor, FloorMonths, LocalFloor, Zone
from engines.spark.execution.tables import SCANNED, scan_of
from engines.spark.planning.transaction import BlockFacts
from engines.spark.rows.changelog import distinct
from worlds.depth import share

# Starts of local days as functions of time: never decreasing, round what is true, and exact but near odd changes.

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
UNTIL = 4000 * DAY
STEPS = st.sampled_from([Floor(DAY), Floor(7 * DAY, 4 * DAY), FloorMonths(1), FloorMonths(12)])


@st.composite
def zones(draw):
    gaps = draw(st.lists(st.integers(40 * 1440, 400 * 1440), max_size=8))
    offsets = [draw(st.integers(-12 * 60, 12 * 60))]
    for _ in gaps:
        low, high = max(-14 * 60, offsets[-1] - 1440), min(14 * 60, offsets[-1] + 1440)
        near = st.sampled_from([-60, -30, 30, 60]).map(lambda by, last=offsets[-1]: last + by)
        offsets.append(draw(near.filter(lambda x: abs(x) <= 14 * 60) | st.integers(low, high)))
    moments, at = [], 0
    for gap in gaps:
        at += gap
        moments.append(at * MINUTE)
    return Zone("x", tuple(moments), tuple(each * MINUTE for each in offsets), UNTIL)


def true_start(zone, step, time):
    return zone.instant(step(zone.local(time)))


@pytest.mark.slow
@settings(max_examples=share(300))
@given(zones(), STEPS, st.data())
def test_bounds_hold_never_decrease_and_are_exact_far_from_changes(zone, step, data):
    near = [moment + by * MINUTE for moment in zone.moments for by in (-1500, -61, -1, 0, 1, 59, 1500)]
    moment = st.integers(-100 * 1440, 3999 * 1440).map(lambda minute: minute * MINUTE)
    times = sorted(data.draw(st.lists(moment | st.sampled_from(near) if near else moment, min_size=2, max_size=8)))
    low, high = (LocalFloor(zone, step, high) for high in (False, True))
    for one, other in itertools.pairwise(times):
        assert low(one) <= low(other)
        assert high(one) <= high(other)
    for time in times:
        assert low(time) <= true_start(zone, step, time) <= high(time)
        if all(abs(moment - time) > 27 * HOUR for moment in zone.moments):
            assert low(time) == true_start(zone, step, time) == high(time)


def test_a_day_that_goes_back_over_midnight():
    """St. John's until 2011: at one minute past midnight clocks went back by an hour."""
    change = 100 * DAY + MINUTE
    zone = Zone("x", (change,), (0, -HOUR), UNTIL)
    step = Floor(DAY)
    low, high = (LocalFloor(zone, step, high) for high in (False, True))
    before, after = change - 1, change
    assert (true_start(zone, step, before), true_start(zone, step, after)) == (100 * DAY, 99 * DAY)
    assert [low(before), low(after)] == [99 * DAY, 99 * DAY]
    assert [high(before), high(after)] == [100 * DAY, 100 * DAY]
    assert low(change + DAY) == high(change + DAY) == 100 * DAY, "the first of two midnights"
    assert low(change + 2 * DAY) == high(change + 2 * DAY) == 101 * DAY + HOUR


def test_a_midnight_that_there_was_not():
    """São Paulo in spring: the day began at one o'clock."""
    change = 100 * DAY
    zone = Zone("x", (change,), (0, HOUR), UNTIL)
    for high in (False, True):
        start = LocalFloor(zone, Floor(DAY), high)
        assert [start(change - 1), start(change), start(change + 5 * HOUR)] == [99 * DAY, change, change]


@given(st.integers(3990, 4020), STEPS)
def test_what_is_not_known_yet_is_enclosed(day, step):
    zone = Zone("x", (), (HOUR,), UNTIL)
    low, high = (LocalFloor(zone, step, high) for high in (False, True))
    time = day * DAY
    assert low(time - 1) <= low(time) <= true_start(zone, step, time) <= high(time)
    assert high(time - 1) <= high(time)


# Which slices of a changing table's inputs Spark reads by itself: decided by what planning knows, without a look.


@dataclass(frozen=True)
class Source:
    log: bool = False

    @property
    def schema(self) -> spark.StructType:
        return spark.StructType()

    @property
    def vocab(self) -> Vocab:
        return Vocab()


@pytest.fixture
def block(tmp_path: Path) -> BlockFacts:
    """Of a file that nobody can read."""
    path = tmp_path / "slice"
    path.write_bytes(bytes(SCANNED))
    return BlockFacts("b", str(path), None, None, rows=9, first=10, last=20, changes=False)


def test_what_planning_read_is_not_read_again(block: BlockFacts) -> None:
    found = scan_of(block, 15, 21, Source(), every=False)
    assert found is not None
    assert found.moments.tolist() == [15, 20]
    with pytest.raises(Exception, match="slice"):
        scan_of(block, 15, 21, Source(), every=True)


def test_slices_of_which_rows_are_looked_at(block: BlockFacts) -> None:
    assert scan_of(block, 15, 20, Source(), every=False) is None  # a row waits
    assert scan_of(replace(block, changes=True), 0, 21, Source(), every=False) is None
    assert scan_of(replace(block, changes=True), 0, 21, Source(log=True), every=False) is not None
    assert scan_of(replace(block, first=None, last=None), 0, 21, Source(), every=False) is None
    assert scan_of(replace(block, path=None), 0, 21, Source(), every=False) is None
    assert block.path is not None
    Path(block.path).write_bytes(b"")
    assert scan_of(block, 0, 21, Source(), every=False) is None  # small


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_distinct_numbers(numbers: list[int]) -> None:
    assert distinct(np.array(numbers, np.int64)).tolist() == sorted(set(numbers))
