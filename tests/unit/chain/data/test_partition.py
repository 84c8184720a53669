"""Which shard a row belongs to: the hash of Spark, whatever the other rows are."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from chain.data.partition import hashable, hashes, shards_of
from chain.errors import Invalid

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "shards" / "xxhash64.json").read_text())


def golden() -> pa.Table:
    said = GOLDEN["columns"]
    decimals = [None if each is None else Decimal(each) for each in said["decimal"]]
    return pa.table(
        {
            "string": pa.array(said["string"], pa.string()),
            "int": pa.array(said["int"], pa.int32()),
            "bigint": pa.array(said["bigint"], pa.int64()),
            "smallint": pa.array(said["smallint"], pa.int16()),
            "boolean": pa.array(said["boolean"], pa.bool_()),
            "date": pa.array(said["date"], pa.date32()),
            "timestamp": pa.array(said["timestamp"], pa.timestamp("us", "UTC")),
            "decimal": pa.array(decimals, pa.decimal128(18, 2)),
            "binary": pa.array(said["string"], pa.string()).cast(pa.binary()),
        }
    )


@pytest.mark.parametrize("column", GOLDEN["xxhash64"])
def test_each_type_is_hashed_as_spark_does(column: str) -> None:
    assert hashes(golden(), [column]).view(np.int64).tolist() == GOLDEN["xxhash64"][column]


def test_columns_together_and_the_shard_are_those_of_spark() -> None:
    rows = golden()
    assert hashes(rows, GOLDEN["together"]).view(np.int64).tolist() == GOLDEN["xxhash64_together"]
    assert shards_of(rows, GOLDEN["together"], GOLDEN["shards"]).tolist() == GOLDEN["shard"]


@pytest.mark.slow
@given(some.lists(some.tuples(some.none() | some.text(max_size=90), some.none() | some.integers(-(2**63), 2**63 - 1))))
def test_a_row_has_its_shard_whatever_rows_are_beside_it(rows: list[tuple[Any, Any]]) -> None:
    kinds = (pa.string(), pa.int64())
    columns = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
    table = pa.table(columns, names=["text", "number"])
    together = shards_of(table, ["text", "number"], 5).tolist()
    assert together == [int(shards_of(table.slice(n, 1), ["text", "number"], 5)[0]) for n in range(len(rows))]
    assert all(0 <= each < 5 for each in together)


def test_one_shard_has_all_rows_and_no_rows_have_none() -> None:
    assert shards_of(golden(), [], 1).tolist() == [0] * len(GOLDEN["shard"])
    assert shards_of(golden().slice(0, 0), ["string"], 7).tolist() == []


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.int32()), pa.uint64(), pa.decimal128(20, 2)])
def test_columns_whose_equal_values_may_differ_in_bytes_decide_nothing(kind: pa.DataType) -> None:
    assert not hashable(kind)
    with pytest.raises(Invalid, match="cannot decide the shard"):
        hashes(pa.table({"a": pa.array([], kind)}), ["a"])
