"""What is imported is declared: each third-party module belongs to a distribution that pyproject.toml names."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from engines.identity import find_imports
from worlds.source_tree import parsed

TREE = Path(__file__).parents[2]
SHIPPED = ("chain", "config", "engines", "odfd", "p2p")
"""These may import what is installed with odfd alone; the others have the extras too."""
BESIDE = ("bench", "demo", "tests", "examples")
ASKED_FOR = ("bucket", "evm", "kafka", "mqtt", "sftp", "sql", "top")
"""Extras whose absence is told by name, as tests of what needs them show."""
ABSENT = {"fastecdsa", "_typeshed"}
"""One that a test replaces, since it is never installed; and one that type checkers alone have."""
NAME = re.compile(r"[A-Za-z0-9._-]+")


def files(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.rglob("*.py")))


def modules(path: Path) -> Iterator[str]:
    """Top-level names that a file imports."""
    for node in statements(parsed(path)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        yield from (name.partition(".")[0] for name in names)


def looks_like(path: Path) -> set[str]:
    """The same names and more: texts with the form of an import count too, and nothing is parsed."""
    return {name.partition(".")[0] for name in find_imports(path.read_text())} - {""}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node, to any depth; not the expressions, of which there are twenty times as many."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> tuple[set[str], set[str]]:
    """Distributions that odfd needs, with those of extras that it asks for by name, and those of all extras."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    extras = [each for group in project["optional-dependencies"].values() for each in group]
    asked = [each for name in ASKED_FOR for each in project["optional-dependencies"][name]]
    project["dependencies"] += asked
    first, more = ({plain(NAME.match(each)[0]) for each in group} for group in (project["dependencies"], extras))
    return first, more


def undeclared(folders: Iterable[Path], known: set[str]) -> set[tuple[str, str]]:
    """Names of modules, with the folder's files that import them. A file is parsed if its text has such a name."""
    folders_of_ours = (TREE, TREE / "tests", TREE / "client")
    local = {path.name.removesuffix(".py") for folder in folders_of_ours for path in folder.iterdir()}
    known = known | {plain(name) for name in {*sys.stdlib_module_names, *local, *ABSENT}}

    def unknown(names: Iterable[str]) -> set[str]:
        return {name for name in names if not {plain(each) for each in (name, *owners().get(name, ()))} & known}

    suspects = (path for folder in folders for path in files(folder) if unknown(looks_like(path)))
    return {(name, path.name) for path in suspects for name in unknown(modules(path))}


@cache
def owners() -> Mapping[str, list[str]]:
    """Distributions by the modules that they install. Reads the lists of files of all."""
    return importlib.metadata.packages_distributions()


def test_what_we_ship_imports_what_it_declares() -> None:
    assert not undeclared(map(TREE.joinpath, SHIPPED), declared()[0])


def test_what_lies_beside_it_imports_what_the_extras_declare() -> None:
    assert not undeclared(map(TREE.joinpath, BESIDE), set().union(*declared()))


def test_the_test_sees_what_is_not_declared(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "def late():\n    import os, flask_of_theirs.parts as flask\n    return flask, os\n"
    )
    (tmp_path / "text.py").write_text('TEXT = """\nfrom django_of_theirs import urls\n"""\n')
    assert undeclared([tmp_path], set()) == {("flask_of_theirs", "late.py")}


def test_the_client_imports_pyarrow_alone() -> None:
    """It is installed by itself. What people may have beside it (pandas, polars) is imported when it is asked for."""
    beside = "client/odfd_client/spark.py"  # who imports it has Spark; its extra says so
    found = [(name, str(path.relative_to(TREE))) for path in files(TREE / "client") for name in modules(path)]
    assert {name for name, at in found if at != beside} - sys.stdlib_module_names == {"odfd_client", "pyarrow"}
    assert {name for name, at in found if at == beside} - sys.stdlib_module_names == {
        "odfd_client",
        "pyarrow",
        "pyspark",
    }
    others = [path for path in (TREE / "client").rglob("*.py") if path != TREE / beside]
    assert not [path for path in others if "odfd_client.spark" in path.read_text()]


def test_every_dependency_has_its_reason_and_its_version() -> None:
    text = (TREE / "pyproject.toml").read_text()
    (block,) = re.findall(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    bare = [line for line in block.splitlines() if not re.match(r' +"[\w.-]+==[\w.]+", +# \S', line)]
    assert not bare
