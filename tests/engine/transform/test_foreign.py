"""A coordinator that knows only the published contract gets the rows, in the order, that ours gets.

``worlds.foreign_coordinator`` shares no code with the engine. Blocks are grouped at random, every transaction has its
files elsewhere, the checkpoint is a copy of a copy, and the engine forgets all it ever read in between.
"""

from __future__ import annotations

import dataclasses
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from engines.contract import EngineIdentity
from engines.service import ServiceLimits, serve
from engines.spark.handler import SparkHandler
from worlds import foreign_coordinator as foreign
from worlds.depth import stride

pytestmark = pytest.mark.engine
BLOCKS = 9
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))
IDENTITY = EngineIdentity(name="spark", version="0", digest="sha256:0", sandbox="none", platform="test")
START = 1_704_067_200_000
LATER = (START + 1000 * 86_400_000) * 1_000_000
DAILY = """select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s, count(*) as c
from a group by 1, 2"""
LEDGER = """select a.event_time, a.v, b.v as w from a left join b on a.k = b.k and a.event_time >= b.valid_from
and a.event_time < b.valid_to"""
JOIN = """select a.event_time, a.v, b.v as w from a {} join b on a.k = b.k
and b.event_time between a.event_time - interval '3' day and a.event_time"""
VERSIONS = (TemporalTable(name="b", primary_key=("k",)),)
# Query, inputs, those that are changelogs, temporal tables.
SHAPES = {
    "map": ("select * from a", "a", "", None),
    "filter of changes": ("select event_time, k, v + 1 as v from a where v % 3 <> 0", "a", "a", None),
    "explode": ("select event_time, k, x from a lateral view explode(array(v, v + 1)) t as x", "a", "", None),
    "window": (DAILY, "a", "", None),
    "window, late rows allowed": ("set odf.lateness = '1 day';\n" + DAILY, "a", "", None),
    "hop": ("select window(event_time, '3 days', '1 day').end as event_time, k, sum(v) as s from a "
            "group by window(event_time, '3 days', '1 day'), k", "a", "", None),
    "week of days": ("select time_bucket(interval '7' day, event_time) as event_time, max(s) as m from ("
                      + DAILY + ") group by 1", "a", "", None),
    "sessions": ("select session_window(event_time, '2 days').end as event_time, count(*) as c from a group by "
                 "session_window(event_time, '2 days')", "a", "", None),
    "best of a day": ("select event_time, k, v from (select event_time, k, v, row_number() over (partition by "
                      "time_bucket(interval '3' day, event_time) order by v desc, k, event_time) as n from a) "
                      "where n < 3", "a", "", None),
    "interval join": (JOIN.format("left"), "ab", "", None),
    "anti join": ("select a.event_time, a.v from a left anti join b on a.k = b.k and b.event_time between "
                  "a.event_time - interval '3' day and a.event_time", "ab", "", None),
    "as-of join": ("select a.event_time, a.v, b.v as w from a left asof join b "
                   "match_condition (a.event_time >= b.event_time) on a.k = b.k", "ab", "", None),
    "versions of changes": (LEDGER, "ab", "b", VERSIONS),
    "versions of what grows": (LEDGER, "ab", "", VERSIONS),
    "merged log": ("select event_time, k, v from a union all select event_time, k, v from b", "ab", "b", None),
    "merged log, late rows allowed": (
        "set odf.lateness = '1 day'; select event_time, k, v from a union all select event_time, k, v from b", "ab", "",
        None,
    ),
    "late rows": (
        "set odf.rows = 'late'; select event_time, k, v from a union all select event_time, k, v from b", "ab", "",
        None,
    ),
    "versions, late facts": ("set odf.lateness.a = '1 day';\n" + LEDGER, "ab", "b", VERSIONS),
    "windows over changes": ("set odf.late = 'drop';\n" + DAILY, "a", "a", None),
    "windows, late rows applied": ("set odf.late = 'apply within 20 days';\n" + DAILY, "a", "a", None),
    "table": ("select k, max(event_time) as event_time, sum(v) as s from a group by k", "a", "", None),
    "table of changes": ("select k, max(event_time) as event_time, sum(v) as s from a group by k", "a", "a", None),
    "table of a union": ("select k, max(event_time) as event_time, sum(v) as s from (select event_time, k, v from a "
                         "union all select event_time, k, v from b) group by k", "ab", "a", None),
}  # fmt: skip


