"""Compares a published slice with a re-run one, and lists the rows and columns that differ, for people.

Compares the slice that was published with the one that a re-run made: vectorised, column by column, and only as many
cells are kept as anyone will read.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chain.wording import plural
from odfd.datasets.reading import plain_values

MAX_CELLS: Final = 20
"""Differences kept in a finding."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One value that differs; ``context`` holds the other columns of its row, as computed."""

    row: int
    column: str
    published: Any = None
    computed: Any = None
    context: dict[str, Any]


class RowDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What a mismatch looks like."""

    message: str
    cells: tuple[Cell, ...] = ()
    published_rows: int = 0
    computed_rows: int = 0

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, raw: bytes) -> RowDifference:
        return msgspec.json.decode(raw, type=cls)


def compare(published: pa.Table, computed: pa.Table) -> RowDifference:
    """The first differences, row by row in the order of offsets."""
    sizes = {"published_rows": published.num_rows, "computed_rows": computed.num_rows}
    if published.schema.names != computed.schema.names:
        return RowDifference(
            message=f"columns {published.schema.names} published, {computed.schema.names} computed", **sizes
        )
    rows = min(published.num_rows, computed.num_rows)
    differing = {
        name: np.flatnonzero(_differs(published[name].slice(0, rows), computed[name].slice(0, rows)))
        for name in published.schema.names
    }
    places = sorted((int(row), name) for name, found in differing.items() for row in found[:MAX_CELLS])[:MAX_CELLS]
    cells = tuple(_cell(published, computed, row, name) for row, name in places)
    return RowDifference(message=_message(published, computed, differing, cells), cells=cells, **sizes)


def _differs(one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray:
    """True where values differ; null equals null."""
    if one.type != other.type:
        other = other.cast(one.type)
    if pa.types.is_nested(one.type):
        return np.asarray(_plain_differs(one, other))
    unequal = pc.fill_null(pc.not_equal(one, other), pa.scalar(value=False))
    return np.asarray(pc.or_(unequal, pc.not_equal(pc.is_null(one), pc.is_null(other))))


def _plain_differs(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
    """Nested values have no vectorised comparison; a slice that differs in one is small or rare."""
    pairs = zip(plain_values(one.combine_chunks()), plain_values(other.combine_chunks()), strict=True)
    return pa.array([left != right for left, right in pairs], pa.bool_())


def _cell(published: pa.Table, computed: pa.Table, row: int, column: str) -> Cell:
    context = {
        name: _value(computed, row, name) for name in computed.schema.names if name not in (column, "op", "system_time")
    }
    return Cell(
        row=row,
        column=column,
        published=_value(published, row, column),
        computed=_value(computed, row, column),
        context=context,
    )


def _value(table: pa.Table, row: int, column: str) -> object:
    return plain_values(table[column].slice(row, 1).combine_chunks())[0]


def _message(published: pa.Table, computed: pa.Table, differing: dict[str, np.ndarray], cells: tuple[Cell, ...]) -> str:
    columns = [f"{name} ({len(found)})" for name, found in differing.items() if len(found)]
    if published.num_rows != computed.num_rows:
        return f"{plural(published.num_rows, 'row')} published, {computed.num_rows:,} computed"
    if not cells:
        return "the rows are equal; offsets, watermark or schema differ"
    return f"{', '.join(columns)} of {plural(published.num_rows, 'row')} differ"
