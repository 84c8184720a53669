"""A file of the engine's suite is left out where all that it needs is as it was when it passed, and only there."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from worlds import proven
from worlds.proven import Proof, Proofs, ProvenSuite, ToldSuite

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


def test_what_passed_whole_is_left_out_the_next_time_and_told(started: Callable[..., ProvenSuite], tree: Path) -> None:
    first = started()
    assert first.left_out == {}
    assert first.said() is None
    tell(first, PASSED)
    first.record(NOW)
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
    first = started()
    tell(first, PASSED)
    first.record(NOW)
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
        {"environ": {"ODFD_ENGINE_RUNS": "1"}},
        {"arguments": (f"{FIRST}::one",)},
    ],
)
def test_a_run_that_tries_less_or_other_things_proves_and_leaves_out_nothing(
    started: Callable[..., ProvenSuite], run: dict[str, Any]
) -> None:
    part = started(*run.pop("arguments", ()), **run)
    tell(part, PASSED)
    part.record(NOW)
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
    first = started()
    tell(first, PASSED)
    first.record(NOW)
    (tree / changed).write_text((tree / changed).read_text() + "\n# changed\n")
    assert {FIRST, SECOND} - set(started().left_out) == again


def test_another_java_is_another_digest(started: Callable[..., ProvenSuite], monkeypatch: pytest.MonkeyPatch) -> None:
    first = started()
    tell(first, PASSED)
    first.record(NOW)
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
    tell(part, PASSED)
    part.record(NOW)
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
