"""Finds the transform steps of a chain by its index of block kinds, at a cost independent of the chain's length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chain.model.block import Block
from chain.store.base import ChainReader
from chain.walk import first_where

STEP: Final = ("ExecuteTransform",)


def first_step(
    chain: ChainReader, start: int, stop: int, holds: Callable[[Block], bool] = lambda _: True
) -> Block | None:
    """Returns the first step of ``start <= n < stop`` for which ``holds``, a monotonic condition, by binary search."""
    return first_where(chain, STEP, start, stop, holds)
