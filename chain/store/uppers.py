"""Keeps the ``upper`` of chains beside their heads in SQLite. Functions on a connection, within its transaction.

An empty column means that no upper was promised: the frontier is then the time of the last block, since times never
fall and several blocks may have one.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from chain.codec.blocks import read_time
from chain.errors import Conflict
from chain.ids import DatasetId
from chain.instant import to_millis
from chain.model.block import Block
from chain.store.base import Append


class _Times(NamedTuple):
    """What is known of a chain's frontier, in milliseconds; ``None`` for what there is not, as without the chain."""

    promised: int | None
    last: int | None
    """The time of its last block."""

    @property
    def upper(self) -> int:
        return max(self.promised or 0, self.last or 0, 0)


def _times(connection: sqlite3.Connection, dataset: DatasetId) -> _Times:
    row = connection.execute(
        "SELECT upper, raw FROM datasets LEFT JOIN blocks ON dataset = number AND sequence = head_sequence"
        " WHERE id = ?",
        (dataset,),
    ).fetchone()
    upper, raw = row or (None, None)
    # Every commit asks this of every shard: the last block is not decoded for its time.
    return _Times(upper, None if raw is None else to_millis(read_time(raw)))


def upper_of(connection: sqlite3.Connection, dataset: DatasetId) -> int:
    """Returns the time below which a chain is complete: as promised, or by the time of its last block."""
    return _times(connection, dataset).upper


def beyond_last(connection: sqlite3.Connection, dataset: DatasetId) -> int | None:
    """Returns the promised upper of a chain if it says more than the time of the last block; else ``None``."""
    promised, last = _times(connection, dataset)
    return None if promised is None or last is None or promised <= last else promised


def forget(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Takes back what another node promised of a history that is given up here."""
    connection.execute("UPDATE datasets SET upper = NULL WHERE id = ?", (dataset,))


def check(connection: sqlite3.Connection, append: Append) -> None:
    """Raises Conflict if the frontier is not the expected one, or if a block would come before it."""
    times = _times(connection, append.dataset)
    if append.upper is not None and times.upper != append.upper.expected:
        raise Conflict(
            f"the frontier moved: it is {times.upper}, the append was planned at {append.upper.expected}",
            rule="compare-and-append",
            hint="plan again: the blocks get a time that is not before it",
            place=append.dataset.short,
        )
    if times.promised is None or not append.blocks:
        return
    first = append.blocks[0]
    time = to_millis(first.system_time if isinstance(first, Block) else read_time(first.raw))
    if time < times.promised:
        raise Conflict(
            f"a block of time {time} would follow, and the times before {times.promised} are complete",
            rule="below-upper",
            hint="plan again: the block gets a later time",
            place=append.dataset.short,
        )


def move(connection: sqlite3.Connection, append: Append) -> None:
    if append.upper is not None and append.upper.new is not None:
        connection.execute("UPDATE datasets SET upper = ? WHERE id = ?", (append.upper.new, append.dataset))


def move_on(connection: sqlite3.Connection, dataset: DatasetId, upper: int) -> None:
    """Promises that a chain is complete below ``upper``, unless it is that far; for a caller that excludes writers."""
    if upper_of(connection, dataset) < upper:
        connection.execute("UPDATE datasets SET upper = ? WHERE id = ?", (upper, dataset))
