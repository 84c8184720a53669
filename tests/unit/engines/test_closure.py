"""The engine's digest covers what it may import and no other file; its suite leaves files out by such digests."""

from __future__ import annotations

import ast
import datetime as dt
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from engines.identity import ENGINE, OURS, FileDigests, closure, code_digest, code_digests, files_of, find_imports
from worlds import proven
from worlds.proven import Proof, Proofs, ProvenSuite, ToldSuite

TREE = Path(__file__).parents[3]
SOURCES = sorted(path for name in OURS for path in (TREE / name).rglob("*.py"))
FROM_TEXT = {"import_module", "__import__", "run_module", "run_path", "exec", "eval", "spec_from_file_location"}
BUILT_IN = {"exec", "eval"}
"""Of these; a method called so is another thing: expressions of the JVM have one."""
ALL_STATEMENTS = """
import ast, importlib, sys
from pathlib import Path

here, names = Path(sys.argv[1]), sys.argv[2:]
sys.path.insert(0, str(here))
for name in names:
    module = importlib.import_module(name)
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__":
            exec(compile(ast.Module([node], []), name, "exec"), {"__name__": name, "__package__": name})
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] in ("chain", "config", "engines", "odfd", "p2p"):
        assert Path(module.__file__).is_relative_to(here), module.__file__
        print(name)
"""


def by_syntax(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            yield from (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))


def ours(names: Iterator[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] in OURS}


@pytest.mark.slow
@pytest.mark.parametrize("package", OURS)
def test_imports_are_found_by_their_form_as_by_syntax(package: str) -> None:
    files = [path for path in SOURCES if path.is_relative_to(TREE / package)]
    assert len(files) > 4
    for path in files:
        assert ours(find_imports(path.read_text())) == ours(by_syntax(path)), path


def test_a_lazy_import_is_an_import(tmp_path: Path) -> None:
    source = """
def late():
    from chain.store import sqlite as rows, seals  # why
    import engines.client as client, chain.walk
    if client:
        from chain.rules import (
            check,  # all of them
            chain_check,
        )
"""
    path = tmp_path / "late.py"
    path.write_text(source)
    assert ours(find_imports(source)) == ours(by_syntax(path))
    assert {"chain.store.sqlite", "chain.store.seals", "chain.walk", "chain.rules.check"} <= set(find_imports(source))


@pytest.mark.slow
def test_a_fresh_process_imports_the_closure_and_nothing_else(tmp_path: Path) -> None:
    """Each import of each module is made, those inside of functions too, where nothing but the closure is."""
    for name, path in files_of(ENGINE).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / name)
    argv = (sys.executable, "-P", "-c", ALL_STATEMENTS, str(tmp_path), *closure(ENGINE))
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == sorted(closure(ENGINE))


def called_by(function: ast.expr) -> tuple[str, set[str]]:
    """The name that is called, and the names that tell of an import by text where it stands."""
    if isinstance(function, ast.Attribute):
        return function.attr, FROM_TEXT - BUILT_IN
    return getattr(function, "id", ""), FROM_TEXT


@pytest.mark.slow
def test_no_module_of_the_engine_imports_from_text() -> None:
    called = {
        (name, part)
        for name, path in closure(ENGINE).items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for part, known in [called_by(node.func)]
        if part in known
    }
    assert not called


@pytest.mark.slow
def test_the_digest_covers_code_and_data_of_the_engine_alone() -> None:
    names = set(code_digests(FileDigests(None)))
    package = {str(path.relative_to(TREE)) for path in (TREE / "engines" / "spark").rglob("*.py")}
    assert package <= names, "all of it is imported, or nobody needs it"
    assert {"engines/spark/analysis/functions.tsv", "chain/data/ddl.py", "engines/service.py"} <= names
    assert not {name for name in names if name.startswith(("chain/store/s", "chain/rules", "chain/statements"))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "other"),
    [
        ("chain/store/sqlite.py", False),
        ("chain/statements/tree.py", False),
        ("engines/client.py", False),
        ("chain/data/ddl.py", True),
        ("engines/spark/analysis/functions.tsv", True),
    ],
)
def test_only_what_runs_inside_makes_another_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, other: bool
) -> None:
    before = code_digest(FileDigests(None))
    for name in OURS:
        shutil.copytree(TREE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / changed).open("a") as file:
        file.write("# a word\n")
    find = {name: tmp_path / name / "__init__.py" for name in OURS}
    monkeypatch.setattr(
        "engines.identity.importlib.util.find_spec", lambda name: type("Spec", (), {"origin": str(find[name])})
    )
    assert (code_digest(FileDigests(None)) != before) is other


# A file of the engine's suite is left out where all that it needs is as it was when it passed, and only there.

