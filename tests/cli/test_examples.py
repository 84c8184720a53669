"""Each folder of ``examples`` is set up and run by the commands of its README, as a reader would do it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

TREE = Path(__file__).parents[2]
EXAMPLES = TREE / "examples"
SMALL_ODFD = f"""#!{sys.executable}
import sys
sys.path[:0] = [{str(TREE)!r}, {str(TREE / "tests")!r}]
from worlds.small_node import odfd
odfd()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Programs that the commands left in the background are ended."""
    yield tmp_path
    for file in [*tmp_path.rglob("lock"), *tmp_path.rglob("*.pid")]:
        where = Path(f"/proc/{file.read_text().strip()}/cwd")
        if where.exists() and where.readlink().is_relative_to(tmp_path):
            os.kill(int(where.parent.name), signal.SIGTERM)


def play(name: str, documents: ModuleType, folder: Path, *programs: Path) -> int:
    """Run the README in a copy of its folder; ``programs`` are found before those that are installed."""
    target = folder / name
    shutil.copytree(EXAMPLES / name, target)
    return int(documents.run(target / "README.md", target, _environment(folder, *programs)))


def _environment(folder: Path, *programs: Path) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ODFD_")}
    path = [*programs, Path(sys.executable).parent, environment["PATH"]]
    environment |= {"PATH": ":".join(map(str, path)), "PYTHONPATH": f"{TREE}:{TREE / 'client'}"}
    return environment | {"HOME": str(folder), "ODFD_ENGINE_QUICK_START": "true"}


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["publisher", "mirror", "http", "metrics", "notebook", "source"])
def test_the_example_runs_as_written(name: str, documents: ModuleType, folder: Path) -> None:
    """With an engine that reads CSV alone: these examples are about nodes and what they exchange."""
    small = folder / "bin" / "odfd"
    small.parent.mkdir()
    small.write_text(SMALL_ODFD)
    small.chmod(0o755)
    assert play(name, documents, folder, small.parent) > 4


@pytest.mark.e2e
@pytest.mark.slow
def test_a_stranger_finds_what_the_tutorial_publishes(documents: ModuleType, folder: Path) -> None:
    small = folder / "bin" / "odfd"
    small.parent.mkdir()
    small.write_text(SMALL_ODFD)
    small.chmod(0o755)
    assert documents.run(TREE / "docs" / "public-network.md", folder, _environment(folder, small.parent)) > 15


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("name", ["shards", "strangers"])
def test_two_daemons_do_as_a_document_says(name: str, documents: ModuleType, folder: Path) -> None:
    small = folder / "bin" / "odfd"
    small.parent.mkdir()
    small.write_text(SMALL_ODFD)
    small.chmod(0o755)
    document = Path(__file__).parent / "nodes" / f"{name}.md"
    assert documents.run(document, folder, _environment(folder, small.parent)) > 15


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.slow
def test_the_example_of_a_validator_runs_as_written(documents: ModuleType, folder: Path) -> None:
    assert play("validator", documents, folder) > 8


def test_every_example_is_run_and_linked() -> None:
    names = {file.parent.name for file in EXAMPLES.glob("*/README.md")}
    assert names == {"publisher", "validator", "mirror", "http", "metrics", "notebook", "source"}
    for index in (EXAMPLES / "README.md", TREE / "README.md"):
        assert all(f"{name}/README.md)" in index.read_text() for name in names), index
