"""Where records came from: exact, for every shape.

The oracle knows nothing of lineage. What is named suffices: a batch query over the named rows alone gives the record.
What is not named does not matter: the engine, run anew without such a row, still writes the record.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
from collections import Counter
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pytest

from chain.ids import DatasetId
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from engines.contract import (
    InvalidQuery,
    ProvenanceRecord,
    ProvenanceRequest,
    ProvenanceSuccess,
    TransformRequestInput,
    Vocab,
)
from engines.request_control import RequestControl
from engines.spark.execution.transform import SharedCaches
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.provenance import row_lineage
from engines.spark.provenance.derive import derive
from engines.spark.rows.tables import frame_of_rows
from engines.spark.sql.queries import Analyst
from engines.spark.state.checkpoint import open_blocks
from worlds.depth import first_now, share, stride

pytestmark = pytest.mark.engine
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))
BLOCKS = 8
DAY = 86_400_000
START = 1_704_067_200_000
ASKED = share(2)
"""Records of each run that are asked about."""
BENCH = SharedCaches(Analyst(), SliceReader())


@dataclass(frozen=True)
class Case:
    sql: str
    inputs: str = "a"
    changing: str = ""
    """Inputs that are changelogs."""
    temporal: str = ""
    mode: str = "final"
    log: str = ""
    """Inputs of which every statement is an event."""
    plain: bool = True
    """Whether a batch query over rows alone means the same: not where versions are seen."""


NEAR = "b.event_time between a.event_time - interval '2' day and a.event_time + interval '1' day"
VALID = "a.k = b.k and a.event_time >= b.valid_from and a.event_time < b.valid_to"
CASES = {
    "map": Case("select event_time, upper(k) as k, v * 2 as v from a where v % 3 <> 0", mode="log"),
    "explode": Case("select event_time, k, e from a lateral view explode(array(v, v, 0)) t as e", mode="log"),
    "merged": Case("select event_time, k from a union all select event_time, k from b", "ab", mode="log"),
    "merged with itself": Case(
        "select event_time, k from a where v % 2 = 0 union all select event_time, k from a", mode="log"
    ),
    "log of changes": Case("select event_time, k, v % 2 as v from a", changing="a", mode="log"),
    "bucket": Case(
        "select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s, max(v) as m, "
        "count(*) filter (where v % 2 = 0) as even from a group by 1, 2"
    ),
    "hopping": Case(
        "select window(event_time, '2 day', '1 day').end as event_time, k, sum(v) as s "
        "from a group by window(event_time, '2 day', '1 day'), k"
    ),
    "session": Case(
        "select session_window(event_time, '8 hours').end as event_time, k, count(*) as c "
        "from a group by session_window(event_time, '8 hours'), k"
    ),
    "distinct": Case("select distinct date_trunc('day', event_time) as event_time, k from a"),
    "top": Case(
        "select event_time, k, v, n from (select event_time, k, v, row_number() over (partition by "
        "date_trunc('week', event_time) order by v desc, k, event_time) as n from a) where n <= 3"
    ),
    "rank of a sum": Case(
        "select event_time, k, s, rank() over (partition by event_time order by c desc) as n from ("
        "select date_trunc('week', event_time) as event_time, k, sum(v) as s, count(*) as c from a group by 1, 2)"
    ),
    "moving sum": Case(
        "select event_time, k, v, sum(v) over (order by event_time range between interval '1' day preceding and "
        "current row) as s from a"
    ),
    "last rows": Case(
        "select event_time, k, v, sum(v) over (partition by k order by event_time, v rows between 2 preceding and "
        "current row) as s from a"
    ),
    "rows before": Case(
        "select event_time, k, v, lag(v, 2) over (partition by k order by event_time, v) as l, sum(v) over "
        "(partition by k order by event_time, v rows between 3 preceding and 2 preceding) as s from a"
    ),
    "rows of a week before": Case(
        "select event_time, k, v, lag(if(v % 2 = 0, v, null)) ignore nulls over (partition by date_trunc('week', "
        "event_time) order by event_time, k, v) as l, nth_value(v, 2) over (partition by date_trunc('week', "
        "event_time) order by event_time, k, v rows between unbounded preceding and current row) as n from a"
    ),
    "interval join": Case(f"select a.event_time, a.k, a.v, b.v as w from a join b on a.k = b.k and {NEAR}", "ab"),
    "left join": Case(f"select a.event_time, a.k, a.v, b.v as w from a left join b on a.k = b.k and {NEAR}", "ab"),
    "semi": Case(f"select a.event_time, a.k, a.v from a left semi join b on a.k = b.k and {NEAR}", "ab"),
    "anti": Case(f"select a.event_time, a.k, a.v from a left anti join b on a.k = b.k and {NEAR}", "ab"),
    "self-join": Case(
        "select x.event_time, x.k, x.v, y.v as w from a x join a y on x.k = y.k and y.event_time between "
        "x.event_time - interval '1' day and x.event_time - interval '1' second"
    ),
    "window join": Case(
        "with x as (select date_trunc('day', event_time) as event_time, sum(v) as s from a group by 1), "
        "y as (select date_trunc('day', event_time) as event_time, count(*) as c from b group by 1) "
        "select coalesce(x.event_time, y.event_time) as event_time, s, c from x full join y "
        "on x.event_time = y.event_time",
        "ab",
    ),
    "as of": Case(
        "select a.event_time, a.k, a.v, b.v as w from a left asof join b "
        "match_condition (a.event_time >= b.event_time) on a.k = b.k",
        "ab",
        plain=False,
    ),
    "versions": Case(
        f"select a.event_time, a.k, a.v, b.v as w from a left join b on {VALID}", "ab", "b", temporal="b", plain=False
    ),
    "windows over changes": Case(
        "set odf.late = 'drop'; select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s, "
        "count(*) as c from a group by 1, 2",
        changing="a",
        plain=False,
    ),
    "table": Case(
        "select k, max(event_time) as event_time, sum(v) as s, count(*) as c from a group by k", mode="table"
    ),
    "table of two": Case(
        "select k, max(event_time) as event_time, sum(v) as s from (select event_time, k, v from a union all "
        "select event_time, k, v from b) group by k",
        "ab",
        "b",
        mode="table",
    ),
    "table of changes": Case(
        "select k, max(event_time) as event_time, count(distinct v % 3) as s, count(*) as c from a group by k",
        changing="a",
        mode="table",
    ),
    "computed key": Case(
        "select upper(k) as key, max(event_time) as event_time, sum(v) as s from a group by 1", mode="table"
    ),
    "top of a key": Case(
        "select event_time, k, v from (select event_time, k, v, row_number() over (partition by k order by v desc, "
        "event_time) as n from a) where n <= 2",
        changing="a",
        mode="table",
    ),
    "computed from sums": Case(
        "select k, max(event_time) as event_time, cast(sum(v) as decimal(20, 0)) / count(*) as mean from a group by k",
        mode="table",
    ),
    "by the day": Case(
        "set odf.tick = '1 day'; select k, max(event_time) as event_time, sum(v) as s from a group by k",
        changing="a",
        mode="table",
    ),
    "joined tables": Case(
        "select x.k, x.event_time, x.s, y.c from "
        "(select k, max(event_time) as event_time, sum(v) as s from a group by k) x "
        "left join (select k, count(*) as c from b group by k) y on x.k = y.k",
        "ab",
        "ab",
        mode="table",
    ),
    "group of groups": Case(
        "select k, max(event_time) as event_time, count(*) as c, max(s) as most from (select k, v % 2 as p, "
        "max(event_time) as event_time, sum(v) as s from a group by k, v % 2) group by k",
        changing="a",
        mode="table",
    ),
    "corrected days": Case(
        "set odf.late = 'apply'; select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s, "
        "count(*) as c from a group by 1, 2",
        mode="table",
    ),
    "corrected for two days": Case(
        "set odf.late = 'apply within 2 days'; select time_bucket(interval '1' day, event_time) as event_time, k, "
        "count(distinct v % 3) as s from a group by 1, 2",
        changing="a",
        mode="table",
    ),
    "corrected in the calendar": Case(
        "set odf.late = 'apply'; set odf.tick = '3 days'; select date_trunc('week', event_time) as w, k, "
        "max(event_time) as event_time, sum(v) as s from a group by 1, 2",
        changing="a",
        mode="table",
    ),
    "corrected union": Case(
        "set odf.late = 'apply'; select time_bucket(interval '2' day, event_time) as event_time, count(*) as c from "
        "(select event_time, k from a union all select event_time, k from b) group by 1",
        "ab",
        "b",
        mode="table",
    ),
    "corrected top": Case(
        "set odf.late = 'apply'; select event_time, k, v from (select event_time, k, v, row_number() over (partition "
        "by date_trunc('week', event_time), k order by v desc, event_time) as n from a) where n <= 2",
        changing="a",
        mode="table",
    ),
    "windows over statements": Case(
        "set odf.read.a = 'log'; select time_bucket(interval '1' day, event_time) as event_time, op as what, "
        "count(*) as c from a group by 1, 2",
        changing="a",
        log="a",
    ),
    "statements as they are": Case(
        "set odf.read.a = 'log'; select event_time, k, v, cast(op % 2 as int) as op from a where v % 2 = 0",
        changing="a",
        log="a",
        mode="log",
    ),
}


def transform_of(case):
    tables = tuple(TemporalTable(name=alias, primary_key=("k",)) for alias in case.temporal) or None
    return TransformSql(engine="spark", queries=(SqlQueryStep(query=case.sql),), temporal_tables=tables)


def streams_of(lab, case, seed):
    return {
        alias: lab.changing(f"{alias}{seed}", 17 * seed + at, BLOCKS)
        if alias in case.changing
        else lab.stream(91 * seed + at, days=12, blocks=BLOCKS)
        for at, alias in enumerate(case.inputs)
    }


def cut_at_random(seed, aliases):
    rng, left, takes = random.Random(seed), dict.fromkeys(aliases, BLOCKS), []
    while any(left.values()):
        step = {alias: min(count, rng.choice([0, 1, 3, 5])) for alias, count in left.items()}
        left = {alias: count - step[alias] for alias, count in left.items()}
        takes.append(step)
    return takes


class World:
    """One run of a transform, and questions about what came out."""

    def __init__(self, lab, case, seed, limits=()):
        """``limits``: all blocks come at once, and leave in pieces, up to these times and then the rest."""
        self.lab, self.case, self.seed = lab, case, seed
        self.transform = transform_of(case)
        self.streams = streams_of(lab, case, seed)
        self.limits = limits
        self.schedule = [dict.fromkeys(case.inputs, BLOCKS)] if limits else cut_at_random(seed, case.inputs)
        self.slices = {}
        self.cuts = {}
        self._run()

    def _run(self):
        done = dict.fromkeys(self.streams, 0)
        for number, takes in enumerate(self.schedule):
            before = dict(done)
            done = {alias: done[alias] + takes[alias] for alias in done}
            self.cuts[number] = before, done
        for _ in self.limits:
            self.cuts[len(self.cuts)] = done, done
        limits = {0: self.limits}
        ran = self.lab.run(self.transform, self.streams, self.schedule, changelogs=self.case.changing, limits=limits)
        self.rows = ran.rows
        self.marks = [mark for _, mark in ran.blocks]
        self.whole = Counter(map(told, self.rows))
        # Slices lie in the lab's folder by the number of their transaction.
        self.first = self.lab.number - len(self.cuts) + 1
        offset = 0
        for number in self.cuts:
            path = self.lab.folder / f"out-{self.first + number}"
            if path.exists():
                rows = pa.parquet.read_table(path).num_rows
                for at in range(rows):
                    self.slices[offset + at] = number, path
                offset += rows
        assert offset == len(self.rows)

    def needed(self, number):
        """Blocks that our own checkpoint before a transaction keeps open, and the last of each input, as places."""
        raw = (self.lab.folder / f"checkpoint-{self.first + number - 1}").read_bytes()
        runs = {str(each): found for each, found in open_blocks(raw).items()}
        places = {}
        for alias, stream in self.streams.items():
            before, hashes = self.cuts[number][0][alias], [block.block_hash for block in stream.blocks]
            spans = [(hashes.index(a), hashes.index(b) + 1) for a, b in runs.get(str(dataset(alias)), [])]
            places[alias] = {at for span in spans for at in range(*span)} | ({before - 1} if before else set())
        return places

    def ask(self, *offsets, column=None, limit=10_000, narrow=False):
        number, path = self.slices.get(offsets[0] if offsets else 0, self.slices[0])
        before, after = self.cuts[number]
        needed = self.needed(number) if narrow and number else None
        inputs = tuple(
            TransformRequestInput(
                dataset_id=dataset(alias), dataset_alias=alias, query_alias=alias, vocab=Vocab(),
                blocks=tuple(
                    msgspec.structs.replace(block, reopened=at < before[alias])
                    for at, block in enumerate(stream.blocks[: after[alias]])
                    if needed is None or at >= before[alias] or at in needed[alias]
                ),
                schema_file=next((b.data_path for b in stream.blocks if b.data_path), str(self.lab._empty_slice())),
                changelog=alias in self.case.changing,
            )
            for alias, stream in self.streams.items()
        )  # fmt: skip
        request = ProvenanceRequest(
            dataset_id=dataset("o"), vocab=Vocab(), transform=self.transform, query_inputs=inputs,
            data_path=str(path), records=tuple(ProvenanceRecord(offset=offset) for offset in offsets),
            column=column, limit=limit,
            watermark_before=self.marks[number - 1] if number else None, watermark_after=self.marks[number],
        )  # fmt: skip
        return derive(self.lab.spark.newSession(), request, RequestControl(), BENCH)

    def named(self, record):
        """(alias, offset) of all rows that were named."""
        aliases = list(self.streams)
        return {(aliases[row.input], row.offset) for row in record.rows}

    def statements(self):
        return [
            (alias, row)
            for alias, stream in self.streams.items()
            for table in stream.tables
            if table is not None
            for row in table.to_pylist()
        ]

    def without(self, gone):
        """What the engine writes without some rows, in one go."""
        self.lab.number += 1
        streams = {
            alias: dataclasses.replace(stream, **kept(self.lab, f"{alias}-{self.lab.number}", stream, gone, alias))
            for alias, stream in self.streams.items()
        }
        whole = [dict.fromkeys(streams, BLOCKS)]
        ran = self.lab.run(self.transform, streams, whole, changelogs=self.case.changing)
        return Counter(map(told, ran.rows))

    def batch(self, rows):
        """Rows of a plain query over some rows alone."""
        session = self.lab.spark.newSession()
        for alias, stream in self.streams.items():
            tables = [table for table in stream.tables if table is not None]
            table = pa.concat_tables(tables)
            keep = [(alias, offset) in rows for offset in table["offset"].to_pylist()]
            frame_of_rows(session, table.filter(pa.array(keep, pa.bool_()))).createOrReplaceTempView(alias)
        return {without_op(told(row)) for row in session.sql(self.case.sql.rpartition(";")[2]).toArrow().to_pylist()}


def kept(lab, name, stream, gone, alias):
    blocks, tables = [], []
    for at, (block, table) in enumerate(zip(stream.blocks, stream.tables, strict=True)):
        if table is not None and any((alias, offset) in gone for offset in table["offset"].to_pylist()):
            stay = [(alias, offset) not in gone for offset in table["offset"].to_pylist()]
            table = table.filter(pa.array(stay, pa.bool_()))
            path = lab.folder / f"less-{name}-{at}"
            lab_write(table, path)
            block = msgspec.structs.replace(block, data_path=str(path) if table.num_rows else None)
            table = table if table.num_rows else None
        blocks.append(block)
        tables.append(table)
    return {"blocks": tuple(blocks), "tables": tuple(tables)}


def lab_write(table, path):
    if table.num_rows:
        pa.parquet.write_table(table, path)


def told(row):
    return tuple(sorted((k, str(v)) for k, v in row.items() if k not in ("offset", "system_time")))


def without_op(row):
    return tuple(pair for pair in row if pair[0] != "op")


def dataset(alias):
    return DatasetId.from_public_key(alias.encode() * 32)


class Unit(frozenset):
    """Statements that can be left out of a chain together: an assertion and what takes it back."""

    def __new__(cls, gone, beside=()):
        unit = super().__new__(cls, gone)
        unit.touched = unit | set(beside)
        """Also those whose meaning that changes: where a row in the middle of two corrections goes, these become one,
        and the row before it ends at the time of the second."""
        return unit


def units(world, rng):
    standing, found, before = {}, [], {}
    for alias, row in world.statements():
        place, key = (alias, row["offset"]), (alias, row["event_time"], row["k"], row["v"])
        if alias in world.case.log:
            found.append(Unit([place]))
        elif row["op"] in (0, 3):
            half = (alias, row["offset"] - 1)
            standing.setdefault(key, []).append((place, {half, before[half]} if row["op"] == 3 else set()))
        elif standing.get(key):
            asserted, beside = standing[key].pop(0)
            before[place] = asserted
            found.append(Unit([asserted, place], beside | ({(alias, row["offset"] + 1)} if row["op"] == 2 else set())))
    found += [Unit([place], beside) for each in standing.values() for place, beside in each]
    rng.shuffle(found)
    return legal_together(world, found)


def legal_together(world, found):
    """Those that can go one after another, and leave the halves of each correction side by side."""
    gone, chosen = set(), []
    for unit in found:
        if is_legal(world, gone | unit):
            gone |= unit
            chosen.append(unit)
    return chosen


def is_legal(world, gone):
    for alias, stream in world.streams.items():
        for table in stream.tables if alias not in world.case.log else ():
            columns = () if table is None else (table["offset"].to_pylist(), table["op"].to_pylist())
            ops = [op for offset, op in zip(*columns, strict=True) if (alias, offset) not in gone] if columns else []
            if any((one == 2) != (other == 3) for one, other in itertools.pairwise([0, *ops, 0])):
                return False
    return True


def spared(world, rng, named):
    """For each record some statements that are not named: (what is left out at once, the records that must stay). One
    run of the engine for all records, where there are statements that none of them names."""
    found = units(world, rng)
    of_none = [unit for unit in found if not set().union(*named.values()) & unit.touched]
    if of_none:
        return [(set().union(*of_none[: ASKED * ASKED]), list(named))]
    apart = {offset: [unit for unit in found if not those & unit.touched] for offset, those in named.items()}
    return [(set().union(*others[:ASKED]), [offset]) for offset, others in apart.items() if others]


@pytest.fixture(scope="module")
def ran():
    """Runs that several tests ask about."""
    return {}


@pytest.fixture
def run(ran, lab, tmp_path_factory):
    """One run of a case and seed, whose files outlive the test that asked for it first."""

    def of(case, seed=1):
        if (case, seed) not in ran:
            ran[case, seed] = World(dataclasses.replace(lab, folder=tmp_path_factory.mktemp("run")), case, seed)
        return ran[case, seed]

    return of


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", list(CASES)[:: stride()])
def test_what_is_named_suffices_and_nothing_else_matters(run, name, seed):
    case, rng = CASES[name], random.Random(seed)
    world = run(case, seed + 1)
    assert world.rows
    named = {}
    for offset in rng.sample(range(len(world.rows)), min(ASKED, len(world.rows))):
        row = world.rows[offset]
        answer = world.ask(offset)
        assert isinstance(answer, ProvenanceSuccess), answer
        assert answer.mode == case.mode
        record = answer.records[0]
        assert (record.offset, record.op, record.truncated) == (offset, row["op"], False)
        named[offset] = world.named(record)
        assert named[offset]
        counts = {(list(world.streams)[r.input], r.offset) for r in record.rows if r.role != "change"}
        if case.plain:
            assert without_op(told(row)) in world.batch(counts), "what is named must suffice"
    for gone, offsets in spared(world, rng, named):
        left = world.without(gone)
        for offset in offsets:
            row = told(world.rows[offset])
            # A table may say an equal record again, at a tick at which what is left out was on the way.
            stays = left[row] >= world.whole[row] if case.mode == "table" else left[row] == world.whole[row]
            assert stays, f"one of {gone} was not named, and matters to {offset}"
    if list(CASES).index(name) % (2 * stride()) == 0:
        assert world.ask(offset) == answer, "the same question must give the same answer"


RUNNING = Case(
    "select event_time, k, v, sum(v) over (partition by k order by event_time) as s, "
    "avg(v) over (partition by k order by event_time) as m from a"
)
WEEKS = Case(
    "select date_trunc('week', event_time) as event_time, sum(v) as s, max(v) as m, "
    "count(*) filter (where v % 2 = 0) as even from a group by 1"
)


def test_a_column_names_only_what_it_was_made_of(run):
    """The rows that attain a greatest value; those that were counted; all of the group for its key."""
    world = run(WEEKS, 3)
    values = {row["offset"]: row for _, row in world.statements()}
    told_apart = 0
    for offset, row in list(enumerate(world.rows))[:3]:
        whole = world.named(world.ask(offset).records[0])
        columns = ("event_time", "s", "m", "even")
        by_column = {name: world.named(world.ask(offset, column=name).records[0]) for name in columns}
        assert by_column["event_time"] == by_column["s"] == whole
        assert {values[at]["v"] for _, at in by_column["m"]} == {row["m"]}
        counted = {(alias, at) for alias, at in whole if values[at]["v"] % 2 == 0}
        # Nothing was counted where all rows are odd: then all of them are why it is zero.
        assert by_column["even"] == (counted or whole)
        told_apart += by_column["m"] < whole and by_column["even"] < whole
        kept = [dict(one) for one in world.without(whole - by_column["m"])]
        assert any(all(one[name] == str(row[name]) for name in ("event_time", "m")) for one in kept)
    assert told_apart, "no record of several rows"


def test_a_column_of_a_changing_table(run):
    world = run(CASES["table"])
    values = {row["offset"]: row for _, row in world.statements()}
    fewer = 0
    for offset in range(len(world.rows))[-3:]:
        record = world.ask(offset, column="event_time").records[0]
        made_of = {values[row.offset]["event_time"] for row in record.rows if row.role == "value"}
        assert made_of == {world.rows[offset]["event_time"]}
        # What takes a greatest time back is named too: it came with a greater one.
        came = [values[row.offset]["event_time"] for row in record.rows if row.role == "change"]
        assert all(time > world.rows[offset]["event_time"] for time in came)
        fewer += record.count < world.ask(offset).records[0].count
    assert fewer


def test_what_tells_when_a_row_is_taken_back_is_named(lab):
    """The first half of a correction counts from the time of the second: it may go on to be corrected itself, and never
    count, and yet the record would stand at another tick without it.
    """
    one, then = (START + DAY, "k0", 8), (START + 5 * DAY, "k0", 12)

    def world_of(moved):
        second = (moved, *then[1:])
        rows = [(*one, 2), (*second, 3), (*second, 2), (START + 4 * DAY, "k0", 13, 3)]
        blocks = [([(*one, 0)], START + 2 * DAY), (rows, None), *(([], START + day * DAY) for day in (4, 5, 6, 9))]
        return lab.given("corrected", blocks)

    class Corrected(World):
        def __init__(self, moved):
            self.moved = moved
            super().__init__(lab, CASES["table of changes"], 0)

        def _run(self):
            self.streams = {"a": world_of(self.moved)}
            self.schedule = [{"a": 2}, {"a": 4}]
            super()._run()

    world = Corrected(then[0])
    taken = [offset for offset, row in enumerate(world.rows) if row["op"] in (2, 3)]
    assert taken
    told_of = {offset: world.named(world.ask(offset).records[0]) for offset in taken}
    first, second = ("a", 1), ("a", 2)
    assert any(first in named for named in told_of.values())
    assert all(second in named for named in told_of.values() if first in named)
    other = Corrected(START + 3 * DAY)
    assert list(map(told, other.rows)) != list(map(told, world.rows)), "what it said, and when, mattered"


@pytest.mark.parametrize(
    "name", ["merged", "bucket", "hopping", "session", "moving sum", "self-join", "left join"][:: stride()]
)
def test_blocks_that_our_checkpoint_keeps_open_are_enough(run, name):
    world = run(CASES[name])
    later = [offset for offset in range(len(world.rows)) if world.slices[offset][0]]
    assert later
    for offset in later[:: max(1, len(later) // 2)]:
        whole = world.ask(offset)
        assert isinstance(whole, ProvenanceSuccess)
        assert world.ask(offset, narrow=True) == whole


@pytest.mark.parametrize(
    "name", ["bucket", "session", "versions", "last rows", "table", "table of changes", "by the day"][:: stride()]
)
def test_what_was_held_back_is_found_where_it_left(lab, name):
    """By a limit of emission: the blocks were consumed before, the record was not written then."""
    world = World(lab, CASES[name], 5, limits=(START + 4 * DAY, START + 8 * DAY))
    pieces = {}
    for offset, (number, _) in world.slices.items():
        pieces.setdefault(number, offset)
    assert len(pieces) > 1
    for offset in pieces.values():
        answer = world.ask(offset)
        assert isinstance(answer, ProvenanceSuccess), answer
        assert answer.records[0].rows


def test_of_a_running_sum_the_row_itself_is_named_and_that_others_are_not(lab):
    world = World(lab, RUNNING, 6)
    values = {row["offset"]: row for _, row in world.statements()}
    later = [offset for offset in range(len(world.rows)) if world.slices[offset][0]]
    assert later, "a record that stands on those of earlier transactions"
    for offset in (0, *later[:: max(1, len(later) // 3)]):
        answer, row = world.ask(offset), world.rows[offset]
        assert isinstance(answer, ProvenanceSuccess), answer
        record = answer.records[0]
        assert [(values[each.offset]["v"], each.role) for each in record.rows] == [(row["v"], "value")]
        (step,) = [step for path in answer.paths for step in path.steps if step.hides]
        assert step.operator == "over"
        assert step.detail.startswith("sum(a.v) OVER (PARTITION BY a.k ORDER BY a.event_time")
        assert ", avg(a.v) OVER (" in step.detail, "what was written, and not what makes it exact"


def test_places_name_the_query_they_are_in(run):
    world = run(CASES["map"])
    steps = (
        SqlQueryStep(alias="odd", query="select event_time, k, v from a\nwhere v % 3 <> 0"),
        SqlQueryStep(query="select event_time, upper(k) as k, v * 2 as v from odd"),
    )
    world.transform = TransformSql(engine="spark", queries=steps)
    (path,) = world.ask(0).paths
    assert [(step.operator, step.query, step.line) for step in path.steps] == [("where", 0, 1)]


def test_more_rows_than_wanted_are_counted_not_told(run):
    world = run(WEEKS, 3)
    whole = {offset: world.ask(offset).records[0] for offset in range(2)}
    offset, most = max(whole.items(), key=lambda item: item[1].count)
    assert most.count > 1
    short = world.ask(offset, limit=1).records[0]
    assert short.rows == most.rows[:1]
    assert (short.count, short.truncated) == (most.count, True)


def test_why_is_told_with_its_place_in_the_sql(run):
    world = run(CASES["left join"])
    missing = [offset for offset, row in enumerate(world.rows) if row["w"] is None]
    met = [offset for offset, row in enumerate(world.rows) if row["w"] is not None]
    alone, pair = world.ask(missing[0]), world.ask(met[0])
    assert [path.input for path in alone.paths] == [0, 1]
    assert alone.records[0].absent == (1,)
    assert pair.records[0].absent == ()
    assert {row.input for row in pair.records[0].rows} == {0, 1}
    (step,) = alone.paths[1].steps
    sql = world.case.sql
    assert (step.operator, step.line, step.column) == ("left outer join", 1, sql.index("left join") + len("a ") - 1)
    assert "a.k = b.k" in step.detail


HIDING = {
    f"select date_trunc('day', event_time) as event_time, count(*) as c from ({CASES['anti'].sql}) group by 1": {
        "left anti join"
    },
    "select date_trunc('week', event_time) as event_time, count(*) as c from (select date_trunc('day', event_time) as "
    "event_time, k, sum(v) as s from a group by 1, 2 having sum(v) > 500) where k <> 'k9' group by 1": {"where"},
    CASES["anti"].sql: set(),
    CASES["top"].sql: set(),
    CASES["rank of a sum"].sql: set(),
}


@pytest.mark.parametrize("sql", HIDING, ids=["anti join", "having", "anti join alone", "top", "rank"])
def test_what_was_taken_away_below_an_aggregate_is_said_to_be_missing(lab, sql):
    world = World(lab, Case(sql, "ab" if " b " in sql else "a"), 1)
    steps = [step for path in world.ask(0).paths for step in path.steps]
    assert {step.operator for step in steps if step.hides} == HIDING[sql]


@pytest.mark.parametrize(
    ("ask", "rule"),
    [
        ({"offsets": (10**6,)}, "provenance-record"),
        ({"offsets": ()}, "provenance-records"),
        ({"offsets": (0,), "column": "nothing"}, "provenance-column"),
        (
            {"offsets": (0,), "query": "select event_time, k || 'x' as k, v * 2 as v from a"},
            "provenance-not-reproduced",
        ),
    ],
)
def test_what_cannot_be_answered_is_said(run, ask, rule):
    world = run(CASES["map"])
    asked = dict(ask)
    if query := asked.pop("query", None):
        world.transform = TransformSql(engine="spark", query=query)
    offsets = asked.pop("offsets")
    answer = world.ask(*offsets, **asked)
    assert isinstance(answer, InvalidQuery)
    assert rule in str(answer)


def right_side_forgotten(monkeypatch):
    monkeypatch.setattr(row_lineage, "_BOTH", f"{row_lineage.LINEAGE}")


def frames_forgotten(monkeypatch):
    monkeypatch.setattr(row_lineage._Tracing, "_collect_frame", lambda *_: ([], row_lineage.LINEAGE))


def first_of_a_group(monkeypatch):
    monkeypatch.setattr(
        row_lineage, "_ALL", f"array(array_min(flatten(collect_list({row_lineage.LINEAGE})))) as {row_lineage.LINEAGE}"
    )


@pytest.mark.parametrize(
    ("mutate", "name"),
    first_now(
        [
            (right_side_forgotten, "interval join"),
            (frames_forgotten, "moving sum"),
            (frames_forgotten, "top"),
            (first_of_a_group, "bucket"),
            (first_of_a_group, "table"),
        ]
    ),
)
def test_lineage_that_forgets_is_caught(run, monkeypatch, mutate, name):
    world = run(CASES[name])
    mutate(monkeypatch)
    for offset in range(0, len(world.rows), 2):
        answer = world.ask(offset)
        if not isinstance(answer, ProvenanceSuccess):
            return
        named = {(list(world.streams)[r.input], r.offset) for r in answer.records[0].rows}
        if without_op(told(world.rows[offset])) not in world.batch(named):
            return
    raise AssertionError("the broken lineage sufficed")


def test_a_rank_names_nobody_who_came_behind(run):
    world = run(CASES["top"])
    values = {row["offset"]: row["v"] for _, row in world.statements()}
    told_of = 0
    for offset, row in enumerate(world.rows):
        if row["n"] == 3 and told_of < 2:
            told_of += 1
            record = world.ask(offset).records[0]
            assert sorted(each.role for each in record.rows) == ["decides", "decides", "value"]
            assert all(values[each.offset] >= row["v"] for each in record.rows)
    assert told_of
