"""How deep a property looks: a profile of Hypothesis says how many examples there are of a hundred."""

from __future__ import annotations

from hypothesis import settings


def share(nightly: int) -> int:
    """Number of examples of a property that tries ``nightly`` in ``make nightly``: a third in ``make test``."""
    return max(1, nightly * settings().max_examples // 100)


def stride() -> int:
    """Of a table too long for each run, every one in so many is looked at: in ``make nightly`` all are."""
    return max(1, 100 // settings().max_examples)
