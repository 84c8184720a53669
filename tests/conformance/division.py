"""One log, divided in several ways: rows, order, counts and errors have to be the same.

A program is a query over a log: pieces of rows, each with the watermark stated after it. ``divide`` runs it over the
pieces in transactions of several sizes, and returns what came of each. Rows are compared by ``repr``, which tells 0.0
from -0.0 and NaN from null.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

import engines.spark.execution.transform as transform
from chain.data.parquet import write_slice
from chain.model.source import TemporalTable, TransformSql
from conformance.coordinator import OUT, SYSTEM_TIME, TIME, block_of, dataset_of, reopened, rows_of
from engines.contract import InputBlock, Success, TransformRequest, TransformRequestInput, Vocab
from engines.request_control import RequestControl
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.sql.queries import Analyst

SYSTEM: Final = (
    pa.field("offset", pa.int64(), nullable=False), pa.field("op", pa.int32(), nullable=False),
    pa.field("system_time", TIME, nullable=False), pa.field("event_time", TIME),
)  # fmt: skip
_EPOCH: Final = dt.datetime(1970, 1, 1)


@dataclass(frozen=True)
class Log:
    """An input: pieces of rows, each a block, with the watermark after it (``None``: as before)."""

    columns: Mapping[str, pa.DataType]
    pieces: Sequence[tuple[Sequence[Sequence[Any]], str | int | None]]
    """A row is its event time and the columns. Times are milliseconds, or texts as of ISO 8601."""
    changes: bool = False
    """Whether each row ends with its operation."""


@dataclass(frozen=True)
class Program:
    name: str
    sql: str
    logs: Mapping[str, Log]
    temporal: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def transform(self) -> TransformSql:
        tables = tuple(TemporalTable(name=name, primary_key=keys) for name, keys in self.temporal.items())
        return TransformSql(engine="spark", query=self.sql, temporal_tables=tables or None)


Came: TypeAlias = tuple[list[str], object, object, bytes]
"""Rows, late and untimed, watermark, state; or the rows before a failure, its rule and message."""


def millis(time: str | int | None) -> int | None:
    if not isinstance(time, str):
        return time
    return (dt.datetime.fromisoformat(time) - _EPOCH) // dt.timedelta(milliseconds=1)


def _whole(log: Log) -> Log:
    """All rows of a log in one piece, and the last watermark after them."""
    rows = [row for piece, _ in log.pieces for row in piece]
    marks = [millis(mark) for _, mark in log.pieces]
    return Log(log.columns, [(rows, None), ((), max(mark for mark in marks if mark is not None))], log.changes)


def _unmarked(log: Log) -> Log:
    """The pieces of a log, without a watermark before the end."""
    last = _whole(log).pieces[-1]
    return Log(log.columns, [*((rows, None) for rows, _ in log.pieces), last], log.changes)


def lay(folder: Path, alias: str, log: Log) -> tuple[tuple[InputBlock, ...], str]:
    """Writes the slices of a log; returns its blocks and a file with its columns."""
    schema = pa.schema([*SYSTEM, *(pa.field(name, kind) for name, kind in log.columns.items())])
    empty = folder / f"{alias}-schema"
    write_slice(schema.empty_table(), empty)
    blocks, offset, before = [], 0, None
    for number, (rows, mark) in enumerate(log.pieces):
        path = None
        if rows:
            path = folder / f"{alias}-{number}"
            ops = [row[-1] if log.changes else 0 for row in rows]
            columns = [range(offset, offset + len(rows)), ops, [0] * len(rows), [millis(row[0]) for row in rows]]
            columns += [[row[at] for row in rows] for at in range(1, len(log.columns) + 1)]
            arrays = [_array(list(each), field.type) for each, field in zip(columns, schema, strict=True)]
            write_slice(pa.table(arrays, schema=schema), path)
            offset += len(rows)
        after = before if mark is None else millis(mark)
        blocks.append(block_of(f"{alias}-{number}", path, before, after))
        before = after
    return tuple(blocks), str(empty)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        times = [millis(each) for each in values]
        return pa.array(times, pa.int64()).cast(TIME).cast(kind)
    return pa.array(values, kind)


@dataclass
class Divider:
    """Runs programs in one folder, over the sessions of one JVM."""

    session: Callable[[], Any]
    folder: Path
    analyst: Analyst = field(default_factory=Analyst)
    runs: int = 0
    transactions: int = 0

    def run(self, program: Program, logs: Mapping[str, Log], sizes: Callable[[int], Iterator[int]]) -> Came:
        """``sizes``: how many blocks each transaction takes of an input with so many."""
        self.runs += 1
        place = self.folder / str(self.runs)
        place.mkdir()
        laid = {alias: lay(place, alias, log) for alias, log in logs.items()}
        caches = transform.SharedCaches(self.analyst, SliceReader())
        plan = {alias: list(sizes(len(blocks))) for alias, (blocks, _) in laid.items()}
        count = max(map(len, plan.values()))
        steps = [{alias: (*each, *[0] * count)[at] for alias, each in plan.items()} for at in range(count)]
        done, rows, dropped, previous, mark = dict.fromkeys(laid, 0), [], 0, None, None
        for number, takes in enumerate(steps):
            given = [
                TransformRequestInput(
                    dataset_id=dataset_of(alias), dataset_alias=alias, query_alias=alias, vocab=Vocab(),
                    blocks=(
                        *reopened(blocks[: done[alias]], dataset_of(alias), previous),
                        *blocks[done[alias] : done[alias] + takes[alias]],
                    ),
                    schema_file=schema, changelog=logs[alias].changes,
                )
                for alias, (blocks, schema) in laid.items()
            ]  # fmt: skip
            checkpoint, data = place / f"state-{number}", place / f"rows-{number}"
            request = TransformRequest(
                dataset_id=OUT, dataset_alias="out", system_time=SYSTEM_TIME, vocab=Vocab(),
                transform=program.transform, query_inputs=tuple(given), next_offset=len(rows),
                prev_checkpoint_path=None if previous is None else str(previous),
                new_checkpoint_path=str(checkpoint), new_data_path=str(data),
            )  # fmt: skip
            answer = transform.run_transform(self.session(), request, RequestControl(), caches)
            self.transactions += 1
            if not isinstance(answer, Success):
                return rows, "failed", str(answer), b""
            if answer.new_offset_interval is not None:
                rows += [repr(row) for row in _shown(rows_of(data))]
            dropped += (answer.late or 0) + (answer.rows.untimed if answer.rows else 0)
            done = {alias: each + takes[alias] for alias, each in done.items()}
            previous, mark = checkpoint, answer.new_watermark
        return rows, dropped, mark, previous.read_bytes() if previous is not None else b""

    def divide(self, program: Program, at_random: bool = False) -> list[Came]:
        """A program over its log at once, piece by piece, and perhaps cut at random."""
        rng = random.Random(program.name)
        ways = (at_once, one_by_one, *[lambda count: _cut(rng, count)] * at_random)
        return [self.run(program, program.logs, way) for way in ways]

    def redivide(self, program: Program) -> list[Came]:
        """A program over a log without watermarks before its end, in one block and in many: the chains differ, so their
        states do."""
        return [
            self.run(program, {alias: made(log) for alias, log in program.logs.items()}, at_once)
            for made in (_whole, _unmarked)
        ]


def at_once(count: int) -> Iterator[int]:
    yield count


def one_by_one(count: int) -> Iterator[int]:
    yield from [1] * count


def _cut(rng: random.Random, count: int) -> Iterator[int]:
    while count:
        size = rng.randint(1, min(count, 3))
        count -= size
        yield size


def _shown(table: pa.Table) -> list[tuple[Any, ...]]:
    names = [name for name in table.column_names if name not in ("offset", "system_time")]
    columns = [table[name].cast(pa.int64()) if pa.types.is_timestamp(table[name].type)
               else table[name].cast(pa.int32()) if pa.types.is_date(table[name].type) else table[name]
               for name in names]  # fmt: skip
    return list(zip(*(each.to_pylist() for each in columns), strict=True))
