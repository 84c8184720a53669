"""Trials tell the truth: a sandbox that leaks in any one way is not taken, and says how it leaks."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import trio

from chain.errors import Refused
from engines.errors import EngineLost
from engines.sandbox import probe
from engines.sandbox.base import Job, Mount, PlainProcess, SandboxCommand, SandboxLevel
from engines.sandbox.bubblewrap import Bubblewrap, host_runtime
from engines.sandbox.cgroups import find_groups
from engines.sandbox.probe import BOUNDS, FORBIDDEN, choose, choose_unconfined, trial
from engines.sandbox.process import start
from worlds.eventually import PATIENCE

pytestmark = pytest.mark.slow


class Leaky(Bubblewrap):
    """Bubblewrap with some words of its command line left out or put in."""

    def __init__(self, drop: Sequence[str] = (), add: Sequence[str] = (), keep_filter: bool = True) -> None:
        super().__init__(shutil.which("bwrap") or "bwrap", host_runtime(()))
        self._drop, self._add, self._keep_filter = drop, add, keep_filter

    def command(self, job: Job, files: Sequence[int], /) -> SandboxCommand:
        made = super().command(job, files)
        argv = [word for word in made.argv if word not in self._drop]
        at = argv.index("--remount-ro")
        argv[at:at] = self._add
        if not self._keep_filter:
            at = argv.index("--seccomp")
            del argv[at : at + 2]
        return SandboxCommand(tuple(argv), made.env, made.limited)


LEAKS = {
    "host-loopback": Leaky(drop=["--unshare-net"]),
    "host-abstract-socket": Leaky(drop=["--unshare-net"]),
    "outward-interface": Leaky(drop=["--unshare-net"]),
    "vsock": Leaky(keep_filter=False),
    "new-user-namespace": Leaky(keep_filter=False),
    "read-host-file": Leaky(add=["--ro-bind", "/tmp", "/tmp"]),
    "host-socket-file": Leaky(add=["--ro-bind", "/tmp", "/tmp"]),
    "see-host-process": Leaky(add=["--ro-bind", "/proc", "/proc"]),
}


@pytest.fixture
async def holds() -> None:
    if shutil.which("bwrap") is None or (await trial(Leaky())).problems:
        pytest.skip("level host does not hold here")


@pytest.mark.parametrize("leak", LEAKS)
async def test_a_leak_is_found(holds: None, leak: str) -> None:
    verdict = await trial(LEAKS[leak])
    assert FORBIDDEN[leak] in verdict.problems, verdict


async def test_writing_to_inputs_is_found(holds: None) -> None:
    class Writable(Leaky):
        def command(self, job: Job, files: Sequence[int], /) -> SandboxCommand:
            mounts = tuple(Mount(each.source, each.target, writable=True) for each in job.mounts)
            return super().command(Job(argv=job.argv, env=job.env, mounts=mounts), files)

    assert FORBIDDEN["write-readable"] in (await trial(Writable())).problems


def test_every_forbidden_thing_has_its_leak() -> None:
    assert set(FORBIDDEN) == {*LEAKS, "write-readable"}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bubblewrap here")
async def test_a_sandbox_that_does_not_start_says_why() -> None:
    verdict = await trial(Leaky(add=["--no-such-option"]))
    assert "does not start" in verdict.problems[0]
    assert "no-such-option" in verdict.problems[0]


async def test_without_bubblewrap_the_choice_depends_on_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.shutil, "which", lambda _: None)
    choice = await choose(SandboxLevel.NONE)
    assert choice.level is SandboxLevel.NONE
    assert "not installed" in str(choice.passed_over[1])
    assert choice.passed_over[0].level is SandboxLevel.IMAGE
    with pytest.raises(Refused, match="not installed") as error:
        await choose(SandboxLevel.HOST)
    assert "install bubblewrap" in error.value.hint


async def test_what_no_isolation_can_hold_says_why() -> None:
    choice = await choose_unconfined(SandboxLevel.NONE, "it takes the network")
    assert choice.level is SandboxLevel.NONE
    assert str(choice.passed_over[0]) == "container: it takes the network"
    with pytest.raises(Refused, match="`host` or better is asked for, and it takes the network"):
        await choose_unconfined(SandboxLevel.HOST, "it takes the network")


@pytest.mark.parametrize("level", [SandboxLevel.IMAGE, SandboxLevel.CONTAINER])
async def test_images_are_refused_plainly(level: SandboxLevel) -> None:
    with pytest.raises(Refused, match="no sandbox of level") as error:
        await choose(level, image="no engine image is installed")
    assert "engine image (odfctl docs install)" in error.value.hint
    if level is SandboxLevel.IMAGE:
        assert "no engine image is installed" in str(error.value)


async def test_what_nothing_keeps_is_said_and_what_is_claimed_is_tried(holds: None) -> None:
    """Rlimits bind each process alone; a level that claims more and does not keep it does not hold."""
    assert BOUNDS["exceed-memory-together"] in (await trial(Leaky())).unbounded

    class Boastful(Leaky):
        @property
        def bounds(self) -> frozenset[str]:
            return frozenset(BOUNDS)

    assert BOUNDS["exceed-memory-together"] in (await trial(Boastful())).problems


async def test_without_its_rlimit_a_process_takes_what_it_likes(holds: None) -> None:
    class Unlimited(Leaky):
        def command(self, job: Job, files: Sequence[int], /) -> SandboxCommand:
            made = super().command(job, files)
            return SandboxCommand(made.argv, made.env, limited=True)

    assert BOUNDS["exceed-memory"] in (await trial(Unlimited())).problems


async def test_control_groups_keep_memory_and_processes_together(holds: None) -> None:
    groups = find_groups()
    if isinstance(groups, str):
        pytest.skip(f"no control groups here: {groups}")
    verdict = await trial(Leaky(), groups)
    assert not verdict.problems
    assert not verdict.unbounded


async def test_a_plain_job_in_a_group_leaves_nothing_when_it_is_stopped() -> None:
    """Not even what went into a session of its own."""
    groups = find_groups()
    if isinstance(groups, str):
        pytest.skip(f"no control groups here: {groups}")
    job = Job(argv=(sys.executable, "-c", SLEEPER), env={"PATH": "/usr/bin:/bin"}, mounts=(), processes=16)
    process = start(PlainProcess(), job, groups)
    grandchild = int(await process.stdout.receive_some())
    watched = os.pidfd_open(grandchild)
    await process.stop(grace=0.1)
    assert select.select([watched], [], [], PATIENCE)[0]
    os.close(watched)
    assert not [folder for parent in groups.parents.values() for folder in parent.glob(f"odfd-{os.getpid()}-*")]


SLEEPER = (
    "import os, sys, subprocess, time; p = subprocess.Popen(['sleep', '600'], start_new_session=True); "
    "print(p.pid, flush=True); time.sleep(600)"
)


@pytest.mark.parametrize("level", [SandboxLevel.NONE, SandboxLevel.HOST])
def test_a_job_dies_with_whoever_started_it(level: SandboxLevel, tmp_path: Path) -> None:
    """The starter is killed with no chance to clean up."""
    if level is SandboxLevel.HOST and (shutil.which("bwrap") is None or trio.run(trial, Leaky()).problems):
        pytest.skip("level host does not hold here")
    starter = tmp_path / "starter.py"
    starter.write_text(
        f"""
