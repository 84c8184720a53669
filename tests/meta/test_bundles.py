"""Constructors name what they work with: a tuple of collaborators hides how many there are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from worlds.source_tree import nodes

TREE = Path(__file__).parents[2]
ROOTS = ("config", "chain", "engines", "p2p", "odfd", "client", "demo", "bench")
BUNDLES = {
    "AccessControl.about",
    "Membership.shelves",
    "NodeSmartBackend.access",
    "_Side.store",
}
"""Parameters of constructors that take several collaborators as one tuple. Give each a name; add none."""
VALUES = ("dataclass", "Struct", "Enum", "NamedTuple", "Error", "Fault", "Value", "Request", "str", "int", "bytes")
"""Words in the head of a class by which it is a value, which may well be in a tuple."""


def sources() -> Iterator[Path]:
    for root in ROOTS:
        yield from sorted((TREE / root).rglob("*.py"))


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
