"""A part is complete when it is made: nobody sets a callback or a collaborator of another object afterwards.

A forgotten line would leave a default in force, which may be a check that allows all. What a part needs is an argument
of its constructor; where two features need each other, ``odfd.runtime.late`` says so aloud.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from worlds.source_tree import nodes

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
