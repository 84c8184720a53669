"""Compares ratios with ``figures.json``, those of the last release, and names the rows that got worse.

Only ratios of two neighbours in one run are compared, since the machine is in both of their costs. A row that seems
worse is measured once more, and the better of both counts: a neighbour on the machine slows one of them, a change of
the code both. ``docs/performance.md`` is made of the same file.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import report
from bench.measure import Row

FIGURES: Final = Path(__file__).with_name("figures.json")
WORSE: Final = 1.2
"""A ratio of more than so many times the release's is worse."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What a release keeps of a row."""

    command: str
    """The name by which ``python -m bench`` measures it."""
    ratio: tuple[float, float, float]
    """Median, least and greatest of all rounds."""
    measures: str
    ours: str
    """Name and figure of our side."""
    against: str
    """The same of the other side."""
    goal: str = ""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """``figures.json``: rows by their names, and the machine that measured them."""

    machine: dict[str, Any] = {}
    rows: dict[str, Figure] = {}


def read(path: Path = FIGURES) -> Figures:
    """Reads the figures of the last release. Raises OSError, msgspec.DecodeError."""
    return msgspec.json.decode(path.read_bytes(), type=Figures)


def keep(rows: Mapping[str, Sequence[Row]], machine: Mapping[str, Any], path: Path = FIGURES) -> None:
    """Writes the figures of rows, by commands, beside those of rows that were not measured."""
    new = {row.name: _figure(command, row) for command, measured in rows.items() for row in measured}
    figures = Figures(machine=dict(machine), rows=(read(path).rows if path.exists() else {}) | new)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1) + b"\n")


def compare(rows: Sequence[Row], figures: Figures, again: Callable[[], Sequence[Row]]) -> Iterator[str]:
    """Yields a line for each row that is worse. ``again``: measures the same rows once more, if it is needed."""
    worse = [row for row in rows if _is_worse(row, figures)]
    if not worse:
        return
    second = {row.name: row for row in again()}
    for row in worse:
        better = min((row, second.get(row.name, row)), key=_median)
        if _is_worse(better, figures):
            before, now = figures.rows[row.name].ratio[0], _median(better)
            yield f"{row.name}: {now:.2f}, {now / before:.2f} times the {before:.2f} of the last release"


def _figure(command: str, row: Row) -> Figure:
    least, most = min(row.ratios), max(row.ratios)
    return Figure(
        command=command,
        ratio=(round(_median(row), 3), round(least, 3), round(most, 3)),
        measures=row.measures,
        ours=f"{row.ours.name}: {report.figure(row.ours)}",
        against=f"{row.peer.name}: {report.figure(row.peer)}",
        goal=row.goal,
    )


def _median(row: Row) -> float:
    return statistics.median(row.ratios)


def _is_worse(row: Row, figures: Figures) -> bool:
    return row.name in figures.rows and _median(row) > WORSE * figures.rows[row.name].ratio[0]
