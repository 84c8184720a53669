"""Small parts: what is longer than a module of 500 lines, a body of 60 or seven parameters has a reason that is told.

A limit is no reason to cut what belongs together: give it a line in ALLOWED.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from worlds.source_tree import nodes

TREE = Path(__file__).parents[2]
ROOTS = ("config", "chain", "engines", "p2p", "odfd", "client", "demo", "bench")
MODULE_END, BODY_END, PARAMETERS_END = 500, 60, 7
ALLOWED: dict[str, str] = {
    "odfd/services/ingest/ingest_pull.py": "one service: all that brings rows or columns into a dataset",
    "odfd/services/transfer/import_export.py": "one way in and one out, and what a crash left of an import",
}
"""Module, or module and function -> why it may be larger."""
BANNED = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}


def sources() -> Iterator[Path]:
    for root in ROOTS:
        yield from sorted((TREE / root).rglob("*.py"))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    start = (first.end_lineno or first.lineno) if documented else first.lineno - 1
    return (function.end_lineno or start) - start


def too_big() -> Iterator[tuple[str, str]]:
    """The key of ALLOWED, and what is said of it."""
    for path in sources():
        text = path.read_text()
        name = path.relative_to(TREE)
        if text.count("\n") > MODULE_END:
            yield f"{name}", f"{text.count(chr(10))} lines"
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if body_lines(node) > BODY_END:
                    yield f"{name} {node.name}", f"body of {body_lines(node)} lines"
                arguments = node.args
                count = len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])
                named_self = bool(arguments.args) and arguments.args[0].arg in ("self", "cls")
                if count - named_self > PARAMETERS_END:
                    yield f"{name} {node.name}", f"{count} parameters"


def test_parts_are_small() -> None:
    found = dict(too_big())
    assert not found.keys() - ALLOWED.keys(), "\n".join(
        f"{key}: {found[key]}" for key in sorted(found.keys() - ALLOWED.keys())
    )
    assert not ALLOWED.keys() - found.keys(), "these are small now: take them from ALLOWED"


def test_modules_are_named_for_what_they_are() -> None:
    vague = [str(path.relative_to(TREE)) for path in sources() if path.stem in BANNED]
    assert not vague
