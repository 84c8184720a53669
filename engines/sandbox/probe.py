"""Tries each level of isolation on this machine, and picks the strongest that isolates.

A trial starts a probe inside the sandbox and places baits outside: a listening port, an abstract socket, a socket file,
a secret file, a process with a known command line. What the probe reaches is compared with a table. A level that cannot
be tried, or permits what it must not, is skipped, and the reason reported. Runs at each start of an engine pool; the
result is not cached, for kernels, policies and containers may change.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

import trio

from chain.errors import Environment, Refused
from chain.wording import plural
from engines.errors import EngineLost
from engines.image.installed import Image
from engines.sandbox.base import Job, Mount, PlainProcess, Sandbox, SandboxLevel
from engines.sandbox.bubblewrap import Bubblewrap, host_runtime, image_runtime
from engines.sandbox.cgroups import Groups, find_groups
from engines.sandbox.container import TOOLS, Container, remove_left
from engines.sandbox.process import ConfinedProcess, start

TRIAL_SECONDS: Final = 20.0
_MAX_REPORT: Final = 1 << 16
_SUSPECT: Final = Path(__file__).with_name("escape_probe.py").read_text(encoding="utf-8")
NEEDED: Final = {"own-loopback": "its own loopback is down", "write-writable": "it cannot write its results"}
"""Attempts that must succeed at every level -> the problem if one does not."""
FORBIDDEN: Final = {
    "host-loopback": "it reaches servers of this host",
    "host-abstract-socket": "it reaches abstract sockets of this host",
    "host-socket-file": "it reaches sockets outside its folders",
    "outward-interface": "it has a network interface",
    "vsock": "it can open AF_VSOCK, which no network namespace covers",
    "read-host-file": "it reads files outside its folders",
    "write-readable": "it writes to folders given for reading",
    "see-host-process": "it sees processes of this host",
    "new-user-namespace": "it can make namespaces of its own",
}
"""Attempts that must fail at every level but ``none`` -> the problem if one does not."""
BOUNDS: Final = {
    "exceed-memory": "a process of it takes more memory than allowed",
    "exceed-memory-together": "its processes together take more memory than allowed",
    "exceed-processes": "it can start more processes than allowed",
}
"""Attempts beyond limits, that must fail where a limit is enforced: the first everywhere, the others by
control groups, and the last by some levels themselves. Where nothing enforces one, that is reported,
and the level is used all the same."""
TRIAL_MEMORY: Final = 64 << 20
TRIAL_PROCESSES: Final = 32


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of one level's trial; it passed if there are no ``problems``."""

    level: SandboxLevel
    problems: tuple[str, ...]
    unbounded: tuple[str, ...] = ()
    """Attempts beyond limits that nothing on this machine would stop."""

    def __str__(self) -> str:
        holds = f"holds, but {'; '.join(self.unbounded)}" if self.unbounded else "holds"
        return f"{self.level.value}: {'; '.join(self.problems) or holds}"


@dataclass(frozen=True, slots=True)
class SandboxChoice:
    """The level in use, and why stronger ones are not used."""

    sandbox: Sandbox
    passed_over: tuple[TrialResult, ...]
    verdict: TrialResult
    groups: Groups | None = None
    """Where control groups for its jobs can be made; ``None``: nowhere."""
    image: Image | None = None
    """The image that it runs, at the levels of images."""
    remarks: tuple[str, ...] = ()
    """Further findings for people: containers of a former life that were removed, or could not be."""

    @property
    def level(self) -> SandboxLevel:
        return self.sandbox.level


async def choose(
    minimum: SandboxLevel, java_homes: Sequence[Path] = (), image: Image | str | None = None, label: str = ""
) -> SandboxChoice:
    """Chooses the strongest level that works here. Raises Refused if that is weaker than ``minimum``.

    ``image``: an installed image, unpacked; or the reason why there is none. ``label``: that of our containers
    (``container.label_of``); those that a former life left are removed.
    """
    found = await trio.to_thread.run_sync(find_groups)
    groups = found if isinstance(found, Groups) else None
    if groups is not None:
        await trio.to_thread.run_sync(groups.sweep)
    passed_over: list[TrialResult] = []
    remarks = await _without_leftovers(label) if label and isinstance(image, Image) else ()
    for candidate in _candidates(java_homes, image, label):
        if candidate.level.rank < minimum.rank:
            break
        if isinstance(candidate, TrialResult):
            passed_over.append(candidate)
            continue
        verdict = await trial(candidate, groups)
        if not verdict.problems:
            used = image if isinstance(image, Image) and candidate.level.rank >= SandboxLevel.IMAGE.rank else None
            return SandboxChoice(candidate, tuple(passed_over), verdict, groups, used, remarks)
        passed_over.append(verdict)
    raise Refused(
        f"no sandbox of level `{minimum.value}` or better holds here: " + "; ".join(map(str, passed_over)),
        rule="sandbox-level",
        hint="install bubblewrap and allow user namespaces, install the engine image (odfctl docs install), or accept "
        "less with engine.sandbox",
    )


async def choose_unconfined(minimum: SandboxLevel, why: str) -> SandboxChoice:
    """Chooses a plain process, where isolation is impossible. Raises Refused if that is weaker than ``minimum``.

    ``why``: the reason why no better level works.
    """
    if minimum is not SandboxLevel.NONE:
        raise Refused(
            f"the sandbox level `{minimum.value}` or better is asked for, and {why}",
            rule="sandbox-level",
            hint='accept less with engine.sandbox = "none"',
        )
    found = await trio.to_thread.run_sync(find_groups)
    groups = found if isinstance(found, Groups) else None
    sandbox = PlainProcess()
    better = [level for level in SandboxLevel if level is not SandboxLevel.NONE]
    return SandboxChoice(
        sandbox, tuple(TrialResult(level, (why,)) for level in better), await trial(sandbox, groups), groups
    )


