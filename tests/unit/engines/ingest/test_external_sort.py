"""Rows that are sorted on disk come in the order of a stable sort of them all, however they were cut into parts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment
from engines.spark.ingest import streamed
from engines.spark.ingest.streamed import ExternalSort

PARTS = st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=12), min_size=1, max_size=8)
KINDS = st.sampled_from([pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC"), pa.date32()])


def rows_of(times: list[int], kind: pa.DataType, first: int) -> pa.Table:
    width = pa.int32() if kind == pa.date32() else pa.int64()
    names = [f"row {first + number}" for number in range(len(times))]
    return pa.table({"time": pa.array(times, width).cast(kind), "name": names})


@given(PARTS, KINDS, st.integers(1, 40), st.integers(1, 4))
def test_the_order_is_that_of_all_rows(parts: list[list[int]], kind: pa.DataType, window: int, sampled: int) -> None:
    whole = [time for part in parts for time in part]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed, "WINDOW", window)
        patch.setattr(streamed, "SAMPLED", sampled)
        runs, first = ExternalSort(Path(folder), "time"), 0
        for part in parts:
            runs.add(rows_of(part, kind, first))
            first += len(part)
        merged = list(runs.merge())
    assert all(piece.num_rows <= window + sampled * (len(parts) + 1) for piece in merged)
    expected = rows_of(whole, kind, 0).take(pa.array(np.argsort(whole, kind="stable")))
    assert pa.concat_tables(merged).equals(expected)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    (tmp_path / "run-0.arrow").symlink_to("/dev/full")
    with pytest.raises(Environment, match="run-0"):
        ExternalSort(tmp_path, "time").add(rows_of([1] * 100_000, pa.date32(), 0))
