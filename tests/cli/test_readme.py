"""The README's tour runs as it is printed, on a real Spark, in an empty folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worlds import documents

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.slow
def test_the_tour(folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{README.parent / '.venv' / 'bin'}:{os.environ['PATH']}"}
    environment.pop("ODFD_SOCKET", None)
    environment["PYTHONPATH"] = str(README.parent / "client")
    """In place of ``pip install ./client``."""
    environment["ODFD_ENGINE_QUICK_START"] = "true"
    assert documents.run(README, folder, environment) > 20
