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

from worlds.source_tree import parsed

TREE = Path(__file__).parents[2]
SHIPPED = ("chain", "config", "engines", "odfd", "p2p")
"""These may import what is installed with odfd alone; the others have the extras too."""
BESIDE = ("bench", "demo", "tests", "examples")
ABSENT = {"fastecdsa", "_typeshed"}
"""One that a test replaces, since it is never installed; and one that type checkers alone have."""
NAME = re.compile(r"[A-Za-z0-9._-]+")


def modules(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Top-level names that files import, each with its file."""
    for path in (path for folder in folders for path in sorted((TREE / folder).rglob("*.py"))):
        for node in statements(parsed(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            yield from ((name.partition(".")[0], str(path.relative_to(TREE))) for name in names)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node, to any depth; not the expressions, of which there are twenty times as many."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> tuple[set[str], set[str]]:
    """Distributions that odfd needs, and those of its extras."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    extras = [each for group in project["optional-dependencies"].values() for each in group]
    first, more = ({plain(NAME.match(each)[0]) for each in group} for group in (project["dependencies"], extras))
    return first, more


def undeclared(folders: Iterable[str], known: set[str]) -> set[tuple[str, str]]:
    folders_of_ours = (TREE, TREE / "tests", TREE / "client")
    local = {path.name.removesuffix(".py") for folder in folders_of_ours for path in folder.iterdir()}
    known = known | {plain(name) for name in {*sys.stdlib_module_names, *local, *ABSENT}}
    imported = set(modules(folders))
    owned = {name: {plain(each) for each in (name, *owners().get(name, ()))} for name, _ in imported}
    return {each for each in imported if not owned[each[0]] & known}


@cache
def owners() -> Mapping[str, list[str]]:
    """Distributions by the modules that they install. Reads the lists of files of all."""
    return importlib.metadata.packages_distributions()


def test_what_we_ship_imports_what_it_declares() -> None:
    assert not undeclared(SHIPPED, declared()[0])


def test_what_lies_beside_it_imports_what_the_extras_declare() -> None:
    assert not undeclared(BESIDE, set().union(*declared()))


def test_the_client_imports_pyarrow_alone() -> None:
    """It is installed by itself. What people may have beside it (pandas, polars) is imported when it is asked for."""
    beside = "client/odfd_client/spark.py"  # who imports it has Spark; its extra says so
    imported = list(modules(["client"]))
    assert {name for name, at in imported if at != beside} - sys.stdlib_module_names == {"odfd_client", "pyarrow"}
    assert {name for name, at in imported if at == beside} - sys.stdlib_module_names == {
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
