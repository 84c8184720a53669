"""Sizes of datasets: what the chain names, summed by and by, and never a part of it for all."""

from __future__ import annotations

from typing import Any

import pytest

from chain.codec.blocks import decode_block
from chain.errors import Invalid
from odfd.api.views import data_sizes
from odfd.api.views.data_sizes import DataSizes
from odfd.control import wire
from worlds.manifests import DERIVED, ROOT


async def test_a_size_is_the_sum_of_what_its_blocks_name(world: Any) -> None:
    async with world.running("node") as node:
        await node.apply(ROOT, DERIVED)
        (empty, _) = await node.api.datasets.list()
        assert empty.bytes == 0
        for year in (2021, 2022):
            world.write("node", f"{year}.csv", f"{year}-01-01T00:00:00Z,Graz,300000")
            await node.pull()
            for view in await node.api.datasets.list():
                blocks = await node.api.datasets.log(view.name, (), 100, None)
                assert view.bytes == sum(each.data_size or 0 for each in blocks) > 0
                detail = await node.api.datasets.describe(view.name)
                assert detail.dataset == view == await node.api.datasets.get(view.name)


async def test_a_long_chain_is_summed_by_and_by(world: Any) -> None:
    """With so many blocks for each question; another history is summed from its beginning."""
    async with world.running("node") as node:
        await node.apply(ROOT)
        for year in (2021, 2022):
            world.write("node", f"{year}.csv", f"{year}-01-01T00:00:00Z,Graz,300000")
            await node.pull()
        dataset, size = node.dataset("cities"), node.size("cities")
        sizes, whole = DataSizes(node.home, step_blocks=2), DataSizes(node.home).of([node.dataset("cities")])
        told = [sizes.of([dataset]) for _ in range(size)]
        questions = -(-size // 2)
        assert told[: questions - 1] == [{}] * (questions - 1)
        assert told[questions - 1 :] == [whole] * (size - questions + 1)
        await node.done(node.api.rewriting.rewrite("cities", wire.RewriteRequest(action="reset", to=f"#{size - 2}")))
        shorter = DataSizes(node.home).of([dataset])
        assert shorter != whole
        assert [sizes.of([dataset]) for _ in range(size)][-1] == shorter
        await node.api.datasets.delete("cities")
        assert sizes.of([dataset]) == {}


async def test_a_damaged_chain_keeps_no_other_from_being_summed(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("node") as node:
        await node.apply(ROOT, ROOT.replace("cities", "towns", 1))
        world.write("node", "2021.csv", "2021-01-01T00:00:00Z,Graz,300000")
        await node.pull()
        damaged, other = node.dataset("cities"), node.dataset("towns")
        whole = DataSizes(node.home).of([damaged, other])
        read: list[int] = []

        def decode(raw: bytes) -> Any:
            block = decode_block(raw)
            read.append(block.sequence_number)
            if block.hash == last:
                raise Invalid("damaged", rule="block")
            return block

        last = node.home.chains.chain(damaged).head().hash
        monkeypatch.setattr(data_sizes, "decode_block", decode)
        sizes = DataSizes(node.home)
        assert sizes.of([damaged, other]) == {other: whole[other]}
        read.clear()
        assert sizes.of([damaged, other]) == {other: whole[other]}
        assert len(read) == 1, "it goes on from where it was"
        monkeypatch.undo()
        assert sizes.of([damaged, other]) == whole
