"""What reading a file takes of memory is bounded by its size, whichever format it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.parsing import STEPS, peak_apart

SIZES = (16 << 20, 32 << 20)
"""One range of a text, of which a process has nothing left, and two."""
MOST = 6.0


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", STEPS)
def test_a_file_takes_six_times_its_size_at_most(kind: str, size: int, tmp_path: Path) -> None:
    assert peak_apart(kind, size, tmp_path) < MOST
