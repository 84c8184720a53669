"""A ring keeps the newest within its bounds, and each reader gets each item once, or is told how many it missed."""

from __future__ import annotations

from contextlib import aclosing

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from odfd.runtime.ring import Lagged, Ring


@given(most=st.integers(1, 6), most_size=st.integers(0, 20) | st.none(), sizes=st.lists(st.integers(0, 9), max_size=30))
def test_it_keeps_the_newest_within_both_bounds(most: int, most_size: int | None, sizes: list[int]) -> None:
    ring: Ring[int] = Ring(most, most_size)
    for size in sizes:
        ring.append(size, size)
    kept = ring.list_kept()
    assert [number for number, _ in kept] == list(range(len(sizes) - len(kept) + 1, len(sizes) + 1))
    assert [size for _, size in kept] == sizes[len(sizes) - len(kept) :]
    assert (ring.last, ring.oldest) == (len(sizes), len(sizes) - len(kept) + 1)
    fits = [size for size in range(len(sizes) + 1) if size <= most and _fits(sizes[len(sizes) - size :], most_size)]
    assert len(kept) == max(fits, default=0)


def _fits(newest: list[int], most_size: int | None) -> bool:
    return len(newest) <= 1 or most_size is None or sum(newest) <= most_size


async def test_a_slow_reader_is_told_what_it_missed(autojump_clock: trio.testing.MockClock) -> None:
    ring: Ring[str] = Ring(2)
    for item in "abcde":
        ring.append(item)
    async with aclosing(ring.follow(1)) as news:
        assert await anext(news) == Lagged(4, 2)
        assert [await anext(news), await anext(news)] == [(4, "d"), (5, "e")]
        with trio.move_on_after(1) as scope:
            await anext(news)
        assert scope.cancelled_caught


async def test_a_place_beyond_the_last_is_of_another_ring() -> None:
    ring: Ring[str] = Ring(2)
    ring.append("a")
    async with aclosing(ring.follow(7)) as news:
        assert await anext(news) == Lagged(1, None)
        assert await anext(news) == (1, "a")


@pytest.mark.parametrize("count", [1, 3])
async def test_a_nudge_wakes_all_readers(count: int) -> None:
    ring: Ring[int] = Ring(8)
    seen: list[object] = []

    async def read() -> None:
        async with aclosing(ring.follow()) as news:
            seen.append(await anext(news))

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        ring.append(5)
        ring.nudge()
    assert seen == [(1, 5)] * count
