"""Times two sides in turns (A B A B …) and gives the result as a value. Reads the clock; knows nothing of the work.

The machine's speed changes from minute to minute, so neither side is ever compared with a figure of another run, and
each ratio is of two neighbours.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

CPU: Final = time.process_time
MILLION: Final = 1_000_000


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison: ``costs`` are seconds of each round, or bytes of memory."""

    name: str
    costs: tuple[float, ...]
    amount: float = 0.0
    """What one round works through, in ``unit``; 0: the cost itself is the figure."""
    unit: str = ""

    def figures(self) -> tuple[float, float, float]:
        """Returns median, least and greatest: ``unit`` per second, or the cost itself."""
        values = [self.amount / cost for cost in self.costs] if self.amount else list(self.costs)
        return statistics.median(values), min(values), max(values)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table."""

    name: str
    measures: str
    """What is compared with what, in words."""
    ours: Side
    peer: Side
    goal: str = ""
    facts: dict[str, float | str] = {}
    """Sizes and side figures."""

    @property
    def ratios(self) -> tuple[float, ...]:
        """The cost of ours over the cost of the peer, by round: 1 is equal, less is better."""
        return tuple(ours / peer for ours, peer in zip(self.ours.costs, self.peer.costs, strict=True))


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a measurement."""

    quick: bool = False
    million: bool = True
    """Chains of a million blocks too."""
    object_mib: int = 128
    """Of the large object that is fetched; memory holds none of it."""

    def pick(self, quick: int, full: int) -> int:
        """Returns a size; quick sizes have no warm-up and measure nothing."""
        return quick if self.quick else full

    def lengths(self) -> list[int]:
        """Returns the lengths of measured chains, in blocks, to show growth with history."""
        if self.quick:
            return [300, 3_000]
        return [10_000, 100_000, MILLION] if self.million else [10_000, 100_000]

    def rounds(self, length: int) -> int:
        """Returns the number of rounds, one for measurements of minutes."""
        return 1 if length >= MILLION else self.pick(1, 5)


Measurement = Callable[[Size, Path], list[Row]]
"""Measures in a fresh folder of its own; leaves nothing running."""


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Measures one call in seconds, after a garbage collection."""
    gc.collect()
    start = clock()
    work()
    return clock() - start


Costs = tuple[tuple[float, ...], tuple[float, ...]]


def in_turns(
    ours: Callable[[], object],
    peer: Callable[[], object],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    warm: int = 1,
) -> Costs:
    """Returns seconds of both sides in each round, after ``warm`` uncounted rounds.

    ``clock``: ``CPU`` for two sides that only compute, in one thread: then neighbours on the machine do not count.
    """
    for _ in range(warm):
        ours()
        peer()
    pairs = [(seconds(ours, clock), seconds(peer, clock)) for _ in range(rounds)]
    return _columns(pairs)


async def in_turns_async(
    ours: Callable[[], Awaitable[object]],
    peer: Callable[[], Awaitable[object]],
    rounds: int,
    warm: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Costs:
    """Measures in the same way in an event loop. ``warm``: uncounted rounds; a JVM speeds up for many.

    ``clock``: ``CPU`` counts all threads of this process, and what others do for it not at all.
    """
    ours_took, peer_took = await all_in_turns((ours, peer), rounds, warm, clock)
    return ours_took, peer_took


async def all_in_turns(
    sides: Sequence[Callable[[], Awaitable[object]]],
    rounds: int,
    warm: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
) -> tuple[tuple[float, ...], ...]:
    """Measures any number of sides: the seconds of each. ``before`` runs uncounted before each."""
    turns = [[await _elapsed(side, clock, before) for side in sides] for _ in range(warm + rounds)]
    return tuple(zip(*turns[warm:], strict=True))


async def _elapsed(
    work: Callable[[], Awaitable[object]], clock: Callable[[], float], before: Callable[[], Awaitable[object]]
) -> float:
    await before()
    gc.collect()
    start = clock()
    await work()
    return clock() - start


def _columns(pairs: Sequence[tuple[float, float]]) -> Costs:
    return tuple(ours for ours, _ in pairs), tuple(peer for _, peer in pairs)
