"""A transform declared anew goes on where the old one stopped, as if it had always run.

Spec: docs/spec/engine-semantics.md#handover."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio

from bench.engine import LocalEngine
from chain.data.arrow_schema import from_arrow
from chain.instant import MILLISECOND, from_millis
from chain.model.events import AddPushSource, ExecuteTransform, SetTransform, TransformInput
from chain.model.source import MergeSnapshot, ReadCsv, SqlQueryStep, TemporalTable, TransformSql
from conformance.coordinator import dataset_of, reopened
from engines.contract import MigrateRequest, Success, TransformRequest, TransformRequestInput, Vocab
from engines.provision.warm import EnginePool
from engines.request_control import RequestControl
from engines.spark.execution.handover import run_migration
from engines.spark.execution.transform import SharedCaches
from engines.spark.execution.transform import run_transform as run_on_engine
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.sql.queries import Analyst
from odfd.transform.driver import Committed, run_transform
from odfd.transform.plan import TRANSFORM_EVOLUTION, Blocked, UpToDate
from odfd.transform.replay import Replayed, replay
from worlds.depth import share, stride
from worlds.transform_world import DERIVED, ROOT, World

pytestmark = pytest.mark.engine
SECOND = 1000


def window(seconds, what="sum(k) as s"):
    return (
        f"select window(event_time, '{seconds} seconds').start as event_time, {what} from x "
        f"group by window(event_time, '{seconds} seconds')"
    )


FINAL = {
    "finer": (window(20), window(5)),
    "coarser": (window(5), window(20)),
    "another sum": (window(10), window(10, "sum(k * 2) as s")),
    "more lateness": (window(10), "set odf.lateness = '7 seconds'; " + window(10)),
    "sessions": (window(10), "select session_window(event_time, '2 seconds').end as event_time, sum(k) as s from x "
                 "group by session_window(event_time, '2 seconds')"),
    "running sums": ("select event_time, k, sum(k) over (partition by k % 3 order by event_time) as s from x",
                     "select event_time, k, sum(k * 2) over (partition by k % 2 order by event_time, k rows between 2 "
                     "preceding and current row) + count(*) over (order by event_time) as s from x"),
}  # fmt: skip
TABLES = {
    "another sum": (
        "select k % 3 as g, max(event_time) as event_time, sum(k) as s from x group by k % 3",
        "select k % 3 as g, max(event_time) as event_time, sum(k * 2) as s from x where k % 2 = 0 group by k % 3",
    ),
    "the same": (
        "select k % 3 as g, max(event_time) as event_time, count(*) as s from x group by k % 3",
        "select k % 3 as g, max(event_time) as event_time, count(k) as s from x group by 1",
    ),
    "one computed of several": (
        "select k % 3 as g, max(event_time) as event_time, sum(k) div count(*) as s from x group by k % 3",
        "select k % 3 as g, max(event_time) as event_time, sum(k) div max(k) as s from x where k > 5 group by k % 3",
    ),
    "other ticks": (
        "select k % 3 as g, max(event_time) as event_time, count(*) as s from x group by k % 3",
        "set odf.tick = 'event'; select k % 3 as g, max(event_time) as event_time, count(*) as s from x group by 1",
    ),
}
DAILY = "select window(event_time, '{0} seconds').start as event_time, k % 2 as g, {1} as s from x group by 1, 2"
CORRECTED = {
    "another sum": ("set odf.late = 'apply'; " + DAILY.format(10, "sum(k)"),
                    "set odf.late = 'apply'; " + DAILY.format(10, "sum(k * 2)")),
    "coarser": ("set odf.late = 'apply'; " + DAILY.format(5, "sum(k)"),
                "set odf.late = 'apply'; " + DAILY.format(20, "max(k)")),
    "finer, and later": ("set odf.late = 'apply'; " + DAILY.format(20, "sum(k)"),
                         "set odf.late = 'apply'; set odf.lateness = '7 seconds'; " + DAILY.format(5, "sum(k)")),
    "less far back": ("set odf.late = 'apply'; " + DAILY.format(5, "sum(k)"),
                      "set odf.late = 'apply within 6 seconds'; " + DAILY.format(5, "sum(k)")),
    "farther back": ("set odf.late = 'apply within 3 seconds'; " + DAILY.format(5, "count(distinct k)"),
                     "set odf.late = 'apply within 9 seconds'; " + DAILY.format(5, "count(distinct k)")),
}  # fmt: skip
"""Windows that late rows correct."""
RUNNING = "select event_time, sum(k) over (order by event_time) as s from x"
LOG = ("select event_time, k from x", "select event_time, k * 10 as k from x where k % 2 = 0")


def history(seed, blocks=9, back=8):
    """Blocks of (seconds of rows, watermark in milliseconds); rows are so many seconds late at the most."""
    rng, clock, made, mark = random.Random(seed), 5, [], 0
    for _ in range(blocks):
        clock += rng.randrange(0, 14)
        rows = [max(clock + rng.randrange(-back, 4), 0) for _ in range(rng.randrange(0, 6))]
        mark = max(mark, (clock - rng.randrange(0, 5)) * SECOND)
        made.append((rows, mark))
    return [([5, 6], 1000), *made, ([clock + 60], (clock + 50) * SECOND)]


async def derive(world):
    """All transactions that there are."""
    while isinstance(done := await run_transform(world.deps, DERIVED), Committed):
        pass
    return done


def declare(world, query):
    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=query),))
    inputs = (TransformInput(dataset_ref=str(ROOT), alias="x"),)
    world.append(DERIVED, SetTransform(inputs=inputs, transform=transform))


def rows_of(world):
    """(op, event time in ms, other columns), of all slices."""
    chain, found = world.chains.chain(DERIVED), []
    for number in range(chain.head().sequence_number + 1):
        event = chain.block_at(number).event
        if isinstance(event, ExecuteTransform) and event.new_data is not None:
            for row in world.rows(event.new_data).to_pylist():
                assert row.pop("offset") == len(found)
                row.pop("system_time")
                op, time = row.pop("op"), round(row.pop("event_time").timestamp() * 1000)
                found.append((op, time, *row.values()))
    return found


def state_of(world):
    event = world.chains.chain(DERIVED).last_of(("ExecuteTransform",)).event
    return world.objects.path(event.new_checkpoint.physical_hash).read_bytes()


async def reproduced(world):
    """Whether each transaction gives the same again; and what it left."""
    outcomes = [outcome async for outcome in replay(world.deps, DERIVED)]
    assert all(isinstance(outcome, Replayed) for outcome in outcomes), outcomes
    assert not [outcome.mismatches for outcome in outcomes if outcome.mismatches]
    assert outcomes[-1].checkpoint == state_of(world)
    return len(outcomes)


@pytest.fixture
def make_world(tmp_path, spark_root):
    made = iter(range(100))
    return lambda: World(tmp_path / str(next(made)), LocalEngine(spark_root))


async def handed_over(make_world, old, new, blocks, at):
    """A dataset whose query changes after ``at`` blocks, and one that had the new query all the time, run at once."""
    changed, always = make_world(), make_world()
    changed.found(old)
    always.found(new)
    for number, (rows, mark) in enumerate(blocks):
        if number == at:
            await derive(changed)
            declare(changed, new)
        for world in (changed, always):
            # Both have the same inputs, to the hash.
            world.time = 1_700_000_000_000 + 1000 * (number + 1)
            world.add_rows(rows, watermark=mark)
        if number % 3 == 2:
            await derive(changed)
    for world in (changed, always):
        await derive(world)
    return changed, always


def bound_before(world):
    """Output watermark (ms) of the last transaction before the newest SetTransform."""
    chain = world.chains.chain(DERIVED)
    said = chain.last_of(("SetTransform",))
    event = chain.last_of(("ExecuteTransform",), said.sequence_number).event
    return event.new_watermark // MILLISECOND


@pytest.mark.parametrize("name", list(FINAL))
def test_a_window_query_goes_on_from_the_old_one_s_bound(make_world, name):
    old, new = FINAL[name]
    for seed in range(1, 1 + share(2)):
        changed, always = trio.run(handed_over, make_world, old, new, history(seed), 6)
        bound = bound_before(changed)
        former = [row for row in rows_of(changed) if row[1] < bound]
        assert rows_of(changed) == former + [row for row in rows_of(always) if row[1] >= bound]
        assert former
        assert len(rows_of(changed)) > len(former)
        assert state_of(changed) == state_of(always), "state is a function of the cut"
        assert trio.run(reproduced, changed) >= 4


def test_handover_mid_window(make_world):
    """A window of the new query that began before the old one's bound does not come again."""
    blocks = [([1, 12, 24], 25 * SECOND), ([26, 31, 44], 46 * SECOND), ([61], 60 * SECOND)]
    changed, _ = trio.run(handed_over, make_world, window(10), window(15), blocks, 1)
    assert bound_before(changed) == 20 * SECOND
    assert rows_of(changed) == [(0, 0, 1), (0, 10 * SECOND, 12), (0, 30 * SECOND, 75)]


