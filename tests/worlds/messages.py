"""Texts for people in the source tree: messages, hints and help, without documentation of the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from worlds.source_tree import nodes

TREE: Final = Path(__file__).parents[2]
ROOTS: Final = ("config", "chain", "engines", "p2p", "odfd")


class Text(NamedTuple):
    place: str
    text: str


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """Of a text that is put together, and of a documentation."""
    if isinstance(node, ast.JoinedStr):
        yield from ast.walk(node)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        yield node.value


@cache
def messages() -> list[Text]:
    return list(_messages())


def _messages() -> Iterator[Text]:
    """Texts for people in the code; one that is put together of parts, whole, with … for what is filled in."""
    for root in ROOTS:
        for path in sorted((TREE / root).rglob("*.py")):
            found = nodes(path)
            whole = ast.JoinedStr | ast.Expr  # what stands alone is documentation
            inside = {id(part) for node in found if isinstance(node, whole) for part in parts(node)}
            for node in found:
                text: str | None = None
                if isinstance(node, ast.JoinedStr):
                    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                    text = node.value
                if text and " " in text:
                    yield Text(f"{path.relative_to(TREE)}:{getattr(node, 'lineno', 0)}", text)
