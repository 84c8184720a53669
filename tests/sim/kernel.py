"""One kernel under all simulated worlds: virtual time, chance by the seed, links that fail, lives of nodes, a trace.

A world is a function of its seed and its plan, as in FoundationDB's simulator and TigerBeetle's VOPR: one thread, one
queue of events, no clock of the machine, and the product's machines between the faults. It is kept small: what
nodes do, what befalls them and what must hold is each world's own. ``hold`` runs a world of each seed; the first that
fails tells its seed, which is all that is needed to see it again, and the last things that happened in it.

``ODF_SIM_SEEDS`` says how many seeds, ``ODF_SIM_FIRST`` which is the first, and ``ODF_SIM_SEED`` is one alone.
"""

from __future__ import annotations

import hashlib
import heapq
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass
class Weather:
    """What befalls messages."""

    delay: tuple[float, float]
    """Seconds on the way, at least and at most; so they overtake each other."""
    loss: float = 0.0
    doubling: float = 0.0


class Links:
    """Messages between nodes, which are delayed, lost and doubled; links that are cut, and broken with all on them."""

    def __init__(self, world: Simulation, weather: Weather) -> None:
        self.world, self.weather = world, weather
        self.rng = world.lot("links")
        self.sent: Counter[str] = Counter()
        """Messages by what they are."""
        self._cut: set[frozenset[str]] = set()
        self._broken: Counter[frozenset[str]] = Counter()

    def is_open(self, one: str, other: str) -> bool:
        """A partition overrides this, whoever is on which side."""
        return frozenset((one, other)) not in self._cut

    def send(self, what: str, one: str, other: str, arrive: Callable[..., object], *args: Any) -> None:
        world, weather, link = self.world, self.weather, frozenset((one, other))
        self.sent[what] += 1
        if not self.is_open(one, other) or self.rng.random() < weather.loss:
            return
        for _ in range(1 + (self.rng.random() < weather.doubling)):
            delay = self.rng.uniform(*weather.delay)
            world.after(delay, self._arrive, what, link, self._broken[link], arrive, args)

    def _arrive(
        self, _what: str, link: frozenset[str], breaks: int, arrive: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if self._broken[link] == breaks:
            arrive(*args)

    def cut(self, one: str, other: str, seconds: float) -> None:
        """Nothing more is taken for a while; what is on the way arrives."""
        link = frozenset((one, other))
        self._cut.add(link)
        self.world.after(seconds, self._cut.discard, link)

    def reset(self, one: str, other: str) -> None:
        """What is on the way is lost."""
        self._broken[frozenset((one, other))] += 1

    def calm(self) -> None:
        """No faults any more."""
        self.weather = Weather(self.weather.delay)
        self._cut.clear()


class Process:
    """A node that starts, crashes and starts again: what it had in mind ends with its life, and its disk remains."""

    def __init__(self, world: Simulation, name: str) -> None:
        self.rng = world.lot(name)
        self._world = world
        self.life = 0
        """Odd while it runs."""

    @property
    def is_up(self) -> bool:
        return self.life % 2 == 1

    def start(self) -> None:
        self.life += not self.is_up

    def crash(self, away: float) -> None:
        """It starts again after so many seconds, unless something else starts it."""
        self.life += self.is_up
        self._world.after(away, self._start_again, self.life)

    def _start_again(self, life: int) -> None:
        if self.life == life:
            self.start()

    def in_life(self, work: Callable[..., object]) -> Callable[..., None]:
        """The work, but nothing once this life has ended: so are messages to who crashes, and its timers."""
        life = self.life

        def alive(*args: Any) -> None:
            if self.life == life and self.is_up:
                work(*args)

        alive.__qualname__ = _name(work)
        return alive

    def soon(self, least: float, most: float, work: Callable[..., object], *args: Any) -> None:
        """A timer of this life."""
        self._world.after(self.rng.uniform(least, most), self.in_life(work), *args)


def torn(data: bytes | bytearray, lot: Random) -> bytes:
    """What a disk has after a power cut of bytes that were not synced: a beginning, and now and then zeros after it."""
    synced = lot.randint(0, len(data))
    return bytes(data[:synced]) + (bytes(len(data) - synced) if lot.random() < 0.5 else b"")


# Seeds


def seeds(usual: int) -> range:
    """Few in each run, always the same ones, and as many others as a person asks for, in slices that share no seed."""
    one = os.environ.get("ODF_SIM_SEED")
    if one:
        return range(int(one), int(one) + 1)
    first = int(os.environ.get("ODF_SIM_FIRST", "0"))
    return range(first, first + int(os.environ.get("ODF_SIM_SEEDS", str(usual))))


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
        error.add_note(f"ODF_SIM_SEED={seed}")
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
