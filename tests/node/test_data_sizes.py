"""Sizes of datasets: what the chain names, summed by and by, and never a part of it for all."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.codec.blocks import decode_block, encode_block
from chain.errors import Invalid
from chain.instant import Instant
from chain.model.block import MetadataBlock
from chain.model.events import AddData, DataSlice, OffsetInterval
from chain.multihash import Multihash
from odfd.control import wire
from odfd.services.views import data_sizes
from odfd.services.views.data_sizes import DataSizes
from worlds.eventually import PATIENCE, PAUSE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import World

SOME = Multihash.sha3_256(b"some")


async def test_a_size_is_the_sum_of_what_its_blocks_name(world: World) -> None:
    async with world.running("node") as node:
        await node.apply(ROOT, DERIVED)
        (empty, _) = await node.dataset_views()
        assert empty.bytes == 0
        for year in (2021, 2022):
            world.write("node", f"{year}.csv", f"{year}-01-01T00:00:00Z,Graz,300000")
            await node.pull()
            for view in await node.dataset_views():
                blocks = await node.api.datasets.log(view.name, (), 100, None)
                assert view.bytes == sum(each.data_size or 0 for each in blocks) > 0
                detail = await node.api.datasets.describe(view.name)
                assert detail.dataset == view == await node.dataset_view(view.name)


async def test_a_long_chain_is_summed_beside_the_questions(world: World) -> None:
    """With so many blocks in each step; another history is summed from its beginning."""
    async with world.running("node") as node:
        await node.apply(ROOT)
        for year in (2021, 2022):
            world.write("node", f"{year}.csv", f"{year}-01-01T00:00:00Z,Graz,300000")
            await node.pull()
        dataset, size = node.dataset("cities"), node.size("cities")
        sizes, whole = DataSizes(node.home, at_once=0, step_blocks=2), DataSizes(node.home).of([node.dataset("cities")])
        assert not sizes.is_behind
        for _ in range(-(-size // 2)):
            assert sizes.of([dataset]) == {}, "no part of a size passes for all of it"
            assert sizes.is_behind
            sizes.step()
        assert not sizes.is_behind
        assert sizes.of([dataset]) == whole
        await node.done(node.api.rewriting.rewrite("cities", wire.RewriteRequest(action="reset", to=f"#{size - 2}")))
        shorter = DataSizes(node.home).of([dataset])
        assert shorter != whole
        assert sizes.of([dataset]) == {}
        while sizes.is_behind:
            sizes.step()
        assert sizes.of([dataset]) == shorter
        await node.api.declarations.delete("Dataset", "cities")
        assert sizes.of([dataset]) == {}
        assert not sizes.is_behind


async def test_one_step_sums_many_short_chains(world: World) -> None:
    """A list of a thousand datasets is followed by a few steps, not by a thousand."""
    many = 2 * data_sizes.STEP_BLOCKS // data_sizes.CHAIN_BLOCKS
    async with world.running("node") as node:
        await node.apply(*(ROOT.replace("cities", f"cities-{number}", 1) for number in range(many)))
        datasets = [node.dataset(f"cities-{number}") for number in range(many)]
        sizes = DataSizes(node.home, at_once=0)
        assert sizes.of(datasets) == {}
        for _ in range(2):
            assert sizes.is_behind
            sizes.step()
        assert not sizes.is_behind
        assert sizes.of(datasets) == dict.fromkeys(datasets, 0)


async def test_a_node_sums_a_long_chain_after_one_question(world: World) -> None:
    async with world.running("node") as node:
        await node.apply(ROOT)
        world.write("node", "2021.csv", "2021-01-01T00:00:00Z,Graz,300000")
        await node.pull()
        whole = DataSizes(node.home).of([node.dataset("cities")])
        node.api.datasets.states.sizes = DataSizes(node.home, at_once=0, step_blocks=2)
        assert (await node.dataset_view("cities")).bytes is None
        with trio.fail_after(PATIENCE):
            while (view := await node.dataset_view("cities")).bytes is None:  # noqa: ASYNC110  # in a thread
                await trio.sleep(PAUSE)
        assert view.bytes == whole[node.dataset("cities")]


def _raw(number: int, size: int) -> bytes:
    """A block that names a slice of ``size`` bytes; one without a slice for 7."""
    rows = OffsetInterval(start=number, end=number)
    data = DataSlice(logical_hash=SOME, physical_hash=SOME, offset_interval=rows, size=size)
    event = AddData(prev_offset=number, new_data=None if size == 7 else data, new_watermark=Instant(number))
    return encode_block(MetadataBlock(system_time=Instant(number), sequence_number=number, event=event)).raw


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 7, 300_000, 1 << 40]), st.integers(1, 12)), max_size=8))
def test_blocks_of_one_shape_are_added_up_as_they_are_one_by_one(pieces: list[tuple[int, int]]) -> None:
    raws = [_raw(number, size) for number, size in enumerate(size for size, count in pieces for _ in range(count))]
    assert data_sizes.sum_sizes(raws) == (len(raws), sum(size * count for size, count in pieces if size != 7))


async def test_a_damaged_chain_keeps_no_other_from_being_summed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert len(read) <= 1, "it goes on from where it was"
        monkeypatch.undo()
        assert sizes.of([damaged, other]) == whole