@pytest.fixture
def engine(spark_root):
    """Over TCP; a new handler for every call of ``anew``, so that nothing is remembered."""

    class Forgetful:
        def __init__(self):
            self.anew()

        def anew(self):
            self.handler = SparkHandler(spark_root, lambda: IDENTITY)

        def __getattr__(self, name):
            return lambda *given: getattr(self.handler, name)(*given)

    forgetful = Forgetful()
    server = serve(forgetful, "127.0.0.1:0", ServiceLimits(heartbeat=0.05))
    forgetful.address = server.address
    yield forgetful
    server.stop()


def query_of(sql, temporal):
    return foreign.Query([(None, sql)], [(one.name, one.primary_key) for one in temporal or ()])


def schedule(aliases, blocks, seed):
    """How many blocks of each input every transaction takes, some none at all."""
    rng, left, takes = random.Random(seed), dict.fromkeys(aliases, blocks), []
    while any(left.values()):
        take = {alias: min(rng.choice([0, 1, 2, 4]), left[alias]) for alias in aliases}
        left = {alias: left[alias] - take[alias] for alias in aliases}
        takes += [take] if any(take.values()) else []
    return takes


def as_told(alias, stream, first, count):
    """Blocks as such a coordinator tells of them: made one second after another, and some nanoseconds."""
    fresh = stream.blocks[first : first + count]
    tables = [one for one in stream.tables[first : first + count] if one is not None]
    marks = [
        ((START + 1000 * (first + at)) * 1_000_000 + 999_999, block.watermark_after)
        for at, block in enumerate(fresh)
        if block.watermark_after is not None
    ]
    slices = [block.data_path for block in fresh if block.data_path is not None]
    interval = (tables[0]["offset"][0].as_py(), tables[-1]["offset"][-1].as_py()) if tables else None
    schema = next(one.schema for one in stream.tables if one is not None)
    return foreign.Input(alias.encode() * 32, alias, [foreign.Path(each) for each in slices], marks, schema, interval)


def theirs(engine, tmp_path, shape, streams, takes, retry=False):
    sql, _, _, temporal = shape
    (tmp_path / "kept").mkdir(parents=True)
    coordinator = foreign.Coordinator(
        engine.address, tmp_path / "kept", tmp_path / "work", query_of(sql, temporal), system_time=LATER
    )
    done = dict.fromkeys(streams, 0)
    for take in takes:
        engine.anew()
        inputs = [as_told(alias, stream, done[alias], take[alias]) for alias, stream in streams.items()]
        answer = coordinator.transact(inputs, retry)
        assert answer.kind == foreign.SUCCESS, answer.message
        done = {alias: done[alias] + take[alias] for alias in done}
    return coordinator


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", list(SHAPES)[:: stride()])
def test_same_rows_as_our_coordinator_gets(lab, engine, tmp_path, name, seed):
    sql, aliases, changing, temporal = SHAPES[name]
    streams = lab.streams(name, aliases, changing, BLOCKS, seed=900 + 10 * seed)
    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=temporal)
    ours = lab.run(transform, streams, [dict.fromkeys(aliases, BLOCKS)], changelogs=changing)
    assert ours.rows
    found = theirs(engine, tmp_path, SHAPES[name], streams, schedule(aliases, BLOCKS, f"{name}-{seed}"))
    assert found.table().drop_columns(["system_time"]).to_pylist() == [
        {key: value for key, value in row.items() if key != "system_time"} for row in ours.rows
    ]
    assert found.watermark == ours.watermark
    types = [found.schema.field(column).type for column in ("offset", "op", "system_time", "event_time")]
    assert types == [pa.int64(), pa.int32(), pa.timestamp("ms", "UTC"), pa.timestamp("ms", "UTC")]


def test_asking_again_gives_the_same_answer_and_files(lab, engine, tmp_path):
    """The reference repeats a request whose answer it lost; there is no transaction id in its words."""
    streams = lab.streams("again", "a", "", BLOCKS)
    takes = schedule("a", BLOCKS, 1)
    once = theirs(engine, tmp_path / "once", SHAPES["hop"], streams, takes)
    twice = theirs(engine, tmp_path / "twice", SHAPES["hop"], streams, takes, retry=True)
    assert twice.table().equals(once.table())
    assert twice.checkpoint.read_bytes() == once.checkpoint.read_bytes()


