"""Writes the table that people read and the JSON that programs read, from the same rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.measure import Row, Side

_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def heading(machine: Mapping[str, Any]) -> str:
    """Formats the heading of the rows."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory'] / 2**30:.0f} GiB, load {machine['load']:.1f};"
        f" Python {machine['python']}\n"
        "ratio = our cost ÷ the other's, in turns in one run: median (min..max); less is better\n\n"
        f"{'ROW':<22}{'RATIO':>8}  {'MIN..MAX':<15}{'OURS':>16}  {'AGAINST':>16}  GOAL"
    )


def lines(rows: Sequence[Row]) -> str:
    """Formats two or three lines a row."""
    shown = []
    for row in rows:
        ratios = row.ratios
        spread = f"{min(ratios):.2f}..{max(ratios):.2f}"
        shown.append(
            f"{row.name:<22}{statistics.median(ratios):>8.2f}  {spread:<15}"
            f"{figure(row.ours):>16}  {figure(row.peer):>16}  {row.goal}".rstrip()
        )
        shown.append(f"    {row.measures}: {row.ours.name} against {row.peer.name}")
        if row.facts:
            shown.append("    " + ", ".join(f"{name} {_short(value)}" for name, value in row.facts.items()))
    return "\n".join(shown)


def write_json(rows: Sequence[Row], machine: Mapping[str, Any], path: Path) -> None:
    """Writes all rounds, not only medians."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = [
        {
            **msgspec.to_builtins(row),
            "ratio": {"median": statistics.median(row.ratios), "min": min(row.ratios), "max": max(row.ratios)},
        }
        for row in rows
    ]
    document = {"machine": dict(machine), "rows": shown}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def figure(side: Side) -> str:
    """Formats the median of a side."""
    middle = side.figures()[0]
    if side.amount:
        return f"{_scaled(middle)}{side.unit}/s"
    if side.unit == "B":
        return f"{middle / 2**20:.1f} MiB"
    if side.unit:
        return f"{middle:.3g} {side.unit}"
    return f"{middle * 1e3:.3g} ms" if middle >= 1e-3 else f"{middle * 1e6:.3g} µs"


def _scaled(value: float) -> str:
    for step, letter in _STEPS:
        if value >= step:
            return f"{value / step:.3g} {letter}"
    return f"{value:.3g} "


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.3g}" if value < 1e3 else f"{value:,.0f}"
