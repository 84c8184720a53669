"""Describes the data of a dataset, without reading rows: columns, size and growth, by its newest slices.

The profile of a column has the number of nulls, the least and greatest value, and a range for the number of distinct
values. The footer of a slice has the first three; the headers of dictionaries say how many values a row group has.
Nobody has checked these statements of a file's writer: they are shown to people, and nothing is decided by them.
"""

from __future__ import annotations

import decimal
import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from chain import instant
from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.data.footer import ColumnChunk
from chain.data.footprint import Chunk
from chain.data.json_values import plain_rows
from chain.data.parquet import SliceFile, open_slice
from chain.errors import Environment, Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.libraries import np, pa, pc
from chain.model.events import DataSlice
from chain.state import load_state
from odfd.control import wire
from odfd.datasets.local_data import held_from, need_data
from odfd.datasets.previews import columns_of, numbered_slices
from odfd.queries.sharded_cuts import complete_sizes
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory

MOST_SLICES: Final = 1_000
"""Slices, the newest ones, whose Parquet footers are read."""
_DAY: Final = 86_400 * SECOND
_LEAST_SPAN: Final = 3_600 * SECOND
"""Least time between the oldest and the newest slice to tell a growth per day; a burst says nothing about it."""
_SHOWN: Final = 256
"""Most characters of a least or greatest value that are shown; a longer one ends in an ellipsis."""
_BOOLEAN, _INT96 = 0, 3


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
    first = max(held_from(home, shard) for shard in shards)
    slices = [
        numbered_slices(home.chains.chain(each), held_from(home, each), size)
        for each, size in zip(shards, complete_sizes(home, shards), strict=True)
    ]
    newest = list(islice(heapq.merge(*slices, key=lambda each: each[2], reverse=True), MOST_SLICES + 1))
    read = [_Timed(each, at) for _, each, at in newest[:MOST_SLICES]]
    builder = ProfileBuilder(to_arrow(schema_of(state.schema)).remove_metadata())
    unread, message = 0, f"the data before block #{first} is not kept here" if first else ""
    try:
        for shard in shards:
            need_data(home, shard, entry.name)
        unread = sum(not _add(home, builder, each.slice) for each in read)
    except NotFound as fault:
        message, unread = fault.message, len(read)
    known = dict(builder.columns()) if unread < len(read) else {}
    return wire.DataProfile(
        columns=tuple(
            wire.ColumnProfile(
                name=name, type=kind, optional=optional, comment=said, **known.get(name, ColumnFacts())._asdict()
            )
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


def _add(home: StateDirectory, builder: ProfileBuilder, named: DataSlice) -> bool:
    """Adds the column facts of a slice's file; returns false if the file is not here or is damaged."""
    end_if_unwanted()
    try:
        with open_slice(home.objects.path(named.physical_hash)) as file:
            builder.add(file)
    except (NotFound, Invalid, Environment):
        return False
    return True


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


def _range(at_least: int, at_most: int) -> wire.CountRange:
    return wire.CountRange(at_least=at_least, at_most=at_most)


class ColumnFacts(NamedTuple):
    """Statistics of one column; ``None`` if a file lacks them."""

    nulls: int | None = None
    minimum: Any = None
    """The least value, as JSON."""
    maximum: Any = None
    distinct: wire.CountRange | None = None


@dataclass(slots=True)
class _Seen:
    """Collects the facts of one column; ``bounds`` and ``distinct`` have an entry for each chunk with values."""

    named: pa.Field
    nulls: int | None = 0
    values: int = 0
    bounds: list[pa.Array] | None = field(default_factory=list)
    distinct: list[wire.CountRange] | None = field(default_factory=list)

    @property
    def kind(self) -> pa.DataType:
        return self.named.type


class ProfileBuilder:
    """Builds the profile of the columns of one schema, slice by slice."""

    def __init__(self, schema: pa.Schema) -> None:
        self._seen = {each.name: _Seen(each) for each in schema}

    def add(self, file: SliceFile) -> None:
        """Adds a slice's file. Raises Invalid if its headers cannot be read; then nothing of it counts."""
        there = Counter(file.schema.names)
        once = {name for name, times in there.items() if times == 1}
        found = file.chunks(once & self._seen.keys())
        for name, seen in self._seen.items():
            if name in found:
                _take(seen, found[name], file.schema.field(name).type)
            elif name in there:
                seen.nulls = seen.bounds = seen.distinct = None
            elif seen.nulls is not None:
                seen.nulls += file.rows

    def columns(self) -> Iterable[tuple[str, ColumnFacts]]:
        for name, seen in self._seen.items():
            yield name, _profile(seen)


def _take(seen: _Seen, chunks: Sequence[Chunk], kind: pa.DataType) -> None:
    for walked in chunks:
        chunk = walked.column
        seen.nulls = None if seen.nulls is None or chunk.nulls is None else seen.nulls + chunk.nulls
        if chunk.values == (chunk.nulls or 0):
            continue
        seen.values += chunk.values - (chunk.nulls or 0)
        bounds = None if seen.bounds is None else _bounds(chunk, kind, seen.kind)
        if seen.bounds is not None and bounds is not None:
            seen.bounds.append(bounds)
        else:
            seen.bounds = None
        if seen.distinct is not None:
            seen.distinct.append(_distinct(walked))


def _distinct(chunk: Chunk) -> wire.CountRange:
    """Counts the distinct values of one chunk: exactly if its dictionary holds all of them."""
    column = chunk.column
    most = max(column.values - (column.nulls or 0), 0)
    entries = min(max(chunk.entries, 0), most)
    if entries and chunk.is_encoded:
        return _range(entries, entries)
    differ = column.bounds is not None and column.bounds[0] != column.bounds[1]
    return _range(max(entries, min(1 + differ, most)), most)


def _profile(seen: _Seen) -> ColumnFacts:
    if not seen.bounds:
        distinct = _range(0, 0) if seen.bounds == [] and seen.nulls is not None else None
        if seen.distinct and seen.values:
            distinct = _range(max(each.at_least for each in seen.distinct), _sum_of_most(seen))
        return ColumnFacts(seen.nulls, distinct=distinct)
    both = pa.concat_arrays(seen.bounds)
    ends = pc.min_max(both)
    least_most = pa.concat_arrays([pa.array([ends[each]], seen.kind) for each in ("min", "max")])
    (low,), (high,) = plain_rows(pa.Table.from_arrays([least_most], schema=pa.schema([seen.named])))
    distinct = None if seen.distinct is None else _together(both, seen, ends)
    return ColumnFacts(seen.nulls, _show(low), _show(high), distinct)


def _sum_of_most(seen: _Seen) -> int:
    return min(sum(each.at_most for each in seen.distinct or ()), seen.values)


def _together(bounds: pa.Array, seen: _Seen, ends: pa.StructScalar) -> wire.CountRange:
    """Bounds the number of distinct values of all chunks.

    Chunks whose ranges of values do not overlap have no value in common; of overlapping ones the largest count is
    certain.
    """
    ranks = pc.rank(bounds, tiebreaker="dense").to_numpy().astype(np.int64).reshape(-1, 2)
    order = np.argsort(ranks[:, 0], kind="stable")
    low, high = ranks[order, 0], np.maximum.accumulate(ranks[order, 1])
    apart = np.concatenate(([0], np.cumsum(low[1:] > high[:-1])))
    least = np.zeros(int(apart[-1]) + 1, np.int64)
    np.maximum.at(least, apart, np.array([each.at_least for each in seen.distinct or ()], np.int64)[order])
    most = _sum_of_most(seen)
    if pa.types.is_integer(seen.kind) or pa.types.is_date32(seen.kind):
        width = pa.int32() if pa.types.is_date32(seen.kind) else seen.kind
        between = [int(ends[each].cast(width).as_py()) for each in ("max", "min")]
        most = min(most, between[0] - between[1] + 1)
    elif pa.types.is_boolean(seen.kind):
        most = min(most, 2)
    return _range(min(int(least.sum()), most), most)


def _bounds(chunk: ColumnChunk, kind: pa.DataType, wanted: pa.DataType) -> pa.Array | None:
    """Returns least and greatest value of a chunk in the type that the column has now; ``None`` if unusable."""
    if chunk.bounds is None or chunk.leaf.kind == _INT96:
        return None
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    try:
        read = _values(chunk.bounds, kind, chunk.leaf.kind)
        return None if read is None else read.cast(wanted)
    except (pa.ArrowException, ValueError, ArithmeticError):
        return None


def _values(ends: tuple[bytes, bytes], kind: pa.DataType, physical: int) -> pa.Array | None:
    """Decodes bounds in PLAIN encoding; ``None`` for types whose bounds are not in the order of the type."""
    t = pa.types
    if t.is_boolean(kind) and physical == _BOOLEAN:
        return pa.array([end != b"\0" for end in ends], kind)
    if t.is_integer(kind):
        return pa.array([int.from_bytes(end, "little", signed=t.is_signed_integer(kind)) for end in ends], kind)
    if any(is_one(kind) for is_one in (t.is_date, t.is_time, t.is_timestamp, t.is_duration)):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array([int.from_bytes(end, "little", signed=True) for end in ends], width).cast(kind)
    if t.is_float32(kind) or t.is_float64(kind):
        numbers = np.frombuffer(b"".join(ends), "<f4" if t.is_float32(kind) else "<f8")
        return None if np.isnan(numbers).any() else pa.array(numbers, kind)
    if t.is_decimal(kind):
        order = "little" if physical in (1, 2) else "big"
        scaled = [int.from_bytes(end, order, signed=True) for end in ends]  # type: ignore[arg-type]
        digits = [decimal.Decimal((each < 0, tuple(map(int, str(abs(each)))), -kind.scale)) for each in scaled]
        return pa.array(digits, kind)
    if t.is_string(kind) or t.is_large_string(kind):
        return pa.array([end.decode() for end in ends], kind)
    return pa.array(list(ends), kind) if t.is_binary(kind) or t.is_fixed_size_binary(kind) else None


def _show(value: Any) -> Any:
    return value[:_SHOWN] + "…" if isinstance(value, str) and len(value) > _SHOWN else value
