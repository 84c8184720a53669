"""Steps fetched ahead: in order, so many and no more, and what went wrong is told where it would have been taken."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from chain.errors import Remote
from chain.state import ChainState
from chain.statements.tree import Frontier
from odfd.mirrors import sync
from odfd.mirrors.sync import Prefetch, Start


class Step:
    """One block more."""

    def __init__(self, number: int, size: int) -> None:
        self.bytes = size
        self.state = msgspec.structs.replace(ChainState.EMPTY, sequence_number=number)
        self.frontier = Frontier()


class Source:
    """Steps of these sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.asked = 0

    async def fetch(self, start: Start) -> Any:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if start.state.size == len(self.sizes):
            raise Remote("nobody has it", rule="no-peer")
        return Step(start.state.size, self.sizes[start.state.size])

    def way(self, size: int) -> Prefetch:
        return Prefetch(self.fetch, Start(ChainState.EMPTY, Frontier()), size)


async def test_so_many_wait_and_no_more() -> None:
    source = Source([1] * 9)
    way = source.way(9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.run)
        for number in range(9):
            await trio.testing.wait_all_tasks_blocked()
            assert source.asked == min(number + sync.STEPS_HELD, 9)
            assert (await way.next()).state.size == number + 1
            await trio.testing.wait_all_tasks_blocked()
            assert source.asked == min(number + sync.STEPS_HELD, 9), "one that is being kept is in memory"
            way.kept()


async def test_large_ones_wait_alone() -> None:
    source = Source([sync.BYTES_HELD + 1] * 3)
    way = source.way(3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.run)
        for number in range(3):
            await way.next()
            await trio.testing.wait_all_tasks_blocked()
            assert source.asked == number + 1
            way.kept()


async def test_what_went_wrong_is_told_in_its_place() -> None:
    way = Source([1, 1]).way(9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.run)
        for _ in range(2):
            await way.next()
            way.kept()
        with pytest.raises(Remote, match="nobody has it"):
            await way.next()
