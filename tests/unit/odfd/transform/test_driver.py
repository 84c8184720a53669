"""Transactions of a derived dataset, end to end; state that was lost, and columns that came later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.blocks import encode_block
from chain.data.arrow_schema import from_arrow
from chain.errors import Conflict, Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, ExecuteTransform, SetDataSchema, SetInfo, SetTransform, TransformInput
from chain.model.source import SqlQueryStep, TransformSql
from chain.multihash import Multihash
from chain.state import load_state
from engines.contract import (
    EngineInternalError,
    InvalidQuery,
    OnProgress,
    RawQueryRequest,
    Success,
    TransformOutcome,
    TransformRequest,
    ignore_progress,
)
from engines.errors import EngineFault
from engines.spark.state.checkpoint import VERSION, StateCheckpoint, decode_checkpoint, encode_checkpoint
from odfd.transform.driver import ATTEMPTS, Committed, plan_next, run_transform
from odfd.transform.evolution import columns_known
from odfd.transform.pending import ahead
from odfd.transform.plan import Blocked, Rejected, TransformPlan, UpToDate
from odfd.transform.progress import TransformStep
from odfd.transform.recovery import restore_state, run_recovering
from odfd.transform.replay import Replayed, replay, replay_step
from worlds.fake_engine import FakeEngine
from worlds.kinds import expect
from worlds.transform_world import SCHEMA

# Transactions of a derived dataset, end to end over memory stores and the small engine.

ROOT = DatasetId.from_public_key(b"r" * 32)
DERIVED = DatasetId.from_public_key(b"d" * 32)


async def test_first_transaction_brings_schema_and_rows(world: Any) -> None:
    world.found(rows=[1, 2, 3], watermark=2000)
    done = expect(Committed, await run_transform(world.deps, DERIVED))
    assert done.records == 3
    chain = world.chains.chain(DERIVED)
    assert isinstance(chain.block_at(2).event, SetDataSchema)
    event = chain.block_at(3).event
    assert event == done.event
    assert isinstance(event, ExecuteTransform)
    assert event.new_watermark == 2000 * MILLISECOND
    assert event.query_inputs[0].prev_block_hash is None
    assert event.query_inputs[0].new_block_hash == world.chains.chain(ROOT).head().hash
    assert event.query_inputs[0].new_offset == 2
    assert world.rows(event.new_data).column("k").to_pylist() == [1, 2, 3]
    assert world.rows(event.new_data).column("system_time").to_pylist()[0].timestamp() * 1000 == world.time
    assert not any((world.folder / "staging").iterdir())


async def test_an_engine_is_warmed_only_for_unread_input(world: Any) -> None:
    asked: list[str] = []

    async def pull(is_own: bool = True) -> int:
        await ahead(world.chains, lambda _: is_own, lambda: asked.append("warm"), [ROOT, DERIVED])
        return len(asked)

    world.found(rows=[1])
    assert (await pull(False), await pull()) == (0, 1)
    await run_transform(world.deps, DERIVED)
    assert await pull() == 1
    world.add_rows([2])
    assert await pull() == 2


async def test_nothing_new_is_up_to_date_and_writes_nothing(world: Any) -> None:
    world.found()
    assert isinstance(await run_transform(world.deps, DERIVED), UpToDate)
    world.add_rows([1])
    await run_transform(world.deps, DERIVED)
    head = world.chains.chain(DERIVED).head()
    world.add_note("the input got a description, which is no data")
    assert isinstance(await run_transform(world.deps, DERIVED), UpToDate)
    assert world.chains.chain(DERIVED).head() == head


async def test_a_heartbeat_moves_the_watermark_without_rows(world: Any) -> None:
    world.found(rows=[1], watermark=1000)
    await run_transform(world.deps, DERIVED)
    world.add_rows([], watermark=5000)
    done = expect(Committed, await run_transform(world.deps, DERIVED))
    assert done.event.new_data is None
    assert done.event.new_watermark == 5000 * MILLISECOND
    assert done.event.prev_offset == 0
    assert done.event.query_inputs[0].new_offset is None


async def test_an_input_that_is_not_here_blocks(world: Any) -> None:
    world.found(rows=[1])
    world.chains.drop(ROOT)
    done = expect(Blocked, await run_transform(world.deps, DERIVED))
    assert "not held here" in done.reason
    assert str(ROOT) in done.hint


async def test_a_slice_that_is_not_here_blocks(world: Any) -> None:
    world.found(rows=[1])
    event = expect(AddData, world.chains.chain(ROOT).last_of(("AddData",)).event)
    assert event.new_data is not None
    world.objects.remove(event.new_data.physical_hash)
    done = expect(Blocked, await run_transform(world.deps, DERIVED))
    assert "slice" in done.reason


async def test_a_rewritten_input_blocks(world: Any) -> None:
    world.found(rows=[1])
    await run_transform(world.deps, DERIVED)
    world.chains.drop(ROOT)
    world.append(ROOT, *rewritten())
    world.add_rows([9])
    done = expect(Blocked, await run_transform(world.deps, DERIVED))
    assert "rewritten" in done.reason


def rewritten() -> list[Any]:
    from chain.model.events import DatasetKind, Seed

    return [Seed(dataset_id=ROOT, dataset_kind=DatasetKind.ROOT)]


async def test_a_query_that_the_engine_refuses_is_an_outcome(world: Any) -> None:
    world.found(query="select now() from x", rows=[1])
    done = expect(Rejected, await run_transform(world.deps, DERIVED))
    assert "now()" in done.message
    assert world.chains.chain(DERIVED).head().sequence_number == 1


async def test_the_loser_of_a_race_plans_again(world: Any) -> None:
    world.found(rows=[1, 2])
    world.interfere = SetInfo(description="somebody was faster")
    done = expect(Committed, await run_transform(world.deps, DERIVED))
    assert done.head.sequence_number == 4
    assert load_state(world.chains.chain(DERIVED)).next_offset == 2


async def test_a_race_that_never_ends_is_told(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.found(rows=[1])
    tries = 0

    async def commit(*_: object) -> Any:
        nonlocal tries
        tries += 1
        raise Conflict("again")

    monkeypatch.setattr(world, "commit", commit)
    with pytest.raises(Conflict):
        await run_transform(world.deps, DERIVED)
    assert tries == ATTEMPTS


async def test_the_same_question_has_the_same_transaction_id(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.found(rows=[1])
    monkeypatch.setattr(world, "time", world.time)
    object.__setattr__(world.deps, "now", lambda: world.time * MILLISECOND)
    one, other = plan_next(world.deps, DERIVED), plan_next(world.deps, DERIVED)
    assert isinstance(one, TransformPlan)
    assert isinstance(other, TransformPlan)
    assert one.transaction_id == other.transaction_id
    world.add_rows([2])
    third = expect(TransformPlan, plan_next(world.deps, DERIVED))
    assert third.transaction_id != one.transaction_id


LIES = {
    "offset": lambda answer: msgspec.structs.replace(
        answer, new_offset_interval=msgspec.structs.replace(answer.new_offset_interval, end=77)
    ),
    "no interval": lambda answer: msgspec.structs.replace(answer, new_offset_interval=None),
    "no schema": lambda answer: msgspec.structs.replace(answer, schema=None),
    "another schema": lambda answer: msgspec.structs.replace(
        answer, schema=msgspec.structs.replace(answer.schema, fields=answer.schema.fields[:-1])
    ),
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_engine_is_not_believed(world: Any, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world.found(rows=[1, 2])
    honest = world.engine.transform

    async def transform(request: Any, on_progress: Any = None) -> Any:
        answer = expect(Success, await honest(request))
        return LIES[lie](answer)

    monkeypatch.setattr(world.engine, "transform", transform)
    if lie == "no interval":
        # A file that nobody speaks of is not taken; without rows, watermark and checkpoint nothing is recorded.
        done = expect(Committed, await run_transform(world.deps, DERIVED))
        assert done.event is None
        assert isinstance(world.chains.chain(DERIVED).block_at(done.head.sequence_number).event, SetDataSchema)
        assert isinstance(await run_transform(world.deps, DERIVED), UpToDate)
        return
    with pytest.raises(Invalid):
        await run_transform(world.deps, DERIVED)
    assert world.chains.chain(DERIVED).head().sequence_number == 1


async def test_a_watermark_that_goes_back_is_refused(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.found(rows=[1], watermark=5000)
    await run_transform(world.deps, DERIVED)
    world.add_rows([2], watermark=6000)
    honest = world.engine.transform

    async def transform(request: Any, on_progress: Any = None) -> Any:
        return msgspec.structs.replace(await honest(request), new_watermark=1)

    monkeypatch.setattr(world.engine, "transform", transform)
    with pytest.raises(Invalid, match="watermark back"):
        await run_transform(world.deps, DERIVED)


async def test_an_engine_that_fails_is_a_fault(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.found(rows=[1])

    async def transform(request: Any, on_progress: Any = None) -> Any:
        return EngineInternalError(message="a bug\nCaused by: another", backtrace="Traceback: here")

    monkeypatch.setattr(world.engine, "transform", transform)
    with pytest.raises(EngineFault, match="a bug Caused by: another") as told:
        await run_transform(world.deps, DERIVED)
    assert "here" not in told.value.hint
    assert "the daemon's log" in told.value.hint


async def test_a_refusal_keeps_its_rule_hint_and_place(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it stood in the message, the rule twice."""
    world.found(rows=[1])

    async def transform(request: Any, on_progress: Any = None) -> Any:
        return InvalidQuery(message="no such day", rule="no-day", hint="name another", place="line 2, column 8")

    monkeypatch.setattr(world.engine, "transform", transform)
    outcome = await run_transform(world.deps, DERIVED)
    assert outcome == Rejected("no such day", "no-day", "name another", "line 2, column 8")
    assert str(outcome) == "line 2, column 8: no such day; name another"


