"""What reading a file takes of memory is bounded by its size, whichever format it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.parsing import STEPS, peak_apart

RANGE = 16 << 20
"""One range of a text, of which a process has nothing left, and as much of what is read in one piece."""
CUT = ("csv", "ndjson", "ndgeojson")
"""Read in ranges: of two, the second one finds what the first one left."""
MOST = 6.0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "size"), [*((kind, RANGE) for kind in STEPS), *((kind, 2 * RANGE) for kind in CUT)])
def test_a_file_takes_six_times_its_size_at_most(kind: str, size: int, tmp_path: Path) -> None:
    assert peak_apart(kind, size, tmp_path) < MOST
