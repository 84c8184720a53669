"""What reading a file takes of memory is bounded by its size, whichever format it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.parsing import STEPS, peak_apart

SIZE = 32 << 20
"""Two ranges of a text: what one takes is bounded whatever the file, and more than six times a small one."""
MOST = 6.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
def test_a_file_takes_six_times_its_size_at_most(kind: str, tmp_path: Path) -> None:
    assert peak_apart(kind, SIZE, tmp_path) < MOST