def test_texts_in_other_encodings(lab, engine, tmp_path):
    """The reference's files hold viewed texts and dictionaries; what comes out are plain ones."""
    streams = lab.streams("views", "a", "", 3)
    for at, (block, rows) in enumerate(zip(streams["a"].blocks, streams["a"].tables, strict=True)):
        if rows is not None:
            kind = [pa.string_view(), pa.dictionary(pa.int32(), pa.string())][at % 2]
            viewed = rows.set_column(rows.column_names.index("k"), "k", rows["k"].cast(kind))
            pq.write_table(viewed, block.data_path)
    for name in ("map", "sessions", "windows over changes"):
        found = theirs(engine, tmp_path / name, SHAPES[name], streams, [{"a": 3}])
        if "k" in found.schema.names:
            assert found.schema.field("k").type == pa.string()
    assert found.table().num_rows


def test_faults_have_kinds_and_nothing_is_kept(lab, engine, tmp_path):
    streams = lab.streams("faults", "a", "", 3)
    given = [as_told("a", streams["a"], 0, 3)]
    (tmp_path / "kept").mkdir()

    def ask(sql):
        coordinator = foreign.Coordinator(engine.address, tmp_path / "kept", tmp_path / "work" / str(hash(sql)),
                                          query_of(sql, None), system_time=LATER)  # fmt: skip
        answer = coordinator.transact(given)
        assert coordinator.checkpoint is None
        return answer

    wrong = ask("select event_time, nope from a")
    assert (wrong.kind, "nope" in wrong.message) == (foreign.INVALID_QUERY, True)
    engine.handler.transform = lambda request, control: 1 // 0
    broken = ask("select * from a")
    assert (broken.kind, "ZeroDivisionError" in broken.message) == (foreign.INTERNAL_ERROR, True)
    assert "in <lambda>" in broken.backtrace


def test_rows_that_are_told_of_and_not_given_are_missed(lab, engine, tmp_path):
    """The reference asks so when it verifies; taken for an input without news, the answer would lack them for ever."""
    streams = lab.streams("lost", "a", "", 4)
    (tmp_path / "kept").mkdir()
    coordinator = foreign.Coordinator(engine.address, tmp_path / "kept", tmp_path / "work", query_of(DAILY, None),
                                      system_time=LATER)  # fmt: skip
    assert coordinator.transact([as_told("a", streams["a"], 0, 2)]).kind == foreign.SUCCESS
    whole, kept = as_told("a", streams["a"], 2, 2), coordinator.checkpoint.read_bytes()
    assert whole.slices
    for lost in (dataclasses.replace(whole, slices=[]), dataclasses.replace(whole, slices=[*whole.slices] * 2)):
        engine.anew()
        answer = coordinator.transact([lost])
        assert (answer.kind, "are announced" in answer.message) == (foreign.INVALID_QUERY, True)
        assert coordinator.checkpoint.read_bytes() == kept
    engine.anew()
    assert coordinator.transact([whole]).kind == foreign.SUCCESS


def test_progress_comes_while_the_engine_works(lab, engine, tmp_path):
    slow = "select event_time, v from a where aggregate(sequence(1, 2000000), 0L, (x, y) -> x + y % 7 + v - v) > 0"
    streams = lab.streams("slow", "a", "", 2)
    (tmp_path / "kept").mkdir()
    coordinator = foreign.Coordinator(engine.address, tmp_path / "kept", tmp_path / "work", query_of(slow, None),
                                      system_time=LATER)  # fmt: skip
    answer = coordinator.transact([as_told("a", streams["a"], 0, 2)])
    assert (answer.kind, answer.progress > 0) == (foreign.SUCCESS, True)


def test_raw_queries(lab, engine, tmp_path):
    """As before ingest: the file has none of the system columns."""
    rows = pa.table({"name": pa.array(["x", "y", None], pa.string_view()), "n": [1, 2, 3]})
    pq.write_table(rows, tmp_path / "input.parquet")
    steps = foreign.Query([("big", "select * from input where n > 1"), (None, "select upper(name) as u, n from big")])
    done = foreign.raw_query(engine.address, [tmp_path / "input.parquet"], steps, tmp_path / "output.parquet")
    assert (done.kind, done.records) == (foreign.SUCCESS, 2)
    assert pq.read_table(tmp_path / "output.parquet").to_pylist() == [{"u": "Y", "n": 2}, {"u": None, "n": 3}]
    wrong = foreign.raw_query(
        engine.address, [tmp_path / "input.parquet"], foreign.Query([(None, "selec 1")]), tmp_path / "o"
    )
    assert (wrong.kind, "syntax" in wrong.message.lower()) == (foreign.INVALID_QUERY, True)
