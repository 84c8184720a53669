"""Caps on bytes a second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.driver.fetch_jobs import CHAIN_SHAPE, OBJECT_SHAPE
from p2p.driver.transfers import LEAST_PART, fit_to_rate
from p2p.pace import BURST, WINDOW, LineTraffic, Pace, PeerTraffic, RecentBytes, Traffic


def test_without_a_cap_nothing_waits() -> None:
    pace = Pace(0)
    assert [pace.take(1 << 40, 5.0) for _ in range(3)] == [5.0, 5.0, 5.0]


def test_what_is_larger_than_a_second_is_paid_for_by_the_next() -> None:
    pace = Pace(100)
    assert pace.take(1000, 50.0) == 50.0
    assert pace.due(50.0) == 50.0 - BURST + 10
    assert pace.take(100, 70.0) == 70.0
    assert pace.take(100, 70.0) == 70.0
    assert pace.take(100, 70.0) == 71.0


@given(
    st.integers(1, 10**6),
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 10**6)), min_size=1, max_size=40),
)
def test_over_any_stretch_no_more_goes_than_the_rate(rate: int, asks: list[tuple[float, int]]) -> None:
    """Beside a second's worth and the last piece; and who waits goes in the order of asking."""
    pace, now, went = Pace(rate), 0.0, []
    for later, size in asks:
        now += later
        went.append((pace.take(size, now), size))
        assert went[-1][0] >= now
    assert [at for at, _ in went] == sorted(at for at, _ in went)
    for start in range(len(went)):
        for stop in range(start, len(went)):
            sent = sum(size for _, size in went[start:stop])
            allowed = rate * (went[stop][0] - went[start][0] + BURST)
            assert sent <= allowed + 1e-3 * rate + 1 or sent <= max(size for _, size in went[start:stop]) + allowed


@given(st.integers(0, 1 << 32))
def test_questions_fit_the_cap(rate: int) -> None:
    for shape in (CHAIN_SHAPE, OBJECT_SHAPE):
        asked = fit_to_rate(shape, rate)
        assert LEAST_PART <= asked.most_bytes <= shape.most_bytes
        assert asked.most_bytes <= asked.window <= shape.window
        assert asked.most_units <= shape.most_units


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 10**9)), max_size=40),
    st.floats(0, 12),
)
def test_a_rate_is_of_the_bytes_of_the_last_seconds_however_they_came(
    came: list[tuple[float, int]], later: float
) -> None:
    recent, came = RecentBytes(), sorted(came)
    for at, amount in came:
        recent.add(amount, at)
    now = max([at for at, _ in came], default=0.0) + later
    seconds = range(int(now) - WINDOW + 1, int(now) + 1)
    expected = sum(amount for at, amount in came if int(at) in seconds)
    assert recent.rate(now) * (WINDOW - 1 + now - int(now)) == pytest.approx(expected)
    assert recent.rate(now + WINDOW + 1) == 0


def test_a_rate_after_a_long_silence_costs_no_more() -> None:
    recent = RecentBytes()
    recent.add(5, 3.0)
    recent.add(7, 1e12)
    assert recent.rate(1e12) == 7 / (WINDOW - 1)


def test_lines_count_for_the_node_and_by_themselves() -> None:
    total = Traffic()
    first, second = LineTraffic(total), LineTraffic(total)
    first.came(70, 10.0)
    second.came(7, 10.0)
    second.went(14, 10.0)
    assert (total.received, total.sent) == (77, 14)
    assert PeerTraffic.of([second], 10.0) == PeerTraffic(7, 14, 1.0, 2.0)
    assert PeerTraffic.of([first, second], 10.0) == PeerTraffic(77, 14, 11.0, 2.0)
    assert PeerTraffic.of([], 10.0) == PeerTraffic()
