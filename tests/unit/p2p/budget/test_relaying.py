"""What is passed on never exceeds what a neighbour looks at, and leaves each block of addresses a share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.budget.buckets import Budget, Rate, Relaying

RATE = Rate(per_second=50.0, burst=500.0)


@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.integers(0, 300), st.integers(1, 3), st.integers(1, 200)),
        min_size=1,
        max_size=20,
    )
)
def test_a_neighbour_looks_at_all_that_is_passed_on(bursts: list[tuple[float, int, int, int]]) -> None:
    """Blocks that come one after the other had each as much at once as the one before, divided by their number."""
    relaying, neighbour, now = Relaying(RATE), Budget[str](RATE), 0.0
    for wait, first, times, blocks in bursts:
        now += wait
        for number in range(blocks * times * 5):
            if relaying.passes(f"block{first + number % blocks}", now):
                assert neighbour.spend("us", now)


@pytest.mark.parametrize("blocks", [1, 5, 50])
def test_whoever_says_little_is_passed_on_beside_a_flood(blocks: int) -> None:
    relaying, passed = Relaying(RATE), 0
    for tick in range(12_000):
        now = tick / 100
        for _ in range(5):
            relaying.passes(f"flood{tick % blocks}", now)
        if tick % 400 == 0:
            passed += relaying.passes("quiet", now)
    assert passed == 30
