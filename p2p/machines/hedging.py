"""Decides when the part of a transfer that blocks all later ones is requested from more peers, and from how many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

HEDGE: Final = 2.0
"""Seconds after which the part is also asked of an idle peer, and then of one more."""
MAX_HEDGES: Final = 3
"""Of how many peers besides the first, while the part is moving."""
STILL: Final = 0.5
"""Seconds after which the same is done where no byte of it moves, each time of as many as were asked;"""
USUAL: Final = 4.0
"""that many times what the next best peer usually takes, where that is known,"""
SOON: Final = 0.1
"""and no less than this."""
MAX_STILL: Final = 16
"""Peers asked for one part at most: a silent one costs nothing, and no more than a window arrives."""


def hedges(asked: Sequence[tuple[float, float]], usual: float | None) -> tuple[float, int]:
    """Decides when, without progress, more peers are asked, and how many.

    Nobody more, where so many were asked already: then they are left at that time, and others are asked in their place.
    ``asked``: of each that was, when, and when an answer of it was last seen to move. ``usual``: seconds that the next
    best takes, where that is known.
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
