"""Each folder of ``examples`` is set up and run by the commands of its README, as a reader would do it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from worlds import documents

TREE = Path(__file__).parents[2]
EXAMPLES = TREE / "examples"


def play(name: str, folder: Path, *programs: Path) -> int:
    """Run the README in a copy of its folder; ``programs`` are found before those that are installed."""
    target = folder / name
    shutil.copytree(EXAMPLES / name, target)
    return documents.run(target / "README.md", target, _environment(folder, *programs))


def _environment(folder: Path, *programs: Path) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ODFD_")}
    path = [*programs, Path(sys.executable).parent, environment["PATH"]]
    environment |= {"PATH": ":".join(map(str, path)), "PYTHONPATH": f"{TREE}:{TREE / 'client'}"}
    return environment | {"HOME": str(folder), "ODFD_ENGINE_QUICK_START": "true"}


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["publisher", "mirror", "http", "metrics", "notebook", "source"])
def test_the_example_runs_as_written(name: str, folder: Path, small_forks: Path) -> None:
    """With an engine that reads CSV alone: these examples are about nodes and what they exchange."""
    assert play(name, folder, small_forks) > 4


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("name", ["public-network", "shards", "strangers"])
def test_two_daemons_do_as_a_document_says(name: str, folder: Path, small_forks: Path) -> None:
    document = Path(__file__).parent / "nodes" / f"{name}.md"
    assert documents.run(document, folder, _environment(folder, small_forks)) > 15


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.slow
def test_the_example_of_a_validator_runs_as_written(folder: Path, spark_forks: Path) -> None:
    assert play("validator", folder, spark_forks) > 8


def test_every_example_is_run_and_linked() -> None:
    names = {file.parent.name for file in EXAMPLES.glob("*/README.md")}
    assert names == {"publisher", "validator", "mirror", "http", "metrics", "notebook", "source"}
    index = (EXAMPLES / "README.md").read_text()
    assert all(f"{name}/README.md)" in index for name in names)
    assert "examples/README.md)" in (TREE / "README.md").read_text()
