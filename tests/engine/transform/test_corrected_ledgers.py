"""What derives from a ledger whose rows are corrected: it goes on rightly, or is refused with the way out.

A ledger over memory stores, corrected as ``odfctl correct`` does it; the real engine; replays of every transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    Seed,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    TransformInput,
)
from chain.model.source import FetchUrl, MergeLedger, ReadCsv, SqlQueryStep, TemporalTable, TransformSql
from chain.state import load_state
from odfd.ingest.correction import Correction, CorrectionSpec, correct
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.settings import IngestSettings
from odfd.transform import driver
from odfd.transform.driver import Committed
from odfd.transform.plan import Rejected
from odfd.transform.replay import Replayed, replay
from worlds.transform_world import ROOT, World

pytestmark = pytest.mark.engine
FACTS = DatasetId.from_public_key(b"f" * 32)
TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("system_time", TIME, nullable=False),
        pa.field("event_time", TIME),
        pa.field("k", pa.int64()),
        pa.field("v", pa.int64()),
    ]
)
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
        data, first = None, state.next_offset
        if rows:
            times, keys, values = zip(*rows, strict=True)
            stamps = pa.array([time * MINUTE for time in times], pa.int64()).cast(TIME)
            count = len(rows)
            data = self.keep(
                pa.Table.from_arrays(
                    [
                        pa.array(range(first, first + count), pa.int64()), pa.array([0] * count, pa.int32()), stamps,
                        stamps, pa.array(keys, pa.int64()), pa.array(values, pa.int64()),
                    ],
                    schema=SCHEMA,
                )
            )  # fmt: skip
        mark = Instant(watermark * MINUTE * MILLISECOND)
        events.append(AddData(prev_offset=state.last_offset, new_data=data, new_watermark=mark))
        self.append(to, *events, objects=[data.physical_hash] if data else [])

    async def correct(self, minute: int, key: int, value: int | None, **more: str) -> Correction:
        """``None``: retract it."""
        text = f"1970-01-01T00:{minute:02}:00Z"
        values = {} if value is None else {"v": str(value), **more}
        spec = CorrectionSpec(key={"event_time": text, "k": str(key)}, values=values, retract=value is None)
        return await correct(self.ingest, ROOT, spec)

    def derived(self, sql: str, of: Mapping[str, DatasetId] | None = None, **more: Any) -> DatasetId:
        self._made += 1
        dataset = DatasetId.from_public_key(bytes([65 + self._made]) * 32)
        self.append(dataset, Seed(dataset_id=dataset, dataset_kind=DatasetKind.DERIVATIVE))
        self.declare(dataset, sql, of, **more)
        return dataset

    def declare(self, dataset: DatasetId, sql: str, of: Mapping[str, DatasetId] | None = None, **more: Any) -> None:
        *declared, query = sql.split(";")
        text = "; ".join([*(each.strip() for each in declared), query.strip()])
        transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=text),), **more)
        named = {"x": ROOT} if of is None else of
        inputs = tuple(TransformInput(dataset_ref=str(each), alias=alias) for alias, each in named.items())
        self.append(dataset, SetTransform(inputs=inputs, transform=transform))

    async def run(self, dataset: DatasetId) -> Any:
        """The last outcome of all transactions that there are."""
        last: Any = None
        while isinstance(done := await driver.run_transform(self.deps, dataset), Committed):
            last = done
        return done if isinstance(done, Rejected) or last is None else last

    def told(self, dataset: DatasetId, *columns: str) -> list[tuple[Any, ...]]:
        """Columns of all records of a dataset."""
        chain, found = self.chains.chain(dataset), []
        for number in range(chain.head().sequence_number + 1):
            event = chain.block_at(number).event
            if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
                rows = self.rows(event.new_data).to_pylist()
                found += [tuple(row[name] for name in columns) for row in rows]
        return found

    def says(self, dataset: DatasetId) -> tuple[bool | None, bool]:
        schema = load_state(self.chains.chain(dataset)).schema
        assert schema is not None
        return says_changelog(schema.schema), says_by_time(schema.schema)

    async def check_reproduced(self, dataset: DatasetId, transactions: int | None = None) -> None:
        outcomes = [each async for each in replay(self.deps, dataset)]
        assert all(isinstance(each, Replayed) and each.is_reproduced for each in outcomes), outcomes
        assert transactions is None or len(outcomes) == transactions


@pytest.fixture
def ledger(spark_root: Any, tmp_path: Any) -> Ledger:
    return Ledger(tmp_path, spark_root)


FIRST: Sequence[Row] = ((1, 1, 10), (2, 2, 20), (11, 1, 30), (12, 3, -5))


async def test_rows_that_pass_one_by_one_are_corrected_and_the_chain_says_so(ledger: Ledger) -> None:
    ledger.add(*FIRST, watermark=15)
    mapped = ledger.derived(MAP)
    assert isinstance(await ledger.run(mapped), Committed)
    assert ledger.says(mapped) == (False, False)
    await ledger.correct(1, 1, 11)
    await ledger.correct(2, 2, -1)
    await ledger.correct(12, 3, 5)
    await ledger.correct(11, 1, None)
    assert isinstance(await ledger.run(mapped), Committed)
    assert ledger.told(mapped, "op", "k", "v") == [
        (0, 1, 20), (0, 2, 40), (0, 1, 60),
        (2, 1, 20), (3, 1, 22), (1, 2, 40), (0, 3, 10), (1, 1, 60),
    ]  # fmt: skip
    assert ledger.says(mapped) == (True, True)
    chain = ledger.chains.chain(mapped)
    kinds = [type(chain.block_at(number).event).__name__ for number in range(2, chain.head().sequence_number + 1)]
    assert kinds == ["SetDataSchema", "ExecuteTransform", "SetDataSchema", "ExecuteTransform"]
    await ledger.check_reproduced(mapped, 2)
    ledger.add((20, 9, 9), watermark=21)
    assert isinstance(await ledger.run(mapped), Committed)
    await ledger.check_reproduced(mapped, 3)


async def test_a_map_of_a_ledger_that_was_corrected_before_says_so_from_the_start(ledger: Ledger) -> None:
    ledger.add(*FIRST, watermark=15)
    await ledger.correct(1, 1, 11)
    mapped = ledger.derived(MAP)
    await ledger.run(mapped)
    assert ledger.says(mapped) == (True, True)
    assert ledger.told(mapped, "op", "v") == [(0, 20), (0, 40), (0, 60), (2, 20), (3, 22)]
    await ledger.check_reproduced(mapped, 1)


async def test_a_table_of_accumulators_is_refused_and_right_when_derived_anew(ledger: Ledger) -> None:
    ledger.add(*FIRST, watermark=15)
    table = ledger.derived(TABLE)
    assert isinstance(await ledger.run(table), Committed)
    before = ledger.told(table, "op", "k", "c", "s")
    await ledger.correct(1, 1, 11)
    ledger.add((20, 2, 7), watermark=21)
    refused = await ledger.run(table)
    assert isinstance(refused, Rejected)
    assert refused.rule == "append-only"
    assert ledger.told(table, "op", "k", "c", "s") == before
    await ledger.check_reproduced(table)
    anew = ledger.derived(TABLE)
    assert isinstance(await ledger.run(anew), Committed)
    standing: dict[int, tuple[int, int]] = {}
    for op, key, count, total in ledger.told(anew, "op", "k", "c", "s"):
        if op in (0, 3):
            standing[key] = (count, total)
    assert standing == {1: (2, 41), 2: (2, 27), 3: (1, -5)}
    await ledger.check_reproduced(anew)
    await ledger.correct(20, 2, None)
    ledger.add(watermark=30)
    await ledger.run(anew)
    assert ledger.told(anew, "op", "k", "c", "s")[-2:] == [(2, 2, 2, 27), (3, 2, 1, 20)]
    await ledger.check_reproduced(anew)


async def test_a_table_of_what_was_passed_on_is_refused_in_its_turn(ledger: Ledger) -> None:
    ledger.add(*FIRST, watermark=15)
    mapped = ledger.derived(MAP)
    await ledger.run(mapped)
    table = ledger.derived(TABLE, {"x": mapped})
    await ledger.run(table)
    await ledger.correct(1, 1, 11)
    await ledger.run(mapped)
    refused = await ledger.run(table)
    assert isinstance(refused, Rejected)
    assert refused.rule == "append-only"
    anew = ledger.derived(TABLE, {"x": mapped})
    ledger.add(watermark=22)
    await ledger.run(mapped)
    assert isinstance(await ledger.run(anew), Committed)
    await ledger.check_reproduced(anew)


async def test_windows_ask_what_shall_become_of_late_corrections_and_then_go_on(ledger: Ledger) -> None:
    ledger.add(*FIRST, watermark=15)
    windows = ledger.derived(WINDOWS)
    assert isinstance(await ledger.run(windows), Committed)
    assert ledger.told(windows, "op", "c", "s") == [(0, 2, 30)]
    await ledger.correct(1, 1, 11)
    await ledger.correct(11, 1, 31)
    ledger.add((20, 2, 7), watermark=21)
    refused = await ledger.run(windows)
    assert isinstance(refused, Rejected)
    assert refused.rule == "changelog-late"
    assert "SET odf.late.x" in str(refused)
    ledger.declare(windows, "SET odf.late.x = 'drop'; " + WINDOWS)
    assert isinstance(await ledger.run(windows), Committed)
    assert ledger.told(windows, "op", "c", "s") == [(0, 2, 30), (0, 2, 26)], "corrected before its window closed"
    await ledger.check_reproduced(windows)


async def test_windows_that_correct_what_was_out_are_right_when_derived_anew(ledger: Ledger) -> None:
    ledger.add(*FIRST, watermark=15)
    await ledger.correct(1, 1, 11)
    windows = ledger.derived("SET odf.late.x = 'apply'; " + WINDOWS)
    ledger.add((20, 2, 7), watermark=21)
    assert isinstance(await ledger.run(windows), Committed)
    await ledger.correct(2, 2, None)
    ledger.add((25, 2, 7), watermark=31)
    assert isinstance(await ledger.run(windows), Committed)
    last: dict[Any, tuple[int, int]] = {}
    for op, start, count, total in ledger.told(windows, "op", "event_time", "c", "s"):
        if op in (0, 3):
            last[start.minute] = (count, total)
    assert last == {0: (1, 11), 10: (2, 25), 20: (2, 14)}
    await ledger.check_reproduced(windows)


async def test_windows_that_apply_late_rows_are_refused_when_their_ledger_is_corrected(ledger: Ledger) -> None:
    ledger.add(*FIRST, watermark=15)
    windows = ledger.derived("SET odf.late.x = 'apply'; " + WINDOWS)
    await ledger.run(windows)
    await ledger.correct(1, 1, 11)
    ledger.add((20, 2, 7), watermark=21)
    refused = await ledger.run(windows)
    assert isinstance(refused, Rejected)
    assert refused.rule == "append-only"


FIRST_MARK = 6
JOIN = (
    "select a.event_time, a.k, a.v, b.v as rate from a left join b on a.k = b.k and a.event_time >= b.valid_from "
    "and a.event_time < b.valid_to"
)


async def test_versions_of_a_ledger_stay_in_the_order_of_time(ledger: Ledger) -> None:
    """An old rate that is corrected does not become the one in force; how many transactions there are is no matter."""
    ledger.append(FACTS, Seed(dataset_id=FACTS, dataset_kind=DatasetKind.ROOT))
    rates = (TemporalTable(name="b", primary_key=("k",)),)
    joined = ledger.derived(JOIN, {"a": FACTS, "b": ROOT}, temporal_tables=rates)
    expected: list[tuple[int, int | None]] = []

    async def goes_on(watermark: int, *facts: Row, rate: Sequence[int | None]) -> None:
        if watermark > FIRST_MARK:
            ledger.add(watermark=watermark)
        ledger.add(*facts, watermark=watermark, to=FACTS)
        assert isinstance(await ledger.run(joined), Committed)
        expected.extend(zip((value for _, _, value in facts), rate, strict=True))
        assert ledger.told(joined, "v", "rate") == expected

    ledger.add((1, 1, 10), (5, 1, 50), watermark=FIRST_MARK)
    await goes_on(FIRST_MARK, (2, 1, 1), (5, 1, 2), rate=(10, 50))
    await ledger.correct(1, 1, 11)
    await ledger.correct(5, 1, 55)
    await goes_on(9, (7, 1, 3), rate=(55,))
    await ledger.correct(1, 1, 12)
    await goes_on(12, (10, 1, 4), rate=(55,))
    await ledger.correct(5, 1, None)
    await goes_on(15, (13, 1, 5), rate=(None,))
    await ledger.check_reproduced(joined)
    whole = ledger.derived(JOIN, {"a": FACTS, "b": ROOT}, temporal_tables=rates)
    assert isinstance(await ledger.run(whole), Committed)
    assert ledger.told(whole, "v", "rate") == expected
    await ledger.check_reproduced(whole)
