"""Rows of the table in docs/scale.md, which ``tests/sim/lookup/figures.py`` prints."""

from __future__ import annotations

from math import isfinite

from .trial import Outcome, quantile

HEAD = "| nodes | way | found | p50 s | p99 s | reached, p99 s | asked | KiB/s idle | KiB a node |"


def row(name: str, outcome: Outcome) -> str:
    """One way of looking up: the part found, seconds, questions in the mean, bytes a second each way, memory."""
    found = f"{100 * len(outcome.found) / max(1, outcome.seeks):.1f} %"
    seconds = [quantile(outcome.found, 0.5), quantile(outcome.found, 0.99), quantile(outcome.reached, 0.99)]
    asked = f"{sum(outcome.asked) / max(1, len(outcome.asked)):.0f}"
    idle = outcome.traffic or outcome.idle
    traffic = f"{sum(idle) / len(idle) / 1024:.1f}" if idle else ""
    memory = f"{outcome.memory / 1024:,.0f}" if outcome.memory else ""
    times = (f"{each:.1f}" if isfinite(each) else "" for each in seconds)
    return " | ".join([f"| {name}", found, *times, asked, traffic, memory]) + " |"


def costs(outcome: Outcome, runs: int = 1) -> str:
    """KiB a second each way, by what it is for."""
    return " · ".join(f"{why} {size / runs / 1024:.2f}" for why, size in sorted(outcome.costs.items()))
