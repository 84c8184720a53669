"""Small parts: what is longer than a module of 700 lines, a body of 60 or nine parameters has a reason that is told.

A limit is no reason to cut what belongs together, nor to bundle collaborators in a tuple: give it a line in ALLOWED.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from worlds.source_tree import nodes

TREE = Path(__file__).parents[2]
ROOTS = ("config", "chain", "engines", "p2p", "odfd", "client", "demo", "bench")
MODULE_END, BODY_END, PARAMETERS_END = 700, 60, 9
ALLOWED: dict[str, str] = {
    "odfd/node/features.py __init__": "the list of all features, each with those that it needs",
    "odfd/services/maintenance/feature.py __init__": "it tells of all features",
    "odfd/services/network/feature.py __init__": "what is above all that fetches, trusts and publishes",
    "odfd/services/renditions/service.py __init__": "each part of a handover keeps a state of its own",
}
"""Module, or module and function -> why it may be larger."""
BUNDLES = {
    "AccessControl.about",
    "Membership.shelves",
    "NodeSmartBackend.access",
    "_Side.store",
}
"""Parameters of constructors that take several collaborators as one tuple. Give each a name; add none."""
VALUES = ("dataclass", "Struct", "Enum", "NamedTuple", "Error", "Fault", "Value", "Request", "str", "int", "bytes")
"""Words in the head of a class by which it is a value, which may well be in a tuple."""
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


def collaborators() -> set[str]:
    """The classes of ours that are no values."""
    found = set()
    for path in sources():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                head = " ".join(map(ast.unparse, [*node.decorator_list, *node.bases]))
                if not any(word in head for word in VALUES):
                    found.add(node.name)
    return found


def bundles_collaborators(annotation: ast.expr, classes: set[str]) -> bool:
    """Whether a type has a tuple of fixed length with a callable or a collaborator in it, perhaps an optional one."""

    def is_one(element: ast.expr) -> bool:
        if isinstance(element, ast.BinOp):
            return is_one(element.left) or is_one(element.right)
        plain = element.value if isinstance(element, ast.Subscript) else element
        return ast.unparse(plain).rpartition(".")[2] in {*classes, "Callable"}

    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "tuple" and isinstance(node.slice, ast.Tuple):
            elements = node.slice.elts
            if ast.unparse(elements[-1]) != "..." and any(map(is_one, elements)):
                return True
    return False


def bundles() -> Iterator[str]:
    classes = collaborators()
    for path in sources():
        for node in nodes(path):
            for made in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                    for given in [*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs]:
                        if given.annotation is not None and bundles_collaborators(given.annotation, classes):
                            yield f"{node.name}.{given.arg}"


def test_constructors_take_each_collaborator_by_its_name() -> None:
    found = set(bundles())
    assert not found - BUNDLES, "a tuple of collaborators: give each a parameter"
    assert not BUNDLES - found, "these are unbundled now: take them from BUNDLES"


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("tuple[Store, Clock]", True),
        ("tuple[Store | None, int] | None", True),
        ("tuple[int, Callable[[], int]]", True),
        ("tuple[Store, ...]", False),
        ("tuple[int, str]", False),
        ("Store", False),
    ],
)
def test_a_bundle_is_recognized(annotation: str, expected: bool) -> None:
    assert bundles_collaborators(ast.parse(annotation, mode="eval").body, {"Store", "Clock"}) == expected


def test_modules_are_named_for_what_they_are() -> None:
    vague = [str(path.relative_to(TREE)) for path in sources() if path.stem in BANNED]
    assert not vague
