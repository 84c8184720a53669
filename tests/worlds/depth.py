"""How deep a property looks: a profile of Hypothesis says how many examples there are of a hundred."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import settings


def share(nightly: int) -> int:
    """Number of examples of a property that tries ``nightly`` in ``make nightly``: a third in ``make test``."""
    return max(1, nightly * settings().max_examples // 100)


def stride() -> int:
    """Of a table too long for each run, every one in so many is looked at: in ``make nightly`` all are."""
    return max(1, 100 // settings().max_examples)


def first_now(cases: Iterable[object]) -> list[object]:
    """Parameters of which the first is tried each time, and the others in ``make nightly``: of what shows that a suite
    would notice, and so proves something new only when the suite changes."""
    first, *others = (each if isinstance(each, tuple) else (each,) for each in cases)
    return [pytest.param(*first), *(pytest.param(*each, marks=pytest.mark.nightly) for each in others)]


def caught(is_wrong: Callable[[int], object], seeds: Iterable[int]) -> None:
    """What was broken on purpose gives a wrong answer for one of the seeds, or fails a check on the way to it."""
    for seed in seeds:
        try:
            if is_wrong(seed):
                return
        except AssertionError:
            return
    raise AssertionError("the broken engine gave the right answers")
