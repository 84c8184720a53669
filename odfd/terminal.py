"""Draws tables and messages on a terminal: as wide as it is, in colours unless ``NO_COLOR`` is set.

Pipes and files get the plain text of ``odfd.cli.table`` instead. ``rich`` does the layout and follows ``NO_COLOR``,
``TERM`` and ``COLUMNS``. Only what needs a layout or a colour comes here, because its import takes a third of the time
of a short command.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, Final, Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from chain.terminal_text import one_line, visible

GAP: Final = 2
"""Characters between two columns of a table."""
NARROWEST: Final = 12
"""Characters below which no column is made narrower; a row is drawn as a list of fields instead."""
_COLOURS: Final[dict[str, str]] = {
    **dict.fromkeys(("active", "connected", "done", "fresh", "ok", "ready", "synced", "verified"), "green"),
    **dict.fromkeys(("blocked", "broken", "damaged", "diverged", "failed", "forked", "lost", "not"), "red"),
    **dict.fromkeys(("denied", "error", "invalid", "refuted", "refused", "suspended"), "red"),
    **dict.fromkeys(("abandoned", "away", "behind", "cancelled", "disputed", "late", "paused"), "yellow"),
    **dict.fromkeys(("retrying", "stale", "stopped", "tainted", "waiting", "warning", "withheld"), "yellow"),
}
"""Colours by the first word of a state or of a message."""


def open_console(stream: IO[str], columns: int) -> Console:
    """Opens a terminal of ``columns``, on which nothing of a text is taken as markup."""
    height = 24  # of no effect on tables; without it rich takes every dumb terminal for 80 columns wide
    return Console(file=stream, width=columns, height=height, highlight=False, markup=False, emoji=False)


def draw_table(
    console: Console, grid: Sequence[Sequence[str]], right: Sequence[bool], stated: Sequence[bool], indent: int = 0
) -> None:
    """Draws a heading and rows. Long cells are wrapped, so that nothing is hidden; where the terminal is too narrow for
    all columns, each row is drawn as a list of fields.

    ``right`` says which columns are set to the right, ``stated`` which have a colour by their first word.
    """
    heading, *rows = grid
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    least = [wide if numbers else min(wide, NARROWEST) for wide, numbers in zip(widths, right, strict=True)]
    if indent + sum(least) + GAP * (len(least) - 1) > console.width:
        for place, row in enumerate(rows):
            if place:
                console.print()
            draw_fields(console, [(title, cell) for title, cell in zip(heading, row, strict=True) if cell], indent)
        return
    table = _table()
    for title, numbers in zip(heading, right, strict=True):
        justify: Literal["left", "right"] = "right" if numbers else "left"
        table.add_column(Text(one_line(title)), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(cell, is_state) for cell, is_state in zip(row, stated, strict=True)))
    console.print(Padding(table, (0, 0, 0, indent), expand=False))


def draw_fields(console: Console, pairs: Iterable[tuple[str, str]], indent: int = 0) -> None:
    """Draws names and values below each other; long values are wrapped beside their names."""
    table = _table()
    table.show_header = False
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(one_line(name)), Text(visible(value)))
    console.print(Padding(table, (0, 0, 0, indent), expand=False))


def draw_message(console: Console, text: str) -> None:
    """Draws a message; its first word is coloured if it says ``error`` or ``warning``."""
    word, colon, rest = visible(text).partition(":")
    console.print(Text.assemble((word, _COLOURS.get(word, "")), colon, rest), soft_wrap=True)


def _cell(text: str, is_state: bool) -> Text:
    word = text.replace(",", " ").partition(" ")[0].lower() if is_state else ""
    return Text(one_line(text), _COLOURS.get(word, ""))


def _table() -> Table:
    return Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_edge=False, header_style="")
