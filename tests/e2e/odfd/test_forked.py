"""What the server of forks starts is a process like one of its own: tests of daemons and documents rest on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from worlds.eventually import PATIENCE, until
from worlds.forked import Forking

pytestmark = pytest.mark.e2e
TELL, WAIT = "worlds.fork_probe:tell", "worlds.fork_probe:wait"
ENVIRON = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "NAME": "a=b\nc", "WORD": "grün"}


@pytest.fixture(autouse=True)
def nothing_ignored() -> Iterator[None]:
    """Whoever began the tests in the background has a shell that ignores these, and what it begins does too."""
    before = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGHUP, signal.SIGQUIT)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
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


def test_a_fork_finds_what_it_was_given_and_nothing_of_the_server(forking: Forking) -> None:
    first, second = (forking.run(TELL, ["7", "grün", ""], ENVIRON, b"in") for _ in range(2))
    for done in (first, second):
        assert (done.returncode, done.stderr) == (7, b"told\n")
        check_told(json.loads(done.stdout), ["7", "grün", ""])
        assert json.loads(done.stdout)["stdin"] == "in"
    assert json.loads(first.stdout)["random"] != json.loads(second.stdout)["random"]


def test_a_shim_is_the_program_to_whoever_calls_it(shims: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [shims / "tell", "3", "grün"], input=b"in", env=ENVIRON, cwd=tmp_path, umask=0o027, capture_output=True
    )
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (3, b"told\n")
    check_told(told, ["3", "grün"])
    assert (told["folder"], told["umask"], told["stdin"]) == (str(tmp_path), 0o027, "in")


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_a_shim_comes_to_the_program(shims: Path, number: signal.Signals) -> None:
    with waiting(shims) as (shim, _):
        shim.send_signal(number)
        assert shim.wait(PATIENCE) == number


def test_a_program_that_is_killed_and_its_shim_die_of_the_same(shims: Path) -> None:
    with waiting(shims) as (shim, process):
        os.kill(process, signal.SIGKILL)
        assert shim.wait(PATIENCE) == -signal.SIGKILL


def test_a_program_dies_with_its_shim(shims: Path) -> None:
    with waiting(shims) as (shim, process):
        shim.kill()
        until(lambda: not Path(f"/proc/{process}").exists())


def test_nothing_outlives_the_server() -> None:
    server = Forking()
    with Path(os.devnull).open("wb") as out:
        process = server.start(WAIT, [], ENVIRON, out=out)
    server.close()
    assert not Path(f"/proc/{process.pid}").exists()
    assert process.wait(PATIENCE) == -signal.SIGKILL