@pytest.mark.parametrize(
    ("name", "changelog"),
    [(name, at % 2 == odd) for at, name in enumerate(TABLES) for odd in (0, 1)][:: stride()],
)
def test_a_table_takes_over_by_its_differences(make_world, name, changelog):
    old, new = TABLES[name]
    if changelog:
        make_world = over_a_changelog(make_world)
    changed, always = trio.run(handed_over, make_world, old, new, history(3), 6)
    assert fold(rows_of(changed)) == fold(rows_of(always))
    assert state_of(changed) == state_of(always)
    assert trio.run(reproduced, changed) >= 4


@pytest.mark.parametrize(
    ("name", "changelog"),
    [*((name, False) for name in CORRECTED), ("another sum", True), ("less far back", True)][:: stride()],
)
def test_corrected_windows_take_over_by_the_differences_of_all(make_world, name, changelog):
    """Also of those that nothing can change any more: what is out is what the new query would have said."""
    old, new = CORRECTED[name]
    if changelog:
        make_world = over_a_changelog(make_world)
    changed, always = trio.run(handed_over, make_world, old, new, history(3, 8, back=25), 6)
    assert any(op for op, *_ in rows_of(changed)), "histories without corrections prove nothing"
    assert fold(rows_of(changed)) == fold(rows_of(always))
    assert state_of(changed) == state_of(always)
    assert trio.run(reproduced, changed) >= 4


