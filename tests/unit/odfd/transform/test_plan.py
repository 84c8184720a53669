"""Planning alone: blocks cut into transactions, their limit, their progress."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.data.arrow_schema import to_arrow
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.events import (
    AddData,
    Checkpoint,
    DatasetKind,
    DataSlice,
    OffsetInterval,
    SetDataSchema,
    SetTransform,
    TransformInput,
    Vocab,
)
from chain.model.source import SqlQueryStep, TransformSql
from chain.multihash import Multihash
from chain.state import ChainState, InputPosition, load_state
from engines.contract import STAGES, STARTING, EngineProgress, Success
from engines.spark.state.checkpoint import Arranged, OpenInput, StateCheckpoint, encode_checkpoint
from odfd.control import wire
from odfd.runtime.tasks import Report
from odfd.services.views.task_progress import show_failures, show_transform
from odfd.transform.checkpoint_info import NOTHING, TransformProgress, read_past
from odfd.transform.driver import Committed, plan_at, run_transform
from odfd.transform.inputs import view_input
from odfd.transform.pacing import up_to, within
from odfd.transform.plan import DataBlock, Diverged, InputView, TransformPlan, UpToDate, plan_transform, settle
from odfd.transform.progress import TransformStep, by_engine, count_repeats
from odfd.transform.replay import Replayed, replay
from worlds.kinds import expect
from worlds.schemas import legacy
from worlds.transform_world import SCHEMA

# Planning alone: however an input's blocks are cut into transactions, each is given once, in order, with its place.

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
        view = expect(InputView, view_input(world.chains.chain(ROOT), ROOT, "x", position, heads[cut], ()))
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
    view = expect(InputView, view_input(world.chains.chain(ROOT), ROOT, "x", position, heads[-1], named))
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
    plan = expect(TransformPlan, plan_of(world))
    before = expect(SetDataSchema, world.chains.chain(ROOT).last_of(("SetDataSchema",)).event)
    event = settle(plan, Success(schema=before.schema), None, None)
    assert (event.new_watermark, event.new_checkpoint, event.prev_offset) == (None, None, None)
    held = Checkpoint(physical_hash=Multihash.sha3_256(b"held"), size=4)
    state = msgspec.structs.replace(plan.state, last_data=AddData(new_watermark=Instant(7), new_checkpoint=held))
    plan = msgspec.structs.replace(plan, state=state)
    event = settle(plan, Success(schema=before.schema), None, None)
    assert (event.new_watermark, event.new_checkpoint) == (7, held)
    assert settle(plan, Success(schema=before.schema, new_watermark=Instant(8)), None, None).new_watermark == 8
    with pytest.raises(Invalid, match="moved the watermark back"):
        settle(plan, Success(schema=before.schema, new_watermark=Instant(6)), None, None)


def test_up_to_date_until_there_is_a_schema(world: Any) -> None:
    world.found()
    plan = expect(UpToDate, plan_of(world))
    assert "no data yet" in plan.reason


def test_an_input_whose_schema_is_in_the_legacy_form_is_taken(world: Any) -> None:
    world.found()
    said = SetDataSchema(raw_arrow_schema=legacy(SCHEMA))
    cut = world.append(ROOT, said).hash
    view = expect(InputView, view_input(world.chains.chain(ROOT), ROOT, "x", InputPosition(None, None), cut, ()))
    assert view.schema is not None
    assert to_arrow(view.schema).equals(SCHEMA)


def test_inputs_keep_their_order(world: Any) -> None:
    """Two inputs: the request names them as SetTransform does, whatever their ids."""
    other = DatasetId.from_public_key(b"a" * 32)
    publish(world, [])
    chain = world.chains.chain(ROOT)
    view = expect(InputView, view_input(chain, ROOT, "x", InputPosition(None, None), chain.head().hash, ()))
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
    plan = expect(TransformPlan, plan_transform(state, Multihash.sha3_256(b"t"), [second, view], Instant(0)))
    assert [each.dataset_id for each in plan.query_inputs] == [other, ROOT]


# The limit of a transaction: a policy that always lets something through, and what a replay takes for it.

NAME = Multihash.sha3_256(b"")
ID = DatasetId.from_public_key(b"p" * 32)


def view(blocks: list[tuple[int | None, int]]) -> InputView:
    """Blocks of (watermark before, rows)."""
    return InputView(
        dataset=ID,
        name="a",
        alias="a",
        position=InputPosition(None, None),
        cut=NAME,
        last_offset=None,
        new=tuple(
            DataBlock(
                hash=NAME,
                sequence_number=number,
                system_time=Instant(0),
                new_data=DataSlice(
                    logical_hash=NAME, physical_hash=NAME, offset_interval=OffsetInterval(start=1, end=rows), size=1
                )
                if rows
                else None,
                stated_watermark=None,
                watermark_before=None if before is None else Instant(before),
            )
            for number, (before, rows) in enumerate(blocks)
        ),
        reopened=(),
        schema=None,
        vocab=Vocab(),
    )


BACKLOG = [(None, 5), (10, 5), (20, 5), (30, 5), (40, 5)]


def test_a_backlog_is_cut_where_the_rows_are_too_many() -> None:
    assert within(100)(TransformProgress(), [view(BACKLOG)]) is None
    assert within(12)(TransformProgress(), [view(BACKLOG)]) == 20
    assert within(12)(TransformProgress(), [view(BACKLOG), view(BACKLOG)]) == 10
    assert (
        within(12)(TransformProgress(emitted=Instant(25), settled=Instant(60), slowest=Instant(60)), [view(BACKLOG)])
        == 30
    )


def test_output_ahead_of_its_inputs_is_cut_ahead() -> None:
    past = TransformProgress(emitted=Instant(100), settled=Instant(105), slowest=Instant(5))
    assert within(12)(past, [view(BACKLOG)]) == 120


def test_waiting_ticks_leave_by_their_share_of_the_rows() -> None:
    past = TransformProgress(settled=Instant(9), due=tuple(Instant(n) for n in range(1, 9)), held=80)
    assert within(20)(past, []) == 2
    assert within(1)(past, []) == 1
    assert within(80)(past, []) is None


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.none() | st.integers(0, 50), st.integers(0, 9)), max_size=9),
    st.integers(1, 20),
    st.integers(0, 60),
)
def test_a_limit_is_always_beyond_what_is_out(blocks: list[tuple[int | None, int]], rows: int, emitted: int) -> None:
    past = TransformProgress(emitted=Instant(emitted), settled=Instant(emitted), slowest=Instant(emitted))
    found = within(rows)(past, [view(blocks)])
    assert found is None or found > emitted


def test_a_replay_settles_what_was_recorded() -> None:
    assert up_to(Instant(7))(TransformProgress(), []) == 7
    assert up_to(None)(TransformProgress(), []) is None


def test_a_checkpoint_tells_what_waits() -> None:
    inputs = tuple(OpenInput(id=str(ID), alias=alias, w=w) for alias, w in (("a", 9), ("b", 7)))
    known = StateCheckpoint(v=1, transform="t", mode="table", g=3, inputs=inputs, late={}, untimed={})
    assert read_past(None) == TransformProgress()
    out = read_past(encode_checkpoint(known))
    assert (out.emitted, out.settled, out.slowest) == (3 * MILLISECOND, 3 * MILLISECOND, 7 * MILLISECOND)
    assert not out.waits
    held = StateCheckpoint(
        v=1, transform="t", mode="table", g=3, inputs=(*inputs, OpenInput(id=str(ID), alias="c")), late={}, untimed={},
        ticks=(5, 6, 8), settled=6, arranged=(Arranged(name="rows:a", rows=4, size=1, digest=""),),
    )  # fmt: skip
    out = read_past(encode_checkpoint(held))
    assert out.waits
    assert (out.due, out.held, out.slowest) == ((5 * MILLISECOND, 6 * MILLISECOND), 4, None)


# The progress of a transaction: what it reads, its stage, what an engine says of it, and what people see.

BEGUN = TransformStep(stage="planning", slices=2, bytes=31_000, rows=1_500)
TOLD = (
    EngineProgress(stage=STARTING),
    EngineProgress(),
    EngineProgress(stage="reading"),
    EngineProgress(stage="computing", tasks_done=1, tasks_total=4, rows_read=2),
    EngineProgress(stage="computing", tasks_done=1, tasks_total=4, rows_read=2),
    EngineProgress(stage="writing", tasks_done=4, tasks_total=4, rows_read=3),
)
numbers = st.none() | st.integers(0, 2**64 - 1)


def tells(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine says ``TOLD`` of each transaction."""
    honest = world.engine.transform

    async def transform(request: Any, on_progress: Any) -> Any:
        for each in TOLD:
            on_progress(each)
        return await honest(request)

    monkeypatch.setattr(world.engine, "transform", transform)


