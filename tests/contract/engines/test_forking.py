"""A process that is forked from a zygote is confined as one that bubblewrap has started, or it is not."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from engines.errors import EngineLost
from engines.query.frames import END
from engines.query.reader import QueryLimits, QueryProcesses
from engines.query.requests import Execute
from engines.sandbox.base import Job, SandboxCommand, SandboxLevel
from engines.sandbox.bubblewrap import Bubblewrap, host_runtime
from engines.sandbox.cgroups import Groups, find_groups
from engines.sandbox.forking import Zygote
from engines.sandbox.probe import SandboxChoice, TrialResult, trial
from engines.sandbox.process import ConfinedProcess
from worlds.eventually import PATIENCE, became

pytestmark = pytest.mark.slow

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
        "zygote": os.environ.get("ODFD_TEST_SECRET"),
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
    monkeypatch.setenv("ODFD_TEST_SECRET", "of the node")
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
    assert "ODFD_TEST_SECRET" not in found["environ"]


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
