"""What tests share is tested too: owners of what is left behind, and parts that a machine lacks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from worlds import leaks
from worlds.eventually import PATIENCE
from worlds.parts import ALL, NIGHTLY, TREE, load_parts, read_parts
from worlds.required_parts import judge

# A test that leaves something behind fails by name, and the next one passes.


TESTS = """
import mmap, os, socket, subprocess, sys, threading, weakref
import pytest
from worlds.leaks import keep

ALL, LET = [], threading.Event()
SLEEP = [sys.executable, "-IS", "-c", "input()"]

class Cycle:
    def __init__(self, has):
        self.has, self.me = has, self

def serve():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server

of_module = pytest.fixture(scope="module")(serve)
of_test = pytest.fixture(serve)

def process():
    ALL.append(subprocess.Popen(SLEEP, stdin=subprocess.PIPE))
    return ALL[-1]

def test_process():
    process()

def test_dead_process():
    process().stdin.close()
    os.waitid(os.P_PID, ALL[-1].pid, os.WEXITED | os.WNOWAIT)

def test_thread():
    threading.Thread(target=LET.wait, name="a thread of mine").start()

def test_socket():
    ALL.append(socket.socket())

def test_listening():
    ALL.append(socket.create_server(("127.0.0.1", 0)))

def test_pipe():
    ALL.append(os.pipe())

def test_file():
    ALL.append(open(__file__, "a"))

def test_unclosed_file():
    Cycle(open(__file__))

def test_garbage():
    Cycle(socket.socket())

def test_failed():
    ALL.append(socket.socket())
    assert False

@pytest.fixture
def forgetful():
    ALL.append(socket.socket())

def test_of_fixture(forgetful): ...

