"""The page ``docs/reference/code-map.md``: each package, with the first paragraph of its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).parents[1]
ROOTS: Final = {
    "config": "imports no other root",
    "chain": "imports no other root",
    "engines": "imports `chain` and `config`",
    "p2p": "imports `chain` and `config`",
    "odfd": "imports all but `client`; no root imports it",
    "client": "imports no other root; a distribution of its own",
}
"""Each root, and what `tests/meta/test_imports.py` lets it import."""
HEAD: Final = """# Code map

Find the package that does a thing. Each row is the first paragraph of the package's docstring.
[Architecture](../../ARCHITECTURE.md) shows how the packages work together.

"""


def packages(root: str) -> Iterator[tuple[str, str]]:
    """Each package below a root by its path, and the first paragraph of its docstring."""
    for file in sorted((TREE / root).rglob("__init__.py")):
        said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        yield file.parent.relative_to(TREE).as_posix(), " ".join(said.split("\n\n")[0].split()).replace("``", "`")


def page(made: str) -> str:
    """Returns the page; ``made`` is the line that says how it is generated."""
    return f"{HEAD}{made}\n" + "".join(map(_section, ROOTS))


def _section(root: str) -> str:
    rows = "".join(f"| `{name}` | {text} |\n" for name, text in packages(root))
    return f"\n## {root}\n\nThe root {ROOTS[root]}.\n\n| package | what it does |\n|---|---|\n{rows}"
