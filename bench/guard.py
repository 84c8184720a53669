"""Compares ratios with ``figures.json``, those of the last release, and names the rows that got worse.

Only ratios of two neighbours in one run are compared, since the machine is in both of their costs. A row that seems
worse is measured once more, and the better of both counts: a neighbour on the machine slows one of them, a change of
the code both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.measure import Row

FIGURES: Final = Path(__file__).with_name("figures.json")
WORSE: Final = 1.2
"""A ratio of more than so many times the release's is worse."""
Figures = dict[str, float]
"""The median ratio of each row, by its name."""


def read(path: Path = FIGURES) -> Figures:
    """Reads the figures of the last release. Raises OSError, msgspec.DecodeError."""
    return msgspec.json.decode(path.read_bytes(), type=Figures)


def keep(rows: Sequence[Row], path: Path = FIGURES) -> None:
    """Writes the rows' figures beside those of rows that were not measured."""
    figures = (read(path) if path.exists() else {}) | {row.name: round(median(row), 3) for row in rows}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(dict(sorted(figures.items()))), indent=1) + b"\n")


def compare(rows: Sequence[Row], figures: Mapping[str, float], again: Callable[[], Sequence[Row]]) -> Iterator[str]:
    """Yields a line for each row that is worse. ``again``: measures the same rows once more, if it is needed."""
    worse = [row for row in rows if _is_worse(row, figures)]
    if not worse:
        return
    second = {row.name: row for row in again()}
    for row in worse:
        better = min((row, second.get(row.name, row)), key=median)
        if _is_worse(better, figures):
            before, now = figures[row.name], median(better)
            yield f"{row.name}: {now:.2f}, {now / before:.2f} times the {before:.2f} of the last release"


def median(row: Row) -> float:
    return statistics.median(row.ratios)


def _is_worse(row: Row, figures: Mapping[str, float]) -> bool:
    return row.name in figures and median(row) > WORSE * figures[row.name]
