"""Modules of the source tree, each parsed and walked once for all rules of ``tests/meta``."""

from __future__ import annotations

import ast
import gc
from collections.abc import Sequence
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """To be read, not changed."""
    collects = gc.isenabled()
    gc.disable()  # nothing of a tree is garbage, and each collection would look at all of them
    try:
        return ast.parse(path.read_text())
    finally:
        if collects:
            gc.enable()


@cache
def nodes(path: Path) -> Sequence[ast.AST]:
    """All of them, in the order of ``ast.walk``."""
    return tuple(ast.walk(parsed(path)))


def called(call: ast.Call) -> str:
    """The last name of what is called: ``open`` of ``path.parent.open()``; nothing where that has no name."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def forget() -> None:
    """Two hundred megabytes, which no test of behaviour needs."""
    nodes.cache_clear()
    parsed.cache_clear()
