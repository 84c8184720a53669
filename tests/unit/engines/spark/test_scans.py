"""Which slices of a changing table's inputs Spark reads by itself: decided by what planning knows, without a look."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from engines.contract import Vocab
from engines.spark.execution.tables import SCANNED, scan_of
from engines.spark.planning.transaction import BlockFacts
from engines.spark.rows.changelog import distinct


@dataclass(frozen=True)
class Source:
    log: bool = False

    @property
    def schema(self) -> spark.StructType:
        return spark.StructType()

    @property
    def vocab(self) -> Vocab:
        return Vocab()


@pytest.fixture
def block(tmp_path: Path) -> BlockFacts:
    """Of a file that nobody can read."""
    path = tmp_path / "slice"
    path.write_bytes(bytes(SCANNED))
    return BlockFacts("b", str(path), None, None, rows=9, first=10, last=20, changes=False)


def test_what_planning_read_is_not_read_again(block: BlockFacts) -> None:
    found = scan_of(block, 15, 21, Source(), every=False)
    assert found is not None
    assert found.moments.tolist() == [15, 20]
    with pytest.raises(Exception, match="slice"):
        scan_of(block, 15, 21, Source(), every=True)


def test_slices_of_which_rows_are_looked_at(block: BlockFacts) -> None:
    assert scan_of(block, 15, 20, Source(), every=False) is None  # a row waits
    assert scan_of(replace(block, changes=True), 0, 21, Source(), every=False) is None
    assert scan_of(replace(block, changes=True), 0, 21, Source(log=True), every=False) is not None
    assert scan_of(replace(block, first=None, last=None), 0, 21, Source(), every=False) is None
    assert scan_of(replace(block, path=None), 0, 21, Source(), every=False) is None
    assert block.path is not None
    Path(block.path).write_bytes(b"")
    assert scan_of(block, 0, 21, Source(), every=False) is None  # small


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_distinct_numbers(numbers: list[int]) -> None:
    assert distinct(np.array(numbers, np.int64)).tolist() == sorted(set(numbers))
