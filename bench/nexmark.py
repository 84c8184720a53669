"""Measures a transform of each Nexmark query over the whole auction house, against the same query on plain Spark.

The queries are those of ``tests/golden/nexmark``, which the tests hold against DuckDB row by row; those that take more
than one dataset are left out. Everything is settled by one transaction, so what differs is the frame: planning, rows
on their way, exact types, the order of rows, both hashes. DuckDB's seconds are told beside.
"""

from __future__ import annotations

import itertools
import operator
import os
import shutil
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import trio
import yaml
from pyspark.sql import SparkSession

from bench.engine import bare_spark, warm_engine
from bench.machine import spent_below
from bench.measure import Row, Side, Size, in_turns_async, seconds
from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.instant import from_millis
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from chain.multihash import Multihash
from engines.contract import Engine, InputBlock, Success, TransformRequest, TransformRequestInput, Vocab
from engines.output_check import both_hashes

QUERIES: Final = Path(__file__).parents[1] / "tests" / "golden" / "nexmark" / "queries.yaml"
BEGIN: Final = 1_700_006_400_000
STEP: Final = 200
"""Milliseconds between events."""
DAY: Final = 86_400_000
FIRST: Final = 1_100
"""Number of the first auction."""
_TIME: Final = pa.timestamp("ms", "UTC")
_PER_ROUND: Final = 50
"""Events, of which the first is a person and the next three are auctions; the others are bids."""


class Query(msgspec.Struct, frozen=True):
    """The used fields of one query in the file."""

    published: str
    refused: list[str] = []
    steps: list[dict[str, Any]] = []
    duck: str = ""

    @property
    def transforms(self) -> list[dict[str, Any]]:
        """The equivalent transforms; none where there is no equivalent."""
        return self.steps if self.refused else [{"sql": self.published}]

    @property
    def plain(self) -> str:
        """The query over whole tables, in DuckDB's syntax for as-of joins."""
        (step,) = self.transforms
        return self.duck if step.get("temporal") else str(step["sql"])


def measure_nexmark(size: Size, folder: Path) -> list[Row]:
    """Measures a row for each query."""
    found = msgspec.convert(yaml.safe_load(QUERIES.read_text()), dict[str, Query])
    asked = {name: query for name, query in found.items() if len(query.transforms) == 1}
    if size.quick:
        asked = {name: asked[name] for name in ("q0", "q3", "q7", "q17")}
    files = _lay_out(folder, size.pick(2_000, 200_000))
    with bare_spark(size, folder / "spark") as spark:
        return trio.run(_measure, size, folder, asked, files, spark)


async def _measure(
    size: Size, folder: Path, asked: Mapping[str, Query], files: Mapping[str, Path], spark: SparkSession
) -> list[Row]:
    rows = []
    async with warm_engine(size, folder, "2g") as (engine, sandbox):
        for name, query in asked.items():
            (step,) = query.transforms
            mine, theirs = _fresh(folder / f"{name}-ours"), _fresh(folder / f"{name}-bare")

            async def ours(step: Mapping[str, Any] = step, places: Iterator[Path] = mine) -> None:
                await _transact(engine, step, files, next(places))

            async def bare(text: str = query.plain, places: Iterator[Path] = theirs) -> None:
                await trio.to_thread.run_sync(_on_spark, spark, text, files, next(places))

            rounds, used, theirs_used = size.pick(1, 3), list[float](), list[float]()
            costs, peer = await in_turns_async(_counted(ours, used), _counted(bare, theirs_used), rounds, 1)
            ratio = statistics.median(map(operator.truediv, used[-rounds:], theirs_used[-rounds:]))
            rows.append(
                Row(
                    name=f"nexmark {name}",
                    measures="the query over all events, warm",
                    ours=Side(name=f"a transaction to both hashes, sandbox {sandbox}", costs=costs),
                    peer=Side(name="bare Spark, Parquet to Parquet", costs=peer),
                    facts={
                        "ratio of CPU": ratio,
                        "seconds of CPU": statistics.median(used[-rounds:]),
                        "seconds of DuckDB": _duck_seconds(query.duck or str(step["sql"]), files, folder / name),
                    },
                )
            )
    return rows


def _counted(work: Callable[[], Awaitable[None]], used: list[float]) -> Callable[[], Awaitable[None]]:
    """The same; notes the seconds of CPU that this process and those below it have had for it, whoever else runs."""

    async def counted() -> None:
        before = spent_below(os.getpid())
        await work()
        used.append(spent_below(os.getpid()) - before)

    return counted


def _fresh(folder: Path) -> Iterator[Path]:
    for number in itertools.count():
        place = folder / str(number)
        place.mkdir(parents=True)
        yield place


async def _transact(engine: Engine, step: Mapping[str, Any], files: Mapping[str, Path], place: Path) -> None:
    temporal = tuple(
        TemporalTable(name=name, primary_key=tuple(keys)) for name, keys in step.get("temporal", {}).items()
    )
    words = set(str(step["sql"]).replace(",", " ").replace("(", " ").replace(")", " ").split())
    end = from_millis(BEGIN + 1_000 * DAY)
    request = TransformRequest(
        dataset_id=_dataset("derived"),
        dataset_alias="derived",
        system_time=end,
        vocab=Vocab(),
        transform=TransformSql(
            engine="spark", queries=(SqlQueryStep(query=step["sql"]),), temporal_tables=temporal or None
        ),
        query_inputs=tuple(
            TransformRequestInput(
                dataset_id=_dataset(name),
                dataset_alias=name,
                query_alias=name,
                vocab=Vocab(),
                blocks=(
                    InputBlock(
                        data_path=str(path),
                        watermark_before=None,
                        watermark_after=end,
                        block_hash=Multihash.sha3_256(name.encode()),
                    ),
                ),
                schema_file=str(path),
                changelog=False,
            )
            for name, path in files.items()
            if name in words
        ),
        next_offset=0,
        prev_checkpoint_path=None,
        new_checkpoint_path=str(place / "checkpoint"),
        new_data_path=str(place / "data"),
    )
    answer = await engine.transform(request)
    assert isinstance(answer, Success), answer
    assert answer.new_offset_interval is not None
    await trio.to_thread.run_sync(both_hashes, place / "data")
    shutil.rmtree(place)


