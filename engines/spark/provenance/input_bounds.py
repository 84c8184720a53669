"""Computes which event times of an input can bear on an output time: inverts the influence of its paths. Pure.

Spec: docs/spec/engine-semantics.md#influence.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.spark.analysis.classify import Path
from engines.spark.analysis.influence import Session
from engines.spark.analysis.monotone import EARLIEST, LATEST, MILLISECOND, least


def reaching(paths: Sequence[Path], at: int) -> tuple[int, int]:
    """From which event time on, and before which, rows of some path can reach the output time ``at`` (microseconds).

    When a session began only its rows can say.
    """
    high = max((least(path.low, at + MILLISECOND) for path in paths), default=LATEST)
    if any(isinstance(path.life, Session) for path in paths):
        return EARLIEST, high
    return min((least(path.high, at) for path in paths), default=EARLIEST), high
