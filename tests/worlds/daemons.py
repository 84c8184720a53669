"""Daemons of their own, as people run them, each in a folder of its own; always gone at the end."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from odfd.cli import main
from odfd.cli.kinds import with_state
from worlds.eventually import PATIENCE
from worlds.forked import Descriptor, Forked, Forking
from worlds.shared_spark import SOCKET

TREE = Path(__file__).parents[2]
INSTALLED = [sys.executable, "-m", "odfd.daemon.main", "run", "--state"]
"""``odfd`` as it is installed, for the few tests that are about its start."""


@dataclass
class Said:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def around() -> dict[str, str]:
    """The environment of the tests, without what sets their numbers: a daemon takes it for settings, and refuses."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ODFD_")}


@dataclass
class Daemon:
    """One state directory, and the process over it."""

    folder: Path
    forking: Forking
    more: dict[str, str] = field(default_factory=dict)
    small: bool = False
    """Whether it is the node of ``worlds.small_node``, which needs no JVM."""
    inside: Sequence[str] = ()
    """Files of namespaces that it runs in."""
    spark: Path | None = None
    """The socket of an engine that it shares with others (``worlds.shared_spark``); ``None``: it starts its own."""
    program: list[str] | None = None
    """Started in place of a fork, with the state directory as its last argument."""
    process: subprocess.Popen[bytes] | Forked | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = self.folder / "s"
        self.socket = self.state / "control.sock"
        self.log = self.folder / "log"

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "PYTHONPATH": str(TREE),
            "PYTHONWARNINGS": "ignore",
            "ODFD_P2P_LISTEN": "",  # never on other addresses than the loopback's
            "ODFD_ENGINE_QUICK_START": "true",
            "ODFD_POLICY_PUBLISH_DATASETS": "true",
            "ODFD_ENGINE_IDLE_SECONDS": "60",
            "ODFD_ENGINE_START_SECONDS": "600",  # under load
            # Nothing is derived that a test does not pull: how often would be a matter of chance.
            "ODFD_FLOWS_FOLLOW": "false",
            # Files here are whole when they are named; a daemon waits a second for each new one.
            "ODFD_INGEST_SETTLE_SECONDS": "0",
            **self.more,
        }

    def spawn(self, *words: str) -> subprocess.Popen[bytes] | Forked:
        environ = {**around(), **self.environ}
        with self.log.open("ab") as log:
            if self.program is None:
                words = ("run", "--state", str(self.state), *words)
                name = "small" if self.small else "odfd"
                if self.spark is not None:
                    name, environ = "shared", {**environ, SOCKET: str(self.spark)}
                self.process = self.forking.start(name, words, environ, out=log, inside=self.inside)
            else:
                command = [*self.program, str(self.state), *words]
                self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        return self.process

    def start(self, *words: str) -> Daemon:
        """Until it says that it is ready."""
        assert self.gets_ready(*words), self.told()
        return self

    def gets_ready(self, *words: str) -> bool:
        """Starts it, and returns whether it says that it is ready before it ends."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            notify = self.folder / "n"
            notify.unlink(missing_ok=True)
            manager.bind(str(notify))
            manager.setblocking(False)
            self.more["NOTIFY_SOCKET"] = str(notify)
            process = self.spawn(*words)
            del self.more["NOTIFY_SOCKET"]
            with suppress(ProcessLookupError):  # it has ended already
                ended = os.pidfd_open(process.pid)
                assert select.select([manager, ended], [], [], PATIENCE)[0], self.told()
                os.close(ended)
            with suppress(BlockingIOError):
                return manager.recv(4096).startswith(b"READY=1")
            return False

    def refuses(self, *words: str) -> Said:
        """A start that must fail: its code, and what it said last."""
        process = self.spawn(*words)
        code = process.wait(PATIENCE)
        self.process = None
        lines = [line for line in self.told().splitlines() if not line.startswith("{")]
        start = max((number for number, line in enumerate(lines) if line.startswith("error: ")), default=0)
        return Said(code, "", "\n".join(lines[start:]))

    def told(self) -> str:
        return self.log.read_text(errors="replace")

    def ctl(self, *words: str, stdin: bytes = b"", **environ: str) -> Said:
        """Runs ``odfctl`` as a process."""
        done = self.forking.run("odfctl", self._at(words), {**around(), **self.environ, **environ}, stdin)
        return Said(done.returncode, done.stdout.decode(), done.stderr.decode())

    def begin(self, *words: str, out: Descriptor = subprocess.DEVNULL, err: Descriptor = subprocess.DEVNULL) -> Forked:
        """Begins ``odfctl``, and does not wait for its end."""
        return self.forking.start("odfctl", self._at(words), {**around(), **self.environ}, out=out, err=err)

    def _at(self, words: Sequence[str]) -> Sequence[str]:
        return ["--socket", str(self.socket), *words]

    def said(self, *words: str) -> Said:
        """As ``ctl``, by the command's code in this process: to start another takes a hundred times as long."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main.main(["--socket", str(self.socket), *words])
        return Said(code, out.getvalue(), err.getvalue())

    def ask(self, *words: str) -> Any:
        """The JSON of a command that must succeed."""
        said = self.said(*words, "-o", "json")
        assert said.code == 0, (words, said.err, self.told()[-2000:])
        return said.json

    def datasets(self, *names: str) -> list[dict[str, Any]]:
        """The states of all datasets, or of those that are named, each with its name and its did as ``id``."""
        found = self.ask("get", "datasets", *names)
        return [
            {**with_state(each), "name": each["headers"]["name"], "id": each["spec"]["did"]}
            for each in (found if isinstance(found, list) else [found])
        ]

    def dataset(self, name: str) -> dict[str, Any]:
        (found,) = self.datasets(name)
        return found

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.process = None

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        self.process = None
        return code

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None and self.said("status").code == 0


@pytest.fixture
def make_daemon(tmp_path: Path, forking: Forking) -> Iterator[Callable[..., Daemon]]:
    made: list[Daemon] = []

    def make(name: str = "a", listens: bool = False, small: bool = False, **environ: str) -> Daemon:
        at = {"ODFD_P2P_LISTEN": "/ip4/127.0.0.1/tcp/0"} if listens else {}
        made.append(Daemon(tmp_path / name, forking, at | environ, small))
        return made[-1]

    yield make
    for daemon in made:
        daemon.close()


@pytest.fixture
def make_with_spark(make_daemon: Callable[..., Daemon], shared_spark: Path) -> Callable[..., Daemon]:
    """Makes daemons that share one engine."""

    def make(*given: str, **environ: Any) -> Daemon:
        daemon = make_daemon(*given, **environ)
        daemon.spark = shared_spark
        return daemon

    return make


@pytest.fixture
def golden() -> Path:
    return TREE / "tests" / "golden" / "kamu"