import sys, time, shutil, trio
from engines.sandbox.base import Job
from engines.sandbox.bubblewrap import Bubblewrap
from engines.sandbox.base import PlainProcess
from engines.sandbox.process import start
from engines.sandbox.bubblewrap import host_runtime
async def main():
    sandbox = PlainProcess() if {level is SandboxLevel.NONE} else Bubblewrap(shutil.which("bwrap"), host_runtime(()))
    job = Job(argv=(sys.executable, "-c", {SLEEPER!r}), env={{"PATH": "/usr/bin:/bin"}}, mounts=())
    process = start(sandbox, job)
    await process.stdout.receive_some()
    print(process.pid, flush=True)
    await trio.sleep_forever()
trio.run(main)
"""
    )
    with subprocess.Popen([sys.executable, str(starter)], stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        leader = int(node.stdout.readline())
        tree = _tree(leader)
        watched = {pid: os.pidfd_open(pid) for pid in tree}
        node.kill()
        node.wait()
    assert len(tree) >= 2
    # Without namespaces nothing reaches what a job has put into a session of its own: that is what level host is for.
    doomed = tree if level is SandboxLevel.HOST else [leader]
    left = [pid for pid in doomed if not select.select([watched[pid]], [], [], PATIENCE)[0]]
    for handle in watched.values():
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    assert not left


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(each for child in children for each in _tree(int(child)))]


async def test_what_cannot_be_started_is_a_loss_with_its_name(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(EngineLost, match="cannot start"):
        start(PlainProcess(), Job(argv=("true",), env={}, mounts=()))


def test_plain_jobs_see_host_paths(tmp_path: Path) -> None:
    assert PlainProcess().path_inside(Mount(tmp_path, PurePosixPath("/odf/in"))) == PurePosixPath(tmp_path)
