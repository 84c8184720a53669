"""Classes are complete when they are made, and no two public ones are called the same.

A forgotten line would leave a default in force, which may be a check that allows all. What a part needs is an argument
of its constructor; where two features need each other, ``odfd.runtime.late`` says so aloud.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from worlds.source_tree import nodes, parsed

TREE = Path(__file__).parents[2]

ALLOWED: dict[str, str] = {}
"""Assignments that stand, and why."""
FOREIGN_CLIENTS = ("client.on_", "parser.")
"""Callbacks of libraries, which take them in no other way."""


ROOTS = ("chain", "engines", "p2p", "odfd")


class _Names(NamedTuple):
    """Names over all roots."""

    functions: set[str]
    callbacks: set[str]
    """Attributes that are declared to be functions somewhere, and perhaps values elsewhere."""
    only_callbacks: set[str]


def _names() -> _Names:
    functions: set[str] = set()
    declared: dict[bool, set[str]] = {True: set(), False: set()}
    for root in ROOTS:
        for path in sorted((TREE / root).rglob("*.py")):
            for node in nodes(path):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    if not any(isinstance(each, ast.Name) and "property" in each.id for each in node.decorator_list):
                        functions.add(node.name)
                elif isinstance(node, ast.AnnAssign):
                    target, is_function = node.target, any(map(_is_callable, ast.walk(node.annotation)))
                    name = target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)
                    declared[is_function].add(name)
    return _Names(functions, declared[True], declared[True] - declared[False])


def _is_callable(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "Callable") or (
        isinstance(node, ast.Constant) and "Callable" in str(node.value)
    )


def _connects(attribute: str, value: ast.expr, names: _Names) -> bool:
    is_partial = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "partial"
    if isinstance(value, ast.Lambda) or is_partial or attribute in names.only_callbacks:
        return True
    return attribute in names.callbacks and isinstance(value, ast.Attribute) and value.attr in names.functions


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def connections(found: Iterable[ast.AST], names: _Names) -> Iterator[str]:
    """Yields the attributes that are functions of objects other than ``self`` and ``cls``, where they are assigned."""
    for node in found:
        if not isinstance(node, ast.Assign):
            continue
        for target, value in _pairs(node):
            if not isinstance(target, ast.Attribute) or not _connects(target.attr, value, names):
                continue
            if not (isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")):
                yield ast.unparse(target)


def found() -> dict[str, None]:
    names = _names()
    made: dict[str, None] = {}
    for path in sorted((TREE / "odfd").rglob("*.py")):
        for target in connections(nodes(path), names):
            if not target.startswith(FOREIGN_CLIENTS) and "._" not in target:  # a copy of itself has its own fields
                made[f"{path.relative_to(TREE)} {target}"] = None
    return made


def test_parts_get_what_they_need_when_they_are_made() -> None:
    beside = found().keys() - ALLOWED.keys()
    assert not beside, f"make these arguments of constructors: {sorted(beside)}"
    gone = ALLOWED.keys() - found().keys()
    assert not gone, f"these are set no longer: {sorted(gone)}"


def test_a_part_set_from_outside_is_found() -> None:
    source = "a.b.c = lambda: 1\nflows.perform, flows.ran = x.run, partial(touch, 1)\nself.perform = f\nt.n = 1"
    names = _Names({"run"}, {"perform"}, set())
    assert list(connections(ast.walk(ast.parse(source)), names)) == [
        "a.b.c",
        "flows.perform",
        "flows.ran",
    ]


# One name, one meaning: no two public classes are called the same, within a root or over all of them.
# What several roots still call the same stands in SHARED with its reason, and that list only shrinks.

ALL_ROOTS = ("config", "chain", "engines", "p2p", "odfd", "client")

SHARED = {
    "the client is a distribution of its own, and a caller sees the node's words in it": """
        Answer Block Bug Column Conflict Cut Environment Exchange Invalid NotFound Pin Progress Proof Query
        ReadStanding Refused Remote Selection SliceFile SliceFiles Snapshot Source StoredChain StoredFile
        Transport Unreachable
    """,
    "a section of the settings is named by what it sets": """
        Engine Group Limits Node Policy Rewrite Witness
    """,
    "the control API or the node's client in the engine says in its own form what the other one states": """
        CardColumn EngineProcess Problem QueryEnd RowCounts SkippedFile
    """,
}
"""Reason -> names that classes of several roots may have."""


def classes() -> dict[str, list[Path]]:
    places = defaultdict(list)
    for root in ALL_ROOTS:
        for path in sorted((TREE / root).rglob("*.py")):
            for node in parsed(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(path.relative_to(TREE))
    return places


@pytest.mark.parametrize("root", ALL_ROOTS)
def test_no_two_classes_of_a_root_share_a_name(root: str) -> None:
    own = {name: [str(path) for path in paths if path.parts[0] == root] for name, paths in classes().items()}
    twice = {name: paths for name, paths in own.items() if len(paths) > 1}
    assert not twice, twice


def test_no_two_classes_of_different_roots_share_a_name() -> None:
    several = {name: paths for name, paths in classes().items() if len({path.parts[0] for path in paths}) > 1}
    listed = {name for names in SHARED.values() for name in names.split()}
    new = {name: list(map(str, several[name])) for name in sorted(several.keys() - listed)}
    assert not new, new
    assert sorted(listed - several.keys()) == [], "these have one meaning now: take them from SHARED"
