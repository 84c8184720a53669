"""The engine's digest covers what the engine may import, data beside it included, and no other file of ours."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.identity import ENGINE, OURS, FileDigests, closure, code_digest, code_digests, files_of, find_imports

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
