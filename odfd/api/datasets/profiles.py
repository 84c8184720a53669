"""Describes the data of a dataset, without reading rows: columns, size and growth, by its newest slices."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from chain import instant
from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.data.parquet import open_slice
from chain.errors import Environment, Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.model.events import DataSlice
from chain.state import load_state
from odfd.control import wire
from odfd.datasets.catalog import DatasetEntry
from odfd.datasets.data_profile import ColumnFacts, ProfileBuilder
from odfd.datasets.previews import columns_of, slices_back
from odfd.queries.sharded_cuts import complete_sizes
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.state.directory import StateDirectory

MOST_SLICES: Final = 1_000
"""Slices, the newest ones, whose Parquet footers are read."""
_DAY: Final = 86_400 * SECOND
_LEAST_SPAN: Final = 3_600 * SECOND
"""Least time between the oldest and the newest slice to tell a growth per day; a burst says nothing about it."""


class _Timed(NamedTuple):
    """A slice, and the time of its block."""

    slice: DataSlice
    at: Instant


def profile_of(home: StateDirectory, entry: DatasetEntry, shards: Sequence[DatasetId]) -> wire.DataProfile:
    """Describes the data of a dataset by the newest slices of its shards, up to one time.

    Raises Invalid for a schema that cannot be read.
    """
    state = load_state(home.chains.chain(entry.id))
    if state.schema is None:
        return wire.DataProfile(message="it has no data yet")
    first = max(map(home.held_from, shards))
    slices = [
        slices_back(home.chains.chain(each), home.held_from(each), size)
        for each, size in zip(shards, complete_sizes(home, shards), strict=True)
    ]
    newest = list(islice(heapq.merge(*slices, key=lambda each: each[1], reverse=True), MOST_SLICES + 1))
    read = [_Timed(*each) for each in newest[:MOST_SLICES]]
    builder = ProfileBuilder(to_arrow(schema_of(state.schema)).remove_metadata())
    unread, message = 0, f"the data before block #{first} is not kept here" if first else ""
    try:
        for each in shards:
            home.need_data(each, entry.name)
        unread = sum(not _added(home, builder, each.slice) for each in read)
    except NotFound as fault:
        message, unread = fault.message, len(read)
    known = dict(builder.columns()) if unread < len(read) else {}
    return wire.DataProfile(
        columns=tuple(
            _column(known.get(name, ColumnFacts()), wire.Column(name=name, type=kind, optional=optional, comment=said))
            for name, kind, optional, said in columns_of(state.schema)
        ),
        slices=len(read),
        unread=unread,
        is_whole=len(newest) == len(read) and not first,
        records=sum(each.slice.offset_interval.end - each.slice.offset_interval.start + 1 for each in read),
        bytes=sum(each.slice.size for each in read),
        growth=_growth(read),
        message=message,
    )


def _added(home: StateDirectory, builder: ProfileBuilder, named: DataSlice) -> bool:
    """Adds the column facts of a slice's file; returns false if the file is not here or is damaged."""
    end_if_unwanted()
    try:
        with open_slice(home.objects.path(named.physical_hash)) as file:
            builder.add(file)
    except (NotFound, Invalid, Environment):
        return False
    return True


def _column(known: ColumnFacts, column: wire.Column) -> wire.ColumnProfile:
    distinct = None if known.distinct is None else wire.CountRange(**known.distinct._asdict())
    return wire.ColumnProfile(
        name=column.name,
        type=column.type,
        optional=column.optional,
        comment=column.comment,
        nulls=known.nulls,
        minimum=known.minimum,
        maximum=known.maximum,
        distinct=distinct,
    )


def _growth(newest: list[_Timed]) -> wire.Growth | None:
    """Returns the growth per day after the oldest of the slices; ``None`` if they span too short a time."""
    if not newest or (passed := newest[0].at - newest[-1].at) < _LEAST_SPAN:
        return None
    later = [each.slice for each in newest[:-1]]
    rows = sum(each.offset_interval.end - each.offset_interval.start + 1 for each in later)
    return wire.Growth(
        since=instant.render(newest[-1].at),
        until=instant.render(newest[0].at),
        records_per_day=rows * _DAY / passed,
        bytes_per_day=sum(each.size for each in later) * _DAY / passed,
    )
