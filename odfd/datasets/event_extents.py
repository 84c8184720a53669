"""Measures the size of datasets, and their first and last event time by the footers of slices, without reading rows.

A card says them. What was measured up to one block is kept in memory, and after a restart is taken from the last card,
so that each slice is looked at once. A look reads a bounded number of footers, and the next one goes on. A time is
never too narrow: rows that were corrected or retracted since count too. Used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from chain import instant
from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.errors import Fault
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.libraries import pa
from chain.model.events import DataSlice
from chain.multihash import Multihash
from chain.state import ChainState
from chain.statements.card import Card
from chain.store.base import ChainReader
from engines.footers import footer
from odfd.datasets.previews import numbered_slices

MOST: Final = 1_024
"""Footers that one look reads at most."""
RECENT: Final = 9
"""Newest blocks with rows whose times tell the usual interval of updates."""
FIRST: Final = instant.parse("0001-01-01T00:00:00Z")
LAST: Final = instant.parse("9999-12-31T23:59:59Z")
"""The times that a statement can contain."""


class EventSpan(NamedTuple):
    """The first and the last event time; both ``None`` without rows."""

    first: Instant | None = None
    last: Instant | None = None

    def union(self, other: EventSpan) -> EventSpan:
        firsts = [each for each in (self.first, other.first) if each is not None]
        lasts = [each for each in (self.last, other.last) if each is not None]
        return EventSpan(min(firsts, default=None), max(lasts, default=None))


class Measured(NamedTuple):
    """``is_whole``: no further look at the same blocks would tell more."""

    extent: EventSpan | None
    """``None`` if it is not known."""
    bytes: int = 0
    """Bytes of all slices; 0 if they are not known."""
    is_whole: bool = True


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of the blocks from ``start`` to below ``size``."""

    epoch: int
    size: int
    head: Multihash
    start: int
    extent: EventSpan | None
    """``None``: a slice does not say."""
    bytes: int = 0


class EventExtents:
    """Keeps what was measured of the datasets of one node."""

    def __init__(self, read: Callable[[DataSlice, str], EventSpan | None]) -> None:
        """``read``: returns the extent of a column in a slice; ``None`` if the slice does not say."""
        self._read = read
        self._kept: dict[DatasetId, _Kept] = {}

    def measure(self, chain: ChainReader, state: ChainState, epoch: int, first: int, before: Card | None) -> Measured:
        """Measures a dataset up to its head. ``first``: first block whose data is here; ``before``: the last card."""
        dataset, head = state.dataset, state.head
        if dataset is None or head is None or not state.next_offset:
            return Measured(EventSpan())
        kept = self._kept.get(dataset) or _read_card(before)
        if kept is not None and (kept.epoch, kept.size, kept.head, kept.start) == (epoch, state.size, head, 0):
            self._kept[dataset] = kept
            return Measured(kept.extent, kept.bytes)  # nothing is loaded for a dataset that did not move
        if kept is None or kept.epoch != epoch or not _is_of(kept, chain, state):
            kept = _Kept(epoch=epoch, size=state.size, head=head, start=state.size, extent=EventSpan())
        if not _is_time(state):
            kept = msgspec.structs.replace(kept, extent=None)
        kept = self._continue(kept, chain, state, head, first)
        self._kept[dataset] = kept
        if kept.start:
            return Measured(None, is_whole=kept.start <= first)
        return Measured(kept.extent, kept.bytes)

    def forget(self, dataset: DatasetId) -> None:
        self._kept.pop(dataset, None)

    def _continue(self, kept: _Kept, chain: ChainReader, state: ChainState, head: Multihash, first: int) -> _Kept:
        """Measures the blocks after those that are kept, then some of those before."""
        newer = list(islice(numbered_slices(chain, kept.size, state.size), MOST + 1))
        start, extent, size, column = kept.start, kept.extent, kept.bytes, state.vocab.event_time
        if len(newer) > MOST:  # more than one look may read: they are measured backwards, like a new dataset
            newer, start, extent, size = [], state.size, EventSpan() if _is_time(state) else None, 0
        older = list(islice(numbered_slices(chain, first, start), MOST - len(newer) + 1)) if start > first else []
        if len(newer) + len(older) > MOST:
            older.pop()
            start = older[-1][0] if older else start
        else:
            start = min(start, first)
        for _, each, _ in (*newer, *older):
            read = None if extent is None else self._read(each, column)
            extent = None if read is None or extent is None else extent.union(read)
            size += each.size
        return _Kept(epoch=kept.epoch, size=state.size, head=head, start=start, extent=extent, bytes=size)


def extent_in(file_of: Callable[[Multihash], Path], named: DataSlice, column: str) -> EventSpan | None:
    """Returns the extent of a column by the footer of a slice; ``None`` if that does not say, or is not here.

    ``file_of``: returns the file of an object, unchecked; raises a Fault without any.
    """
    try:
        found = footer(file_of(named.physical_hash))
    except Fault:
        return None
    if column not in found.columns:
        return None
    if column not in found.bounds:
        return EventSpan()
    bounds = found.bounds[column]
    return None if bounds is None else EventSpan(Instant(bounds.low), Instant(bounds.high))


def render_span(extent: EventSpan | None) -> tuple[str | None, str | None]:
    """Returns both times as statements contain them, in whole seconds; ``None`` where they cannot."""
    if extent is None or extent.first is None or extent.last is None or extent.first < FIRST or extent.last > LAST:
        return None, None
    return _whole(extent.first), _whole(extent.last)


def interval_of(chain: ChainReader) -> int:
    """Returns the median of the seconds between the newest blocks with rows, at least 1; 0 with fewer than two."""
    times = [time for _, _, time in islice(numbered_slices(chain), RECENT)]
    gaps = sorted(later - earlier for later, earlier in pairwise(times))
    return max(1, gaps[(len(gaps) - 1) // 2] // SECOND) if gaps else 0


def _whole(time: Instant) -> str:
    return instant.render(Instant(time - time % SECOND))


def _read_card(card: Card | None) -> _Kept | None:
    """Takes what the last card says."""
    facts = None if card is None else card.chain
    if card is None or facts is None or facts.first_event is None or facts.last_event is None or card.shards:
        return None
    if not facts.bytes:
        return None
    extent = EventSpan(instant.parse(facts.first_event), instant.parse(facts.last_event))
    return _Kept(epoch=card.epoch, size=card.size, head=card.head, start=0, extent=extent, bytes=facts.bytes)


def _is_of(kept: _Kept, chain: ChainReader, state: ChainState) -> bool:
    """Whether what is kept is of a beginning of this chain."""
    if kept.size > state.size:
        return False
    return kept.head == (state.head if kept.size == state.size else chain.block_at(kept.size - 1).hash)


def _is_time(state: ChainState) -> bool:
    """Whether the event time is a time, and not a number of the source's own kind."""
    if state.schema is None:
        return False
    column = state.vocab.event_time
    schema = to_arrow(schema_of(state.schema))
    kind = schema.field(column).type if column in schema.names else None
    return kind is not None and bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
