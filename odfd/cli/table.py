"""Formats tables of text: columns as wide as their content, numbers to the right, no lines. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from chain.visible import one_line
from odfd.cli.formatting import NOTHING

GAP: Final = "  "
WHOLE: Final = 2000
"""Characters of a last cell with a problem or a remedy: more than any message of ours has."""
R = TypeVar("R")
"""The type of a row."""


class TableColumn(NamedTuple, Generic[R]):
    """A heading, and the formatter of a row's cell."""

    title: str
    cell: Callable[[R], str]
    right: bool = False
    most: int = 60
    """Characters of a cell; a longer one ends in an ellipsis."""
    optional: bool = False
    """Whether the column is left out if all of its cells are empty."""


def render(columns: Sequence[TableColumn[R]], rows: Iterable[R]) -> str:
    """Formats heading and rows, without a final newline."""
    rows = list(rows)
    columns = shown(columns, rows)
    grid = [[column.title for column in columns]]
    grid += [[clean(column.cell(row), column.most) for column in columns] for row in rows]
    widths = [max(width(line[place]) for line in grid) for place in range(len(columns))]
    return "\n".join(
        GAP.join(_fit(cell, widths[i], columns[i].right) for i, cell in enumerate(line)).rstrip() for line in grid
    )


def fields(pairs: Iterable[tuple[str, str]]) -> str:
    """Formats names and values below each other; pairs without a value are left out."""
    kept = [(name, value) for name, value in pairs if value]
    left = max((width(name) for name, _ in kept), default=0)
    return "\n".join(f"{_fit(name, left, False)}{GAP}{value}" for name, value in kept)


def width(text: str) -> int:
    """Returns the number of a terminal's columns that ``text`` takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def clean(text: str, most: int) -> str:
    """Formats text on one line, without control characters, since names and messages come from other nodes."""
    safe = one_line(text)
    return safe if len(safe) <= most else safe[: most - 1] + "…"


def shown(columns: Sequence[TableColumn[R]], rows: Sequence[R]) -> list[TableColumn[R]]:
    """Returns the columns without optional ones whose cells are all empty."""
    return [one for one in columns if not one.optional or any(one.cell(row) not in ("", NOTHING) for row in rows)]


def _fit(text: str, columns: int, right: bool) -> str:
    space = " " * (columns - width(text))
    return space + text if right else text + space
