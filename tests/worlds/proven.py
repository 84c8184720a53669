"""Leaves out files of the engine's suite that were proven on this machine before, and keeps what a run has proven.

Spark takes most of what `make test` computes, and most commits touch nothing that it sees. A file of `tests/engine` is
proven when all its tests passed, none skipped, in one run of `make test`. It counts for as long as its digest is the
same: of the engine's code (`engines.identity`), of all files that the test file needs, of the locked packages, Java
and platform. What was proven is kept for the user, so that it serves a fresh clone as well.

What a file needs is read from sources: what they import, modules that they name in a text (programs start others so),
files and folders that they name from where they lie, and data beside modules. CI and `make nightly` leave out nothing.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from engines.identity import ENGINE, closure, find_imports

TREE: Final = Path(__file__).parents[2]
SUITE: Final = "tests/engine"
RUN: Final = "--engine-suite"
"""Option with which nothing is left out. No variable: daemons would take it for a setting."""
KEPT: Final = dt.timedelta(days=90)
ALWAYS: Final = ("requirements/lock.txt", "tests/worlds/proven.py")
MARKS: Final = "not nightly"
"""What `make test` selects."""
FEWER: Final = ("ODF_ENGINE_RUNS", "ODF_FUZZ", "ODF_SIM_SEEDS")
"""Environment variables with which a run may try less than `make test` does."""
_NO_DATA: Final = frozenset({".py", ".pyc", ".typed", ".md"})
_NAMED: Final = re.compile(r"""["'](\w+(?:\.\w+)+|test_\w+|conftest)["']""")
_PLACED: Final = re.compile(r"""parents\[(\d)\]((?:\s*/\s*"[\w.-]+")+)""")


class Proof(msgspec.Struct, frozen=True):
    """What was proven: a file, how many of its tests, and when."""

    file: str
    tests: int
    date: str


class Proofs:
    """Proofs in a folder, each in a file by the name of its digest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, digest: str) -> Proof | None:
        try:
            return msgspec.json.decode((self._folder / digest).read_bytes(), type=Proof)
        except (OSError, msgspec.DecodeError):
            return None

    def record(self, digest: str, proof: Proof) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        staged = self._folder / f".{digest}.{os.getpid()}"
        staged.write_bytes(msgspec.json.encode(proof))
        staged.replace(self._folder / digest)

    def forget(self, now: dt.datetime) -> None:
        """Removes proofs older than ``KEPT``."""
        for path in self._folder.glob("*"):
            if path.stat().st_mtime < (now - KEPT).timestamp():
                path.unlink(missing_ok=True)


class Needs:
    """Finds the files that a source file of a tree needs. Each file is read once."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        tops = (tree, tree / "client", tree / "tests")
        self._tops = {path.stem: top for top in reversed(tops) if top.is_dir() for path in top.iterdir()}
        self._nearest: dict[Path, frozenset[Path]] = {}
        self._folders: dict[Path, frozenset[Path]] = {}
        self._digests: dict[Path, str] = {}

    def of(self, files: Iterable[Path]) -> frozenset[Path]:
        found: set[Path] = set()
        waiting = list(files)
        while waiting:
            path = waiting.pop()
            if path not in found:
                found.add(path)
                waiting += self._nearest_of(path)
        return frozenset(found)

    def digest(self, files: Iterable[Path], besides: Mapping[str, str]) -> str:
        """Returns a digest of names and contents of files, and of what else counts."""
        parts = {str(path.relative_to(self._tree)): self._digest_of(path) for path in files}
        text = json.dumps([sorted(parts.items()), sorted(besides.items())])
        return hashlib.sha256(text.encode()).hexdigest()

    def _digest_of(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self._digests[path]

    def _nearest_of(self, path: Path) -> frozenset[Path]:
        if path.suffix != ".py":
            return frozenset()
        if path not in self._nearest:
            self._nearest[path] = frozenset(self._read(path))
        return self._nearest[path]

    def _read(self, path: Path) -> Iterator[Path]:
        source = path.read_text(encoding="utf-8")
        names, named = set(find_imports(source)), set(_NAMED.findall(source))
        for name in names | named | {f"{each}.__main__" for each in named}:
            yield from self._modules_of(name)
        scripts = {name if name.endswith(".py") else f"{name}.py" for name in named}
        places = (place / name for place in (path.parent, self._tree / "tests" / "worlds") for name in scripts)
        yield from (other for other in places if other.is_file())
        yield from self._beside(path.parent)
        for level, parts in _PLACED.findall(source):
            place = path.parents[int(level)].joinpath(*re.findall(r'"([^"]+)"', parts))
            yield from files_below(place) if place != self._tree / "docs" else ()

    def _beside(self, folder: Path) -> frozenset[Path]:
        """Data of the folder, and the packages that hold it."""
        if folder not in self._folders:
            files = {path for path in folder.iterdir() if path.is_file() and path.suffix not in _NO_DATA}
            packages = (parent / "__init__.py" for parent in folder.parents if parent.is_relative_to(self._tree))
            own = folder / "__init__.py"
            held = files if folder != self._tree else set()
            self._folders[folder] = frozenset(held | {path for path in (own, *packages) if path.is_file()})
        return self._folders[folder]

    def _modules_of(self, name: str) -> Iterator[Path]:
        """The module; each asks for the package that holds it."""
        top = self._tops.get(name.partition(".")[0])
        if top is not None:
            place = top.joinpath(*name.split("."))
            yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())


def files_below(place: Path) -> Iterator[Path]:
    """The file, or all files of the folder; what Python compiled is none."""
    if place.is_file():
        yield place
    elif place.is_dir():
        yield from (path for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc")


def digests_of_suite(tree: Path, besides: Mapping[str, str]) -> dict[str, str]:
    """Returns the digest of each test file of the suite, by its path in the tree."""
    needs, folder = Needs(tree), tree / SUITE
    always = {tree / name for name in ALWAYS} | set(closure(ENGINE).values())
    shared = {path for path in always if path.is_relative_to(tree) and path.is_file()}
    found = {}
    for path in sorted(folder.rglob("test_*.py")):
        above = (parent / "conftest.py" for parent in path.parents if parent.is_relative_to(tree / "tests"))
        files = needs.of([path, *(each for each in above if each.is_file()), *shared])
        found[str(path.relative_to(tree))] = needs.digest(files, besides)
    return found


def surroundings() -> dict[str, str]:
    """Java, as it says itself; Python, the platform, and programs without which a test skips."""
    home = os.environ.get("JAVA_HOME") or (
        str(Path(found).resolve().parents[1]) if (found := shutil.which("java")) else ""
    )
    release = Path(home, "release")
    return {
        "java": release.read_text(encoding="utf-8", errors="replace") if home and release.is_file() else home,
        "python": sys.version,
        "platform": f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}",
        "programs": " ".join(name for name in ("bwrap", "podman", "runc") if shutil.which(name)),
    }


def folder_of_proofs(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odfd" / "proven"


def is_whole(environ: Mapping[str, str], config: pytest.Config) -> bool:
    """Whether a run tries all that `make test` does of each file that it takes in."""
    option = config.option
    few = any("::" in each for each in config.args) or option.keyword or option.deselect or option.hypothesis_profile
    return option.markexpr == MARKS and not few and not any(name in environ for name in FEWER)


def takes_in(config: pytest.Config, tree: Path) -> bool:
    """Whether a run takes in files of the suite: the digests of all take as long as a quick file's tests."""
    places, suite = [(tree / each.partition("::")[0]).resolve() for each in config.args], (tree / SUITE).resolve()
    return any(place.is_relative_to(suite) or suite.is_relative_to(place) for place in places)


def leaves_out(environ: Mapping[str, str], config: pytest.Config, tree: Path) -> bool:
    """Whether files may be left out: nobody asked for them, by an option or by name."""
    asked = any((tree / each.partition("::")[0]).resolve().is_relative_to(tree / SUITE) for each in config.args)
    return not (asked or config.option.engine_suite or environ.get("CI"))


class ProvenSuite:
    """A plugin of pytest. Processes of xdist are told by the one that started them what to leave out."""

    def __init__(self, config: pytest.Config, tree: Path = TREE, environ: Mapping[str, str] = os.environ) -> None:
        self._tree = tree
        self._proofs = Proofs(folder_of_proofs(environ))
        self._tests: dict[str, set[str]] = {}
        self._passed: dict[str, set[str]] = {}
        self._spoilt: set[str] = set()
        self._counts = is_whole(environ, config) and takes_in(config, tree)
        self._digests = digests_of_suite(tree, surroundings()) if self._counts else {}
        proven = {file: proof for file, digest in self._digests.items() if (proof := self._proofs.of(digest))}
        self.left_out = proven if leaves_out(environ, config, tree) else {}

    def said(self) -> str | None:
        """One line of what is left out."""
        if not self.left_out:
            return None
        dates, tests = (
            sorted({proof.date for proof in self.left_out.values()}),
            sum(proof.tests for proof in self.left_out.values()),
        )
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        return (
            f"engine suite: {len(self.left_out)} of {len(self._digests)} files ({tests} tests) proven here on {when} "
            f"for their digests; {RUN} or naming a file of it runs them"
        )

    def pytest_report_header(self) -> str | None:
        return self.said()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if said := self.said():
            terminalreporter.write_line(said)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if is_left_out(collection_path, self._tree, self.left_out, self._digests) else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["proven"] = sorted(self.left_out), sorted(self._digests)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        self.collected(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected(item.nodeid for item in session.items)

    def collected(self, ids: Iterable[str]) -> None:
        for test in ids:
            if (file := test.partition("::")[0]) in self._digests:
                self._tests.setdefault(file, set()).add(test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        if file not in self._digests:
            return
        if not report.passed or hasattr(report, "wasxfail"):
            # What goes wrong when a JVM ends may be the work of any test that used it.
            self._spoilt |= {file} if report.when != "teardown" else set(self._digests)
        elif report.when == "call":
            self._passed.setdefault(file, set()).add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.record(dt.datetime.now(dt.UTC))

    def record(self, now: dt.datetime) -> None:
        """Keeps what was proven, unless its files changed meanwhile."""
        proven = {file for file, tests in self._tests.items() if tests == self._passed.get(file)} - self._spoilt
        if not proven:
            return
        after = digests_of_suite(self._tree, surroundings())
        for file in proven:
            if after.get(file) == self._digests[file]:
                proof = Proof(file, len(self._tests[file]), f"{now:%Y-%m-%d}")
                self._proofs.record(self._digests[file], proof)
        self._proofs.forget(now)


class ToldSuite:
    """The same in a process of xdist, which leaves out what it is told."""

    def __init__(self, left_out: Iterable[str], suite: Iterable[str], tree: Path = TREE) -> None:
        self._left_out, self._suite, self._tree = frozenset(left_out), frozenset(suite), tree

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if is_left_out(collection_path, self._tree, self._left_out, self._suite) else None


def is_left_out(path: Path, tree: Path, left_out: Iterable[str], suite: Iterable[str]) -> bool:
    """Whether a file is left out, or all of a folder, whose conftest then is not imported either."""
    if not left_out or not path.is_relative_to(tree / SUITE):
        return False
    name = str(path.relative_to(tree))
    below = {file for file in suite if file == name or file.startswith(f"{name}/")}
    return bool(below) and below <= set(left_out)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(RUN, action="store_true", help="also the files of tests/engine that are proven here")


def pytest_configure(config: pytest.Config) -> None:
    told = getattr(config, "workerinput", None)
    config.pluginmanager.register(ProvenSuite(config) if told is None else ToldSuite(*told["proven"]), "proven-suite")
