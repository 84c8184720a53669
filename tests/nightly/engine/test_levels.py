"""The real engine at every level of isolation that holds here, and nothing left of it when its node is killed.

A level that cannot be had here skips by its name with the reason that the trial gave.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from engines.image.installed import PYTHON, prepare_image
from engines.provision.preparation import of_image
from engines.sandbox import process as confined
from engines.sandbox.base import Job
from engines.sandbox.bubblewrap import Bubblewrap, image_runtime
from worlds.eventually import PATIENCE
from worlds.processes import names_of

pytestmark = pytest.mark.engine
TREE = Path(__file__).parents[3]


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


def mapped_by(pid: int) -> set[str]:
    """Files that a process has in its memory."""
    lines = (line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return {words[5] for words in lines if len(words) == 6}


async def test_a_start_from_the_image_compiles_nothing(tmp_path: Path) -> None:
    """Each module that the engine imports has its bytecode, which whoever works inside cannot write."""
    image, bubblewrap = prepare_image(tmp_path), shutil.which("bwrap")
    if isinstance(image, str) or image.prepared is None or bubblewrap is None:
        pytest.skip("no image that was prepared, or no bubblewrap")
    start = of_image(image)
    job = Job(argv=(PYTHON, "-P", "-c", COUNT), env=start.env, mounts=start.mounts)
    process = confined.start(Bubblewrap(bubblewrap, image_runtime(image)), job)
    said = b""
    with trio.fail_after(PATIENCE):
        while piece := await process.stdout.receive_some(1 << 16):
            said += piece
    await process.stop(grace=1.0)
    modules, missing, why_not = json.loads(said)
    assert modules > 500
    assert missing == []
    assert why_not == errno.EROFS


COUNT = """
import errno, json, os, sys
import engines.spark.__main__
kept = {name: module.__cached__ for name, module in list(sys.modules.items()) if getattr(module, "__cached__", None)}
missing = [name for name, place in kept.items() if not os.path.exists(place)]
try:
    os.remove(kept["engines.spark.__main__"])
except OSError as error:
    why_not = error.errno
print(json.dumps([len(kept), missing, why_not]))
"""


@pytest.mark.parametrize("level", ["none", "host", "image", "container"])
def test_an_engine_works_and_dies_with_its_node(tmp_path: Path, level: str) -> None:
    """Attack T-QUERY-01: a process that outlives its node.

    Defence: it ends with its parent, its namespace, its container's input or its group.
    """
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
            mapped = {Path(name).name for pid in left for name in mapped_by(pid)}
        finally:
            node.kill()
    assert facts["ok"]
    assert (facts["level"], facts["mode"]) == (level, "log")
    if level in ("image", "container"):
        assert facts["digest"] == facts["image"]
        assert not facts["prepared"] or mapped >= {"archive.jsa", "archive.jsa.base"}
    if facts["grouped"] or level == "container":
        assert not facts["unbounded"]
    assert len(left) >= 2  # Python and its JVM
    late = [pid for pid, handle in left.items() if not select.select([handle], [], [], PATIENCE)[0]]
    for handle in left.values():
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    assert not late
