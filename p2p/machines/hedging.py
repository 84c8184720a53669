"""Decides when the part of a transfer that blocks all later ones is requested from more peers, and from how many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

HEDGE: Final = 2.0
"""Seconds after which the part is requested from one more idle peer, and again after as long."""
MAX_HEDGES: Final = 3
"""Further peers asked, at most, while bytes of the part keep arriving."""
STILL: Final = 0.5
"""Seconds without a byte of the part after which as many further peers are asked as have been asked already."""
USUAL: Final = 4.0
"""Replaces ``STILL`` by so many times the usual answer time of the next best peer, if that is known."""
SOON: Final = 0.1
"""Seconds that this is at least."""
MAX_STILL: Final = 16
"""Peers asked for one part at most. Silent ones cost nothing, and no more than a window of bytes can arrive."""


def hedges(asked: Sequence[tuple[float, float]], usual: float | None) -> tuple[float, int]:
    """Returns the time at which more peers are asked if there is no progress until then, and how many.

    The number is 0 if ``MAX_STILL`` were asked already: at that time they are given up and others asked in their place.
    ``asked``: for each asked peer, the time of the question and the time at which its answer last progressed.
    ``usual``: seconds that the next best peer usually takes; ``None``: not known.
    """
    count = len(asked)
    if not count:
        return math.inf, 0
    if count >= MAX_STILL:
        return max(map(max, asked)) + HEDGE, 0
    wait = STILL if usual is None else min(max(SOON, USUAL * usual), HEDGE)
    still = max(map(max, asked)) + wait
    moving = max(since for since, _ in asked) + HEDGE if count <= MAX_HEDGES else math.inf
    return (moving, 1) if moving < still else (still, min(count, MAX_STILL - count))
