"""The README's tour runs as it is printed, on a real Spark, in an empty folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Whatever still runs there at the end is ended: a lock file names the process that holds it."""
    yield tmp_path
    for lock in tmp_path.glob("*/lock"):
        pid = int(lock.read_text())
        where = Path(f"/proc/{pid}/cwd")
        if where.exists() and where.readlink().is_relative_to(tmp_path):
            os.kill(pid, signal.SIGTERM)


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.slow
def test_the_tour(documents: ModuleType, folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{README.parent / '.venv' / 'bin'}:{os.environ['PATH']}"}
    environment.pop("ODFD_SOCKET", None)
    environment["PYTHONPATH"] = str(README.parent / "client")
    """In place of ``pip install ./client``."""
    environment["ODFD_ENGINE_QUICK_START"] = "true"
    assert documents.run(README, folder, environment) > 20
