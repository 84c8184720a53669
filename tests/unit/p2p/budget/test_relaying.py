"""What is passed on never exceeds what a neighbour looks at, and leaves each block of addresses a share."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2p.budget.buckets import LEAST, LENT, Budget, Rate, Relaying

RATE = Rate(per_second=50.0, burst=500.0)


@pytest.mark.slow
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


@pytest.mark.slow
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


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 39), st.integers(1, 40), st.integers(1, 4)), max_size=6))
@example([(0.0, 0, 40, 9)] * 3)
def test_what_is_lent_is_nobodys_share(bursts: list[tuple[float, int, int, int]]) -> None:
    """Forty blocks say as much as they like; whoever says what is its own has all of it passed on."""
    relaying, now, own, last = Relaying(RATE), 0.0, float(LEAST), 0.0
    for wait, first, blocks, times in bursts:
        now += wait
        for number in range(blocks * times):
            relaying.passes(f"block{(first + number % blocks) % 40}", now)
        own, last = min(LEAST, own + (now - last) * RATE.within_limit().per_second / 2 / 41), now
        while own >= 1:
            assert relaying.passes("quiet", now)
            own -= 1


def test_a_block_of_many_that_says_more_at_once_is_lent_what_nobody_uses() -> None:
    relaying = Relaying(RATE)
    for tick in range(601):
        for number in range(16):
            relaying.passes(f"flood{number % 5}" if tick else f"block{number}", tick / 10)
    passed = [relaying.passes("quiet", 60.0) for _ in range(LEAST + LENT + 2)]
    assert passed == [True] * (LEAST + LENT) + [False] * 2
