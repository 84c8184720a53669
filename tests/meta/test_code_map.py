"""docs/reference/code-map.md has a row for each package, from its docstring. Run as a program, this writes the page."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).parents[2]
PAGE: Final = TREE / "docs" / "reference" / "code-map.md"
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

Find the package that does a thing. Each row is the first paragraph of the package's docstring, written by
`python tests/meta/test_code_map.py`. [Architecture](../../ARCHITECTURE.md) shows how the packages work together.
"""
LONGEST: Final = 160
"""Characters of a row's text: a package that needs more does more than one thing."""


def packages(root: str) -> Iterator[tuple[str, str]]:
    """Each package below a root by its path, and the first paragraph of its docstring."""
    for file in sorted((TREE / root).rglob("__init__.py")):
        said = ast.get_docstring(ast.parse(file.read_text())) or ""
        yield file.parent.relative_to(TREE).as_posix(), " ".join(said.split("\n\n")[0].split()).replace("``", "`")


def page() -> str:
    return HEAD + "".join(map(section, ROOTS))


def section(root: str) -> str:
    rows = "".join(f"| `{name}` | {text} |\n" for name, text in packages(root))
    return f"\n## {root}\n\nThe root {ROOTS[root]}.\n\n| package | what it does |\n|---|---|\n{rows}"


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text() == page(), "python tests/meta/test_code_map.py writes it"


def test_every_package_says_what_it_does() -> None:
    found = {name: text for root in ROOTS for name, text in packages(root)}
    assert len(found) > 90, "the test no longer finds the packages"
    wrong = {name: text for name, text in found.items() if not 20 <= len(text) <= LONGEST or not text.endswith(".")}
    assert not wrong, f"one sentence of at most {LONGEST} characters: {wrong}"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
