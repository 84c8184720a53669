"""Words of kamu's other engines: each row of the table in docs/reference/kamu-compatibility.md, asked of the engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from chain.data.arrow_schema import from_arrow
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from conformance.coordinator import dataset_of
from engines.contract import EngineIdentity, ValidateInput, ValidateRequest, ValidateResponse, Vocab
from engines.spark.handler import SparkHandler

pytestmark = pytest.mark.engine
IDENTITY = EngineIdentity(name="spark", version="0", digest="sha256:0", sandbox="none", platform="test")
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "kamu-compatibility.md"
TIME = pa.timestamp("ms", "UTC")
SYSTEM = {"offset": pa.int64(), "op": pa.int32(), "system_time": TIME, "event_time": TIME}
TABLES = {
    "sales": {"id": pa.int64(), "kind": pa.string(), "amount": pa.float64(), "day": pa.string(), "ms": pa.int64()},
    "rates": {"kind": pa.string(), "rate": pa.float64()},
}


class Row(NamedTuple):
    words: str
    here: str
    instead: str


def rows() -> list[Row]:
    table = PAGE.read_text().partition("## Manifests for kamu's other engines")[2].partition("| engine |")[2]
    found = []
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        _, words, here, instead, _ = line.split(" |")
        found.append(Row(*(each.strip().strip("`").strip() for each in (words, here, instead))))
    return found


@pytest.fixture
def handler(spark_root: SparkSession) -> SparkHandler:
    return SparkHandler(spark_root, lambda: IDENTITY)


def asked(handler: SparkHandler, sql: str) -> ValidateResponse:
    temporal = (TemporalTable(name="rates", primary_key=("kind",)),) if "valid_from" in sql else None
    given = tuple(
        ValidateInput(
            query_alias=name,
            dataset_id=dataset_of(name),
            schema=from_arrow(pa.schema({**SYSTEM, **columns})),
            vocab=Vocab(),
            changelog=False,
        )
        for name, columns in TABLES.items()
        if re.search(rf"\b{name}\b", sql)
    )
    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=temporal)
    return handler.validate(ValidateRequest(transform=transform, inputs=given, vocab=Vocab()))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.words[:60])
def test_what_the_table_says_is_so(row: Row, handler: SparkHandler) -> None:
    answer = asked(handler, row.words)
    codes = {each.code for each in answer.diagnostics}
    assert (answer.ok, codes) == ((True, set()) if row.here == "runs" else (False, {row.here}))
    if row.here == "runs":
        assert row.instead == ""
    elif row.instead.startswith("select"):
        again = asked(handler, row.instead)
        assert (again.ok, again.diagnostics) == (True, ())
    else:
        assert row.instead.startswith("no: ")


def test_each_engine_of_kamu_has_rows() -> None:
    text = PAGE.read_text()
    assert len(rows()) > 12
    assert all(f"| {name}" in text for name in ("datafusion", "flink", "risingwave", "all"))
