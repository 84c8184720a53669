"""Merging in the engine's process writes what merging by Spark's joins writes, whatever rows and slices there are."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chain.model.source import MergeLedger, MergeSnapshot, MergeStrategy, MergeUpsertStream
from engines.contract import Vocab
from engines.spark.ingest import merge as merging
from engines.spark.ingest.history import History
from engines.spark.ingest.merge import MergeContext, merge

pytestmark = pytest.mark.engine
VOCAB = Vocab()
COLUMNS = {
    "event_time": (pa.timestamp("ms", "UTC"), [None, 0, 1]),
    "k": (pa.int64(), [None, *range(40)]),
    "s": (pa.string(), [None, "", "a", "A", "é"]),
    "v": (pa.float64(), [None, float("nan"), 0.0, -0.0, 1.5]),
    "d": (pa.decimal128(9, 2), [None, 1, 2]),
    "b": (pa.binary(), [None, b"", b"\0"]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
FORCE = pa.schema([("offset", pa.int64()), ("op", pa.int32()), *SCHEMA])


def drawn(random_: random.Random) -> dict[str, Any]:
    return {name: random_.choice(values) for name, (_, values) in COLUMNS.items()}


def world(seed: int, folder: Path, keys: tuple[str, ...], strategy: MergeStrategy) -> tuple[History, pa.Table]:
    random_ = random.Random(seed)
    ops = [0] if isinstance(strategy, MergeLedger) else [0, 0, 1, 3]
    rows = [{"offset": number, "op": random_.choice(ops), **drawn(random_)} for number in range(120)]
    cuts = [0, *sorted(random_.sample(range(1, 120), 3)), 120]
    paths = []
    for start, end in itertools.pairwise(cuts):
        paths.append(folder / f"slice-{start}")
        pq.write_table(pa.Table.from_pylist(rows[start:end], FORCE), paths[-1])
    batch = [drawn(random_) for _ in range(40)]
    batch += [{name: row[name] for name in COLUMNS} for row in random_.choices(rows, k=20)]
    if isinstance(strategy, MergeSnapshot):
        batch = list({tuple(row[name] for name in keys): row for row in batch}.values())
    if isinstance(strategy, MergeUpsertStream):
        batch = [row | {"op": random_.choice([0, 0, 1])} for row in batch]
        return History(FORCE, paths), pa.Table.from_pylist(batch, pa.schema([("op", pa.int32()), *SCHEMA]))
    return History(FORCE, paths), pa.Table.from_pylist(batch, SCHEMA)


@pytest.mark.parametrize(("seed", "keys"), [(1, ("k",)), (2, ("k", "s")), (3, ("b", "d", "k"))])
@pytest.mark.parametrize("strategy", [MergeSnapshot, MergeLedger, MergeUpsertStream])
def test_both_ways_of_a_merge_find_the_same(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    keys: tuple[str, ...],
    strategy: Any,
) -> None:
    merge_by = strategy(primary_key=keys)
    history, batch = world(seed, tmp_path, keys, merge_by)
    here = merge(MergeContext(_no_session, tmp_path, VOCAB), batch, history, merge_by)
    for name in ("changed_rows", "unseen_rows", "repeating_rows"):
        monkeypatch.setattr(merging, name, lambda *_, **__: None)
    there = merge(MergeContext(lambda: spark, tmp_path, VOCAB), batch, history, merge_by)
    assert here.passed_over == there.passed_over
    assert here.op.equals(there.op)
    assert here.fresh.equals(there.fresh)
    assert repr(here.rows.to_pylist()) == repr(there.rows.to_pylist()), "NaN is no equal of itself in Python"
    assert here.rows.num_rows


def _no_session() -> SparkSession:
    raise AssertionError("no Spark is needed")
