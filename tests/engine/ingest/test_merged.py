"""Merges with history: beside Spark as on it, over ledgers that were corrected, and of rows without a key."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chain import instant
from chain.data.ddl import parse_ddl
from chain.ids import DatasetId
from chain.model.read_options import ON_ERROR
from chain.model.source import (
    MergeChangelogStream,
    MergeLedger,
    MergeSnapshot,
    MergeStrategy,
    MergeUpsertStream,
    ReadCsv,
    SqlQueryStep,
    TransformSql,
)
from engines.contract import IngestBatchRequest, InvalidQuery, QuarantineTarget, Success, TransformOutcome, Vocab
from engines.request_control import RequestControl
from engines.spark.ingest import merge as merging
from engines.spark.ingest.history import History
from engines.spark.ingest.merge import MergeContext, merge
from engines.spark.ingest.run import run_ingest

# Merging in the engine's process writes what merging by Spark's joins writes, whatever rows and slices there are.


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


# What a ledger takes in after rows of it were corrected by hand: it undoes nothing, and says what it passed over.


READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, k STRING, v BIGINT",))
LEDGER_WITH_OP = ReadCsv(header=True, ddl_schema=("op INT, event_time TIMESTAMP, k STRING, v BIGINT",))


def lines(*rows: str, op: bool = False) -> str:
    return "\n".join([("op," if op else "") + "event_time,k,v", *rows, ""])


def test_old_values_conflict_and_what_stands_is_known(spark: SparkSession, dataset: Callable[..., Any]) -> None:
    made = dataset(MergeLedger(primary_key=("k",)))
    made.ingest(lines("2020-01-01T00:00:00Z,a,1", "2020-01-01T01:00:00Z,b,2", "2020-01-01T02:00:00Z,c,3"), READ)
    made.merge = MergeChangelogStream(primary_key=("k",))
    made.ingest(
        lines("2,2020-01-01T00:00:00Z,a,1", "3,2020-01-01T00:00:00Z,a,10", "1,2020-01-01T01:00:00Z,b,2", op=True),
        LEDGER_WITH_OP,
    )
    made.merge = MergeLedger(primary_key=("k",))
    answer = made.ingest(
        lines(
            "2020-01-01T00:00:00Z,a,1",  # as it was before it was corrected
            "2020-01-01T00:00:00Z,a,10",  # as it is
            "2020-01-01T01:00:00Z,b,2",  # taken back
            "2020-01-01T02:00:00Z,c,3",  # never touched
            "2020-01-01T02:00:00Z,c,4",
            "2020-01-01T03:00:00Z,d,5",
        ),
        READ,
    )
    assert (answer.rows.unchanged, answer.rows.conflicting, answer.rows.superseded) == (2, 3, 0)
    assert made.last().column("k").to_pylist() == ["d"]
    assert made.last().column("op").to_pylist() == [0]


# A row without a value in its primary key is refused, or set aside, by every strategy that has keys.


PK = ("id", "part")
PLAIN = "event_time TIMESTAMP, id BIGINT, part STRING, v BIGINT"
WITH_OP = f"op INT, {PLAIN}"
STRATEGIES = [
    MergeLedger(primary_key=PK),
    MergeSnapshot(primary_key=PK),
    MergeChangelogStream(primary_key=PK),
    MergeUpsertStream(primary_key=PK),
]
ROWS = [(1, "a", 1), (2, "", 2), (3, "c", 3), ("", "d", 4)]


def has_op(merge: MergeStrategy) -> bool:
    return isinstance(merge, MergeChangelogStream | MergeUpsertStream)


def text(rows: list[tuple[Any, ...]], merge: MergeStrategy) -> str:
    op = "0," if has_op(merge) else ""
    return "".join(f"{op}2009-01-01T00:00:00Z,{','.join(map(str, row))}\n" for row in rows)


def asked(spark: SparkSession, folder: Path, content: str, merge: MergeStrategy, **more: Any) -> TransformOutcome:
    source = folder / "in.csv"
    source.write_text(content)
    columns = parse_ddl((more.pop("ddl", WITH_OP if has_op(merge) else PLAIN),))
    if more.pop("aside", False):
        columns = msgspec.structs.replace(columns, extra={ON_ERROR: "quarantine"})
        more["quarantine"] = QuarantineTarget(path=str(folder / "aside"), next_offset=0, follows="f16")
    request = IngestBatchRequest(
        **{
            "dataset_id": DatasetId.from_public_key(bytes(32)),
            "system_time": instant.parse("2010-01-01T00:00:00Z"),
            "vocab": Vocab(),
            "read": ReadCsv(schema=columns),
            "merge": merge,
            "source_paths": (str(source),),
            "next_offset": 0,
            "new_data_path": str(folder / "data"),
            **more,
        }
    )
    return run_ingest(spark, request, RequestControl())


@pytest.mark.parametrize("merge", STRATEGIES, ids=lambda each: type(each).__name__)
def test_refused_by_file_and_line(spark: SparkSession, tmp_path: Path, merge: MergeStrategy) -> None:
    refused = asked(spark, tmp_path, text(ROWS, merge), merge)
    assert isinstance(refused, InvalidQuery)
    assert (refused.rule, refused.place) == ("primary-key-null", "in.csv:2, in.csv:4")
    assert refused.message == "2 rows have no value in 'id' or 'part', which are in the primary key"
    assert "coalesce(part, '')" in refused.hint
    assert not (tmp_path / "data").exists()


def test_refused_behind_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """The key is the query's, and the line that of the file."""
    query = TransformSql(
        engine="spark", queries=(SqlQueryStep(query="select event_time, nullif(id, 3) as id, part, v from input"),)
    )
    rows = [(1, "a", 1), (2, "b", 2), (3, "c", 3)]
    merge = MergeLedger(primary_key=("id",))
    refused = asked(spark, tmp_path, text(rows, merge), merge, preprocess=query)
    assert isinstance(refused, InvalidQuery)
    assert (refused.rule, refused.place) == ("primary-key-null", "in.csv:3")
    assert refused.message == "a row has no value in 'id', which is in the primary key"


