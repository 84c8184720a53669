"""How many rows of a slice are read at once: few where they are wide, as each thread that checks takes new memory."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from chain.data.parquet import READ_ROWS, open_slice, write_slice
from odfd.verify.objects import _rows_at_once


@pytest.mark.parametrize(("width", "least", "most"), [(20_000, 180, 220), (8, READ_ROWS, READ_ROWS)])
def test_wide_rows_are_read_in_small_windows(tmp_path: Path, width: int, least: int, most: int) -> None:
    rows = random.Random(1)
    texts = [rows.randbytes(width // 2).hex() for _ in range(300)]
    write_slice(pa.table({"offset": pa.array(range(300), pa.int64()), "text": texts}), tmp_path / "slice")
    with open_slice(tmp_path / "slice") as source:
        assert least <= _rows_at_once(source) <= most
