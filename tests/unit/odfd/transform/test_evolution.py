"""A query knows the columns that its inputs had when it was declared, whatever comes to them later."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.blocks import encode_block
from chain.data.arrow_schema import from_arrow
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, SetDataSchema, SetInfo, SetTransform, TransformInput
from chain.model.source import SqlQueryStep, TransformSql
from chain.state import load_state
from odfd.transform.driver import Committed, run_transform
from odfd.transform.evolution import columns_known
from odfd.transform.replay import Replayed, replay
from worlds.transform_world import SCHEMA

ROOT = DatasetId.from_public_key(b"r" * 32)
DERIVED = DatasetId.from_public_key(b"d" * 32)
GROWN = SCHEMA.append(pa.field("note", pa.string()))


def grow(world: Any, *values: int) -> None:
    """The root gets a column, and rows that have it."""
    state = load_state(world.chains.chain(ROOT))
    count, start = len(values), state.next_offset
    times = [[world.time] * count, [1000 * value for value in values]]
    columns = [range(start, start + count), [0] * count, *times, values, ["n"] * count]
    table = pa.table([pa.array(c).cast(f.type) for c, f in zip(columns, GROWN, strict=True)], schema=GROWN)
    data = world.keep(table)
    schema = [] if load_state(world.chains.chain(ROOT)).schema.schema == from_arrow(GROWN) else [GROWN]
    events = [SetDataSchema(schema=from_arrow(each)) for each in schema]
    event = AddData(prev_offset=state.last_offset, new_data=data, new_watermark=state.watermark)
    world.append(ROOT, *events, event, objects=[data.physical_hash])


def declare(world: Any, query: str = "select * from x") -> None:
    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=query),))
    inputs = (TransformInput(dataset_ref=str(ROOT), alias="x"),)
    world.append(DERIVED, SetTransform(inputs=inputs, transform=transform))


async def derive(world: Any) -> list[str]:
    """Names of the columns of the slice that one transaction makes."""
    done = await run_transform(world.deps, DERIVED)
    assert isinstance(done, Committed), done
    names: list[str] = world.rows(done.event.new_data).column_names
    return names


async def reproduced(world: Any) -> list[bool]:
    outcomes = [outcome async for outcome in replay(world.deps, DERIVED)]
    return [isinstance(outcome, Replayed) and outcome.is_reproduced for outcome in outcomes]


@pytest.mark.slow
async def test_a_star_goes_on_when_its_input_grows(world: Any) -> None:
    world.found()
    world.add_rows([1, 2], watermark=1000)
    before = await derive(world)
    grow(world, 3, 4)
    assert await derive(world) == before
    grow(world, 5)
    assert await derive(world) == before
    assert "note" not in before
    assert await reproduced(world) == [True, True, True]


@pytest.mark.slow
async def test_a_column_that_came_before_the_declaration_is_known(make_world: Any) -> None:
    for at_once in (False, True):
        world = make_world()
        world.found()
        world.add_rows([1])
        grow(world, 2)
        declare(world)
        if not at_once:
            await derive(world)
            grow(world, 3)
        assert "note" in await derive(world)
        assert all(await reproduced(world))


async def test_a_star_that_is_declared_again_brings_what_came_since(world: Any) -> None:
    world.found()
    world.add_rows([1])
    before = await derive(world)
    grow(world, 2)
    assert await derive(world) == before
    declare(world)
    grow(world, 3)
    assert await derive(world) == [*before, "note"]
    state = load_state(world.chains.chain(DERIVED))
    assert [field.name for field in state.schema.schema.fields] == [*before, "note"]
    assert state.next_offset == 3
    assert await reproduced(world) == [True, True, True]


async def test_without_a_schema_at_the_declaration_the_first_one_counts(world: Any) -> None:
    world.found()
    world.add_rows([1])
    grow(world, 2)
    assert "note" not in await derive(world)
    assert await reproduced(world) == [True]


async def test_what_a_mirror_learns_late_was_not_known(world: Any) -> None:
    """Blocks older than the declaration that came after the first transaction do not change what it meant."""
    world.found()
    world.add_rows([1])
    time, world.time = world.time, world.time + 10_000
    declare(world)
    world.time, declared = time, world.time
    before = await run_at(world, declared)
    grow(world, 2)
    assert world.time < declared
    world.time = declared + 100
    assert await derive(world) == before
    assert await reproduced(world) == [True, True]


async def run_at(world: Any, time: int) -> list[str]:
    now, world.time = world.time, time
    names = await derive(world)
    world.time = now
    return names


class Listed:
    """A chain that is a list."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks

    def head(self) -> Any:
        raise AssertionError

    def block_at(self, number: int) -> Block:
        return self.blocks[number]

    def last_of(self, kinds: Any, before: int | None = None) -> Block | None:
        found = [block for block in self.blocks[:before] if type(block.event).__name__ in kinds]
        return found[-1] if found else None


@given(
    kinds=st.lists(st.tuples(st.sampled_from(["schema", "other"]), st.integers(0, 2)), max_size=12),
    time=st.integers(0, 20),
    stop=st.integers(0, 12),
)
def test_the_search_is_the_scan(kinds: list[tuple[str, int]], time: int, stop: int) -> None:
    blocks, now, previous = [], 0, None
    for number, (kind, step) in enumerate(kinds):
        now += step
        columns = pa.schema([pa.field(f"c{number}", pa.int64())])
        event = SetDataSchema(schema=from_arrow(columns)) if kind == "schema" else SetInfo(description=str(number))
        content = MetadataBlock(
            system_time=Instant(now * MILLISECOND), prev_block_hash=previous, sequence_number=number, event=event
        )
        blocks.append(encode_block(content))
        previous = blocks[-1].hash
    seen = [each for each in blocks[:stop] if isinstance(each.event, SetDataSchema)]
    known = [each for each in seen if each.system_time <= time * MILLISECOND]
    expected = known[-1] if known else seen[0] if seen else None
    found = columns_known(Listed(blocks), min(stop, len(blocks)), Instant(time * MILLISECOND))
    assert found == (expected.event.schema if expected is not None else None)