OPTIONS = {
    "markexpr": "not nightly",
    "keyword": "",
    "deselect": None,
    "hypothesis_profile": None,
    "engine_suite": False,
}
NOW = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
FIRST, SECOND = "tests/engine/a/test_first.py", "tests/engine/b/test_second.py"
FILES = {
    FIRST: "from worlds.helper import help_it\n",
    SECOND: 'from pathlib import Path\nDATA = Path(__file__).parents[2] / "golden" / "rows"\nRUN = "odfd.tool"\n',
    "tests/engine/conftest.py": "import chain.ids\n",
    "tests/worlds/helper.py": "def late():\n    from odfd import core\n",
    "tests/worlds/other.py": "",
    "tests/golden/rows/one.json": "1",
    "tests/golden/another.json": "1",
    "odfd/__init__.py": "",
    "odfd/core.py": "",
    "odfd/tool.py": "",
    "odfd/unused.py": "",
    "chain/__init__.py": "",
    "chain/ids.py": "",
    "chain/units.tsv": "m\n",
    "requirements/lock.txt": "pyspark==4.3.0\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    return tmp_path / "tree"


@pytest.fixture
def started(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ProvenSuite]:
    """A run of pytest, as its plugin sees it."""
    monkeypatch.setattr(proven, "surroundings", lambda: {"java": "25"})

    def start(
        *arguments: str, environ: Mapping[str, str] = MappingProxyType({}), **options: str | bool | list[str]
    ) -> ProvenSuite:
        config: Any = SimpleNamespace(args=list(arguments or ("tests",)), option=SimpleNamespace(**(OPTIONS | options)))
        return ProvenSuite(config, tree, {"XDG_CACHE_HOME": str(tmp_path / "cache"), **environ})

    return start


def tell(suite: ProvenSuite, outcomes: Mapping[str, str], when: str = "call") -> None:
    """Collects tests and reports each."""
    suite.collected(outcomes)
    for test, outcome in outcomes.items():
        report = pytest.TestReport(test, ("", 0, ""), {}, outcome, None, when)  # type: ignore[arg-type]
        suite.pytest_runtest_logreport(report)


PASSED = {f"{FIRST}::one": "passed", f"{FIRST}::two[a]": "passed", f"{SECOND}::one": "passed"}


def passes(part: ProvenSuite) -> None:
    """All its tests pass, and it says so."""
    tell(part, PASSED)
    part.record(NOW)


def test_what_passed_whole_is_left_out_the_next_time_and_told(started: Callable[..., ProvenSuite], tree: Path) -> None:
    first = started()
    assert first.left_out == {}
    assert first.said() is None
    passes(first)
    again = started()
    assert again.left_out == {FIRST: Proof(FIRST, 2, "2026-11-30"), SECOND: Proof(SECOND, 1, "2026-11-30")}
    assert again.said() == (
        "engine suite: 2 of 2 files (3 tests) proven here on 2026-11-30 for their digests; "
        "--engine-suite or naming a file of it runs them"
    )
    assert again.pytest_report_header() == again.said()
    for each in (FIRST, "tests/engine/a", "tests/engine"):
        assert again.pytest_ignore_collect(tree / each) is True
    for each in ("tests", "tests/unit", "tests/engine/c", "odfd"):
        assert again.pytest_ignore_collect(tree / each) is None


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((), {"engine_suite": True}),
        ((), {"environ": {"CI": "true"}}),
        ((FIRST,), {}),
        (("tests/engine",), {}),
        ((f"{FIRST}::one",), {}),
        (("tests/unit", SECOND), {}),
    ],
)
def test_whoever_asks_for_the_suite_gets_it(
    started: Callable[..., ProvenSuite], arguments: tuple[str, ...], options: dict[str, Any]
) -> None:
    passes(started())
    assert started().left_out
    assert not started(*arguments, **options).left_out


@pytest.mark.parametrize(("arguments", "read"), [(("tests/unit",), 0), (("tests/unit", SECOND), 1), ((".",), 1)])
def test_digests_are_made_for_a_run_that_takes_in_the_suite_alone(
    started: Callable[..., ProvenSuite], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], read: int
) -> None:
    made = []
    monkeypatch.setattr(proven, "digests_of_suite", lambda *_: made.append(1) or {})
    started(*arguments)
    assert len(made) == read