@pytest.mark.parametrize("merge", [STRATEGIES[0], STRATEGIES[3]], ids=lambda each: type(each).__name__)
def test_set_aside_where_the_source_says_so(spark: SparkSession, tmp_path: Path, merge: MergeStrategy) -> None:
    done = asked(spark, tmp_path, text(ROWS, merge), merge, aside=True)
    assert isinstance(done, Success)
    assert done.rows is not None
    assert (done.rows.read, done.rows.shaped, done.rows.quarantined) == (4, 2, 2)
    told = pq.read_table(tmp_path / "aside").to_pylist()
    assert [(row["line"], row["column"], row["rule"]) for row in told] == [
        (2, "part", "primary-key-null"),
        (4, "id", "primary-key-null"),
    ]
    assert told[0]["reason"] == "column 'part' is empty, and it is in the primary key"
    slice_ = pq.read_table(tmp_path / "data")
    assert slice_.column("id").to_pylist() == [1, 3]
    assert slice_.schema.field("id").nullable, "the dataset's schema is the declared one"


def test_what_another_wrote_is_computed_as_the_reference_does(spark: SparkSession, tmp_path: Path) -> None:
    """An observer asks whether a block is what its source shows, not whether its keys are sound."""
    merge = STRATEGIES[0]
    done = asked(spark, tmp_path, text(ROWS, merge), merge, allows_null_keys=True)
    assert isinstance(done, Success)
    assert pq.read_table(tmp_path / "data").column("v").to_pylist() == [1, 2, 3, 4]
    strict = asked(spark, tmp_path, text(ROWS, merge), merge, allows_null_keys=True, aside=True)
    assert isinstance(strict, Success)
    assert pq.read_table(tmp_path / "data").column("v").to_pylist() == [1, 3]


@pytest.mark.parametrize("merge", [STRATEGIES[0], STRATEGIES[1], STRATEGIES[3]], ids=lambda each: type(each).__name__)
def test_rows_without_key_that_are_there_hinder_nothing(spark: SparkSession, tmp_path: Path, merge: Any) -> None:
    """Written by another, or before they were refused: what is pushed behind them is merged; a snapshot ends them."""
    first = asked(spark, tmp_path, text(ROWS, merge), merge, allows_null_keys=True)
    assert isinstance(first, Success)
    (tmp_path / "data").rename(tmp_path / "before")
    more = {"schema": first.schema, "prev_data_paths": (str(tmp_path / "before"),), "next_offset": 4}
    done = asked(spark, tmp_path, text([(1, "a", 1), (5, "e", 5)], merge), merge, **more)
    assert isinstance(done, Success)
    gone = [1, 1, 1] if isinstance(merge, MergeSnapshot) else []
    assert sorted(pq.read_table(tmp_path / "data").column("op").to_pylist()) == [0, *gone]
    assert done.rows is not None
    assert done.rows.unchanged == 1


def test_a_time_that_the_source_gives_is_a_key(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    """The key of a row is what is written, so the same file of the same time brings nothing new."""
    made = dataset(MergeLedger(primary_key=("event_time", "id")))
    given = {"source_time": "2009-02-01T00:00:00Z"}
    for appended in (2, 0):
        done = made.ingest("id\n1\n2\n", csv_step("id BIGINT"), **given)
        assert isinstance(done, Success)
        assert done.rows is not None
        assert (done.rows.untimed, done.rows.unchanged) == (2, 2 - appended)
    assert made.next_offset == 2
    assert made.ingest("id\n1\n", csv_step("id BIGINT"), source_time="2009-03-01T00:00:00Z").rows.unchanged == 0
