"""Columns of numbers. Pure."""

from __future__ import annotations

import numpy as np


def distinct(numbers: np.ndarray) -> np.ndarray:
    """Each number once, ascending.

    ``np.unique`` alone puts them into a hash table first, which takes many times as long for numbers as regular as
    those of keys and rounds.
    """
    ordered = np.sort(numbers)
    kept = np.ones(len(ordered), bool)
    kept[1:] = ordered[1:] != ordered[:-1]
    found: np.ndarray = ordered[kept]
    return found
