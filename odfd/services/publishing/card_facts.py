"""Derives the facts of a dataset's card from its chain, and its sample: the newest rows that hold, as short texts.

Texts and lists are cut to the limits of a card. Rows are read from the dataset's own published blocks, and so have the
columns that whoever mirrors it gets, and no row that a portal's rule left out. Sizes and the first and last event time
are measured by the footers of slices, without reading rows: each slice is looked at once, as what was measured up to
one block is kept in memory and, after a restart, taken from the last card; a look reads a bounded number of footers. A
time is never too narrow: rows that were corrected or retracted since count too. Used by one thread at a time. Spec:
docs/spec/trust.md#cards; ADR 85.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from chain import instant
from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.data.json_values import plain_rows
from chain.data.operations import CORRECT_FROM, RETRACT
from chain.errors import Fault, Invalid
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.libraries import pa
from chain.model.changelog import says_changelog
from chain.model.events import DatasetKind, DataSlice
from chain.model.portal import described, portal_rule
from chain.multihash import Multihash
from chain.state import ChainState
from chain.statements import card
from chain.statements.card import Card, CardColumn, CardSample, ChainFacts
from chain.statements.statement import when
from chain.store.base import ChainReader
from engines.footers import footer
from odfd.datasets import previews
from odfd.datasets.previews import numbered_slices
from odfd.renditions.successor import without_notice

_CUT: Final = "…"


def facts_of(state: ChainState, created_at: Instant) -> ChainFacts:
    """Derives the facts from the state of a chain with at least one block; ``created_at``: the time of the first."""
    info, licence = without_notice(state.set_info), state.set_license
    columns = [] if state.schema is None else list(previews.columns_of(state.schema))
    shown = columns[: card.MAX_COLUMNS]
    keywords = () if info is None else info.keywords or ()
    return ChainFacts(
        kind="derivative" if state.kind is DatasetKind.DERIVATIVE else "root",
        records=state.next_offset,
        created_at=when(created_at),
        updated_at=when(state.system_time or created_at),
        watermark=None if state.watermark is None else when(state.watermark),
        description=cut((info.description if info else None) or "", card.MAX_DESCRIPTION),
        keywords=tuple(cut(keyword, card.MAX_WORD) for keyword in keywords[: card.MAX_KEYWORDS] if keyword),
        license="" if licence is None else cut(licence.short_name, card.MAX_WORD),
        license_url="" if licence is None or len(licence.website_url) > card.MAX_URL else licence.website_url,
        columns=tuple(
            CardColumn(name=cut(name, card.MAX_WORD), type=cut(kind, card.MAX_WORD)) for name, kind, *_ in shown
        ),
        more_columns=len(columns) - len(shown),
        inputs=tuple(_inputs(state)),
        portal=cut(_portal(state), card.MAX_URL),
    )


def list_shortened(facts: ChainFacts, state: ChainState) -> tuple[str, ...]:
    """Names the texts and lists of which a card has a part only."""
    info = without_notice(state.set_info)
    columns = [] if state.schema is None else [name for name, *_ in previews.columns_of(state.schema)]
    whole = {
        "description": ((info.description if info else None) or "", facts.description),
        "keywords": (tuple((info.keywords if info else None) or ()), facts.keywords),
        "columns": (columns, [column.name for column in facts.columns]),
        "inputs": (len(state.set_transform.inputs) if state.set_transform else 0, len(facts.inputs)),
    }
    return tuple(name for name, (all_of_it, kept) in whole.items() if all_of_it != kept)


def _portal(state: ChainState) -> str:
    """Describes the rule of a portal; empty for another dataset, or a rule of a newer version."""
    with suppress(Invalid):
        rule = None if state.schema is None else portal_rule(state.schema.schema)
        return "" if rule is None else described(rule)
    return ""


def cut(text: str, most: int) -> str:
    """Shortens a text to at most ``most`` characters, the last of which then marks the cut."""
    return text if len(text) <= most else text[: most - len(_CUT)] + _CUT


def _inputs(state: ChainState) -> list[DatasetId]:
    found: list[DatasetId] = []
    for input_ in state.set_transform.inputs if state.set_transform else ():
        with suppress(Invalid):  # names that are no ids are left out
            found.append(DatasetId.parse(input_.dataset_ref))
    return found[: card.MAX_INPUTS]


LOOKED_AT: Final = 256
"""Newest rows of a dataset whose rows can be retracted, among which those to show are looked for."""


def sample_of(
    chain: ChainReader, files: previews.SoundFiles, state: ChainState, asked: int, *, first: int, before: int
) -> CardSample:
    """Returns the newest ``asked`` rows of blocks from ``first`` to below ``before``, at most ``card.MAX_SAMPLE``.

    Raises Invalid, NotFound, Environment for rows that cannot be read.
    """
    asked = min(asked, card.MAX_SAMPLE)
    if state.schema is None or not asked:
        return CardSample()
    vocab, names = state.vocab, [name for name, *_ in previews.columns_of(state.schema)][: card.MAX_COLUMNS]
    hidden = {vocab.offset, vocab.operation_type, vocab.system_time}
    places = tuple(place for place, name in enumerate(names) if name not in hidden)
    is_changed = state.schema.schema is None or says_changelog(state.schema.schema)
    schema = to_arrow(schema_of(state.schema))
    table = previews.tail(chain, files, LOOKED_AT if is_changed else asked, schema, first, before)
    if table is None:
        return CardSample()
    rows = plain_rows(table.select([names[place] for place in places]))
    if is_changed and vocab.operation_type in table.column_names:
        rows = _holding(rows, table.column(vocab.operation_type).to_pylist())
    return CardSample(columns=places, rows=tuple(tuple(map(_text, row)) for row in rows[-asked:]))


def _holding(rows: Sequence[tuple[Any, ...]], operations: Sequence[int]) -> list[tuple[Any, ...]]:
    """Returns the rows that no later one of them takes back."""
    kept: list[tuple[Any, ...]] = []
    for row, operation in zip(rows, operations, strict=True):
        if operation not in (RETRACT, CORRECT_FROM):
            kept.append(row)
        elif row in kept:
            kept.remove(row)
    return kept


def _text(value: Any) -> str | bool:
    if value is None:
        return False
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return cut(text, card.MAX_CELL)


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
