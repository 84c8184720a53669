"""Caps on bytes a second."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2p.driver.fetch_jobs import CHAIN_SHAPE, OBJECT_SHAPE
from p2p.driver.transfers import LEAST_PART, paced
from p2p.pace import BURST, Pace


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
        asked = paced(shape, rate)
        assert LEAST_PART <= asked.most_bytes <= shape.most_bytes
        assert asked.most_bytes <= asked.window <= shape.window
        assert asked.most_units <= shape.most_units
