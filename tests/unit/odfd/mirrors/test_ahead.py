"""Steps fetched ahead: in order, so many and no more, and what went wrong is told where it would have been taken."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from chain.errors import Remote
from odfd.mirrors import ahead
from odfd.mirrors.ahead import Ahead


class Step:
    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.bytes = size


class Source:
    """Steps of these sizes, and then an end, or a fault."""

    def __init__(self, sizes: list[int], fault: bool = False) -> None:
        self.sizes = sizes
        self.fault = fault
        self.asked = 0

    async def fetch(self, last: Any) -> Any:
        number = 0 if last is None else last.number + 1
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if number < len(self.sizes):
            return Step(number, self.sizes[number])
        if self.fault:
            raise Remote("nobody has it", rule="no-peer")
        return None


async def test_so_many_wait_and_no_more() -> None:
    source = Source([1] * 9)
    way = Ahead(source.fetch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.run)
        for number in range(9):
            await trio.testing.wait_all_tasks_blocked()
            assert source.asked == min(number + ahead.STEPS, 9 + 1)
            assert (await way.next()).number == number  # type: ignore[attr-defined]
            await trio.testing.wait_all_tasks_blocked()
            assert source.asked == min(number + ahead.STEPS, 9 + 1), "one that is being kept is in memory"
            way.kept()


async def test_large_ones_wait_alone() -> None:
    source = Source([ahead.BYTES + 1] * 3)
    way = Ahead(source.fetch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.run)
        for number in range(3):
            await way.next()
            await trio.testing.wait_all_tasks_blocked()
            assert source.asked == number + 1
            way.kept()


async def test_what_went_wrong_is_told_in_its_place() -> None:
    source = Source([1, 1], fault=True)
    way = Ahead(source.fetch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.run)
        for _ in range(2):
            await way.next()
            way.kept()
        with pytest.raises(Remote, match="nobody has it"):
            await way.next()
