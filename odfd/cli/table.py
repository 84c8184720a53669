"""Formats tables of text: columns as wide as their content, numbers to the right, no lines.

The result is text, which pipes and files get as it is. A terminal gets it drawn by ``odfd.terminal`` if it is wider
than the terminal or has a column of states.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Final, Generic, NamedTuple, TypeVar

from chain.terminal_text import one_line, visible
from odfd.cli.formatting import NOTHING
from odfd.output import TerminalText

GAP: Final = "  "
WHOLE: Final = 2000
"""Characters of a last cell with a problem or a remedy: more than any message of ours has."""
STATED: Final = frozenset({"OUTCOME", "PHASE", "RESULT", "STANDING", "STATE"})
"""Titles of columns whose cells have colours on a terminal."""
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


class TextTable(TerminalText):
    """A heading and rows, of which a terminal wraps long cells and colours states."""

    grid: Sequence[Sequence[str]]
    right: Sequence[bool]
    indent: int

    def __new__(cls, grid: Sequence[Sequence[str]], right: Sequence[bool], indent: int = 0) -> TextTable:
        widths = [max(map(width, column)) for column in zip(*grid, strict=True)]
        text = "\n".join((" " * indent + GAP.join(map(_fit, line, widths, right))).rstrip() for line in grid)
        table = super().__new__(cls, text)
        table.grid, table.right, table.indent = grid, right, indent
        return table

    def draw(self, stream: IO[str], columns: int) -> None:
        stated = [title in STATED for title in self.grid[0]]
        if not any(stated) and is_within(self, columns):
            stream.write(visible(self) + "\n")
            return
        from odfd import terminal

        terminal.draw_table(terminal.open_console(stream, columns), self.grid, self.right, stated, self.indent)

    def indent_by(self, by: int) -> TextTable:
        return TextTable(self.grid, self.right, self.indent + by)


class Fields(TerminalText):
    """Names and values below each other, of which a terminal wraps long values beside their names."""

    pairs: Sequence[tuple[str, str]]

    def __new__(cls, pairs: Sequence[tuple[str, str]]) -> Fields:
        left = max((width(name) for name, _ in pairs), default=0)
        newline = "\n" + " " * left + GAP
        lines = (f"{_fit(name, left, False)}{GAP}{value}".replace("\n", newline) for name, value in pairs)
        found = super().__new__(cls, "\n".join(lines))
        found.pairs = pairs
        return found

    def draw(self, stream: IO[str], columns: int) -> None:
        if is_within(self, columns):
            stream.write(visible(self) + "\n")
            return
        from odfd import terminal

        terminal.draw_fields(terminal.open_console(stream, columns), self.pairs)


class Stack(TerminalText):
    """Texts below each other, each of which a terminal draws by itself."""

    parts: Sequence[str]

    def __new__(cls, parts: Iterable[str]) -> Stack:
        kept = list(parts)
        stack = super().__new__(cls, "\n".join(kept))
        stack.parts = kept
        return stack

    def draw(self, stream: IO[str], columns: int) -> None:
        for part in self.parts:
            if isinstance(part, TerminalText):
                part.draw(stream, columns)
            else:
                stream.write(visible(part) + "\n")


def render(columns: Sequence[TableColumn[R]], rows: Iterable[R]) -> TextTable:
    """Formats heading and rows, without a final newline."""
    rows = list(rows)
    columns = drop_empty(columns, rows)
    grid = [[column.title for column in columns]]
    grid += [[clean(column.cell(row), column.most) for column in columns] for row in rows]
    return TextTable(grid, [column.right for column in columns])


def fields(pairs: Iterable[tuple[str, str]]) -> Fields:
    """Formats names and values below each other; pairs without a value are left out."""
    return Fields([(name, value) for name, value in pairs if value])


def paragraphs(parts: Iterable[str]) -> Stack:
    """Puts texts below each other with an empty line between; empty ones are left out."""
    kept = [part if isinstance(part, TerminalText) else part.rstrip() for part in parts if part]
    return Stack(part for place, each in enumerate(kept) for part in ([each] if not place else ["", each]))


def is_within(text: str, columns: int) -> bool:
    """Whether no line of ``text`` is wider than a terminal of ``columns``."""
    return all(width(line) <= columns for line in text.splitlines())


def width(text: str) -> int:
    """Returns the number of a terminal's columns that ``text`` takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def clean(text: str, most: int) -> str:
    """Formats text on one line, without control characters, since names and messages come from other nodes."""
    safe = one_line(text)
    return safe if len(safe) <= most else safe[: most - 1] + "…"


def drop_empty(columns: Sequence[TableColumn[R]], rows: Sequence[R]) -> list[TableColumn[R]]:
    """Returns the columns without optional ones whose cells are all empty."""
    return [one for one in columns if not one.optional or any(one.cell(row) not in ("", NOTHING) for row in rows)]


def _fit(text: str, columns: int, right: bool) -> str:
    space = " " * (columns - width(text))
    return space + text if right else text + space
