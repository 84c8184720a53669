"""A laboratory for transforms on the real Spark: streams of blocks, random or given, and schedules for them.

The law itself is tried in ``test_conformance``; here is what tests of single things need.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.instant import from_millis
from chain.model.source import TransformSql
from conformance.coordinator import OUT, SCHEMA, TIME, block_of, dataset_of, reopened
from conformance.histories import DAY, START
from engines.contract import (
    InputBlock,
    Success,
    TransformOutcome,
    TransformRequest,
    TransformRequestInput,
    Vocab,
)
from engines.request_control import RequestControl
from engines.spark.execution.transform import SharedCaches, run_transform
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.sql.queries import Analyst

IN = DatasetId.from_public_key(b"i" * 32)
SYSTEM_TIME = from_millis(START + 1000 * DAY)


ANALYST = Analyst()
"""Of all tests: what a text means does not change, and finding out takes longer than a small transaction."""


@dataclass(frozen=True)
class Shape:
    """A query over the input a."""

    sql: str


@dataclass(frozen=True)
class Stream:
    blocks: tuple[InputBlock, ...]
    tables: tuple[pa.Table | None, ...]


def day(time: int) -> int:
    return time // DAY * DAY


SHAPES = {
    "map": Shape("select event_time, upper(k) as k, v * 2 as v from a"),
    "filter": Shape("select event_time, v from a where v % 3 <> 0 and k is not null"),
    "bucket-day": Shape(
        "select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s, count(*) as c "
        "from a group by 1, 2",
    ),
    "window-day": Shape(
        "select window(event_time, '1 day').start as event_time, k, min(v) as low, max(v) as high "
        "from a group by window(event_time, '1 day'), k",
    ),
    "bucket-month": Shape(
        "select time_bucket(interval '1' month, event_time) as event_time, k, count(distinct v) as c "
        "from a group by 1, 2",
    ),
    "quarter": Shape(
        "select date_trunc('quarter', event_time) as event_time, sum(cast(v as decimal(20, 2))) as s from a group by 1",
    ),
    "two-paths": Shape(
        "select event_time, sum(v) as s from ("
        "  select time_bucket(interval '1' day, event_time) as event_time, v from a union all"
        "  select time_bucket(interval '1' day, event_time) + interval '2' day, v from a) group by 1",
    ),
    "overlapping": Shape(
        "select window(event_time, '1 day', '6 hours').end as event_time, k, sum(v) as s "
        "from a group by window(event_time, '1 day', '6 hours'), k",
    ),
    "next-month": Shape(
        "select event_time + interval '1' month as event_time, sum(v) as s, count(*) as c from a group by 1",
    ),
}


@dataclass
class Lab:
    spark: SparkSession
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    number: int = 0

    def stream(self, seed: int, days: int = 220, blocks: int = 24, late: float = 0.06, rows: int = 12) -> Stream:
        """Jitter, equal times, late rows, missing times, missing and repeated watermarks, blocks without data."""
        rng = np.random.default_rng(seed)
        made: list[InputBlock] = []
        tables: list[pa.Table | None] = []
        offset, before, clock = 0, None, START
        for position in range(blocks):
            clock += int(rng.integers(0, 2 * days * DAY // blocks))
            table = None
            if rng.random() < 0.85:
                count = int(rng.integers(1, rows))
                times = clock + rng.integers(-DAY, DAY, count)
                times[rng.random(count) < 0.3] = day(clock)
                times[rng.random(count) < late] -= int(rng.integers(1, 60)) * DAY
                table = _rows(rng, offset, times, rng.random(count) < 0.03)
                offset += count
            after = before
            if rng.random() < 0.7:
                stated = clock - int(rng.integers(0, DAY)) if rng.random() < 0.8 else day(clock)
                after = stated if before is None else max(before, stated)
            made.append(self._block(f"{seed}-{position}", _made_at(table, position), before, after))
            tables.append(_made_at(table, position))
            before = after
        return Stream(tuple(made), tuple(tables))

    def given(self, name: str, parts: Sequence[tuple[list[tuple[object, ...]], int | None]]) -> Stream:
        """Blocks of (rows, watermark after): a row is (milliseconds, k, v) or (milliseconds, k, v, op)."""
        made, tables, offset, before = [], [], 0, None
        for position, (rows, after) in enumerate(parts):
            table = None
            if rows:
                whole = [(*row, 0)[:4] for row in rows]
                columns = {
                    "offset": range(offset, offset + len(rows)),
                    "op": [row[3] for row in whole],
                    "system_time": [START] * len(rows),
                    "event_time": [row[0] for row in whole],
                    "k": [row[1] for row in whole],
                    "v": [row[2] for row in whole],
                }
                table = pa.table([pa.array(list(columns[f.name])).cast(f.type) for f in SCHEMA], schema=SCHEMA)
                offset += len(rows)
            table = _made_at(table, position)
            made.append(self._block(f"{name}-{position}", table, before, after if after is not None else before))
            tables.append(table)
            before = after if after is not None else before
        return Stream(tuple(made), tuple(tables))

    def changing(self, name: str, seed: int, blocks: int) -> Stream:
        """A legal changelog with key k: additions, corrections that move in time, retractions at old and new times."""
        rng, parts, clock, number = random.Random(seed), [], START, 0
        current: dict[str, tuple[object, ...]] = {}
        for _ in range(blocks):
            clock += rng.randrange(0, 5 * DAY)
            rows: list[tuple[object, ...]] = []
            for _ in range(rng.randrange(0, 5)):
                key, number = f"k{rng.randrange(3)}", number + 1
                time = clock + rng.randrange(-4 * DAY, 2 * DAY)
                if key not in current:
                    rows.append((time, key, number, 0))
                    current[key] = rows[-1]
                elif rng.random() < 0.6:
                    rows += [(*current[key][:3], 2), (time, key, number, 3)]
                    current[key] = rows[-1]
                else:
                    old = current.pop(key)
                    rows.append((old[0] if rng.random() < 0.5 else time, *old[1:3], 1))
            parts.append((rows, clock - rng.randrange(0, DAY) if rng.random() < 0.8 else None))
        mark, rising = None, []
        for rows, after in parts:
            mark = after if mark is None else mark if after is None else max(mark, after)
            rising.append((rows, mark))
        return self.given(name, rising)

    def written(self, name: str, got: Replayed) -> Stream:
        """What a transform wrote, as the stream that a consumer of it reads."""
        blocks, before = [], None
        for number, (table, after) in enumerate(got.blocks):
            at = None if after is None else after // 10**6
            blocks.append(self._block(f"{name}-{number}", table, before, at))
            before = at
        return Stream(tuple(blocks), tuple(table for table, _ in got.blocks))

    @staticmethod
    def statements(stream: Stream) -> Iterator[tuple[Any, ...]]:
        """(milliseconds, k, v, op, watermark before, after), in chain order; -2**62 stands for no watermark."""
        for block, table in zip(stream.blocks, stream.tables, strict=True):
            marks = [
                -(2**62) if mark is None else mark // 10**6 for mark in (block.watermark_before, block.watermark_after)
            ]
            for row in table.to_pylist() if table is not None else ():
                time = None if row["event_time"] is None else int(row["event_time"].timestamp() * 1000)
                yield (time, row["k"], row["v"], row["op"], *marks)

    def streams(
        self, name: str, aliases: str, changing: str, blocks: int, seed: int = 900, days: int = 25
    ) -> dict[str, Stream]:
        """One stream for each letter of ``aliases``; those in ``changing`` are changelogs."""
        return {
            alias: self.changing(f"{name}-{alias}-{seed}", seed + at, blocks) if alias in changing
            else self.stream(seed + at, days=days, blocks=blocks)
            for at, alias in enumerate(aliases)
        }  # fmt: skip

    def _block(self, name: str, table: pa.Table | None, before: int | None, after: int | None) -> InputBlock:
        path = self.folder / f"in-{name}"
        if table is not None:
            write_slice(table, path)
        return block_of(name, path if table is not None else None, before, after)

    def transact(
        self, sql: str, blocks: Sequence[InputBlock], previous: Path | None, next_offset: int, caches: SharedCaches
    ) -> tuple[TransformOutcome, Path, Path]:
        """One transaction; returns the answer and the paths of checkpoint and slice."""
        self.number += 1
        checkpoint, data = self.folder / f"checkpoint-{self.number}", self.folder / f"out-{self.number}"
        schema_file = next((block.data_path for block in blocks if block.data_path), "")
        request = TransformRequest(
            dataset_id=OUT,
            dataset_alias="out",
            system_time=SYSTEM_TIME,
            vocab=Vocab(),
            transform=TransformSql(engine="spark", query=sql),
            query_inputs=(
                TransformRequestInput(
                    dataset_id=IN,
                    dataset_alias="in",
                    query_alias="a",
                    vocab=Vocab(),
                    blocks=tuple(blocks),
                    schema_file=schema_file or str(self._empty_slice()),
                    changelog=False,
                ),
            ),
            next_offset=next_offset,
            prev_checkpoint_path=None if previous is None else str(previous),
            new_checkpoint_path=str(checkpoint),
            new_data_path=str(data),
        )
        session = self.spark.newSession()
        for name, value in self.settings.items():
            session.conf.set(name, value)
        return run_transform(session, request, RequestControl(), caches), checkpoint, data

    def _empty_slice(self) -> Path:
        path = self.folder / "empty"
        if not path.exists():
            write_slice(SCHEMA.empty_table(), path)
        return path

    def replay(self, sql: str, stream: Stream, groups: Sequence[int], restart: bool = False) -> Replayed:
        """Run the stream's blocks in transactions of the given sizes. ``restart``: forget everything in between."""
        caches = SharedCaches(ANALYST, SliceReader())
        previous: Path | None = None
        slices: list[pa.Table] = []
        late, at, watermark, runs = 0, 0, None, 0
        for size in groups:
            if restart:
                caches = SharedCaches(ANALYST, SliceReader())
            fresh = stream.blocks[at : at + size]
            again = reopened(stream.blocks[:at], IN, previous)
            offset = sum(one.num_rows for one in slices)
            answer, checkpoint, data = self.transact(sql, (*again, *fresh), previous, offset, caches)
            assert isinstance(answer, Success), answer
            if answer.new_offset_interval is not None:
                slices.append(pq.read_table(data))
                assert answer.new_offset_interval.start == offset
                runs += 1
            late += answer.late or 0
            previous, at, watermark = checkpoint, at + size, answer.new_watermark
        assert at == len(stream.blocks)
        rows = [row for one in slices for row in one.to_pylist()]
        state = previous.read_bytes() if previous is not None else b""
        return Replayed(rows, state, late, watermark, runs)

    def run(
        self,
        sql: str | TransformSql,
        streams: Mapping[str, Stream],
        schedule: Sequence[Mapping[str, int]],
        restart: bool = False,
        changelogs: Sequence[str] | None = (),
        limits: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> Replayed:
        """Transactions that each take so many blocks of each stream.

        ``changelogs``: ``None`` when nobody says. ``restart``: forget all that was read in between. ``limits``: by
        number of a transaction, emission limits (milliseconds) under which it is done piece by piece.
        """
        caches = SharedCaches(ANALYST, SliceReader())
        done = dict.fromkeys(streams, 0)
        kept = Kept(self)
        transform = sql if isinstance(sql, TransformSql) else TransformSql(engine="spark", query=sql)
        for takes, limit in _in_pieces(schedule, limits):
            inputs = []
            for alias, stream in streams.items():
                first = done[alias]
                again = reopened(stream.blocks[:first], dataset_of(alias), kept.previous)
                fresh = stream.blocks[done[alias] : done[alias] + takes[alias]]
                done[alias] += takes[alias]
                schema = next((b.data_path for b in stream.blocks if b.data_path), str(self._empty_slice()))
                inputs.append(TransformRequestInput(
                    dataset_id=dataset_of(alias), dataset_alias=alias, query_alias=alias, vocab=Vocab(),
                    blocks=(*again, *fresh), schema_file=schema or "",
                    changelog=None if changelogs is None else alias in changelogs,
                ))  # fmt: skip
            kept.transact(transform, tuple(inputs), SharedCaches(ANALYST, SliceReader()) if restart else caches, limit)
        assert done == {alias: len(stream.blocks) for alias, stream in streams.items()}
        return kept.replayed()


def _made_at(table: pa.Table | None, position: int) -> pa.Table | None:
    """Rows of a block say when it was made: blocks are made one second after another."""
    if table is None:
        return None
    stamp = pa.array([START + 1000 * position] * table.num_rows, pa.int64()).cast(TIME)
    return table.set_column(SCHEMA.get_field_index("system_time"), SCHEMA.field("system_time"), stamp)


def _in_pieces(
    schedule: Sequence[Mapping[str, int]], limits: Mapping[int, Sequence[int]]
) -> Iterator[tuple[Mapping[str, int], int | None]]:
    """Each transaction with its limits one after the other, then without one; its blocks come the first time."""
    for number, takes in enumerate(schedule):
        for limit in (*limits.get(number, ()), None):
            yield takes, limit
            takes = dict.fromkeys(takes, 0)


@dataclass
class Kept:
    """What a coordinator keeps between transactions."""

    lab: Lab
    previous: Path | None = None
    slices: list[pa.Table] = field(default_factory=list)
    blocks: list[tuple[pa.Table | None, int | None]] = field(default_factory=list)
    late: int = 0
    watermark: int | None = None

    def transact(
        self,
        transform: TransformSql,
        inputs: tuple[TransformRequestInput, ...],
        caches: SharedCaches,
        limit: int | None = None,
    ) -> None:
        self.lab.number += 1
        checkpoint, data = (self.lab.folder / f"{kind}-{self.lab.number}" for kind in ("checkpoint", "out"))
        offset = sum(one.num_rows for one in self.slices)
        request = TransformRequest(
            dataset_id=OUT, dataset_alias="out", system_time=SYSTEM_TIME, vocab=Vocab(), transform=transform,
            query_inputs=inputs, next_offset=offset, new_checkpoint_path=str(checkpoint), new_data_path=str(data),
            prev_checkpoint_path=None if self.previous is None else str(self.previous),
            emission_limit=None if limit is None else from_millis(limit),
        )  # fmt: skip
        session = self.lab.spark.newSession()
        for name, value in self.lab.settings.items():
            session.conf.set(name, value)
        answer = run_transform(session, request, RequestControl(), caches)
        assert isinstance(answer, Success), answer
        if answer.new_offset_interval is not None:
            self.slices.append(pq.read_table(data))
            assert answer.new_offset_interval.start == offset
        self.blocks.append((self.slices[-1] if answer.new_offset_interval is not None else None, answer.new_watermark))
        self.late += answer.late or 0
        self.previous, self.watermark = checkpoint, answer.new_watermark

    def replayed(self) -> Replayed:
        rows = [row for one in self.slices for row in one.to_pylist()]
        state = self.previous.read_bytes() if self.previous is not None else b""
        return Replayed(rows, state, self.late, self.watermark, len(self.slices), tuple(self.slices), self.blocks)


@dataclass(frozen=True)
class Replayed:
    rows: list[dict[str, object]]
    state: bytes
    late: int
    watermark: int | None
    with_data: int
    slices: tuple[pa.Table, ...] = ()
    blocks: Sequence[tuple[pa.Table | None, int | None]] = ()
    """What each transaction wrote, and the watermark after it, nanoseconds."""

    def data(self) -> list[dict[str, object]]:
        """Without the columns that the engine supplies, which are checked here."""
        assert [row["offset"] for row in self.rows] == list(range(len(self.rows)))
        return [{k: v for k, v in row.items() if k not in ("offset", "op", "system_time")} for row in self.rows]


def _rows(rng: np.random.Generator, offset: int, times: np.ndarray, missing: np.ndarray) -> pa.Table:
    count = len(times)
    keys = [None if rng.random() < 0.05 else f"k{rng.integers(0, 4)}" for _ in range(count)]
    return pa.table(
        {
            "offset": np.arange(offset, offset + count),
            "op": np.zeros(count, np.int32),
            "system_time": pa.array(np.full(count, START), pa.int64()).cast(TIME),
            "event_time": pa.array(times, pa.int64(), mask=missing).cast(TIME),
            "k": keys,
            "v": np.arange(offset, offset + count) * 7 % 1000 + offset * 1000,
        },
        schema=SCHEMA,
    )


@pytest.fixture
def lab(spark_root: SparkSession, tmp_path: Path) -> Lab:
    return Lab(spark_root, tmp_path)


@pytest.fixture(params=list(SHAPES))
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]
