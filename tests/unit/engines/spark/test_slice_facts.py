"""What is read of slices before Spark reads them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.data.parquet import write_slice
from engines.contract import Vocab
from engines.spark.planning.slice_facts import only_adds


@given(ops=st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 3, None]), max_size=12))
def test_only_additions_are_told_from_the_rows(tmp_path_factory, ops):
    path = tmp_path_factory.mktemp("slice") / "slice"
    write_slice(pa.table({"op": pa.array(ops, pa.int32()), "v": pa.array(range(len(ops)))}), path)
    assert only_adds(path, Vocab()) == all(op == 0 for op in ops)


@pytest.mark.parametrize("kind", [pa.uint8(), pa.int64()])
def test_the_vocabulary_names_the_column(tmp_path, kind):
    write_slice(pa.table({"what": pa.array([0, 0], kind), "op": pa.array([1, 1], kind)}), tmp_path / "slice")
    assert only_adds(tmp_path / "slice", Vocab(operation_type="what"))
    assert not only_adds(tmp_path / "slice", Vocab())
    assert not only_adds(tmp_path / "slice", Vocab(operation_type="nowhere"))
