"""Planning alone: however an input's blocks are cut into transactions, each is given once, in order, with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.data.arrow_schema import to_arrow
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.events import AddData, DatasetKind, ExecuteTransform, SetDataSchema, SetTransform, TransformInput
from chain.model.source import SqlQueryStep, TransformSql
from chain.multihash import Multihash
from chain.state import ChainState, InputPosition, load_state
from engines.contract import Success
from odfd.transform.checkpoint_info import NOTHING
from odfd.transform.driver import plan_at
from odfd.transform.inputs import view_input
from odfd.transform.plan import Diverged, InputView, TransformPlan, UpToDate, plan_transform, settle
from worlds.legacy_schema import legacy
from worlds.transform_world import SCHEMA

ROOT = DatasetId.from_public_key(b"r" * 32)
DERIVED = DatasetId.from_public_key(b"d" * 32)

# What a publisher does next: rows (how many), a heartbeat, or a word about the dataset; and how far its watermark goes.
steps = st.lists(
    st.tuples(st.sampled_from(["rows", "heartbeat", "note"]), st.integers(1, 4), st.integers(0, 50)),
    min_size=1,
    max_size=12,
)


def publish(world: Any, history: list[tuple[str, int, int]]) -> list[Multihash]:
    """The heads after each step."""
    world.found()
    world.add_rows([0], watermark=1)
    heads, watermark = [world.chains.chain(ROOT).head().hash], 1
    for number, (kind, count, jump) in enumerate(history):
        if kind == "note":
            world.add_note(f"note {number}")
        else:
            watermark += jump + (kind == "heartbeat")
            world.add_rows(list(range(count)) if kind == "rows" else [], watermark=watermark)
        heads.append(world.chains.chain(ROOT).head().hash)
    return heads


def data_blocks(world: Any) -> list[Any]:
    chain = world.chains.chain(ROOT)
    blocks = [chain.block_at(number) for number in range(chain.head().size)]
    return [block for block in blocks if isinstance(block.event, AddData)]


@pytest.mark.slow
@settings(max_examples=40)
@given(history=steps, data=st.data())
def test_any_cutting_gives_each_block_once_in_order(make_world: Any, history: list[Any], data: Any) -> None:
    world = make_world()
    heads = publish(world, history)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(heads) - 1)))) or [len(heads) - 1]
    position, given_blocks, offsets = InputPosition(None, None), [], []
    for cut in cuts:
        view = view_input(world.chains.chain(ROOT), ROOT, "x", position, heads[cut], ())
        assert isinstance(view, InputView)
        consumed = view.consumed
        assert consumed.prev_block_hash == position.block_hash
        assert consumed.prev_offset == position.offset
        given_blocks += view.new
        offsets += [block.new_data.offset_interval for block in view.new if block.new_data]
        position = InputPosition(
            consumed.new_block_hash or position.block_hash,
            position.offset if consumed.new_offset is None else consumed.new_offset,
        )
    stop = world.chains.chain(ROOT).block_by_hash(heads[cuts[-1]]).sequence_number
    expected = [block for block in data_blocks(world) if block.sequence_number <= stop]
    assert [block.hash for block in given_blocks] == [block.hash for block in expected]
    # Where a block stands between watermarks is a fact of its own chain, so no cutting can change it.
    stated = [block.event.new_watermark for block in expected]
    assert [block.watermark_before for block in given_blocks] == [None, *stated][: len(expected)]
    assert [block.watermark_after for block in given_blocks] == stated
    assert position.offset == (offsets[-1].end if offsets else None)


@pytest.mark.slow
@settings(max_examples=40)
@given(history=steps, data=st.data())
def test_reopened_blocks_come_once_in_order_whatever_runs_name_them(make_world: Any, history: Any, data: Any) -> None:
    world = make_world()
    heads = publish(world, history)
    blocks = data_blocks(world)
    runs = []
    for _ in range(data.draw(st.integers(0, 4))):
        first = data.draw(st.integers(0, len(blocks) - 1))
        last = data.draw(st.integers(first, len(blocks) - 1))
        runs.append((first, last))
    named = [(blocks[first].hash, blocks[last].hash) for first, last in runs]
    position = InputPosition(heads[-1], None)
    view = view_input(world.chains.chain(ROOT), ROOT, "x", position, heads[-1], named)
    assert isinstance(view, InputView)
    wanted = sorted({number for first, last in runs for number in range(first, last + 1)})
    assert [block.hash for block in view.reopened] == [blocks[number].hash for number in wanted]
    assert view.new == ()
    before = [None, *(block.event.new_watermark for block in blocks)]
    assert [block.watermark_before for block in view.reopened] == [before[number] for number in wanted]


def test_what_is_not_in_the_input_diverged(world: Any) -> None:
    heads = publish(world, [])
    elsewhere = Multihash.sha3_256(b"elsewhere")
    chain = world.chains.chain(ROOT)
    assert view_input(chain, ROOT, "x", InputPosition(elsewhere, 3), heads[0], ()) == Diverged("x", elsewhere)
    assert view_input(chain, ROOT, "x", InputPosition(None, None), elsewhere, ()) == Diverged("x", elsewhere)
    seed = chain.block_at(0).hash
    assert view_input(chain, ROOT, "x", InputPosition(heads[0], 0), seed, ()) == Diverged("x", seed)


def plan_of(world: Any) -> Any:
    chain = world.chains.chain(DERIVED)
    state = load_state(chain)
    head = world.chains.chain(ROOT).head().hash
    return plan_at(world.chains, chain, state, {ROOT: head}, NOTHING, Instant(5_000_000 * MILLISECOND))


@pytest.mark.slow
def test_reads_do_not_grow_with_the_input(make_world: Any) -> None:
    counts = []
    for length in (3, 60):
        world = make_world()
        heads = publish(world, [("rows", 1, 1)] * length)
        counting = Counting(world.chains.chain(ROOT))
        view_input(counting, ROOT, "x", InputPosition(heads[-2], 0), heads[-1], ())
        counts.append(counting.reads)
    assert counts[0] == counts[1]


class Counting:
    def __init__(self, chain: Any) -> None:
        self._chain = chain
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        self.reads += 1
        return getattr(self._chain, name)


def test_watermark_and_checkpoint_that_do_not_move_are_named_again(world: Any) -> None:
    publish(world, [])
    plan = plan_of(world)
    assert isinstance(plan, TransformPlan)
    before = world.chains.chain(ROOT).last_of(("SetDataSchema",)).event
    assert isinstance(before, SetDataSchema)
    event = settle(plan, Success(schema=before.schema), None, None)
    assert isinstance(event, ExecuteTransform)
    assert event.new_watermark is None
    assert event.prev_offset is None


def test_up_to_date_until_there_is_a_schema(world: Any) -> None:
    world.found()
    plan = plan_of(world)
    assert isinstance(plan, UpToDate)
    assert "no data yet" in plan.reason


def test_an_input_whose_schema_is_in_the_legacy_form_is_taken(world: Any) -> None:
    world.found()
    said = SetDataSchema(raw_arrow_schema=legacy(SCHEMA))
    cut = world.append(ROOT, said).hash
    view = view_input(world.chains.chain(ROOT), ROOT, "x", InputPosition(None, None), cut, ())
    assert isinstance(view, InputView)
    assert view.schema is not None
    assert to_arrow(view.schema).equals(SCHEMA)


def test_inputs_keep_their_order(world: Any) -> None:
    """Two inputs: the request names them as SetTransform does, whatever their ids."""
    other = DatasetId.from_public_key(b"a" * 32)
    publish(world, [])
    chain = world.chains.chain(ROOT)
    view = view_input(chain, ROOT, "x", InputPosition(None, None), chain.head().hash, ())
    assert isinstance(view, InputView)
    transform = SetTransform(
        inputs=(TransformInput(dataset_ref=str(other), alias="y"), TransformInput(dataset_ref=str(ROOT), alias="x")),
        transform=TransformSql(engine="spark", queries=(SqlQueryStep(query="select 1"),)),
    )
    state = ChainState(
        dataset=DERIVED,
        kind=DatasetKind.DERIVATIVE,
        head=Multihash.sha3_256(b"h"),
        sequence_number=1,
        set_transform=transform,
    )
    second = InputView(
        **{name: getattr(view, name) for name in view.__struct_fields__} | {"dataset": other, "alias": "y"}
    )
    plan = plan_transform(state, Multihash.sha3_256(b"t"), [second, view], Instant(0))
    assert isinstance(plan, TransformPlan)
    assert [each.dataset_id for each in plan.query_inputs] == [other, ROOT]
