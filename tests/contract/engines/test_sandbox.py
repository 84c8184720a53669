"""Sandboxes and zygotes: trials tell the truth, and whatever leaks in any one way is not taken."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import trio

from chain.errors import Refused
from engines.errors import EngineLost
from engines.query.frames import END
from engines.query.reader import QueryLimits, QueryProcesses
from engines.query.requests import Execute
from engines.sandbox import probe
from engines.sandbox.base import Job, Mount, PlainProcess, SandboxCommand, SandboxLevel
from engines.sandbox.bubblewrap import Bubblewrap, host_runtime
from engines.sandbox.cgroups import Groups, find_groups
from engines.sandbox.forking import Zygote
from engines.sandbox.probe import BOUNDS, FORBIDDEN, SandboxChoice, TrialResult, choose, choose_unconfined, trial
from engines.sandbox.process import ConfinedProcess, start
from worlds.eventually import PATIENCE, became

# Trials tell the truth: a sandbox that leaks in any one way is not taken, and says how it leaks.


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
    """Attack T-QUERY-01: a query that escapes from its engine.

    Defence: no network, no files but its own, few system calls; at start each level is probed by attempts to escape.
    """
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
    """Attack T-QUERY-02: a query that takes all memory or starts processes without end.

    Defence: control groups, where this user may make them; elsewhere rlimits by process, which is reported.
    """
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


# A process that is forked from a zygote is confined as one that bubblewrap has started, or it is not.


REPORT = """
import fcntl, json, os, resource, socket, sys
from engines.sandbox.zygote import serve

def is_open(file):
    try:
        return fcntl.fcntl(file, fcntl.F_GETFD) >= 0
    except OSError:
        return False

def main(argv):
    with open("/proc/self/status") as file:
        said = dict(line.split(":", 1) for line in file.read().splitlines())
    print(json.dumps({
        "argv": argv, "status": {name: value.strip() for name, value in said.items()}, "environ": dict(os.environ),
        "files": [file for file in range(1024) if is_open(file)], "place": os.getcwd(), "root": sorted(os.listdir("/")),
        "processes": [name for name in os.listdir("/proc") if name.isdigit()], "uid": os.getuid(),
        "data": resource.getrlimit(resource.RLIMIT_DATA)[0], "nproc": resource.getrlimit(resource.RLIMIT_NPROC)[0],
        "zygote": os.environ.get("ODF_TEST_SECRET"),
    }), flush=True)
    sys.stdin.read()
    return 0