def test_none():
    subprocess.run(SLEEP, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    thread = threading.Thread(target=socket.socket().close)
    thread.start()
    thread.join()

def test_garbage_that_a_finalizer_closes():
    has = socket.socket()
    weakref.finalize(Cycle(None), has.close)

@pytest.fixture
def ended():
    server = socket.socket()
    yield
    server.close()

def test_of_test(ended): ...

def test_of_module(of_module): ...

def test_of_module_again(of_module): ...

def test_of_server(of_module):
    with socket.create_connection(of_module.getsockname()):
        ALL.append(of_module.accept())

def test_client_of_server(of_module):
    ALL.append(socket.create_connection(of_module.getsockname()))

def test_read():
    with open(__file__) as file:
        ALL.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

def test_kept():
    with keep("all"):
        ALL.append(socket.socket())

def test_last(of_module):
    LET.set()
    ALL.append(of_module.dup())
"""
WANTED = {
    "process": r"open \d+ -> pipe:\[\d+\]; process \S*python\S* -IS -c input\(\) ",
    "dead_process": "process a dead one that nobody waited for",
    "thread": "thread a thread of mine",
    "socket": r"open \d+ -> socket:\[\d+\]",
    "listening": r"open \d+ -> socket:\[\d+\]",
    "pipe": r"open \d+ -> pipe:\[\d+\]; open \d+ -> pipe:\[\d+\]",
    "file": r"open \d+ -> \S+/test_all.py",
    "unclosed_file": "unclosed file <_io.*>",
    "garbage": "unclosed <socket.socket .*>",
    "of_fixture": r"open \d+ -> socket:\[\d+\]",
    "client_of_server": r"open \d+ -> socket:\[\d+\]",
    "last": r"open \d+ -> socket:\[\d+\]",
}
"""What each of them is told to have left; the others are told nothing."""


def watched(folder: Path, tests: str, *before: str) -> str:
    """Runs tests with owners in a process of its own, behind other commands. Returns what it said."""
    (folder / "test_all.py").write_text(tests)
    options = ["-p", "worlds.leaks", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=.", "-n0", "--tb=short"]
    environ = {"PYTHONPATH": str(Path(leaks.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [*before, sys.executable, "-m", "pytest", *options, "-W", "error", "test_all.py"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environ,
        cwd=folder,
        check=False,
    ).stdout


def test_who_leaves_something_fails_by_name_and_the_next_passes(tmp_path: Path) -> None:
    said = watched(tmp_path, TESTS)
    told = dict(re.findall(r"ERROR at teardown of test_(\w+) _+\nleft behind: (.*)", said))
    assert told.keys() == WANTED.keys(), said
    assert not [(name, what) for name, what in told.items() if not re.fullmatch(WANTED[name], what)]
    ran = TESTS.count("def test_")
    assert f"1 failed, {ran - 1} passed, {len(WANTED)} errors" in said


READS = """
import io, signal
from pyarrow import csv

def test_reads():
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    csv.read_csv(io.BytesIO(b"a\\n1\\n"))
    signal.signal(signal.SIGTERM, before)
"""


def test_no_test_is_blamed_for_the_pipe_of_arrow_in_the_background(tmp_path: Path) -> None:
    assert "1 passed in" in watched(tmp_path, READS, "env", "--ignore-signal=INT")


# Parts of a machine: the table is whole, each skip of the tests has a row, and a required part fails what skips.


SMALL = r"""
[there]
programs = ["sh"]
reason = "no shell"
carries = "scripts"

[lost]
programs = ["no-such-program"]
apt = ["lost"]
reason = "no-such-program"
carries = "nothing"

[large]
files = ["no/such/file"]
make = "large"
reason = "large"
carries = "images"
nightly = true

[allowed]
soak = "ODF_SOAK"
"""


def test_missing_parts_are_told_with_what_they_carry() -> None:
    parts = read_parts(SMALL)
    assert [part.name for part in parts.missing([ALL])] == ["lost"]
    assert [part.name for part in parts.missing([NIGHTLY])] == ["lost", "large"]
    assert parts.missing(["there"]) == []
    assert parts.parts[1].source == "Debian: lost"
    with pytest.raises(ValueError, match="no part is called shell"):
        parts.missing(["shell"])


@pytest.mark.parametrize(
    ("reason", "names", "why"),
    [
        ("no-such-program is not installed", [ALL], "lost is required"),
        ("no-such-program is not installed", ["there"], None),
        ("no large image", [ALL], None),
        ("no large image", [NIGHTLY], "large is required"),
        ("an hour; ODF_SOAK=1 runs it", [NIGHTLY], None),
        ("somebody was tired", ["there"], "no row of tests/parts.toml has this reason"),
    ],
)
def test_a_skip_fails_where_its_part_is_required(reason: str, names: list[str], why: str | None) -> None:
    parts = read_parts(SMALL)
    assert parts.blame(reason, names) == why
    report = pytest.TestReport("a::b", ("a", 1, "b"), {}, "skipped", ("a", 1, f"Skipped: {reason}"), "call")
    judge(report, parts, names)
    assert (report.outcome, "skipped though" in str(report.longrepr)) == (
        ("skipped", False) if why is None else ("failed", True)
    )


def test_nothing_is_required_unless_somebody_says_so() -> None:
    report = pytest.TestReport("a::b", ("a", 1, "b"), {}, "skipped", ("a", 1, "Skipped: no-such-program"), "call")
    judge(report, read_parts(SMALL), [])
    assert report.skipped


def test_every_skip_that_names_its_reason_has_a_row() -> None:
    parts, unknown = load_parts(), []
    for path in sorted(Path(TREE, "tests").rglob("*.py")):
        for reason in re.findall(r"(?:pytest\.skip\(f?|skipif\(.*reason=)\"([^\"]+)\"", path.read_text()):
            spoken = re.sub(r"\{[^}]*\}", "fish", reason)
            if "not installed" not in spoken and parts.blame(spoken, [NIGHTLY]) == parts.blame("?", [NIGHTLY]):
                unknown.append(f"{path.relative_to(TREE)}: {reason}")
    assert not unknown


def test_each_target_of_the_table_is_in_the_makefile() -> None:
    makefile = (TREE / "Makefile").read_text()
    assert [part.make for part in load_parts().parts if part.make and f"\n{part.make}:" not in makefile] == []
