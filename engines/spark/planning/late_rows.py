"""Places the output of late rows that a query takes one by one: at their output time, never among settled rows.

A row comes out at the greater of its output time and that of the watermark before its block, so its place follows from
its own chain. Pure. Spec: docs/spec/engine-semantics.md#late-rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from engines.spark.analysis.classify import Path
from engines.spark.analysis.monotone import EARLIEST, LATEST, apply, least


class Block(Protocol):
    """What has to be known of a block; times in microseconds."""

    @property
    def path(self) -> str | None: ...

    @property
    def before(self) -> int | None: ...

    @property
    def first(self) -> int | None: ...

    @property
    def last(self) -> int | None: ...


B = TypeVar("B", bound=Block)


class Placed(NamedTuple):
    """Rows of slices with ``low <= event time < high``; none comes out before ``place``."""

    paths: tuple[str, ...]
    low: int
    high: int
    place: int


@dataclass(frozen=True, slots=True)
class LateInput(Generic[B]):
    """The blocks of an input that are mounted, each with the event time from which on its rows count."""

    paths: Sequence[Path]
    lateness: int
    reach: int | None
    """How late rows may be; ``None``: however late."""
    judged: Sequence[tuple[B, int]]

    def needed(self, done: int | None, bound: int) -> Iterator[Placed]:
        """Rows that come out from ``done`` on and before ``bound``, or more; slices with equal bounds together."""
        groups: dict[tuple[int, int, int], list[str]] = {}
        for path, first, low, high, place in self._due(done, bound):
            groups.setdefault((place, low if first < low else EARLIEST, high), []).append(path)
        for (place, low, high), names in sorted(groups.items()):
            yield Placed(tuple(names), low, high, place)

    def earliest(self, done: int | None, bound: int | None) -> int:
        """The least output time of the rows that are needed; ``LATEST`` when there are none."""
        if bound is None:
            return LATEST
        times = [max(first, low) for _, first, low, _, _ in self._due(done, bound)]
        return min((apply(path.low, min(times)) for path in self.paths), default=LATEST) if times else LATEST

    def _due(self, done: int | None, bound: int) -> Iterator[tuple[str, int, int, int, int]]:
        """Of blocks with rows that are needed: path, first event time, and the rest as in ``Placed``."""
        high = max(least(path.low, bound) for path in self.paths)
        for block, accepted in self.judged:
            if block.path is None or block.first is None or block.last is None:
                continue
            place, low = self._place(block), self._since(block, accepted, done)
            if place < bound and block.first < high and block.last >= low:
                yield block.path, block.first, low, high, place

    def still_open(self, bound: int | None) -> Iterator[tuple[B, int, int]]:
        """Blocks with rows that may come out at ``bound`` or later, from which event time on, and the watermark
        before them.
        """
        for block, accepted in self.judged:
            low = self._since(block, accepted, bound)
            if block.path is not None and block.last is not None and block.last >= low:
                yield block, low, EARLIEST if block.before is None else block.before

    def _place(self, block: Block) -> int:
        if block.before is None:
            return EARLIEST
        return min(apply(path.low, block.before - self.lateness) for path in self.paths)

    def _since(self, block: Block, accepted: int, time: int | None) -> int:
        if time is None or self._place(block) >= time:
            return accepted
        return max(accepted, min(least(path.high, time) for path in self.paths))


def reached_back(reaches: Iterable[tuple[Path, int | None]], time: int | None) -> int | None:
    """The least output time of rows that come out at ``time`` or later, late rows among them.

    ``reaches``: of each path that rows take one by one, how late they may be; ``None``: however late.
    """
    if time is None:
        return None
    return min([time, *(EARLIEST if reach is None else apply(path.low, least(path.low, time) - reach)
                        for path, reach in reaches)])  # fmt: skip