def _on_spark(spark: SparkSession, text: str, files: Mapping[str, Path], place: Path) -> None:
    session = spark.newSession()
    for name, path in files.items():
        session.read.parquet(str(path)).createOrReplaceTempView(name)
    session.sql(text).coalesce(1).write.parquet(str(place / "out"))
    shutil.rmtree(place)


def _duck_seconds(text: str, files: Mapping[str, Path], target: Path) -> float:
    with duckdb.connect() as duck:
        duck.execute("set TimeZone = 'UTC'")
        for name, path in files.items():
            duck.execute(f"create view {name} as select * from read_parquet('{path}')")
        command = f"copy ({text}) to '{target}.duck' (format parquet)"
        return min(seconds(lambda: duck.execute(command)) for _ in range(2))


def _dataset(name: str) -> DatasetId:
    return DatasetId.from_public_key(name.encode().ljust(32))


def _lay_out(folder: Path, events: int) -> dict[str, Path]:
    """A slice of each table: the published proportions and prices, by columns; times in order."""
    random = np.random.default_rng(1)
    number = np.arange(events)
    place = number % _PER_ROUND
    persons, auctions, bids = number[place == 0], number[(place > 0) & (place < 4)], number[place > 3]
    sold, known = np.searchsorted(auctions, bids), np.searchsorted(persons, bids)
    tables = {
        "person": (
            persons,
            {
                "id": 1_000 + np.arange(len(persons)),
                **{name: _letters(random, len(persons)) for name in ("name", "emailAddress", "creditCard")},
                "city": _one_of(random, len(persons), ["Phoenix", "Palo Alto", "Boise", "Portland", "Bend"]),
                "state": _one_of(random, len(persons), ["AZ", "CA", "ID", "OR", "WA"]),
            },
        ),
        "auction": (
            auctions,
            {
                "id": FIRST + np.arange(len(auctions)),
                **{name: _letters(random, len(auctions)) for name in ("itemName", "description")},
                "initialBid": _prices(random, len(auctions)),
                "reserve": _prices(random, len(auctions)),
                "expires": _times(auctions + random.integers(5, 150, len(auctions))),
                "seller": 1_000 + _recent(random, np.searchsorted(persons, auctions), 4),
                "category": 10 + random.integers(0, 3, len(auctions)),
            },
        ),
        "bid": (
            bids,
            {
                "auction": FIRST + _recent(random, sold, 6),
                "bidder": 1_000 + _recent(random, known, 8),
                "price": _prices(random, len(bids)),
                "channel": _one_of(
                    random, len(bids), ["Google", "Facebook", "Baidu", "Apple", "channel-1", "channel-2"]
                ),
                "url": _one_of(random, len(bids), [_url(at) for at in range(1_000)]),
            },
        ),
        "side_input": (
            np.zeros(20, np.int64),
            {"key": FIRST + np.arange(20), "value": [f"side {at}" for at in range(20)]},
        ),
    }
    files = {}
    for name, (times, columns) in tables.items():
        files[name] = folder / name
        extra = {} if name == "side_input" else {"extra": _letters(random, len(times))}
        write_slice(_slice(times, columns | extra), files[name])
    return files


def _slice(events: np.ndarray, columns: Mapping[str, Any]) -> pa.Table:
    count = len(events)
    system = {
        "offset": pa.array(np.arange(count)),
        "op": pa.array(np.zeros(count, np.int32)),
        "system_time": pa.array(np.full(count, BEGIN), _TIME),
        "event_time": _times(events),
    }
    table = pa.table(system | {name: pa.array(values) for name, values in columns.items()})
    required = ("offset", "op", "system_time")
    return table.cast(pa.schema([field.with_nullable(field.name not in required) for field in table.schema]))


def _times(events: np.ndarray) -> pa.Array:
    return pa.array(BEGIN + events * STEP, _TIME)


def _recent(random: np.random.Generator, made: np.ndarray, most: int) -> np.ndarray:
    """Of so many that there are, one of the last."""
    recent: np.ndarray = np.maximum(made - 1 - random.integers(0, most, len(made)), 0)
    return recent


def _prices(random: np.random.Generator, count: int) -> np.ndarray:
    return np.round(10 ** (random.random(count) * 6) * 100).astype(np.int64)


def _one_of(random: np.random.Generator, count: int, choice: list[str]) -> pa.Array:
    return pa.array(choice).take(pa.array(random.integers(0, len(choice), count)))


def _letters(random: np.random.Generator, count: int) -> pa.Array:
    words = ["".join(random.choice(list("abcdefgh"), 12)) for _ in range(1_000)]
    return _one_of(random, count, words)


def _url(at: int) -> str:
    tail = f"&channel_id={at % 100}" if at % 2 else ""
    return f"https://www.nexmark.com/{at % 7:03}/{at % 11:03}/{at % 13:03}/item.htm?query=1{tail}"