"""
SERVE = f"{REPORT}\nserve(socket.socket(fileno=0), main)"
THREADED = f"{REPORT}\nimport threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n{SERVE}"
JOB = Job(argv=("one", "two"), env={"LANG": "C.UTF-8"}, mounts=(), memory=1 << 30, total=1 << 30, processes=99)


class Sharing(Bubblewrap):
    """Bubblewrap that leaves a namespace to the host."""

    def command(self, job: Job, files: Sequence[int], /) -> SandboxCommand:
        made = super().command(job, files)
        return SandboxCommand(tuple(word for word in made.argv if word != "--unshare-net"), made.env)


def sandbox(kind: type[Bubblewrap] = Bubblewrap) -> Bubblewrap:
    return kind(shutil.which("bwrap") or "bwrap", host_runtime(()))


@pytest.fixture
def groups() -> Groups | None:
    found = find_groups()
    return found if isinstance(found, Groups) else None


@pytest.fixture
async def hatched(groups: Groups | None) -> AsyncIterator[Callable[..., Any]]:
    """Makes zygotes, and ends them."""
    if shutil.which("bwrap") is None or (await trial(sandbox(), groups)).problems:
        pytest.skip("level host does not hold here")
    made = []

    async def make(kind: type[Bubblewrap] = Bubblewrap, text: str = SERVE) -> Zygote:
        made.append(Zygote(sandbox(kind), groups, (sys.executable, "-P", "-c", text)))
        await made[-1].ready()
        return made[-1]

    yield make
    for each in made:
        each.stop()


async def told(process: ConfinedProcess) -> dict[str, Any]:
    said = b""
    with trio.fail_after(PATIENCE):
        while not said.endswith(b"\n"):
            piece = await process.stdout.receive_some()
            assert piece, await process.stderr.receive_some()
            said += piece
    found: dict[str, Any] = json.loads(said)
    return found


async def test_it_holds_what_it_must(hatched: Callable[..., Any], groups: Groups | None) -> None:
    zygote = await hatched()
    verdict = await trial(sandbox(), groups, partial(zygote.start, execute=True))
    assert not verdict.problems, verdict


async def test_it_has_nothing_of_the_zygote(hatched: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-QUERY-01: a query's process that is forked, and keeps files, capabilities, memory or namespaces of the
    process that it came from.

    Defence: it joins a new sandbox, gives up all capabilities, closes all files but its own, and takes the filter
    before it computes; the way in is probed as each level is.
    """
    monkeypatch.setenv("ODF_TEST_SECRET", "of the node")
    zygote = await hatched()
    process = zygote.start(JOB)
    try:
        found = await told(process)
    finally:
        await process.stop(0)
    status = found["status"]
    assert found["argv"] == ["one", "two"]
    assert {name: int(value, 16) for name, value in status.items() if name.startswith("Cap")} == {
        "CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0,
    }  # fmt: skip
    assert (status["NoNewPrivs"], status["Seccomp"], status["Threads"], found["uid"]) == ("1", "2", "1", 1000)
    assert found["files"] == [0, 1, 2, 3]
    assert (found["place"], found["data"]) == ("/tmp", 1 << 30)
    assert found["nproc"] == 99 or not sandbox().counts_processes
    assert "home" not in found["root"]
    assert len(found["processes"]) == 3, "bubblewrap, the holder and itself"
    assert found["zygote"] is None
    assert "ODF_TEST_SECRET" not in found["environ"]


async def test_it_ends_with_its_sandbox_and_its_sandbox_with_it(hatched: Callable[..., Any]) -> None:
    zygote = await hatched()
    left, ended = zygote.start(JOB), zygote.start(JOB)
    for process in (left, ended):
        await told(process)
    await left.stdin.aclose()  # it then ends by itself
    ended.kill()
    with trio.fail_after(PATIENCE):
        for process in (left, ended):
            await process.wait()
            assert await process.stdout.receive_some() == b""
            await process.stop(0)


async def test_a_sandbox_that_shares_a_namespace_is_not_joined(hatched: Callable[..., Any]) -> None:
    """Attack T-QUERY-01: a sandbox that is gone when a process joins it, and whose number another process has.

    Defence: the namespaces are compared with those that were made; if one is missing or another, the process ends.
    """
    zygote = await hatched(Sharing)
    process = zygote.start(JOB)
    with trio.fail_after(PATIENCE):
        assert await process.stdout.receive_some() == b""
        said = await process.stderr.receive_some()
        await process.stop(0)
    assert b"cannot join its sandbox" in said
    assert b"net-namespace" in said


async def test_what_has_threads_is_not_forked(hatched: Callable[..., Any]) -> None:
    with trio.fail_after(PATIENCE), pytest.raises(EngineLost, match="more than one thread"):
        await hatched(text=THREADED)


async def test_a_query_is_answered_whether_the_zygote_lives_or_not(
    hatched: Callable[..., Any], groups: Groups | None, tmp_path: Path
) -> None:
    choice = SandboxChoice(sandbox(), (), TrialResult(SandboxLevel.HOST, ()), groups)

    async def chosen() -> SandboxChoice:
        return choice

    processes = QueryProcesses(tmp_path, chosen, QueryLimits())

    async def asked() -> None:
        async with processes.one() as process:
            await process.prepare("SELECT 1")
            async with aclosing(process.execute(Execute(views=(), places=()))) as frames:
                async for kind, _ in frames:
                    if kind == END:
                        return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(processes.run)
        await processes.serving.wait()
        await asked()
        await became(lambda: processes.unforked is not None)
        assert processes.unforked == ""
        await asked()
        assert processes._zygote is not None
        processes._zygote.stop()
        for _ in range(3):
            await asked()
        nursery.cancel_scope.cancel()
