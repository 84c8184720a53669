"""A daemon process from its start to its end: what the service manager, the shell and odfctl see of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from worlds.eventually import PATIENCE, until
from worlds.forked import Forking

pytestmark = pytest.mark.e2e
FRAME = Path(__file__).with_name("frame.py")
GIVEN_FD = 9
"""A descriptor that is free in the child, to pass the socket by."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets children that are started in the block take ^C as a terminal's do, also where a script in the background
    runs the tests, which inherit it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Daemon:
    def __init__(self, folder: Path) -> None:
        self.state = folder / "s"
        self.socket = self.state / "control.sock"
        self.file = folder / "odfd.toml"
        self.file.touch()
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(folder / "n"))
        self.manager.settimeout(PATIENCE)
        self.log = folder / "log"
        self.environ = {**os.environ, "NOTIFY_SOCKET": str(folder / "n")}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = self.spawn()
        assert self.note().startswith("READY=1\nSTATUS=listening on ")

    def spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(FRAME), str(self.state), str(self.file)]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self.environ)

    def note(self) -> str:
        return self.manager.recv(4096).decode()

    def ctl(self, *words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "odfd.cli.main", "--socket", str(self.socket), *words]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE, check=False)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.manager.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    made.close()


def told(daemon: Daemon) -> list[dict[str, Any]]:
    return [json.loads(line) for line in daemon.log.read_text().splitlines() if line.startswith("{")]


def test_start_serve_stop(daemon: Daemon) -> None:
    daemon.start()
    status = daemon.ctl("status", "-o", "json")
    assert (status.returncode, status.stderr) == (0, b"")
    assert json.loads(status.stdout)["name"] == "alice"
    assert (daemon.socket.stat().st_mode & 0o777) == 0o600
    assert daemon.stop() == 0
    assert daemon.note() == "STOPPING=1\nSTATUS=draining after SIGTERM"
    assert not daemon.socket.exists()
    assert [line["child"] for line in told(daemon) if line["event"] == "stopped"] == ["control", "tasks"]
    assert "closed" in [line["event"] for line in told(daemon)]
    gone = daemon.ctl("status")
    assert gone.returncode == 3
    assert b"no daemon listens at" in gone.stderr


def test_a_second_daemon_is_told_and_the_first_lives(daemon: Daemon) -> None:
    daemon.start()
    second = daemon.spawn()
    assert second.wait(PATIENCE) == 7
    assert "another daemon listens on" in daemon.log.read_text()
    assert daemon.ctl("status").returncode == 0


def test_after_a_kill_the_stale_socket_is_replaced(daemon: Daemon) -> None:
    daemon.start()
    daemon.stop(signal.SIGKILL)
    assert daemon.socket.exists()
    assert daemon.ctl("status").returncode == 3
    daemon.start()
    assert daemon.ctl("status").returncode == 0


def test_hangup_reloads_and_bad_settings_are_not_taken_over(daemon: Daemon) -> None:
    daemon.start()
    assert daemon.process is not None
    daemon.file.write_text('[node]\nname = "second"\n')
    daemon.process.send_signal(signal.SIGHUP)
    assert daemon.note().startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert daemon.note() == "READY=1\nSTATUS=settings taken over"
    assert [line["names"] for line in told(daemon) if line["event"] == "settings changed"] == ["node.name"]
    daemon.file.write_text("[node]\nnam = 1\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.note()
    assert "there is no setting node.nam" in daemon.note()
    events = daemon.ctl("status")
    assert events.returncode == 0


def test_a_socket_of_the_service_manager_is_served_and_left(daemon: Daemon, tmp_path: Path) -> None:
    given = tmp_path / "given.sock"
    # systemd sets LISTEN_PID between fork and exec; a shell that replaces itself does the same.
    shell = f'export LISTEN_FDS=1 LISTEN_FDNAMES=control LISTEN_PID=$$; exec "$@" {GIVEN_FD}<&-'
    command = ["/bin/bash", "-c", shell, "-", sys.executable, str(FRAME), str(daemon.state), str(daemon.file)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, daemon.log.open("ab") as log:
        listener.bind(str(given))
        listener.listen()
        daemon.process = subprocess.Popen(
            command, stdout=log, stderr=log, env=daemon.environ, close_fds=False,
            preexec_fn=lambda: (os.dup2(listener.fileno(), GIVEN_FD), os.dup2(GIVEN_FD, 3)),
        )  # fmt: skip
        assert daemon.note().startswith("READY=1")
        assert not daemon.socket.exists()
        daemon.socket = given
        assert daemon.ctl("status").returncode == 0
        assert daemon.stop() == 0
    assert given.exists()


def test_draining_has_an_end(daemon: Daemon) -> None:
    daemon.file.write_text("[node]\ndrain-seconds = 0.2\n")
    daemon.start()
    with subprocess.Popen(
        [sys.executable, "-m", "odfd.cli.main", "--socket", str(daemon.socket), "pull", "never"],
        stderr=subprocess.PIPE,
    ) as puller:
        tasks: list[Any] = []
        while not tasks:
            tasks = json.loads(daemon.ctl("get", "tasks", "-o", "json").stdout)
        assert daemon.stop() == 0
        assert puller.wait(PATIENCE) in (3, 4)
    assert "cancelled" in [line["event"] for line in told(daemon)]


def test_data_goes_in_from_files_and_from_standard_input(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start()
    file = tmp_path / "january.csv"
    file.write_bytes(b"x" * 700_000)
    done = daemon.ctl("ingest", "nyc.flights", str(file), "-", "-o", "json", stdin=b"y" * 70_000)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["items"][0]["records"] == 770_000


def test_detaching_leaves_the_task_running(daemon: Daemon) -> None:
    daemon.start()
    command = [sys.executable, "-m", "odfd.cli.main", "--socket", str(daemon.socket), "pull", "never"]
    terminal, theirs = os.openpty()
    with interruptible(), os.fdopen(terminal, "rb", 0) as shown, subprocess.Popen(command, stderr=theirs) as puller:
        os.close(theirs)
        said = ""
        # Once it draws how far the task is, it knows which task that is.
        while "never" not in said:
            said += shown.read(4096).decode()
        puller.send_signal(signal.SIGINT)
        try:
            with suppress(OSError):  # the end of a terminal
                while True:
                    said += shown.read(4096).decode()
            assert puller.wait(PATIENCE) == 130
        finally:
            puller.kill()
    (task,) = json.loads(daemon.ctl("get", "tasks", "-o", "json").stdout)
    name = task["headers"]["name"]
    assert with_state(task)["state"] == "running"
    assert f"delete task {name}" in said
    assert daemon.ctl("delete", "task", name).returncode == 0
    assert daemon.ctl("wait", "task", name, "--for", "state=cancelled", "--timeout", f"{PATIENCE:.0f}s").returncode == 0


# What the server of forks starts is a process like one of its own: tests of daemons and documents rest on it.

TELL, WAIT = "worlds.fork_probe:tell", "worlds.fork_probe:wait"
ENVIRON = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "NAME": "a=b\nc", "WORD": "grün"}


@pytest.fixture
def nothing_ignored() -> Iterator[None]:
    """Whoever began the tests in the background has a shell that ignores these, and what it begins does too."""
    before = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGHUP, signal.SIGQUIT)}
    with interruptible():
        yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.fixture
