"""Blocks made out of slices and watermarks: a watermark belongs to the slice of its block, to the millisecond."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.instant import Instant, from_millis
from engines.contract import TransformRequestInput, Vocab, Watermark
from engines.spark.execution.foreign_coordinators import blocks_of
from engines.spark.state.files import State

TIME = pa.timestamp("ms", "UTC")


def made(folder: Path, millis: int) -> str:
    path = folder / f"slice-{millis}"
    columns = {"offset": pa.array([millis]), "op": pa.array([0], pa.int32()), "system_time": pa.array([millis], TIME)}
    write_slice(pa.table(columns | {"event_time": pa.array([0], TIME)}), path)
    return str(path)


def test_a_watermark_finds_its_slice_though_blocks_are_dated_in_nanoseconds(tmp_path: Path) -> None:
    marks = [(3_000_000, 1), (5_999_999, 2), (6_000_001, 3), (9_000_000, 4)]
    given = TransformRequestInput(
        dataset_id=DatasetId.from_public_key(b"i" * 32), dataset_alias="a", query_alias="a", vocab=Vocab(),
        data_paths=(made(tmp_path, 5), made(tmp_path, 6)),
        explicit_watermarks=tuple(
            Watermark(system_time=Instant(at), event_time=from_millis(mark)) for at, mark in marks
        ),
    )  # fmt: skip
    found = [
        (block.data_path and Path(block.data_path).name, block.watermark_before, block.watermark_after)
        for block in blocks_of(given, State(), 0, tmp_path)
    ]
    one, two, three, four = (from_millis(mark) for _, mark in marks)
    assert found == [(None, None, one), ("slice-5", one, two), ("slice-6", two, three), (None, three, four)]
