"""Encodes rows of inputs as numbers: path, role and row of a witness in one integer. Pure.

The numbers are the elements of the lineage column in Spark. Here they are decoded, put in the order in which witnesses
are reported, and counted. They are valid only within one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

ROWS: Final = 1 << 40
"""Most rows of all inputs of one request."""
DECIDES: Final = ROWS
"""Bit set for a row that was compared but is not itself in the result: one ranked before, or found by a semi join."""
PATH: Final = DECIDES << 1
"""Unit of the path's number, an occurrence of an input in the plan; there are at most 64."""


@dataclass(frozen=True, slots=True)
class RowWitness:
    """A row of an input that contributed to a row of the result."""

    source: int
    """Number of the input."""
    offset: int
    path: int
    decides: bool


def witnesses(
    lineage: np.ndarray, sources: np.ndarray, offsets: np.ndarray, limit: int
) -> tuple[list[RowWitness], int]:
    """Returns the first ``limit`` witnesses, ordered by input, offset and path; and their total number.

    ``sources`` and ``offsets``: of every row of the request, by its number. A row that is in the result on a path is
    not listed again for that path as one that decides.
    """
    numbers = np.unique(lineage)
    rows, decides, paths = numbers % ROWS, (numbers // DECIDES) % 2, numbers // PATH
    places = np.stack([sources[rows], offsets[rows], paths, decides]) if len(rows) else np.empty((4, 0), np.int64)
    order = np.lexsort(places[::-1])
    places = places[:, order]
    first = np.ones(places.shape[1], bool)
    first[1:] = np.any(places[:3, 1:] != places[:3, :-1], axis=0)
    kept = places[:, first]
    told = [RowWitness(int(s), int(o), int(p), bool(d)) for s, o, p, d in kept[:, :limit].T]
    return told, kept.shape[1]


def pick(same: Sequence[Sequence[int]], place: int) -> int:
    """Picks, of equal rows, the one at ``place`` in the order of their lineage, so that the choice is
    always the same."""
    order = sorted(range(len(same)), key=lambda at: sorted(same[at]))
    return order[place]