@pytest.mark.parametrize("query", ["select 1", "select * from b"])
async def test_the_small_engine_answers_in_parts(query: str) -> None:
    asked = RawQueryRequest(
        input_data_paths=(), transform=TransformSql(engine="spark", query=query), output_data_path=""
    )
    answer = expect(InvalidQuery, await FakeEngine().raw_query(asked))
    assert answer.hint
    assert answer.hint not in answer.message


async def steps(world: Any) -> list[Any]:
    return [outcome async for outcome in replay(world.deps, DERIVED)]


async def test_what_was_done_honestly_is_reproduced(world: Any) -> None:
    world.found()
    for values in ([1, 2], [3], [], [4, 5, 6]):
        world.add_rows(values, watermark=world.time - 1_600_000_000_000)
        await run_transform(world.deps, DERIVED)
        world.add_note(str(values))
    found = await steps(world)
    assert [each.is_reproduced for each in found] == [True] * 4
    assert [each.block.event == each.event for each in found] == [True] * 4


async def test_a_changed_number_is_found_where_it_is(world: Any) -> None:
    world.found(rows=[1, 2])
    await run_transform(world.deps, DERIVED)
    world.add_rows([3, 4])
    honest = expect(Committed, await run_transform(world.deps, DERIVED))
    # Somebody else publishes the same history but for one number, with hashes that fit.
    liar = world.chains.chain(DERIVED)
    blocks = [liar.block_at(number) for number in range(4)]
    table = world.rows(honest.event.new_data)
    forged = world.keep(table.set_column(4, table.schema.field(4), pa.array([3, 5], pa.int64())))
    world.chains.drop(DERIVED)
    from chain.store.base import Append, Head

    world.chains.commit(
        [Append(dataset=DERIVED, expected=None, blocks=blocks, objects=[blocks[3].event.new_data.physical_hash])]
    )
    world.append_at(
        DERIVED,
        Head(blocks[3].hash, 3),
        [msgspec.structs.replace(honest.event, new_data=forged)],
        [forged.physical_hash],
        liar_time(world),
    )
    found = await steps(world)
    assert [each.is_reproduced for each in found] == [True, False]
    assert [each.field for each in found[1].mismatches] == ["newData.logicalHash"]
    assert found[1].mismatches[0].recorded == str(forged.logical_hash)
    assert found[1].block.sequence_number == 4