async def test_each_stage_of_a_transaction_is_reported_once(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.found()
    world.add_rows([1, 2])
    world.add_rows([3])
    tells(world, monkeypatch)
    steps: list[TransformStep] = []
    assert isinstance(await run_transform(world.deps, DERIVED, steps.append), Committed)
    assert [each.stage for each in steps] == [
        "planning", STARTING, "computing", "reading", "computing", "writing", "checking", "committing",
    ]  # fmt: skip
    assert {(each.slices, each.rows) for each in steps} == {(2, 3)}
    assert len({each.bytes for each in steps}) == 1
    assert steps[0].bytes > 0
    assert [each.rows_read for each in steps] == [None, None, None, None, 2, 3, None, None]
    assert [each.tasks_done for each in steps if each.tasks_total] == [1, 4]


async def test_what_is_executed_again_is_numbered(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.found()
    for value in range(3):
        world.add_rows([value])
        await run_transform(world.deps, DERIVED)
    steps: list[TransformStep] = []
    async for outcome in replay(world.deps, DERIVED, report=steps.append):
        assert isinstance(outcome, Replayed)
        assert outcome.is_reproduced
    assert [(each.repeat, each.repeats, each.stage) for each in steps] == [
        (number, 3, stage) for number in (1, 2, 3) for stage in ("planning", "computing", "checking")
    ]


def test_an_engine_is_not_believed() -> None:
    steps: list[TransformStep] = []
    show = by_engine(BEGUN, steps.append)
    show(EngineProgress(stage="\x1b[2J" * 1000, tasks_done=9, tasks_total=4))
    assert [(each.stage, each.tasks_done, each.tasks_total) for each in steps] == [("computing", 4, 4)]


@given(st.none() | st.text(max_size=5) | st.sampled_from(STAGES), numbers, numbers, numbers)
def test_whatever_an_engine_says_is_shown_in_one_short_line(
    stage: str | None, done: int | None, total: int | None, read: int | None
) -> None:
    report = Report()
    told = by_engine(BEGUN, lambda step: show_transform(report, step))
    told(EngineProgress(stage=stage, tasks_done=done, tasks_total=total, rows_read=read))
    assert report.message.isprintable()
    assert len(report.message) < 160
    assert report.total is None or 0 <= report.done <= report.total


def test_rows_are_counted_of_those_that_are_read_and_of_none_when_a_slice_is_read_twice() -> None:
    report = Report()
    show_transform(report, BEGUN)
    assert (report.done, report.total, report.unit) == (0, None, "rows")
    assert report.message == "planning, 1,500 rows of 2 slices (31.0 kB)"
    step = msgspec.structs.replace(BEGUN, stage="computing", rows_read=700, tasks_done=3, tasks_total=8)
    show_transform(report, step)
    assert (report.done, report.total, report.unit) == (700, 1_500, "rows")
    assert report.message == "computing, 1,500 rows of 2 slices (31.0 kB), 3 of 8 tasks done"
    show_transform(report, msgspec.structs.replace(step, rows_read=1_501))
    assert (report.done, report.total) == (1_501, None)


def test_transactions_are_counted_where_they_are_executed_again() -> None:
    report = Report()
    count_repeats(3, 12, lambda step: show_transform(report, step))(msgspec.structs.replace(BEGUN, stage=STARTING))
    assert (report.done, report.total, report.unit) == (2, 12, "transforms")
    assert report.message == "transaction 3 of 12 again: starting the engine, 1,500 rows of 2 slices (31.0 kB)"


def test_a_task_says_in_the_end_which_of_its_datasets_failed() -> None:
    report = Report()
    report.begin("pulling")
    good = wire.PullItem(ref="a", outcome="updated")
    show_failures(report, [good])
    assert report.message == "pulling"
    problem = wire.Problem(detail="'warm' is not a number", place="may.csv:2", family="Invalid")
    bad = wire.PullItem(ref="b", outcome="failed", fault=problem)
    show_failures(report, [good, bad, msgspec.structs.replace(bad, ref="c")])
    assert report.message == "2 of 3 failed: b: may.csv:2: 'warm' is not a number"
