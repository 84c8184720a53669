"""Rows of the table in docs/scale.md, which ``tests/sim/lookup/figures.py`` prints."""

from __future__ import annotations

from .trial import Outcome, quantile


def row(name: str, outcome: Outcome) -> str:
    """One way of looking up: the part found, seconds, bytes a second each way, memory."""
    part = len(outcome.found) / max(1, outcome.seeks)
    seconds = " | ".join(f"{quantile(outcome.found, each):.1f}" for each in (0.5, 0.99))
    reached = f"{quantile(outcome.reached, 0.99):.1f}"
    asked = f"{quantile([float(one) for one in outcome.asked], 0.5):.0f}"
    idle = outcome.traffic or outcome.idle
    traffic = f"{sum(idle) / len(idle) / 1024:.1f}" if idle else "-"
    return (
        f"| {name} | {100 * part:.1f} % | {seconds} | {reached} | {asked} | {traffic} | {outcome.memory / 1024:.0f} |"
    )


def costs(outcome: Outcome) -> str:
    """KiB a second each way, by what it is for."""
    return " · ".join(f"{why} {size / 1024:.2f}" for why, size in sorted(outcome.costs.items()))
