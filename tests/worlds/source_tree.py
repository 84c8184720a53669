"""Modules of the source tree, each parsed once for all rules of ``tests/meta``."""

from __future__ import annotations

import ast
import gc
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