def shims(forking: Forking, tmp_path: Path) -> Path:
    forking.write_shims(tmp_path / "bin", tell=TELL, wait=WAIT)
    return tmp_path / "bin"


def check_told(told: dict[str, Any], words: list[str]) -> None:
    assert told["words"] == words
    assert told["environ"] == ENVIRON
    assert told["session"] == told["pid"]
    assert told["threads"] == 1
    assert told["open"] == [0, 1, 2]
    assert told["handled"] == [signal.SIGINT]
    assert {each for each in told["ignored"] if each <= signal.SIGTERM} == {signal.SIGPIPE}


@pytest.mark.usefixtures("nothing_ignored")
def test_a_fork_finds_what_it_was_given_and_nothing_of_the_server(forking: Forking) -> None:
    first, second = (forking.run(TELL, ["7", "grün", ""], ENVIRON, b"in") for _ in range(2))
    for done in (first, second):
        assert (done.returncode, done.stderr) == (7, b"told\n")
        check_told(json.loads(done.stdout), ["7", "grün", ""])
        assert json.loads(done.stdout)["stdin"] == "in"
    assert json.loads(first.stdout)["random"] != json.loads(second.stdout)["random"]


@pytest.mark.usefixtures("nothing_ignored")
def test_a_shim_is_the_program_to_whoever_calls_it(shims: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [shims / "tell", "3", "grün"], input=b"in", env=ENVIRON, cwd=tmp_path, umask=0o027, capture_output=True
    )
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (3, b"told\n")
    check_told(told, ["3", "grün"])
    assert (told["folder"], told["umask"], told["stdin"]) == (str(tmp_path), 0o027, "in")


@pytest.mark.usefixtures("nothing_ignored")
def test_what_a_caller_ignores_is_ignored(shims: Path) -> None:
    script = f"trap '' INT HUP; {shims / 'tell'} 0 < /dev/null"
    told = json.loads(subprocess.run(["/bin/bash", "-c", script], env=ENVIRON, capture_output=True).stdout)
    assert {signal.SIGINT, signal.SIGHUP} <= set(told["ignored"])


@contextmanager
def waiting(shims: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A shim, and the number of the process that runs for it."""
    with subprocess.Popen([shims / "wait"], env=ENVIRON, stdout=subprocess.PIPE, text=True) as shim:
        assert shim.stdout is not None
        yield shim, int(shim.stdout.readline())


@pytest.mark.usefixtures("nothing_ignored")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_a_shim_comes_to_the_program(shims: Path, number: signal.Signals) -> None:
    with waiting(shims) as (shim, _):
        shim.send_signal(number)
        assert shim.wait(PATIENCE) == number


@pytest.mark.usefixtures("nothing_ignored")
def test_a_program_that_is_killed_and_its_shim_die_of_the_same(shims: Path) -> None:
    with waiting(shims) as (shim, process):
        os.kill(process, signal.SIGKILL)
        assert shim.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.usefixtures("nothing_ignored")
def test_a_program_dies_with_its_shim(shims: Path) -> None:
    with waiting(shims) as (shim, process):
        shim.kill()
        until(lambda: not Path(f"/proc/{process}").exists())


@pytest.mark.usefixtures("nothing_ignored")
def test_nothing_outlives_the_server() -> None:
    server = Forking()
    with Path(os.devnull).open("wb") as out:
        process = server.start(WAIT, [], ENVIRON, out=out)
    server.close()
    assert not Path(f"/proc/{process.pid}").exists()
    assert process.wait(PATIENCE) == -signal.SIGKILL
