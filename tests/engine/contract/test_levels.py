"""The real engine at every level of isolation that holds here, and nothing left of it when its node is killed.

A level that cannot be had here skips by its name with the reason that the trial gave.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from worlds.processes import names_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TREE = Path(__file__).parents[3]
GONE_SECONDS = 30


def inside(folder: Path) -> set[int]:
    """Processes that were told of a folder, or see it mounted: whatever level they are behind."""
    found = set()
    names = names_of(folder)
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with suppress(OSError):
                told = (place / "cmdline").read_bytes() + (place / "mountinfo").read_bytes()
                if any(name in told for name in names):
                    found.add(int(place.name))
    return found


@pytest.mark.parametrize("level", ["none", "host", "image", "container"])
def test_an_engine_works_and_dies_with_its_node(tmp_path: Path, level: str) -> None:
    script = TREE / "tests" / "worlds" / "engine_node.py"
    argv = [sys.executable, str(script), level, str(tmp_path / "node")]
    env = os.environ | {"PYTHONPATH": str(TREE)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, text=True) as node:
        try:
            assert node.stdout is not None
            facts = json.loads(node.stdout.readline())
            if "fault" in facts:
                pytest.skip(facts["fault"])
            left = {pid: os.pidfd_open(pid) for pid in inside(tmp_path / "node") - {node.pid}}
        finally:
            node.kill()
    assert facts["ok"]
    assert (facts["level"], facts["mode"]) == (level, "log")
    if level in ("image", "container"):
        assert facts["digest"] == facts["image"]
    if facts["grouped"] or level == "container":
        assert not facts["unbounded"]
    assert len(left) >= 2  # Python and its JVM
    late = [pid for pid, handle in left.items() if not select.select([handle], [], [], GONE_SECONDS)[0]]
    for handle in left.values():
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    assert not late
