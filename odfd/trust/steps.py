"""Finding transform steps in a chain that is indexed backwards by kind, at a cost that its length does not show in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chain.model.block import Block
from chain.store.base import ChainReader

STEP: Final = ("ExecuteTransform",)


def first_step(chain: ChainReader, start: int, stop: int) -> Block | None:
    """The first ExecuteTransform of blocks ``start <= n < stop``."""
    return first_step_where(chain, start, stop, lambda _: True)


def first_step_where(chain: ChainReader, start: int, stop: int, holds: Callable[[Block], bool]) -> Block | None:
    """The first step of ``start <= n < stop`` that ``holds``, which once true of a step must be true of all later ones.

    A logarithmic number of lookups: each one halves the blocks among which it may still be.
    """
    found: Block | None = None
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        step = chain.last_of(STEP, middle + 1)
        if step is None or step.sequence_number < start or not holds(step):
            low = middle + 1
        else:
            found, high = step, step.sequence_number
    return found
