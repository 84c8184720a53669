"""What reading a file takes of memory is bounded by its size, whichever format it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.parsing import STEPS, peak_apart

RANGE = 16 << 20
"""One range of a text, of which a process has nothing left, and as much of what is read in one piece."""
MOST = 6.0
SIZES = {"csv": 2 * RANGE, "ndjson": 2 * RANGE, "json": RANGE, "parquet": RANGE}
"""What is read in ranges has two: the second one finds what the first one left."""
OTHERS = [("csv", RANGE), ("ndjson", RANGE), ("geojson", RANGE), ("ndgeojson", RANGE), ("ndgeojson", 2 * RANGE)]
"""The same readers, with one step more or less."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "size"), [*SIZES.items(), *(pytest.param(*each, marks=pytest.mark.nightly) for each in OTHERS)]
)
def test_a_file_takes_six_times_its_size_at_most(kind: str, size: int, tmp_path: Path) -> None:
    assert peak_apart(kind, size, tmp_path) < MOST


def test_every_format_is_measured() -> None:
    assert SIZES.keys() | {kind for kind, _ in OTHERS} == STEPS.keys()
