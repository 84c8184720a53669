"""``kill -9`` of real processes in the middle of an apply of several datasets: all of them are there after, or none."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from worlds.eventually import PATIENCE

pytestmark = pytest.mark.e2e
DATASETS: Final = 3
WRITTEN, DURABLE = 4, 5
"""Steps of the one transaction: all is written and not committed; it is committed."""


@pytest.mark.parametrize("step", [WRITTEN, DURABLE])
def test_all_datasets_of_a_killed_apply_are_there_or_none(
    make_daemon: Callable[..., Any], tmp_path: Path, step: int
) -> None:
    names = [f"d{number}" for number in range(DATASETS)]
    spec = "spec: {kind: Root, metadata: []}"
    manifests = [f"$schema: Dataset\nheaders: {{name: {name}}}\n{spec}\n" for name in names]
    manifests.append("$schema: VariableSet\nheaders: {name: v}\nspec: {variables: {x: '1'}}\n")
    (tmp_path / "m.yaml").write_text("---\n".join(manifests))
    daemon = make_daemon("a", KILL_AT=str(step))
    daemon.program = [sys.executable, str(Path(__file__).with_name("small_node.py"))]
    daemon.start()
    command = [sys.executable, "-m", "odfd.cli.main", "--socket", str(daemon.socket), "apply", "-f"]
    done = subprocess.run(
        [*command, str(tmp_path / "m.yaml")], env=daemon.environ, capture_output=True, timeout=PATIENCE, check=False
    )
    assert done.returncode, "it was killed before it could answer"
    assert daemon.process.wait(PATIENCE) == -signal.SIGKILL
    daemon.process = None
    del daemon.more["KILL_AT"]
    daemon.start()
    expected = names if step == DURABLE else []
    assert [each["name"] for each in daemon.ask("get", "datasets")] == expected
    assert len(daemon.ask("get", "vs")) == bool(expected)
    items = daemon.ask("apply", "-f", str(tmp_path / "m.yaml"))["items"]
    assert {each["action"] for each in items} == {"unchanged" if expected else "created"}