def fold(rows):
    """The table that a history of ops amounts to."""
    table = Counter()
    for op, *row in rows:
        table[tuple(row)] += 1 if op in (0, 3) else -1
        assert min(table.values()) >= 0, "what is taken back was there"
    return +table


def over_a_changelog(make_world):
    """The root says that its rows may be taken back."""

    def made():
        world = make_world()
        found = world.found

        def founded(query):
            found(query)
            merge = MergeSnapshot(primary_key=("k",))
            world.append(ROOT, AddPushSource(source_name="s", read=ReadCsv(), merge=merge))

        world.found = founded
        return world

    return made


def test_a_map_goes_on_with_the_next_block(make_world):
    blocks = history(5)
    changed, always = trio.run(handed_over, make_world, *LOG, blocks, 6)
    seen = [(row[1] // SECOND, row[2]) for row in rows_of(changed)]
    before = [second for rows, _ in blocks[:6] for second in rows]
    after = [second for rows, _ in blocks[6:] for second in rows if second % 2 == 0]
    assert seen == [(each, each) for each in before] + [(each, each * 10) for each in after]
    assert state_of(changed) == state_of(always)
    assert trio.run(reproduced, changed) >= 4


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (LOG[0], window(5, "max(k) as k"), "log mode so far, final mode"),
        (window(5), window(5, "count(*) as c"), "no 's'"),
        (window(5), window(5, "cast(sum(k) as string) as s"), "s string where the dataset has s int64"),
        (TABLES["the same"][0], "select k % 3 as g, k % 2 as s, max(event_time) as event_time from x group by 1, 2",
         "another primary key"),
        (window(5), "set odf.late = 'apply'; " + window(5), "final mode so far, table mode"),
        ("set odf.late = 'apply'; " + window(5), "select max(event_time) as event_time, k % 2 as s from x group by 2",
         "another primary key"),
        (RUNNING, "set odf.lateness = '7 seconds'; " + RUNNING, "may still come"),
    ],
)  # fmt: skip
def test_what_cannot_go_on_needs_a_new_derivation(make_world, old, new, why):
    async def run():
        world = make_world()
        world.found(old)
        world.add_rows([1, 12], watermark=11 * SECOND)
        await derive(world)
        declare(world, new)
        head = world.chains.chain(DERIVED).head()
        done = await derive(world)
        assert isinstance(done, Blocked)
        assert done.rule == TRANSFORM_EVOLUTION
        assert why in done.reason
        assert world.chains.chain(DERIVED).head() == head
        declare(world, old)
        assert isinstance(await derive(world), UpToDate)

    trio.run(run)