async def _without_leftovers(label: str) -> tuple[str, ...]:
    """Removes containers that a former life left. Returns what was found; a tool that fails is no reason to stop."""
    remarks = []
    for tool, binary in ((tool, shutil.which(tool)) for tool in TOOLS):
        if binary is None:
            continue
        try:
            if count := await remove_left(binary, label):
                remarks.append(f"removed {plural(count, 'container')} of {tool} that a killed node left")
        except Environment as fault:
            remarks.append(str(fault))
    return tuple(remarks)


def _candidates(java_homes: Sequence[Path], image: Image | str | None, label: str) -> Iterator[Sandbox | TrialResult]:
    binary = shutil.which("bwrap")
    missing = TrialResult(SandboxLevel.HOST, ("bubblewrap (bwrap) is not installed",))
    if isinstance(image, Image):
        yield from (container(tool, image, label) for tool in TOOLS)
        yield Bubblewrap(binary, image_runtime(image)) if binary else replace(missing, level=SandboxLevel.IMAGE)
    else:
        yield TrialResult(SandboxLevel.IMAGE, (image or "no engine image is asked for",))
    if binary is None:
        yield missing
    else:
        try:
            yield Bubblewrap(binary, host_runtime(java_homes))
        except Environment as error:
            yield TrialResult(SandboxLevel.HOST, (str(error),))
    yield PlainProcess()


def container(tool: str, image: Image, label: str = "") -> Sandbox | TrialResult:
    """Returns the sandbox of containers made by ``tool``, or why there is none."""
    binary = shutil.which(tool)
    if binary is None:
        return TrialResult(SandboxLevel.CONTAINER, (f"{tool} is not installed",))
    return Container(tool, binary, image, label)


async def trial(
    sandbox: Sandbox, groups: Groups | None = None, begin: Callable[[Job], ConfinedProcess] | None = None
) -> TrialResult:
    """Runs the escape probe in ``sandbox`` and evaluates its results. ``begin``: starts it in another way."""
    with tempfile.TemporaryDirectory(prefix="odf-trial-") as folder, _baits(Path(folder)) as task:
        mounts = (
            Mount(Path(folder, "in"), PurePosixPath("/odf/in")),
            Mount(Path(folder, "out"), PurePosixPath("/odf/out"), writable=True),
        )
        places = dict(zip(("readable", "writable"), (str(sandbox.path_inside(mount)) for mount in mounts), strict=True))
        bounds = {"memory": str(TRIAL_MEMORY), "total": str(TRIAL_MEMORY), "processes": str(TRIAL_PROCESSES)}
        argv = (sandbox.python, "-I", "-S", "-c", _SUSPECT, json.dumps({**task, **places, **bounds}))
        job = Job(
            argv=argv, env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, mounts=mounts,
            memory=TRIAL_MEMORY, total=TRIAL_MEMORY, processes=TRIAL_PROCESSES,
        )  # fmt: skip
        try:
            process = start(sandbox, job, groups) if begin is None else begin(job)
        except EngineLost as error:
            return TrialResult(sandbox.level, (str(error),))
        report, said = await _listen(process)
    return _judge(sandbox, groups is not None, report, said)


def _judge(sandbox: Sandbox, grouped: bool, report: bytes, said: str) -> TrialResult:
    level = sandbox.level
    try:
        managed = json.loads(report)
    except ValueError:
        return TrialResult(level, (f"it does not start: {said.strip() or 'no reason given'}",))
    if not isinstance(managed, dict):
        return TrialResult(level, ("the trial gave no report",))
    problems = [f"{meaning} ({managed.get(name)})" for name, meaning in NEEDED.items() if managed.get(name) != "ok"]
    exceeded = {name: meaning for name, meaning in BOUNDS.items() if managed.get(name, "ok") == "ok"}
    kept = {"exceed-memory"} | sandbox.bounds | (set(BOUNDS) if grouped else set())
    if level is not SandboxLevel.NONE:
        problems += [meaning for name, meaning in FORBIDDEN.items() if managed.get(name, "ok") == "ok"]
        problems += [meaning for name, meaning in exceeded.items() if name in kept]
    return TrialResult(level, tuple(problems), tuple(meaning for name, meaning in exceeded.items() if name not in kept))


async def _listen(process: ConfinedProcess) -> tuple[bytes, str]:
    """Reads everything that the probe writes to both pipes, up to a limit of bytes and time."""
    said: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    async def drain(name: str, stream: trio.lowlevel.FdStream) -> None:
        while len(said[name]) < _MAX_REPORT and (piece := await stream.receive_some(_MAX_REPORT)):
            said[name] += piece

    try:
        with trio.move_on_after(TRIAL_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain, "stdout", process.stdout)
                nursery.start_soon(drain, "stderr", process.stderr)
    finally:
        await process.stop(grace=0.5)
    return said["stdout"], said["stderr"].decode(errors="replace")


@contextmanager
def _baits(folder: Path) -> Iterator[Mapping[str, str]]:
    for name in ("in", "out", "away"):
        (folder / name).mkdir()
    secret, name = folder / "away" / "secret", f"odf-trial-{secrets.token_hex(8)}"
    secret.write_bytes(b"secret")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as file,
    ):
        abstract.bind("\0" + name)
        abstract.listen()
        file.bind(str(folder / "away" / "socket"))
        file.listen()
        yield {
            "port": str(tcp.getsockname()[1]),
            "abstract": name,
            "socket": str(folder / "away" / "socket"),
            "secret": str(secret),
            "pid": str(os.getpid()),
            "token": Path("/proc/self/cmdline").read_text().split("\0")[0],
        }
