"""Records objects in use although no block names them; the garbage collector spares them.

Three kinds, all of this process, since work in flight dies with it: *fresh* objects were added and wait for the block
that will name them; *lent* ones were asked for or handed out as a path, and stay until the collection after next;
*held* ones are under a ``hold``. Made with the object store it belongs to. Memory is bounded: when more paths were lent
than it can remember, it says that everything may be.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from chain.multihash import Multihash

MAX_LENT: Final = 100_000


class Holds:
    """The objects that the collection must leave: fresh, lent and held ones. Safe to use from any thread."""

    def __init__(self, max_lent: int = MAX_LENT) -> None:
        self._lock = threading.Lock()
        self._fresh: set[Multihash] = set()
        self._held: Counter[Multihash] = Counter()
        self._lent: set[Multihash] = set()
        self._lent_before: set[Multihash] = set()
        self._paths: set[Multihash] = set()
        self._paths_before: set[Multihash] = set()
        """Of the lent ones, those whose path was handed out."""
        self._max_lent = max_lent
        self._overflow = self._overflow_before = False

    def added(self, name: Multihash) -> None:
        with self._lock:
            self._fresh.add(name)

    def named(self, names: Iterable[Multihash]) -> None:
        """Blocks name these by now: they are reachable."""
        with self._lock:
            self._fresh.difference_update(names)

    def settle(self, reachable: Callable[[Multihash], bool]) -> None:
        """Stops protecting fresh objects that a chain names by now."""
        with self._lock:
            self._fresh = {name for name in self._fresh if not reachable(name)}

    def lend(self, name: Multihash, *, path: bool = False) -> None:
        """``path``: its path is handed out, and may be opened at any time."""
        with self._lock:
            if len(self._lent) < self._max_lent:
                self._lent.add(name)
                if path:
                    self._paths.add(name)
            else:
                self._overflow = True

    @contextlib.contextmanager
    def hold(self, names: Iterable[Multihash]) -> Iterator[None]:
        """Protects objects for long readers, such as an engine that opens files at any time."""
        kept = list(names)
        with self._lock:
            self._held.update(kept)
        try:
            yield
        finally:
            with self._lock:
                self._held.subtract(kept)
                for name in kept:
                    if not self._held[name]:
                        del self._held[name]

    def is_held(self, name: Multihash) -> bool:
        """Whether an object is held for a reader."""
        with self._lock:
            return name in self._held

    def next_collection(self) -> None:
        """Starts a collection, which counts objects lent before the last one as returned."""
        with self._lock:
            self._lent_before, self._lent = self._lent, set()
            self._paths_before, self._paths = self._paths, set()
            self._overflow_before, self._overflow = self._overflow, False

    @contextlib.contextmanager
    def unless_open(self, name: Multihash) -> Iterator[bool]:
        """Yields whether nobody may be reading a file of the object, and prevents that anybody begins to meanwhile.

        For an object of which another file is whole: who only asked for it loses nothing.
        """
        with self._lock:
            kept = (self._held, self._paths, self._paths_before)
            yield not (self._overflow or self._overflow_before or any(name in each for each in kept))

    @contextlib.contextmanager
    def unless_held(self, names: Iterable[Multihash], foreseen: bool = False) -> Iterator[list[Multihash]]:
        """Yields those of ``names`` that nothing needs, and prevents that anything begins to need them meanwhile.

        ``foreseen``: whether the next collection will find it so, which begins by taking back what was lent before.
        """
        with self._lock:
            kept = [self._fresh, self._held, self._lent]
            overflow = self._overflow
            if not foreseen:
                kept.append(self._lent_before)
                overflow = overflow or self._overflow_before
            yield [] if overflow else [name for name in names if not any(name in each for each in kept)]