GROWING = {
    "windows": (window(10), window(10, "count(*) as c, sum(k) as s")),
    "table": (TABLES["the same"][0], TABLES["the same"][0].replace("count(*) as s", "max(k) as m, count(*) as s")),
    "map": (LOG[0], "select event_time, k, k % 2 = 0 as even from x"),
}


@pytest.mark.parametrize("name", list(GROWING))
def test_a_new_query_may_bring_columns(make_world, name):
    """Rows from before have null in them; a table corrects those that are in force."""
    changed, always = trio.run(handed_over, make_world, *GROWING[name], history(3), 6)
    names = [[field.name for field in each.event.schema.fields] for each in blocks_of(changed, "SetDataSchema")]
    assert (len(names), set(names[0]) < set(names[1])) == (2, True)
    slices = [each.event.new_data for each in blocks_of(changed, "ExecuteTransform") if each.event.new_data]
    assert {tuple(changed.rows(each).column_names) for each in slices} == {tuple(each) for each in names}
    assert state_of(changed) == state_of(always)
    assert trio.run(reproduced, changed) >= 4
    if name == "table":
        both = pa.concat_tables([changed.rows(each) for each in slices], promote_options="default")
        table = Counter()
        for row in both.to_pylist():
            table[row["g"], row["event_time"], row["m"], row["s"]] += 1 if row["op"] in (0, 3) else -1
            assert min(table.values()) >= 0
        assert len(+table) == 3
        assert None not in [found[2] for found in +table]


def blocks_of(world, kind):
    chain = world.chains.chain(DERIVED)
    found = [chain.block_at(number) for number in range(chain.head().sequence_number + 1)]
    return [block for block in found if type(block.event).__name__ == kind]


def test_another_engine_alone_takes_the_state_as_it_is(make_world, spark_root):
    async def run():
        world = make_world()
        later = LocalEngine(spark_root, "sha256:" + "2" * 64)
        world.deps = replace(world.deps, engines=EnginePool({"spark": (world.engine, later)}))
        world.found(window(10))
        world.add_rows([1, 12, 27], watermark=25 * SECOND)
        await derive(world)
        before, head = state_of(world), world.chains.chain(DERIVED).block_at(1).event
        pinned = TransformSql(engine="spark", version=(await later.identity()).digest, queries=head.transform.queries)
        world.append(DERIVED, SetTransform(inputs=head.inputs, transform=pinned))
        world.add_rows([31], watermark=41 * SECOND)
        await derive(world)
        assert rows_of(world) == [(0, 0, 1), (0, 10 * SECOND, 12), (0, 20 * SECOND, 27), (0, 30 * SECOND, 31)]
        assert before != state_of(world)
        assert await reproduced(world) == 2

    trio.run(run)


# A query that is declared anew over other inputs, on the engine alone: joins and versions too.


OF_BOTH = """select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s
from (select event_time, k, v from a union all select event_time, k, v from b) group by 1, 2"""
OF_ONE = OF_BOTH.replace("(select event_time, k, v from a union all select event_time, k, v from b)", "a")
JOINED = """select a.event_time, a.k, b.v as s from a join b
on a.k = b.k and b.event_time between a.event_time - interval '2' day and a.event_time + interval '1' day"""
VERSIONS = """set odf.late.a = 'drop';
select a.event_time, a.k, b.v as s from a left join b
on a.k = b.k and a.event_time >= b.valid_from and a.event_time < b.valid_to"""
SEVERAL = {
    "an input more": (OF_ONE, "a", OF_BOTH, "ab", ()),
    "an input less": (OF_BOTH, "ab", OF_ONE, "a", ()),
    "a join in place of sums": (OF_BOTH, "ab", JOINED, "ab", ()),
    "versions in place of sums": (OF_ONE, "a", VERSIONS, "ab", (TemporalTable(name="b", primary_key=("k",)),)),
    "versions of what was summed": (OF_BOTH, "ab", VERSIONS, "ab", (TemporalTable(name="b", primary_key=("k",)),)),
}


