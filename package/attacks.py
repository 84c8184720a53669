"""The page ``docs/reference/attacks.md``, made of the docstrings of the tests that mount the attacks.

Such a docstring begins with ``Attack T-HEAD-01: …`` and has ``Defence: …`` as its second paragraph. The id is a row of
``THREATS.md``, which gives the order of the page.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).parents[1]
THREATS: Final = TREE / "THREATS.md"
_SURFACE: Final = re.compile(r"^### (?P<surface>.+)$")
_ROW: Final = re.compile(
    r"^\| \[(?P<id>T-[A-Z]+-\d\d)\]\((?P<link>[^)]+)\) \| (?P<threat>[^|]+) \| (?P<defence>[^|]+) \|$"
)
_ATTACK: Final = re.compile(
    r"Attack (?P<id>T-[A-Z]+-\d\d): (?P<attack>.+?)\.?\n\nDefence: (?P<defence>.+?)\.?(?:\n\n|\Z)", re.DOTALL
)


@dataclass(frozen=True)
class Threat:
    """A row of ``THREATS.md``."""

    id: str
    surface: str
    text: str
    defence: str
    link: str


@dataclass(frozen=True)
class Attack:
    """What one test mounts, whatever its parameters are."""

    threat: str
    attack: str
    defence: str
    test: str


def threats() -> list[Threat]:
    """Returns the rows of the page, in its order."""
    found: list[Threat] = []
    surface = ""
    for line in THREATS.read_text(encoding="utf-8").splitlines():
        if heading := _SURFACE.match(line):
            surface = heading["surface"]
        elif row := _ROW.match(line):
            found.append(Threat(row["id"], surface, row["threat"], row["defence"], row["link"]))
    return found


@cache
def attacks() -> tuple[Attack, ...]:
    """Returns the attacks of all tests, by file and line."""
    return tuple(attack for path in sorted((TREE / "tests").rglob("test_*.py")) for attack in _attacks_of(path))


def _attacks_of(path: Path) -> Iterator[Attack]:
    text = path.read_text(encoding="utf-8")
    if '"""Attack T-' not in text:
        return
    functions = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in sorted(functions, key=lambda each: each.lineno):
        if found := read(ast.get_docstring(function) or "", function.name):
            yield found


def read(docstring: str, test: str) -> Attack | None:
    """Returns the attack that a docstring names; nothing if it names none.

    Raises ValueError if it begins like an attack and has no defence.
    """
    if found := _ATTACK.match(docstring):
        return Attack(found["id"], _line(found["attack"]), _line(found["defence"]), test)
    if docstring.startswith("Attack T-"):
        raise ValueError(f"{test}: the docstring has no second paragraph that begins with Defence")
    return None


def _line(text: str) -> str:
    return " ".join(text.split())


def page(made: str) -> str:
    """Returns the page; ``made`` is the line that says how it is generated."""
    by_threat: defaultdict[str, list[Attack]] = defaultdict(list)
    for attack in attacks():
        by_threat[attack.threat].append(attack)
    lines = [
        "# Attacks and their tests",
        "",
        "Look up which attacks the tests mount, what stops each, and the test that shows it.",
        "[THREATS.md](../../THREATS.md) explains the threats by which this page is sorted, and what is not defended.",
        "",
        made,
    ]
    surface = ""
    for threat in threats():
        if threat.surface != surface:
            surface = threat.surface
            lines += ["", f"## {surface}"]
        lines += ["", f"### {threat.id}", "", f"{threat.text[0].upper()}{threat.text[1:]}.", ""]
        lines += ["| attack | what stops it | test |", "|---|---|---|"]
        lines += [f"| {each.attack} | {each.defence} | `{each.test}` |" for each in by_threat[threat.id]]
    return "\n".join(lines) + "\n"
