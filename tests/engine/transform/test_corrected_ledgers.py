"""What derives from a ledger whose rows are corrected: it goes on rightly, or is refused with the way out.

A ledger over memory stores, corrected as ``odfctl correct`` does it; the real engine; replays of every transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from bench.engine import LocalEngine
from chain.data.arrow_schema import from_arrow
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.changelog import says_by_time, says_changelog
from chain.model.events import (
    AddData,
    DatasetKind,
    ExecuteTransform,
    MetadataEvent,
    Seed,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    TransformInput,
)
from chain.model.source import FetchUrl, MergeLedger, ReadCsv, SqlQueryStep, TemporalTable, TransformSql
from chain.state import load_state
from odfd.ingest.correction import CorrectionSpec, correct
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.settings import IngestSettings
from odfd.transform import driver
from odfd.transform.driver import Committed
from odfd.transform.plan import Rejected
from odfd.transform.replay import Replayed, replay
from worlds.transform_world import ROOT, World
from worlds.transform_world import SCHEMA as OF_KEYS

pytestmark = pytest.mark.engine
FACTS = DatasetId.from_public_key(b"f" * 32)
SCHEMA = OF_KEYS.append(pa.field("v", pa.int64()))
MINUTE = 60_000
Row = tuple[int, int, int]
"""Minute, key, value."""
MAP = "select event_time, k, v * 2 as v from x where v >= 0"
WINDOWS = (
    "select window(event_time, '10 minutes').start as event_time, count(*) as c, sum(v) as s "
    "from x group by window(event_time, '10 minutes')"
)
TABLE = "select max(event_time) as event_time, k, count(*) as c, sum(v) as s from x group by k"


class Ledger(World):
    """A root that is a ledger, and what derives from it."""

    def __init__(self, folder: Any, spark: Any) -> None:
        super().__init__(folder, LocalEngine(spark))
        source = SetPollingSource(
            fetch=FetchUrl(url="file:///x"), read=ReadCsv(), merge=MergeLedger(primary_key=("event_time", "k"))
        )
        self.append(ROOT, Seed(dataset_id=ROOT, dataset_kind=DatasetKind.ROOT), source)
        self.ingest = IngestDependencies(
            store=self.chains, objects=self.objects, engine=self.engine, committer=self, now=self.now,
            settings=IngestSettings(staging=folder / "staging"),
        )  # fmt: skip
        self._made = 0

    def add(self, *rows: Row, watermark: int, to: DatasetId = ROOT) -> None:
        state = load_state(self.chains.chain(to))
        events: list[Any] = [] if state.schema is not None else [SetDataSchema(schema=from_arrow(SCHEMA))]
        data = None
        if rows:
            times, keys, values = zip(*rows, strict=True)
            stamps, first = [time * MINUTE for time in times], state.next_offset
            columns = [range(first, first + len(rows)), [0] * len(rows), stamps, stamps, keys, values]
            arrays = [pa.array(list(each)).cast(field.type) for each, field in zip(columns, SCHEMA, strict=True)]
            data = self.keep(pa.Table.from_arrays(arrays, schema=SCHEMA))
        mark = Instant(watermark * MINUTE * MILLISECOND)
        events.append(AddData(prev_offset=state.last_offset, new_data=data, new_watermark=mark))
        self.append(to, *events, objects=[data.physical_hash] if data else [])

    async def say(self, block: Block) -> None:
        """Corrections, each by itself, and then what is added."""
        added: list[Row] = []
        for minute, key, value, *op in block.rows:
            if op:
                of = {"event_time": f"1970-01-01T00:{minute:02}:00Z", "k": str(key)}
                values = {} if value is None else {"v": str(value)}
                await correct(self.ingest, ROOT, CorrectionSpec(key=of, values=values, retract=value is None))
            elif value is not None:
                added.append((minute, key, value))
        if block.mark is not None:
            self.add(*added, watermark=block.mark)
        if block.facts:
            assert block.mark is not None
            self.add(*block.facts, watermark=block.mark, to=FACTS)

    def derived(self, sql: str, of: Mapping[str, DatasetId], **more: Any) -> DatasetId:
        self._made += 1
        dataset = DatasetId.from_public_key(bytes([65 + self._made]) * 32)
        self.append(dataset, Seed(dataset_id=dataset, dataset_kind=DatasetKind.DERIVATIVE))
        self.declare(dataset, sql, of, **more)
        return dataset

    def declare(self, dataset: DatasetId, sql: str, of: Mapping[str, DatasetId], **more: Any) -> None:
        transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),), **more)
        inputs = tuple(TransformInput(dataset_ref=str(each), alias=alias) for alias, each in of.items())
        self.append(dataset, SetTransform(inputs=inputs, transform=transform))

    async def run(self, dataset: DatasetId) -> Any:
        """The last outcome of all transactions that there are."""
        last: Any = None
        while isinstance(done := await driver.run_transform(self.deps, dataset), Committed):
            last = done
        return done if isinstance(done, Rejected) or last is None else last

    def told(self, dataset: DatasetId) -> list[tuple[Any, ...]]:
        """(op, minute, other columns) of all records of a dataset."""
        found: list[tuple[Any, ...]] = []
        for event in self.events(dataset):
            if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
                for row in self.rows(event.new_data).to_pylist():
                    op, _, time = row.pop("op"), row.pop("offset"), row.pop("event_time")
                    row.pop("system_time")
                    found.append((op, int(time.timestamp()) // 60, *row.values()))
        return found

    def events(self, dataset: DatasetId) -> list[MetadataEvent]:
        chain = self.chains.chain(dataset)
        return [chain.block_at(number).event for number in range(chain.head().sequence_number + 1)]

    def says(self, dataset: DatasetId) -> tuple[bool | None, bool]:
        schema = load_state(self.chains.chain(dataset)).schema
        assert schema is not None
        return says_changelog(schema.schema), says_by_time(schema.schema)

    async def check_reproduced(self, dataset: DatasetId) -> None:
        outcomes = [each async for each in replay(self.deps, dataset)]
        assert all(isinstance(each, Replayed) and each.is_reproduced for each in outcomes), outcomes


@pytest.fixture
def ledger(spark_root: Any, tmp_path: Any) -> Ledger:
    return Ledger(tmp_path, spark_root)


ADD, RETRACT, FROM, TO = range(4)
ANEW = "anew"
FIRST = ((1, 1, 10), (2, 2, 20), (11, 1, 30), (12, 3, -5))
APPLY = "SET odf.late.x = 'apply'; " + WINDOWS
JOIN = (
    "select a.event_time, a.k, a.v, b.v as rate from a left join b on a.k = b.k and a.event_time >= b.valid_from "
    "and a.event_time < b.valid_to"
)


@dataclass(frozen=True)
class Block:
    """What is said of the ledger, with the watermark after it, and what comes of it."""

    rows: Sequence[tuple[int, int, int | None] | tuple[int, int, int | None, int]]
    """Minute, key, value and op: corrections come first, then what is added."""
    mark: int | None
    told: Sequence[tuple[Any, ...]] | str | None
    """(op, minute, columns), a pattern of a refusal with its rule, or ``None``: nobody asks."""
    facts: Sequence[Row] = ()
    by: str = ""
    """Another query that is declared before, or ``ANEW``: the same of another dataset, which has all to tell."""


@dataclass(frozen=True)
class Case:
    sql: str
    blocks: Sequence[Block]
    through: str = ""
    """A query between the ledger and this one."""
    says: Sequence[bool] = ()
    """After each block: its chain says that it is a changelog, in the order of time."""


TABLED = [(ADD, 11, 1, 2, 40), (ADD, 2, 2, 1, 20), (ADD, 12, 3, 1, -5)]
PASSED = [(ADD, 11, 1, 2, 80), (ADD, 2, 2, 1, 40)]
MAPPED = [(ADD, 1, 1, 20), (ADD, 2, 2, 40), (ADD, 11, 1, 60)]
JOINED = [(ADD, 2, 1, 1, 10), (ADD, 5, 1, 2, 50), (ADD, 7, 1, 3, 55), (ADD, 10, 1, 4, 55), (ADD, 13, 1, 5, None)]
CASES = {
    "a map is corrected row by row, and its chain says so": Case(
        MAP,
        [
            Block(FIRST, 15, MAPPED),
            Block([(1, 1, 11, TO), (2, 2, -1, TO), (12, 3, 5, TO), (11, 1, None, RETRACT)], None,
                  [(FROM, 1, 1, 20), (TO, 1, 1, 22), (RETRACT, 2, 2, 40), (ADD, 12, 3, 10), (RETRACT, 11, 1, 60)]),
            Block([(20, 9, 9)], 21, [(ADD, 20, 9, 18)]),
        ],
        says=[False, True, True],
    ),
    "a map of what was corrected before says so from the start": Case(
        MAP,
        [Block(FIRST, 15, None), Block([(1, 1, 11, TO)], None, [*MAPPED, (FROM, 1, 1, 20), (TO, 1, 1, 22)])],
        says=[True],
    ),
    "a table of accumulators is refused, and right when derived anew": Case(
        TABLE,
        [
            Block(FIRST, 15, TABLED),
            Block([(1, 1, 11, TO), (20, 2, 7)], 21, "^append-only"),
            Block((), None, [*TABLED, (FROM, 11, 1, 2, 40), (TO, 11, 1, 2, 41), (FROM, 2, 2, 1, 20),
                             (TO, 20, 2, 2, 27)], by=ANEW),
            Block([(20, 2, None, RETRACT)], 30, [(FROM, 20, 2, 2, 27), (TO, 2, 2, 1, 20)]),
        ],
    ),
    "a table of what was passed on is refused in its turn": Case(
        TABLE,
        [
            Block(FIRST, 15, PASSED),
            Block([(1, 1, 11, TO)], None, "^append-only"),
            Block((), 22, [*PASSED, (FROM, 11, 1, 2, 80), (TO, 11, 1, 2, 82)], by=ANEW),
        ],
        through=MAP,
    ),
    "windows ask what shall become of late corrections, and then go on": Case(
        WINDOWS,
        [
            Block(FIRST, 15, [(ADD, 0, 2, 30)]),
            Block([(1, 1, 11, TO), (11, 1, 31, TO), (20, 2, 7)], 21, "^changelog-late.*SET odf.late.x"),
            # The second was corrected before its window closed.
            Block((), None, [(ADD, 10, 2, 26)], by="SET odf.late.x = 'drop'; " + WINDOWS),
        ],
    ),
    "windows of what was corrected before correct what was out": Case(
        APPLY,
        [
            Block(FIRST, 15, None),
            Block([(1, 1, 11, TO), (20, 2, 7)], 21,
                  [(ADD, 0, 2, 30), (FROM, 0, 2, 30), (TO, 0, 2, 31), (ADD, 10, 2, 25)]),
            Block([(2, 2, None, RETRACT), (25, 2, 7)], 31, [(FROM, 0, 2, 31), (TO, 0, 1, 11), (ADD, 20, 2, 14)]),
        ],
    ),
    "windows that apply late rows are refused at the first correction": Case(
        APPLY,
        [Block(FIRST, 15, [(ADD, 0, 2, 30)]), Block([(1, 1, 11, TO), (20, 2, 7)], 21, "^append-only")],
    ),
    "versions stay in the order of time: an old one does not come into force by a correction": Case(
        JOIN,
        [
            Block([(1, 1, 10), (5, 1, 50)], 6, JOINED[:2], [(2, 1, 1), (5, 1, 2)]),
            Block([(1, 1, 11, TO), (5, 1, 55, TO)], 9, JOINED[2:3], [(7, 1, 3)]),
            Block([(1, 1, 12, TO)], 12, JOINED[3:4], [(10, 1, 4)]),
            Block([(5, 1, None, RETRACT)], 15, JOINED[4:], [(13, 1, 5)]),
            Block((), None, JOINED, by=ANEW),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_what_derives_from_a_corrected_ledger(ledger: Ledger, name: str) -> None:
    case, made = CASES[name], list[str]()
    passed = ledger.derived(case.through, {"x": ROOT}) if case.through else None
    inputs = {"x": passed or ROOT}
    more: dict[str, Any] = {}
    if case.sql == JOIN:
        ledger.append(FACTS, Seed(dataset_id=FACTS, dataset_kind=DatasetKind.ROOT))
        inputs, more = {"a": FACTS, "b": ROOT}, {"temporal_tables": (TemporalTable(name="b", primary_key=("k",)),)}
    dataset = ledger.derived(case.sql, inputs, **more)
    told: list[tuple[Any, ...]] = []
    says = iter(case.says)
    for block in case.blocks:
        await ledger.say(block)
        if passed:
            await ledger.run(passed)
        if block.by == ANEW:
            dataset, told = ledger.derived(case.sql, inputs, **more), []
        elif block.by:
            ledger.declare(dataset, block.by, inputs)
        if block.told is None:
            continue
        done = await ledger.run(dataset)
        if isinstance(block.told, str):
            assert isinstance(done, Rejected)
            assert re.search(block.told, f"{done.rule}: {done}", re.DOTALL)
        else:
            assert isinstance(done, Committed)
            told += block.told
        assert ledger.told(dataset) == told
        await ledger.check_reproduced(dataset)
        if case.says:
            # Its schema is said again, and once, when it becomes a changelog.
            said = next(says)
            assert ledger.says(dataset) == (said, said)
            made += [*(["SetDataSchema"] if made.count("SetDataSchema") <= said else []), "ExecuteTransform"]
            assert [type(event).__name__ for event in ledger.events(dataset)[2:]] == made