@pytest.mark.parametrize(
    "run",
    [
        {"markexpr": ""},
        {"markexpr": "not nightly and not slow"},
        {"keyword": "one"},
        {"deselect": [FIRST]},
        {"hypothesis_profile": "quick"},
        {"environ": {"ODF_ENGINE_RUNS": "1"}},
        {"arguments": (f"{FIRST}::one",)},
    ],
)
def test_a_run_that_tries_less_or_other_things_proves_and_leaves_out_nothing(
    started: Callable[..., ProvenSuite], run: dict[str, Any]
) -> None:
    passes(started(*run.pop("arguments", ()), **run))
    assert not started().left_out


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        (FIRST, {FIRST}),
        ("tests/worlds/helper.py", {FIRST}),
        ("odfd/core.py", {FIRST}),
        ("odfd/tool.py", {SECOND}),
        ("tests/golden/rows/one.json", {SECOND}),
        ("tests/engine/conftest.py", {FIRST, SECOND}),
        ("chain/ids.py", {FIRST, SECOND}),
        ("chain/units.tsv", {FIRST, SECOND}),
        ("requirements/lock.txt", {FIRST, SECOND}),
        ("odfd/__init__.py", {FIRST, SECOND}),
        ("odfd/unused.py", set()),
        ("tests/golden/another.json", set()),
        ("tests/worlds/other.py", set()),
    ],
)
def test_a_file_runs_again_when_something_that_it_needs_changed(
    started: Callable[..., ProvenSuite], tree: Path, changed: str, again: set[str]
) -> None:
    """What it imports, data beside that, what it names in a text, and folders that it names from where it lies."""
    passes(started())
    (tree / changed).write_text((tree / changed).read_text() + "\n# changed\n")
    assert {FIRST, SECOND} - set(started().left_out) == again


def test_another_java_is_another_digest(started: Callable[..., ProvenSuite], monkeypatch: pytest.MonkeyPatch) -> None:
    passes(started())
    monkeypatch.setattr(proven, "surroundings", lambda: {"java": "26"})
    assert not started().left_out


@pytest.mark.parametrize("outcome", ["failed", "skipped", "not run"])
def test_a_file_of_which_a_test_did_not_pass_is_not_proven(started: Callable[..., ProvenSuite], outcome: str) -> None:
    part = started()
    tell(part, PASSED if outcome == "not run" else PASSED | {f"{FIRST}::two[a]": outcome})
    if outcome == "not run":
        part.collected([f"{FIRST}::three"])
    part.record(NOW)
    assert set(started().left_out) == {SECOND}


def test_a_test_that_passed_the_second_time_only_proves_nothing(started: Callable[..., ProvenSuite]) -> None:
    part = started()
    tell(part, {f"{FIRST}::one": "failed"})
    passes(part)
    assert set(started().left_out) == {SECOND}


def test_what_a_jvm_leaves_at_its_end_spoils_the_whole_run(started: Callable[..., ProvenSuite]) -> None:
    part = started()
    tell(part, PASSED)
    tell(part, {f"{SECOND}::one": "failed"}, "teardown")
    part.record(NOW)
    assert not started().left_out


def test_what_changed_during_the_run_is_not_proven(started: Callable[..., ProvenSuite], tree: Path) -> None:
    part = started()
    tell(part, PASSED)
    (tree / FIRST).write_text("")
    part.record(NOW)
    assert set(started().left_out) == {SECOND}


def test_processes_leave_out_what_they_are_told(started: Callable[..., ProvenSuite], tree: Path) -> None:
    first = started()
    tell(first, {f"{FIRST}::one": "passed"})
    first.record(NOW)
    node = SimpleNamespace(workerinput={})
    started().pytest_configure_node(node)
    told = ToldSuite(*node.workerinput["proven"], tree)
    assert told.pytest_ignore_collect(tree / FIRST) is True
    assert told.pytest_ignore_collect(tree / "tests/engine/a") is True
    assert told.pytest_ignore_collect(tree / SECOND) is None
    assert told.pytest_ignore_collect(tree / "tests/engine") is None


def test_a_damaged_proof_is_none_and_old_ones_go(tmp_path: Path) -> None:
    proofs = Proofs(tmp_path)
    proofs.record("aa", Proof("a", 1, "2026-01-01"))
    assert proofs.of("aa") == Proof("a", 1, "2026-01-01")
    (tmp_path / "bb").write_text("{")
    assert proofs.of("bb") is None
    assert proofs.of("cc") is None
    proofs.forget(dt.datetime.now(dt.UTC) + dt.timedelta(days=91))
    assert proofs.of("aa") is None


@pytest.mark.slow
def test_the_suite_of_this_tree_needs_the_engine_and_each_file_what_it_imports() -> None:
    needs = proven.Needs(proven.TREE)
    folder = proven.TREE / proven.SUITE
    layout = needs.of([folder / "transform" / "test_layout.py"])
    assert {folder / "transform" / "elsewhere.py", proven.TREE / "bench" / "cluster.py"} <= layout
    assert proven.TREE / "odfd" / "cli" / "main.py" in needs.of([folder / "trust" / "test_recheck.py"])
    assert proven.TREE / "tests" / "worlds" / "engine_node.py" in needs.of(
        [proven.TREE / "tests/nightly/engine/test_levels.py"]
    )
    alone = needs.of([folder / "transform" / "test_zones.py"])
    assert not {path for path in alone if path.is_relative_to(proven.TREE / "odfd")}
