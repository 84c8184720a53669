"""Measures SQL over slices against DuckDB alone over the same files, and current rows from a fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Row, Side, Size, in_turns
from engines.query.duckdb_session import QuerySession, SessionLimits
from engines.query.views import SliceView

_LIMITS = SessionLimits(memory=1 << 30, temporary=4 << 30, threads=2)
_GROUP = "SELECT city, count(*), sum(x) FROM {} WHERE x > 5000 GROUP BY city"
_POINT = "SELECT * FROM {} WHERE key = 123"
_ALL = "SELECT * FROM {}"


def measure_queries(size: Size, folder: Path) -> list[Row]:
    """Measures scan, point and ``current``."""
    rounds, rows = size.pick(1, 7), size.pick(20_000, 10_000_000)
    found = []
    for name, files in (("scan", 1), ("scan of slices", size.pick(10, 1_000))):
        paths = _slices(folder / f"{files}", rows, files)
        found.append(_against(name, _GROUP, paths, folder, rounds, "1.1" if files == 1 else "1.2"))
    keys = size.pick(10_000, 1_000_000)
    held = _slices(folder / "held", keys, 1)
    found.append(_against("point query", _POINT, held, folder, rounds, "1.5"))
    changes = _slices(folder / "changes", keys // 100, 10, start=keys)
    base = msgspec.structs.replace(_view(held), fold="key", key=("key",))
    kept = folder / "fold"
    QuerySession(_LIMITS, folder, folder).save_fold(base, kept)
    current = msgspec.structs.replace(base, files=changes, earlier=str(kept))
    costs = in_turns(_asked(_ALL, current, folder), _asked(_ALL, _view(held), folder), rounds)
    found.append(
        Row(
            name="current",
            measures="what holds of so many keys, a hundredth of them changed since the fold",
            ours=Side(name="current", costs=costs[0]),
            peer=Side(name="reading the rows", costs=costs[1]),
            goal="1.3",
            facts={"keys": keys},
        )
    )
    return found


def _against(name: str, sql: str, paths: Sequence[str], folder: Path, rounds: int, goal: str) -> Row:
    ours, alone = in_turns(_asked(sql, _view(paths), folder), _alone(sql, paths), rounds)
    return Row(
        name=name,
        measures=f"a query over {len(paths)} slices, its process waiting",
        ours=Side(name="judged, over views", costs=ours),
        peer=Side(name="DuckDB alone", costs=alone),
        goal=goal,
    )


def _asked(sql: str, view: SliceView, folder: Path) -> Callable[[], pa.Table]:
    def ask() -> pa.Table:
        answering = QuerySession(_LIMITS, folder, folder)
        prepared = answering.prepare(sql.format("t"))
        return answering.run(prepared, [view], [0], None).read_all()

    return ask


def _alone(sql: str, paths: Sequence[str]) -> Callable[[], pa.Table]:
    def ask() -> pa.Table:
        connection = duckdb.connect(config={"threads": _LIMITS.threads, "memory_limit": f"{_LIMITS.memory}B"})
        return connection.sql(sql.format(f"read_parquet({list(paths)})")).to_arrow_reader(65_536).read_all()

    return ask


def _view(paths: Sequence[str]) -> SliceView:
    schema = pq.read_schema(paths[0]).remove_metadata().serialize().to_pybytes()
    return SliceView(name="odfd 0", files=tuple(paths), schema=schema)


def _slices(folder: Path, rows: int, files: int, start: int = 0) -> tuple[str, ...]:
    folder.mkdir()
    connection = duckdb.connect()
    each, paths = rows // files, []
    for number in range(files):
        first = start + number * each
        paths.append(str(folder / f"{number}.parquet"))
        connection.execute(
            f"""COPY (SELECT {first} + i AS "offset", 0::INT AS op, TIMESTAMPTZ '2024-01-01' AS system_time,
            TIMESTAMPTZ '2024-01-01' AS event_time, (({first} + i) * 97) % 1000000 AS key, 'city' || (i % 1000) AS city,
            (i * 7919) % 10007 AS x FROM range({each}) t(i)) TO '{paths[-1]}'"""
        )
    return tuple(paths)
