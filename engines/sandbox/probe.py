"""Tries each level of isolation on this machine, for real, and picks the strongest that holds.

A trial starts a suspect inside the sandbox and sets baits outside: a listening port, an abstract socket, a socket
file, a secret file, a process with a known command line. What it reaches is compared with a table. A level that
cannot be tried, or lets through what it must not, is passed over with the reason said. Runs at each start of an engine
pool; the answer is not cached, for kernels, policies and containers change under us.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import trio

from chain.errors import Environment, Refused
from engines.errors import EngineLost
from engines.sandbox.base import Job, Level, Mount, Sandbox
from engines.sandbox.bubblewrap import Bubblewrap
from engines.sandbox.plain import PlainProcess
from engines.sandbox.process import ConfinedProcess, start
from engines.sandbox.runtime import host_runtime

TRIAL_SECONDS: Final = 20.0
_MAX_REPORT: Final = 1 << 16
_SUSPECT: Final = str(Path(__file__).with_name("suspect.py"))
NEEDED: Final = {"own-loopback": "its own loopback is down", "write-writable": "it cannot write its results"}
"""What must work at every level, with what it means if it does not."""
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
"""What must fail at every level but ``none``."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One level's trial; no ``problems``: it holds."""

    level: Level
    problems: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.level.value}: {'; '.join(self.problems) or 'holds'}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The level in use, and why stronger ones are not."""

    sandbox: Sandbox
    passed_over: tuple[Verdict, ...]

    @property
    def level(self) -> Level:
        return self.sandbox.level


async def choose(minimum: Level, java_homes: Sequence[Path] = ()) -> Choice:
    """The strongest level that holds here. Raises Refused if that is weaker than ``minimum``."""
    passed_over: list[Verdict] = [Verdict(Level.IMAGE, ("engine images are not built yet",))]
    for candidate in _candidates(java_homes):
        if candidate.level.rank < minimum.rank:
            break
        if isinstance(candidate, Verdict):
            passed_over.append(candidate)
            continue
        verdict = await trial(candidate)
        if not verdict.problems:
            return Choice(candidate, tuple(passed_over))
        passed_over.append(verdict)
    raise Refused(
        f"no sandbox of level `{minimum.value}` or better holds here: " + "; ".join(map(str, passed_over)),
        rule="sandbox-level",
        hint="install bubblewrap and allow user namespaces, or accept less with engine.sandbox_minimum",
    )


def _candidates(java_homes: Sequence[Path]) -> Iterator[Sandbox | Verdict]:
    binary = shutil.which("bwrap")
    if binary is None:
        yield Verdict(Level.HOST, ("bubblewrap (bwrap) is not installed",))
    else:
        try:
            yield Bubblewrap(binary, host_runtime(java_homes))
        except Environment as error:
            yield Verdict(Level.HOST, (str(error),))
    yield PlainProcess()


async def trial(sandbox: Sandbox) -> Verdict:
    """Start the suspect in ``sandbox`` and judge what it managed."""
    with tempfile.TemporaryDirectory(prefix="odf-trial-") as folder, _baits(Path(folder)) as task:
        mounts = (
            Mount(Path(folder, "in"), PurePosixPath("/odf/in")),
            Mount(Path(folder, "out"), PurePosixPath("/odf/out"), writable=True),
        )
        places = dict(zip(("readable", "writable"), (str(sandbox.seen(mount)) for mount in mounts), strict=True))
        argv = (sys.executable, "-I", "-S", _SUSPECT, json.dumps({**task, **places}))
        try:
            process = start(sandbox, Job(argv=argv, env={"LANG": "C.UTF-8"}, mounts=mounts))
        except EngineLost as error:
            return Verdict(sandbox.level, (str(error),))
        report, said = await _listen(process)
    return Verdict(sandbox.level, _judge(sandbox.level, report, said))


def _judge(level: Level, report: bytes, said: str) -> tuple[str, ...]:
    try:
        managed = json.loads(report)
    except ValueError:
        return (f"it does not start: {said.strip() or 'no reason given'}",)
    if not isinstance(managed, dict):
        return ("the trial gave no report",)
    problems = [f"{meaning} ({managed.get(name)})" for name, meaning in NEEDED.items() if managed.get(name) != "ok"]
    if level is not Level.NONE:
        problems += [meaning for name, meaning in FORBIDDEN.items() if managed.get(name, "ok") == "ok"]
    return tuple(problems)


async def _listen(process: ConfinedProcess) -> tuple[bytes, str]:
    """Everything it says on both pipes, up to a limit of bytes and time."""
    said: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    async def drain(name: str, stream: trio.lowlevel.FdStream) -> None:
        while len(said[name]) < _MAX_REPORT and (piece := await stream.receive_some(_MAX_REPORT)):
            said[name] += piece

    with trio.move_on_after(TRIAL_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, "stdout", process.stdout)
            nursery.start_soon(drain, "stderr", process.stderr)
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