def of(sql, tables=()):
    return TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=tables or None)


@pytest.mark.parametrize("name", list(SEVERAL))
def test_inputs_may_come_and_go(lab, name):
    old, before, new, after, tables = SEVERAL[name]
    streams = {"a": lab.stream(81, days=30, blocks=10), "b": lab.stream(82, days=30, blocks=10)}
    caches = SharedCaches(Analyst(), SliceReader())
    first = lab.run(of(old), {alias: of_first(streams[alias], 6) for alias in before}, [dict.fromkeys(before, 6)])
    assert first.rows
    checkpoint, taken = lab.folder / "stopped", lab.folder / "taken"
    checkpoint.write_bytes(first.state)
    request = MigrateRequest(
        dataset_id=dataset_of("o"), system_time=from_millis(0), vocab=Vocab(),
        old_transform=of(old), transform=of(new, tables),
        old_inputs=tuple(given(streams[alias], alias, ()) for alias in before),
        query_inputs=tuple(
            given(streams[alias], alias, streams[alias].blocks[: 6 if alias in before else 0]) for alias in after
        ),
        output_schema=from_arrow(first.slices[0].schema), next_offset=len(first.rows),
        prev_checkpoint_path=str(checkpoint), new_checkpoint_path=str(taken), new_data_path=str(lab.folder / "none"),
    )  # fmt: skip
    answer = run_migration(lab.spark.newSession(), request, RequestControl(), caches)
    assert isinstance(answer, Success), answer
    assert answer.new_offset_interval is None
    rows, previous = first.data(), taken
    for stop in (8, 10):
        inputs = []
        for alias in after:
            start = stop - 2 if stop > 8 else 6 if alias in before else 0
            again = reopened(streams[alias].blocks[:start], dataset_of(alias), previous)
            inputs.append(given(streams[alias], alias, (*again, *streams[alias].blocks[start:stop])))
        data, checkpoint = lab.folder / f"data-{stop}", lab.folder / f"after-{stop}"
        step = TransformRequest(
            dataset_id=request.dataset_id, dataset_alias="out", system_time=request.system_time, vocab=Vocab(),
            transform=of(new, tables), query_inputs=tuple(inputs), next_offset=len(rows),
            prev_checkpoint_path=str(previous), new_checkpoint_path=str(checkpoint), new_data_path=str(data),
        )  # fmt: skip
        answer = run_on_engine(lab.spark.newSession(), step, RequestControl(), caches)
        assert isinstance(answer, Success), answer
        if answer.new_offset_interval is not None:
            table = pq.read_table(data)
            assert table["offset"][0].as_py() == len(rows)
            rows += table.drop_columns(["offset", "op", "system_time"]).to_pylist()
        previous = checkpoint
    always = lab.run(of(new, tables), {alias: streams[alias] for alias in after}, [dict.fromkeys(after, 10)])
    bound = first.watermark // MILLISECOND
    expected = [row for row in always.data() if row["event_time"].timestamp() * 1000 >= bound]
    assert expected
    assert rows == [*first.data(), *expected]
    assert previous.read_bytes() == always.state


def of_first(stream, count):
    return dataclasses.replace(stream, blocks=stream.blocks[:count], tables=stream.tables[:count])


def given(stream, alias, blocks):
    schema = next(block.data_path for block in stream.blocks if block.data_path)
    return TransformRequestInput(
        dataset_id=dataset_of(alias), dataset_alias=alias, query_alias=alias, vocab=Vocab(), blocks=tuple(blocks),
        schema_file=schema, changelog=False,
    )  # fmt: skip