def liar_time(world: Any) -> Any:
    from chain.instant import Instant

    return Instant(world.now() // MILLISECOND * MILLISECOND)


async def test_one_step_alone(world: Any, tmp_path: Any) -> None:
    world.found(rows=[1])
    await run_transform(world.deps, DERIVED)
    folder = tmp_path / "step"
    folder.mkdir()
    outcome = expect(Replayed, await replay_step(world.deps, DERIVED, 3, None, folder))
    assert outcome.is_reproduced
    assert outcome.schema is not None
    assert outcome.rows is not None
    assert outcome.rows.is_file()
    with pytest.raises(Invalid, match="no transaction"):
        await replay_step(world.deps, DERIVED, 1, None, folder)


async def test_replay_says_which_input_it_lacks(world: Any) -> None:
    world.found(rows=[1])
    await run_transform(world.deps, DERIVED)
    world.chains.drop(ROOT)
    (only,) = await steps(world)
    assert isinstance(only, Blocked)


async def test_a_dataset_that_is_not_there(world: Any) -> None:
    with pytest.raises(Invalid, match="no dataset"):
        await run_transform(world.deps, DERIVED)


async def test_a_root_has_no_transform(world: Any) -> None:
    world.found()
    assert isinstance(await run_transform(world.deps, ROOT), Blocked)


def test_an_id_is_sha3(world: Any) -> None:
    world.found(rows=[1])
    plan = expect(TransformPlan, plan_next(world.deps, DERIVED))
    assert Multihash.parse(plan.transaction_id).algorithm == "sha3-256"


async def test_what_may_not_be_relied_on_feeds_nothing(world: Any) -> None:
    """An input is consumed up to the bound, goes on when it rises, and what was consumed is never given back."""
    world.found()
    for number in (1, 2, 3):
        world.add_rows([number])
    size = world.chains.chain(ROOT).head().size
    bound = 0
    deps = replace(world.deps, usable=lambda dataset: bound if dataset == ROOT else None)
    found = expect(Blocked, await run_transform(deps, DERIVED))
    assert "nothing of input" in found.reason
    assert "trust show did:odf:" in found.hint
    bound = size - 1
    done = expect(Committed, await run_transform(deps, DERIVED))
    assert done.records == 2
    for again in (size - 1, size - 2, 0):
        bound = again
        found = await run_transform(deps, DERIVED)
        assert isinstance(found, Blocked), again
        assert "may be used under the policy" in found.reason
    bound = size
    done = expect(Committed, await run_transform(deps, DERIVED))
    assert done.records == 1
    assert isinstance(await run_transform(deps, DERIVED), UpToDate)


# State that was lost is made again from the chains, or it is said why it cannot be.


class Counting(FakeEngine):
    """Its state counts all rows so far, so that each checkpoint needs the one before. ``step``: how it counts."""

    step = 1

    async def transform(self, request: TransformRequest, on_progress: OnProgress = ignore_progress) -> TransformOutcome:
        answer = await super().transform(request, on_progress)
        if isinstance(answer, Success):
            await trio.to_thread.run_sync(self._count, request, answer)
        return answer

    def _count(self, request: TransformRequest, answer: Success) -> None:
        before, interval = 0, answer.new_offset_interval
        if request.prev_checkpoint_path is not None:
            before = decode_checkpoint(Path(request.prev_checkpoint_path).read_bytes()).late.get("x", 0)
        count = before + self.step * (0 if interval is None else interval.end - interval.start + 1)
        state = StateCheckpoint(v=VERSION, transform="t", mode="log", inputs=(), late={"x": count}, untimed={})
        Path(request.new_checkpoint_path).write_bytes(encode_checkpoint(state))


@pytest.fixture
def counted(world: Any, tmp_path: Path) -> Any:
    return type(world)(tmp_path / "counted", Counting())


async def grown(world: Any) -> Any:
    """Three transactions, and rows that wait; returns the name of the checkpoint."""
    world.found()
    for rows in ([1, 2], [3], [4, 5, 6]):
        world.add_rows(rows, watermark=rows[-1] * 1000)
        done = expect(Committed, await run_transform(world.deps, DERIVED))
    world.add_rows([7], watermark=7000)
    return done.event.new_checkpoint.physical_hash


def state_of(world: Any) -> dict[str, int]:
    event = expect(ExecuteTransform, world.chains.chain(DERIVED).last_of(("ExecuteTransform",), None).event)
    return decode_checkpoint(world.objects.read(event.new_checkpoint.physical_hash)).late


async def test_a_lost_checkpoint_is_made_again_and_the_transform_goes_on(counted: Any) -> None:
    lost = await grown(counted)
    counted.objects.remove(lost)
    with pytest.raises(NotFound):
        await run_transform(counted.deps, DERIVED)
    steps: list[TransformStep] = []
    done = expect(Committed, await run_recovering(counted.deps, DERIVED, steps.append))
    assert done.records == 1
    assert counted.objects.has(lost)
    assert state_of(counted) == {"x": 7}
    assert list(dict.fromkeys((each.repeat, each.repeats) for each in steps)) == [(1, 3), (2, 3), (3, 3), (0, 0)]


async def test_a_damaged_checkpoint_is_made_again(counted: Any) -> None:
    lost = await grown(counted)
    counted.objects.path(lost).write_bytes(b"{}")
    assert await restore_state(counted.deps, DERIVED)
    assert not await restore_state(counted.deps, DERIVED)
    assert isinstance(await run_transform(counted.deps, DERIVED), Committed)
    assert state_of(counted) == {"x": 7}


async def test_nothing_is_done_when_nothing_is_lost(counted: Any) -> None:
    await grown(counted)
    head = counted.chains.chain(DERIVED).head()
    assert not await restore_state(counted.deps, DERIVED)
    assert counted.chains.chain(DERIVED).head() == head


async def test_another_engine_s_state_is_not_taken_for_it(counted: Any) -> None:
    lost = await grown(counted)
    counted.objects.remove(lost)
    counted.engine.step = 2
    with pytest.raises(Invalid, match="its history makes another one") as fault:
        await run_recovering(counted.deps, DERIVED)
    assert fault.value.rule == "checkpoint-lost"
    assert not counted.objects.has(lost)


async def test_what_cannot_be_made_again_says_why(counted: Any) -> None:
    lost = await grown(counted)
    counted.objects.remove(lost)
    counted.objects.remove(counted.chains.chain(ROOT).last_of(("AddData",), None).event.new_data.physical_hash)
    counted.objects.remove(counted.chains.chain(ROOT).block_at(2).event.new_data.physical_hash)
    with pytest.raises(Invalid, match="cannot be made again: a slice of an input is not here"):
        await run_recovering(counted.deps, DERIVED)


# A query knows the columns that its inputs had when it was declared, whatever comes to them later.

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
    done = expect(Committed, await run_transform(world.deps, DERIVED))
    names: list[str] = world.rows(done.event.new_data).column_names
    return names


async def reproduced(world: Any) -> list[bool]:
    outcomes = [outcome async for outcome in replay(world.deps, DERIVED)]
    return [isinstance(outcome, Replayed) and outcome.is_reproduced for outcome in outcomes]


@pytest.mark.slow
async def test_a_star_goes_on_when_its_input_grows(world: Any) -> None:
    world.found(rows=[1, 2], watermark=1000)
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
        world.found(rows=[1])
        grow(world, 2)
        declare(world)
        if not at_once:
            await derive(world)
            grow(world, 3)
        assert "note" in await derive(world)
        assert all(await reproduced(world))


async def test_a_star_that_is_declared_again_brings_what_came_since(world: Any) -> None:
    world.found(rows=[1])
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
    world.found(rows=[1])
    grow(world, 2)
    assert "note" not in await derive(world)
    assert await reproduced(world) == [True]


async def test_what_a_mirror_learns_late_was_not_known(world: Any) -> None:
    """Blocks older than the declaration that came after the first transaction do not change what it meant."""
    world.found(rows=[1])
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
