"""Records objects in use that no block names, so that the garbage collector spares them.

Three kinds, kept in memory only, as work in progress ends with the process: *fresh* objects were added and wait for the
block that will name them; *lent* ones were looked up or handed out as a path, and stay until the collection after next;
*held* ones are under a ``hold``. Made with its object store. Memory is bounded: if more objects were lent than it can
remember, it treats all objects as lent.
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
        """Those lent before the last collection whose path was handed out."""
        self._max_lent = max_lent
        self._overflow = self._overflow_before = False

    def added(self, name: Multihash) -> None:
        with self._lock:
            self._fresh.add(name)

    def named(self, names: Iterable[Multihash]) -> None:
        """Stops protecting objects as fresh: blocks name them by now, so they are reachable."""
        with self._lock:
            self._fresh.difference_update(names)

    def settle(self, reachable: Callable[[Multihash], bool]) -> None:
        """Stops protecting fresh objects that a chain names by now."""
        with self._lock:
            self._fresh = {name for name in self._fresh if not reachable(name)}

    def lend(self, name: Multihash, *, path: bool = False) -> None:
        """Records that an object was looked up. ``path``: its path is handed out, and may be opened at any time."""
        with self._lock:
            if len(self._lent) < self._max_lent:
                self._lent.add(name)
                if path:
                    self._paths.add(name)
            else:
                self._overflow = True

    @contextlib.contextmanager
    def hold(self, names: Iterable[Multihash]) -> Iterator[None]:
        """Protects objects while the context lasts, for readers such as an engine that opens files at any time."""
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
        """Yields whether no reader can have the object's file open, and keeps new readers away meanwhile.

        For an object that has another intact copy: a caller that only looked it up loses nothing.
        """
        with self._lock:
            kept = (self._held, self._paths, self._paths_before)
            yield not (self._overflow or self._overflow_before or any(name in each for each in kept))

    @contextlib.contextmanager
    def unless_held(self, names: Iterable[Multihash], foreseen: bool = False) -> Iterator[list[Multihash]]:
        """Yields those of ``names`` that nothing protects, and lets nothing protect them meanwhile.

        ``foreseen``: judges as the next collection will, which begins by dropping the older loans.
        """
        with self._lock:
            kept = [self._fresh, self._held, self._lent]
            overflow = self._overflow
            if not foreseen:
                kept.append(self._lent_before)
                overflow = overflow or self._overflow_before
            yield [] if overflow else [name for name in names if not any(name in each for each in kept)]
