"""Each module and class of the node says what it is for itself: a class does not send its reader to the module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from worlds.source_tree import nodes, parsed

TREE = Path(__file__).parents[2]
ROOTS = ("chain", "config", "engines", "odfd", "p2p", "client")


def paths() -> Iterator[Path]:
    for root in ROOTS:
        yield from sorted((TREE / root).rglob("*.py"))


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in paths():
        yield str(path.relative_to(TREE)), parsed(path)


def test_every_module_says_what_it_is_for() -> None:
    silent = [name for name, tree in modules() if tree.body and not ast.get_docstring(tree)]
    assert not silent


def test_no_class_says_only_where_to_read() -> None:
    classes = [
        (f"{path.relative_to(TREE)} {node.name}", ast.get_docstring(node) or "")
        for path in paths()
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
    ]
    assert len(classes) > 500, "the test no longer finds what it is about"
    assert not [name for name, said in classes if said.startswith("See the module")]


def test_a_module_opens_with_what_it_does() -> None:
    """With a verb, as in "Reads …", or with the command that it is."""
    first = {name: (ast.get_docstring(tree) or "Reads").split()[0].rstrip(",:") for name, tree in modules()}
    assert not [name for name, word in first.items() if not (word.startswith("``") or word.endswith("s"))]


def test_no_public_name_is_told_by_a_clause_without_a_subject() -> None:
    """As "What is kept of …" and "Of one host" do: a reader looks for the thing, and for the verb."""
    clauses = ("What", "Who", "Whoever", "Whom", "Which", "Whose", "Where", "Of")
    found = [
        f"{path.relative_to(TREE)} {node.name}"
        for path in paths()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if (ast.get_docstring(node) or "-").split()[0] in clauses
    ]
    assert not found
