"""The README and the tutorials run as they are printed, each in an empty folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worlds import documents

TREE = Path(__file__).parents[2]
TUTORIALS = TREE / "docs" / "tutorials"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
"""Where nodes listen that have no settings."""


def environment(folder: Path, programs: Path = TREE / ".venv" / "bin") -> dict[str, str]:
    """A reader's, whose odfd and odfctl are those of ``programs``."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("ODFD_")}
    found |= {"PATH": f"{programs}:{TREE / '.venv' / 'bin'}:{found['PATH']}", "HOME": str(folder)}
    # In place of ``pip install ./client``; the demo's liar is of a checkout.
    found["PYTHONPATH"] = f"{TREE}:{TREE / 'client'}"
    return found | {"ODFD_ENGINE_QUICK_START": "true", "ODFD_P2P_LISTEN": LOOPBACK}


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.slow
def test_the_readme_runs_as_it_is_printed(folder: Path) -> None:
    assert documents.run(TREE / "README.md", folder, environment(folder)) > 12


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("name", ["first-dataset", "publish-and-mirror", "network-of-others", "derive-and-correct"])
def test_a_tutorial_runs_as_it_is_printed(name: str, folder: Path, forks: Path) -> None:
    assert documents.run(TUTORIALS / f"{name}.md", folder, environment(folder, forks)) > 12


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.nightly
def test_the_tutorial_of_validation_runs_as_it_is_printed(folder: Path, forks: Path) -> None:
    """Nightly, and with patience: a transform is run four times, each time in a new JVM."""
    assert documents.run(TUTORIALS / "validate.md", folder, environment(folder, forks), seconds=600) > 20


def test_every_tutorial_is_run() -> None:
    names = {path.stem for path in TUTORIALS.glob("*.md")}
    assert names == {"first-dataset", "publish-and-mirror", "network-of-others", "derive-and-correct", "validate"}
