"""What the guard of figures names, and what it takes for noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import guard
from bench.measure import Row, Side


def row(name: str, *ratios: float) -> Row:
    ours, peer = Side(name="ours", costs=ratios), Side(name="peer", costs=(1.0,) * len(ratios))
    return Row(name=name, measures="", ours=ours, peer=peer)


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ((1.0, 1.1, 1.15), None, False),
        ((1.3, 1.0, 1.1), None, False),  # one slow round
        ((1.3, 1.3, 1.3), (1.0,), False),  # a neighbour on the machine
        ((1.3, 1.3, 1.3), (1.3,), True),
        ((1.3, 1.3, 1.3), (1.6,), True),
    ],
)
def test_what_is_slow_twice_is_named(first: Sequence[float], second: Sequence[float] | None, named: bool) -> None:
    measured = []

    def again() -> list[Row]:
        measured.append(second)
        return [row("a", *second or ())]

    figure = guard.Figure(command="c", ratio=(1.0, 1.0, 1.0), measures="", ours="", against="")
    told = list(guard.compare([row("a", *first), row("new", 9.0)], guard.Figures(rows={"a": figure}), again))
    assert told == (["a: 1.30, 1.30 times the 1.00 of the last release"] if named else [])
    assert bool(measured) == (second is not None)


def test_figures_of_rows_that_were_not_measured_stay(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    guard.keep({"c": [row("a", 1.0, 2.0, 4.0), row("b", 1.0)]}, {"cores": 1}, path)
    guard.keep({"c": [row("b", 3.0)]}, {"cores": 2}, path)
    figures = guard.read(path)
    assert {name: each.ratio for name, each in figures.rows.items()} == {"a": (2.0, 1.0, 4.0), "b": (3.0, 3.0, 3.0)}
    assert figures.machine == {"cores": 2}
