"""A kernel under simulated worlds: virtual time, chance by the seed, a trace.

A world is a function of its seed and its plan, as in FoundationDB's simulator and TigerBeetle's VOPR: one thread, one
queue of events, no clock of the machine, and the product's machines between the faults. It is kept small: what
nodes do, what befalls them and what must hold is each world's own. ``hold`` runs a world of each seed; the first that
fails tells its seed, which is all that is needed to see it again, and the last things that happened in it.

``ODFD_SIM_SEEDS`` says how many seeds, ``ODFD_SIM_FIRST`` which is the first, and ``ODFD_SIM_SEED`` is one alone.
"""

from __future__ import annotations

import hashlib
import heapq
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, Final

BATCH: Final = 25
"""Seeds of one test, since a test costs more than a small world."""
KEPT: Final = 40
"""Things that happened last, which a failure tells."""


class Simulation:
    """Virtual time and what happens in it; the base of each world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now = 0.0
        self.steps = 0
        """Events that have happened."""
        self.seen: Counter[str] = Counter()
        """What occurred, so that a test knows that the seeds reach it."""
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._made = 0
        self._last: deque[tuple[float, Callable[..., object] | None, tuple[object, ...]]] = deque(maxlen=KEPT)
        self._noted = hashlib.sha256()

    def lot(self, *name: object) -> Random:
        """Chance of its own, for one node say: what it draws changes nothing for others."""
        return Random(f"{self.seed} {name}")

    # Time

    def at(self, when: float, work: Callable[..., object], *args: Any) -> None:
        """Events of one time happen in the order of their making; what is late happens now."""
        self._made += 1
        heapq.heappush(self._queue, (max(when, self.now), self._made, work, args))

    def after(self, wait: float, work: Callable[..., object], *args: Any) -> None:
        self.at(self.now + wait, work, *args)

    @property
    def waiting(self) -> int:
        """Events to come."""
        return len(self._queue)

    def step(self) -> None:
        self.now, _, work, args = heapq.heappop(self._queue)
        self.steps += 1
        self._last.append((self.now, work, args))
        work(*args)

    def run_until(self, end: float) -> None:
        """All that happens until then."""
        while self._queue and self._queue[0][0] <= end:
            self.step()
        self.now = end

    def converge(self) -> object:
        """Runs it to its end, and checks what is promised."""
        raise NotImplementedError

    # What can be told of it

    def note(self, *what: object) -> None:
        """Makes it part of the trace, and of what the same seed must give again."""
        self._last.append((self.now, None, what))
        self._noted.update(repr((round(self.now, 6), *what)).encode())

    def trace(self) -> str:
        """The last things that happened, each with its time."""
        return "\n".join(f"{at:12.3f}  {_name(work)} {', '.join(map(_short, args))}" for at, work, args in self._last)

    @property
    def end(self) -> tuple[object, ...]:
        """What the same seed must give again: whatever differs in a world changes what is drawn after it."""
        return self.now, self.steps, self._made, self._noted.hexdigest(), self.rng.getstate()


def _name(work: Callable[..., object] | None) -> str:
    while isinstance(work, partial):
        work = work.func
    return getattr(work, "__qualname__", repr(work)) if work else "·"


def _short(thing: object) -> str:
    text = getattr(thing, "name", None) or repr(thing)
    return str(text)[:60]


def seeds(usual: int) -> range:
    """Few in each run, always the same ones, and as many others as a person asks for, in slices that share no seed."""
    one = os.environ.get("ODFD_SIM_SEED")
    if one:
        return range(int(one), int(one) + 1)
    first = int(os.environ.get("ODFD_SIM_FIRST", "0"))
    return range(first, first + int(os.environ.get("ODFD_SIM_SEEDS", str(usual))))


def share(usual: int, part: float) -> range:
    """The same for worlds that cost more than others: a part of the seeds that are asked for, one at least."""
    every = seeds(round(usual / part))
    return every[: max(1, round(len(every) * part))]


def batches(usual: int, part: float = 1.0) -> list[range]:
    """The same in parts, each of which a test gets."""
    every = share(usual, part)
    return [every[at : at + BATCH] for at in range(0, len(every), BATCH)]


@contextmanager
def named(seed: int) -> Iterator[None]:
    """Adds the seed to an exception, as a test of several seeds does not have it in its name."""
    try:
        yield
    except Exception as error:
        error.add_note(f"ODFD_SIM_SEED={seed}")
        raise


def hold(several: Iterable[int], make: Callable[[int], Simulation]) -> None:
    """Runs a world of each seed, and ends at the first that fails."""
    for seed in several:
        with named(seed):
            world = make(seed)
            try:
                world.converge()
            except Exception as error:
                error.add_note(f"What happened last:\n{world.trace()}")
                raise
