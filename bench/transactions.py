"""Measures a transaction and its query: nothing settled, a large one, after many others, and Structured Streaming.

Structured Streaming does the same work in micro-batches. Requests go to a warm engine process in its sandbox, as a
node's do; peers run on a bare Spark of this process with the same settings.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import trio
from pyspark.sql import SparkSession

from bench.chains import SCHEMA
from bench.engine import DAILY, DAY, DERIVED, ROOT, bare_spark, warm_engine
from bench.measure import Row, Side, Size, in_turns_async, seconds
from chain.data.parquet import write_slice
from chain.instant import Instant, from_millis
from chain.model.source import SqlQueryStep, TransformSql
from chain.multihash import Multihash
from engines.contract import Engine, InputBlock, Success, TransformRequest, TransformRequestInput, Vocab
from engines.output_check import both_hashes
from engines.spark.state.checkpoint import open_blocks

START: Final = 1_700_006_400_000
"""Milliseconds; a midnight."""
SLOW: Final = 0.010
"""Seconds that a transaction may take which settles nothing."""
PER_DAY: Final = 24
"""Blocks, one an hour: the last of a day settles it."""
TABLE: Final = """select max(event_time) as event_time, k, count(*) as n, sum(value) as total
from (select event_time, value, {} as k from x) group by k"""
MAP: Final = "select event_time, value * 2 as value, value % 97 as part from x where value % 10 <> 3"


@dataclass
class Derived:
    """A derived dataset outside of any node: its input's blocks, and the position of its last transaction."""

    folder: Path
    query: str
    blocks: list[InputBlock] = field(default_factory=list)
    done: int = 0
    checkpoint: Path | None = None
    next_offset: int = 0
    number: Iterator[int] = field(default_factory=itertools.count)

    def grow(self, rows: int, first: int, span: int, watermark: int) -> None:
        """Adds one block: ``rows`` rows spread over ``span`` milliseconds from ``first`` on."""
        before = self.blocks[-1].watermark_after if self.blocks else None
        path = self.folder / f"slice-{len(self.blocks)}"
        numbers = np.arange(rows)
        columns = [
            numbers + rows * len(self.blocks),
            np.zeros(rows, np.int32),
            pa.array(np.full(rows, START), pa.timestamp("ms", "UTC")),
            pa.array(first + numbers * span // rows, pa.timestamp("ms", "UTC")),
            numbers % 97,
        ]
        write_slice(pa.table(columns, schema=SCHEMA), path)
        name = Multihash.sha3_256(path.name.encode())
        after = from_millis(watermark)
        self.blocks.append(
            InputBlock(data_path=str(path), watermark_before=before, watermark_after=after, block_hash=name)
        )

    async def transact(self, engine: Engine, count: int = 1, *, stay: bool = False) -> tuple[Success, Path]:
        """Runs the next ``count`` blocks; ``stay``: as a trial without effect on the next transaction."""
        place = self.folder / f"transaction-{next(self.number)}"
        place.mkdir()
        request = self._request(count, place)
        answer = await engine.transform(request)
        assert isinstance(answer, Success), answer
        if not stay:
            self.done += count
            self.checkpoint = place / "checkpoint"
            if answer.new_offset_interval is not None:
                self.next_offset = answer.new_offset_interval.end + 1
        return answer, place / "data"

    def _request(self, count: int, place: Path) -> TransformRequest:
        fresh = self.blocks[self.done : self.done + count]
        return TransformRequest(
            dataset_id=DERIVED,
            dataset_alias="derived",
            system_time=Instant((START + 1000 * DAY) * 1_000_000),
            vocab=Vocab(),
            transform=TransformSql(engine="spark", queries=(SqlQueryStep(query=self.query),)),
            query_inputs=(
                TransformRequestInput(
                    dataset_id=ROOT,
                    dataset_alias="root",
                    query_alias="x",
                    vocab=Vocab(),
                    blocks=(*self._again(), *fresh),
                    schema_file=self.blocks[0].data_path or "",
                    changelog=False,
                ),
            ),
            next_offset=self.next_offset,
            prev_checkpoint_path=str(self.checkpoint) if self.checkpoint is not None else None,
            new_checkpoint_path=str(place / "checkpoint"),
            new_data_path=str(place / "data"),
        )

    def _again(self) -> Iterator[InputBlock]:
        if self.checkpoint is None:
            return
        runs = open_blocks(self.checkpoint.read_bytes()).get(ROOT, [])
        places = {block.block_hash: at for at, block in enumerate(self.blocks)}
        for first, last in runs:
            for block in self.blocks[places[first] : places[last] + 1]:
                yield msgspec.structs.replace(block, reopened=True)


def hours(folder: Path, days: int, rows: int) -> Derived:
    """Makes a daily window over blocks of an hour."""
    folder.mkdir()
    derived = Derived(folder, DAILY)
    for hour in range(days * PER_DAY):
        start = START + hour * DAY // PER_DAY
        derived.grow(rows, start, DAY // PER_DAY, start + DAY // PER_DAY)
    return derived


def measure_idle(size: Size, folder: Path) -> list[Row]:
    """Measures a transaction that settles nothing."""
    return [trio.run(_measure_idle, size, folder)]


async def _measure_idle(size: Size, folder: Path) -> Row:
    derived = hours(folder / "derived", 2, 100)
    async with warm_engine(size, folder) as (engine, sandbox):
        for _ in range(PER_DAY + PER_DAY // 2):
            await derived.transact(engine)

        async def ours() -> None:
            answer, _ = await derived.transact(engine, stay=True)
            assert answer.new_offset_interval is None

        costs, _ = await in_turns_async(ours, _nothing, size.pick(1, 40), size.pick(0, 20))
    return Row(
        name="idle",
        measures=f"100 rows that settle nothing, {PER_DAY // 2} blocks open, warm",
        ours=Side(name=f"request to answer, gRPC, sandbox {sandbox}", costs=costs),
        peer=Side(name="the limit", costs=(SLOW,) * len(costs)),
        goal="≤ 1",
    )


async def _nothing() -> None:
    """The other side of a limit."""


def measure_history(size: Size, folder: Path) -> list[Row]:
    """Measures a day's transactions after many others, against the same after ten."""
    return trio.run(_measure_history, size, folder)


async def _measure_history(size: Size, folder: Path) -> list[Row]:
    lengths = [PER_DAY] if size.quick else [100, 1_000]
    base = 10
    days = -(-max(lengths) // PER_DAY) + 2
    rows = []
    async with warm_engine(size, folder) as (engine, sandbox):
        early = await _after(hours(folder / "early", days, 100), base, engine)
        for length in lengths:
            late = await _after(hours(folder / f"late-{length}", days, 100), length, engine)
            costs, peer = await in_turns_async(
                _a_day(late, engine), _a_day(early, engine), size.pick(1, 9), size.pick(0, 2)
            )
            rows.append(
                Row(
                    name=f"history {length:,}",
                    measures=f"the {PER_DAY} transactions of a day, one of which settles it",
                    ours=Side(name=f"after {length:,} transactions, sandbox {sandbox}", costs=costs),
                    peer=Side(name=f"after {base}", costs=peer),
                    goal="≤ 1.1",
                )
            )
    return rows


async def _after(derived: Derived, transactions: int, engine: Engine) -> Derived:
    for _ in range(transactions):
        await derived.transact(engine)
    return derived


def _a_day(derived: Derived, engine: Engine) -> Callable[[], Awaitable[None]]:
    """The next transactions, from the same state each time."""

    async def run() -> None:
        trial = dataclasses.replace(derived)
        settled = 0
        for _ in range(PER_DAY):
            answer, _ = await trial.transact(engine)
            settled += answer.new_offset_interval is not None
        assert settled == 1

    return run


def measure_large(size: Size, folder: Path) -> list[Row]:
    """Measures ten million rows through a query and a filter into one slice, both hashes included."""
    rows = size.pick(50_000, 10_000_000)
    with bare_spark(size, folder / "spark") as spark:
        return [trio.run(_measure_large, size, folder, rows, spark)]


async def _measure_large(size: Size, folder: Path, rows: int, spark: SparkSession) -> Row:
    async with warm_engine(size, folder, "2g") as (engine, sandbox):
        costs, peer = await map_in_turns(size, folder, rows, engine, spark)
    return Row(
        name="large",
        measures=f"{rows:,} rows through a map and a filter into one file",
        ours=Side(name=f"request to both hashes, sandbox {sandbox}", costs=costs, amount=rows, unit="rows"),
        peer=Side(name="bare Spark, Parquet to Parquet, system columns too", costs=peer, amount=rows, unit="rows"),
        goal="≤ 1.15",
    )


def measure_table(size: Size, folder: Path) -> list[Row]:
    """Measures five million rows into a changing table: sums by key, of few keys and of many."""
    rows = size.pick(50_000, 5_000_000)
    with bare_spark(size, folder / "spark") as spark:
        return trio.run(_measure_table, size, folder, rows, spark)


async def _measure_table(size: Size, folder: Path, rows: int, spark: SparkSession) -> list[Row]:
    found = []
    async with warm_engine(size, folder, "2g") as (engine, sandbox):
        for name, key in (
            ("few keys", "value % 7"),
            ("many keys", "value * 3600 + minute(event_time) * 60 + second(event_time)"),
        ):
            query = TABLE.format(key)
            costs, peer = await map_in_turns(size, folder / name, rows, engine, spark, query, 2)
            found.append(
                Row(
                    name=f"table, {name}",
                    measures=f"{rows:,} rows into the sums of each key",
                    ours=Side(name=f"request to both hashes, sandbox {sandbox}", costs=costs, amount=rows, unit="rows"),
                    peer=Side(name="bare Spark, Parquet to Parquet", costs=peer, amount=rows, unit="rows"),
                    goal="≤ 1.3",
                    facts={"seconds of DuckDB": _duck_seconds(folder / name / "derived" / "slice-0", query)},
                )
            )
    return found


def _duck_seconds(source: Path, query: str) -> float:
    """Of the same query over the same file, into Parquet."""
    with duckdb.connect() as duck:
        duck.execute(f"create view x as select * from read_parquet('{source}')")
        command = f"copy ({query}) to '{source}.duck' (format parquet)"
        return min(seconds(lambda: duck.execute(command)) for _ in range(3))


async def map_in_turns(
    size: Size,
    folder: Path,
    rows: int,
    engine: Engine,
    spark: SparkSession,
    query: str = MAP,
    rounds: int = 5,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of a transaction of so many rows, both hashes included, and of a bare session that writes the same."""
    (folder / "derived").mkdir(parents=True)
    derived = Derived(folder / "derived", query)
    derived.grow(rows, START, 10 * DAY, START + 11 * DAY)
    source, targets = derived.blocks[0].data_path or "", itertools.count()

    async def ours() -> None:
        _, data = await derived.transact(engine, stay=True)
        await trio.to_thread.run_sync(both_hashes, data)
        shutil.rmtree(data.parent)

    async def bare() -> None:
        target = folder / f"bare-{next(targets)}"
        await trio.to_thread.run_sync(_write_bare, spark, source, target, query)
        shutil.rmtree(target)

    return await in_turns_async(ours, bare, size.pick(1, rounds), size.pick(0, 1))


def _write_bare(spark: SparkSession, source: str, target: Path, query: str) -> None:
    """The same columns in the same order: one task, since offsets follow the rows of one file."""
    session = spark.newSession()
    session.read.parquet(source).createOrReplaceTempView("x")
    system = "monotonically_increasing_id() as offset, 0 as op, timestamp_millis(0) as system_time"
    session.sql(query).coalesce(1).selectExpr(*system.split(", "), "*").write.parquet(str(target))


def measure_streaming(size: Size, folder: Path) -> list[Row]:
    """Measures daily windows, a block each: a transaction that settles a day, against Structured Streaming."""
    with bare_spark(size, folder / "spark") as spark:
        return [trio.run(_measure_streaming, size, folder, spark)]


async def _measure_streaming(size: Size, folder: Path, spark: SparkSession) -> Row:
    rounds, warm = size.pick(1, 15), size.pick(1, 10)
    (folder / "derived").mkdir()
    derived = Derived(folder / "derived", DAILY)
    for day in range(rounds + warm + 2):
        derived.grow(100, START + day * DAY, DAY, START + day * DAY)
    stream = _Stream(spark, folder, derived.blocks)
    async with warm_engine(size, folder) as (engine, sandbox):
        await derived.transact(engine, 2)
        await trio.to_thread.run_sync(stream.take, 2)

        async def ours() -> None:
            answer, _ = await derived.transact(engine)
            assert answer.new_offset_interval is not None

        async def peer() -> None:
            await trio.to_thread.run_sync(stream.take, 1)

        costs, theirs = await in_turns_async(ours, peer, rounds, warm)
    assert stream.rows() >= rounds
    return Row(
        name="streaming",
        measures="100 rows that settle a day, warm",
        ours=Side(name=f"a transaction, gRPC, sandbox {sandbox}", costs=costs),
        peer=Side(name="Structured Streaming: AvailableNow, append, Parquet to Parquet", costs=theirs),
        goal="≤ 0.5",
    )


class _Stream:
    """The same query as a stream over a folder of files; its watermark is the greatest event time seen."""

    def __init__(self, spark: SparkSession, folder: Path, blocks: Sequence[InputBlock]) -> None:
        self._session = spark.newSession()
        self._folder = folder
        self._waiting = iter(blocks)
        (folder / "stream").mkdir()

    def take(self, count: int) -> None:
        for block in itertools.islice(self._waiting, count):
            path = Path(block.data_path or "")
            shutil.copyfile(path, self._folder / "stream" / path.name)
        schema = self._session.read.parquet(str(self._folder / "stream")).schema
        frame = self._session.readStream.schema(schema).parquet(str(self._folder / "stream"))
        frame.withWatermark("event_time", "0 seconds").createOrReplaceTempView("x")
        writer = self._session.sql(DAILY).writeStream.format("parquet").outputMode("append")
        writer = writer.option("checkpointLocation", str(self._folder / "state")).trigger(availableNow=True)
        writer.start(str(self._folder / "streamed")).awaitTermination()

    def rows(self) -> int:
        return int(self._session.read.parquet(str(self._folder / "streamed")).count())
