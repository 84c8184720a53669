"""What engines measure and count."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.data.logical_hash import logical_hash_file
from chain.errors import Invalid
from chain.model.events import OffsetInterval
from chain.multihash import Multihash
from engines import output_check
from engines.contract import MAX_SKIPPED, SkippedFile, bounded_list
from engines.output_check import both_hashes, measure_slice

# What an engine's file really holds.


def written(path: Path, offsets: list[int]) -> Path:
    schema = pa.schema([pa.field("offset", pa.int64(), nullable=False), pa.field("text", pa.string())])
    pq.write_table(pa.table({"offset": offsets, "text": [str(each) for each in offsets]}, schema), path)
    return path


def test_a_slice_is_measured(tmp_path: Path) -> None:
    path = written(tmp_path / "slice", [7, 8, 9])
    found = measure_slice(path, None, "offset")
    assert found.offset_interval == OffsetInterval(start=7, end=9)
    assert found.size == path.stat().st_size
    assert (found.logical_hash, found.physical_hash) == (
        logical_hash_file(path),
        Multihash.sha3_256(path.read_bytes()),
    )


@pytest.mark.parametrize("offsets", [[], [1, 3], [1, 1]])
def test_gaps_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    with pytest.raises(Invalid, match="gaps") as refused:
        measure_slice(written(tmp_path / "slice", offsets), None, "offset")
    assert refused.value.rule == "engine-answer"


def test_what_is_no_slice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "slice").write_bytes(b"PAR1 but no more")
    with pytest.raises(Invalid):
        measure_slice(tmp_path / "slice", None, "offset")


@pytest.mark.slow
def test_threads_come_to_the_same_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "slice", list(range(200_000)))
    alone = both_hashes(path)
    monkeypatch.setattr(output_check, "LARGE", 0)
    assert both_hashes(path) == alone


# Lists of files that were passed over are bounded, and say of how many more they do not tell.


def files(*numbers: int) -> tuple[SkippedFile, ...]:
    return tuple(SkippedFile(name=f"{number}.csv", reason="it is empty") for number in numbers)


def test_all_are_told_as_long_as_there_is_room() -> None:
    assert bounded_list(files(*range(MAX_SKIPPED), 0)) == files(*range(MAX_SKIPPED))


@given(st.integers(1, 5000), st.integers(0, 300))
def test_what_is_not_told_is_counted_however_often_it_comes(more: int, common: int) -> None:
    told = bounded_list(files(*range(MAX_SKIPPED + more)))
    assert told[:-1] == files(*range(MAX_SKIPPED - 1))
    assert told[-1].name == (f"{more + 1:,} more files")
    assert bounded_list((*told, *told)) == told
    assert bounded_list((*told, *files(*range(min(common, MAX_SKIPPED - 1))))) == told
    assert bounded_list((*told, *files(-1)))[-1].name == f"{more + 2:,} more files"


def test_an_engine_that_says_odd_numbers_breaks_nothing() -> None:
    odd = SkippedFile(name="many", reason=bounded_list(files(*range(MAX_SKIPPED + 1)))[-1].reason)
    assert bounded_list((odd,)) == ()
