"""Merge strategies do what the reference does, row by row, on real Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chain.errors import Invalid
from chain.model.source import MergeStrategy
from engines.contract import Vocab
from engines.spark.ingest.history import History
from engines.spark.ingest.merge import MergeContext, Merged, merge
from engines.spark.ingest.shape import sort_rows

pytestmark = pytest.mark.engine

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "ingest" / "merge_strategies.json").read_text())
CODES = GOLDEN["op_codes"]
LETTERS = {code: letters for letters, code in CODES.items()}
DATA = [("year", pa.int32()), ("city", pa.string()), ("population", pa.int64())]
FORCE = pa.schema([("offset", pa.int64()), ("op", pa.int32()), *DATA])
VOCAB = Vocab(event_time="year")


def history_of(ledger: list[list[Any]], folder: Path) -> History:
    """Every ledger row in its own slice, so that state spans slices."""
    paths = []
    for offset, (op, year, city, population) in enumerate(ledger):
        row = {"offset": offset, "op": CODES[op], "year": year, "city": city, "population": population}
        paths.append(folder / f"slice-{offset}")
        pq.write_table(pa.Table.from_pylist([row], FORCE), paths[-1])
    return History(FORCE, paths)


def batch_of(rows: list[list[Any]]) -> pa.Table:
    width = len(rows[0]) if rows else 3
    names = {2: ["city", "population"], 3: ["year", "city", "population"], 4: ["op", "year", "city", "population"]}
    types = {"op": pa.int32(), **dict(DATA)}
    schema = pa.schema([(name, types[name]) for name in names[width]])
    rows = [[CODES[row[0]], *row[1:]] if width == 4 else row for row in rows]
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    if "year" not in schema.names:
        table = table.append_column(pa.field("year", pa.int32()), pa.nulls(len(rows), pa.int32()))
    return table


def said(merged: Merged) -> list[list[Any]]:
    table = sort_rows(merged.rows.append_column("op", merged.op), merged.order)
    rows = table.select(["op", "year", "city", "population"]).to_pylist()
    return [[LETTERS[row["op"]], row["year"], row["city"], row["population"]] for row in rows]


@pytest.mark.parametrize(
    "vector", GOLDEN["merge"], ids=lambda vector: f"{vector['test']}-{'-'.join(vector.get('pk', []))}"
)
def test_as_the_reference(spark: SparkSession, tmp_path: Path, vector: dict[str, Any]) -> None:
    content = {"kind": vector["strategy"], **({"primaryKey": vector["pk"]} if "pk" in vector else {})}
    strategy = msgspec.convert(content, MergeStrategy)
    context, history = MergeContext(lambda: spark, tmp_path, VOCAB), history_of(vector["ledger"], tmp_path)
    batch = batch_of(vector["input"])
    if vector["expected"] == "ERROR Internal":
        with pytest.raises(Invalid, match="no column 'foo'") as caught:
            merge(context, batch, history, strategy)
        assert "city" in caught.value.hint
        return
    assert said(merge(context, batch, history, strategy)) == vector["expected"]


@pytest.mark.parametrize("vector", GOLDEN["snapshot_project"]["vectors"], ids=lambda vector: vector["test"])
def test_state_is_the_latest_row_of_each_key(spark: SparkSession, tmp_path: Path, vector: dict[str, Any]) -> None:
    """An empty snapshot takes back exactly the state."""
    strategy = msgspec.convert({"kind": "Snapshot", "primaryKey": ["city"]}, MergeStrategy)
    merged = merge(
        MergeContext(lambda: spark, tmp_path, VOCAB), batch_of([]), history_of(vector["ledger"], tmp_path), strategy
    )
    state = sorted([row[1:] for row in vector["expected_state"]])
    assert sorted(row[1:] for row in said(merged)) == state
    assert {row[0] for row in said(merged)} <= {"R"}
