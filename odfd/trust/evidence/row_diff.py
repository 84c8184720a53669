"""Compares a published slice with a re-run one, and lists the rows and columns that differ, for people.

Both files are read side by side, a few rows at a time, whatever sizes they claim; only as many cells are kept as anyone
will read. A stranger's file may still take more memory than it seems: a process that has other work uses
``comparison_process``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from chain.data.json_values import plain_rows, plain_values
from chain.data.parquet import SliceFile, open_slice
from chain.libraries import np, pa, pc
from chain.wording import plural

MAX_CELLS: Final = 20
"""Differences kept in a finding."""
ROWS: Final = 1024
"""Rows of either file that are in memory at once."""
MAX_TEXT: Final = 1000
"""Characters of a value that are reported."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One value that differs; ``context`` holds the other columns of its row, as computed."""

    row: int
    column: str
    published: Any = None
    computed: Any = None
    context: dict[str, Any]


class RowDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two slices, for people."""

    message: str
    cells: tuple[Cell, ...] = ()
    published_rows: int = 0
    computed_rows: int = 0

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, raw: bytes) -> RowDifference:
        return msgspec.json.decode(raw, type=cls)


def compare(published: Path, computed: Path) -> RowDifference:
    """Returns the first differences, row by row in the order of offsets. Raises Invalid for an unreadable file."""
    with open_slice(published) as one, open_slice(computed) as other:
        sizes = (one.rows, other.rows)
        if one.schema.names != other.schema.names:
            return _decode_difference(f"columns {one.schema.names} published, {other.schema.names} computed", (), sizes)
        counts = dict.fromkeys(one.schema.names, 0)
        cells: list[Cell] = []
        for start, ours, theirs in _side_by_side(one, other):
            found = {name: np.flatnonzero(_differs(ours[name], theirs[name])) for name in ours.schema.names}
            for name, rows in found.items():
                counts[name] += len(rows)
            places = sorted((int(row), name) for name, rows in found.items() for row in rows[:MAX_CELLS])
            cells += [_cell(ours, theirs, start, row, name) for row, name in places[: MAX_CELLS - len(cells)]]
        return _decode_difference(_message(sizes, counts, cells), cells, sizes)


def _side_by_side(one: SliceFile, other: SliceFile) -> Iterator[tuple[int, pa.RecordBatch, pa.RecordBatch]]:
    """Yields the same rows of both files with the number of the first; ends with the shorter file."""
    start, left, right = 0, one.batches(ROWS), other.batches(ROWS)
    ours, theirs = next(left, None), next(right, None)
    while ours is not None and theirs is not None:
        rows = min(ours.num_rows, theirs.num_rows)
        if rows:
            yield start, ours.slice(0, rows), theirs.slice(0, rows)
        start += rows
        ours = ours.slice(rows) if ours.num_rows > rows else next(left, None)
        theirs = theirs.slice(rows) if theirs.num_rows > rows else next(right, None)


def _differs(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Returns an array that is true where values differ; null equals null."""
    if one.type != other.type:
        other = other.cast(one.type)
    if pa.types.is_nested(one.type):
        return np.asarray(_plain_differs(one, other))
    unequal = pc.fill_null(pc.not_equal(one, other), pa.scalar(value=False))
    return np.asarray(pc.or_(unequal, pc.not_equal(pc.is_null(one), pc.is_null(other))))


def _plain_differs(one: pa.Array, other: pa.Array) -> pa.Array:
    """Compares nested values one by one, since Arrow cannot; slices that differ in one are small or rare."""
    pairs = zip(plain_values(one), plain_values(other), strict=True)
    return pa.array([left != right for left, right in pairs], pa.bool_())


def _cell(published: pa.RecordBatch, computed: pa.RecordBatch, start: int, row: int, column: str) -> Cell:
    context = {
        name: _value(computed, row, name) for name in computed.schema.names if name not in (column, "op", "system_time")
    }
    return Cell(
        row=start + row,
        column=column,
        published=_value(published, row, column),
        computed=_value(computed, row, column),
        context=context,
    )


def _value(batch: pa.RecordBatch, row: int, column: str) -> object:
    ((value,),) = plain_rows(batch.select([column]).slice(row, 1))
    return value[:MAX_TEXT] + "…" if isinstance(value, str) and len(value) > MAX_TEXT else value


def _decode_difference(message: str, cells: Iterable[Cell], sizes: tuple[int, int]) -> RowDifference:
    return RowDifference(message=message, cells=tuple(cells), published_rows=sizes[0], computed_rows=sizes[1])


def _message(sizes: tuple[int, int], counts: dict[str, int], cells: list[Cell]) -> str:
    published, computed = sizes
    if published != computed:
        return f"{plural(published, 'row')} published, {computed:,} computed"
    if not cells:
        return "the rows are equal; offsets, watermark or schema differ"
    (first, count), *others = ((name, count) for name, count in counts.items() if count)
    told = [f"{first} differs in {plural(count, 'row')}", *(f"{name} in {count:,}" for name, count in others)]
    return f"{', '.join(told)}{',' if others else ''} of {published:,}"
