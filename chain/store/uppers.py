"""Keeps the ``upper`` of chains beside their heads in SQLite. Functions on a connection, within its transaction.

An empty column means that no upper was promised: the frontier is then the time of the last block, since times never
fall and several blocks may have one.
"""

from __future__ import annotations

import sqlite3

from chain.codec.blocks import decode_block
from chain.errors import Conflict
from chain.ids import DatasetId
from chain.instant import to_millis
from chain.store.base import Append


def promised(connection: sqlite3.Connection, dataset: DatasetId) -> int | None:
    """Returns the promised upper of a chain; ``None`` without a promise, or without the chain."""
    row = connection.execute("SELECT upper FROM datasets WHERE id = ?", (dataset,)).fetchone()
    return None if row is None else row[0]


def upper_of(connection: sqlite3.Connection, dataset: DatasetId) -> int:
    """Returns the time below which a chain is complete: as promised, or by the time of its last block."""
    row = connection.execute(
        "SELECT upper, raw FROM datasets LEFT JOIN blocks ON dataset = number AND sequence = head_sequence"
        " WHERE id = ?",
        (dataset,),
    ).fetchone()
    upper, raw = row or (None, None)
    reached = 0 if raw is None else to_millis(decode_block(raw).system_time)
    return max(reached, 0) if upper is None else max(upper, reached)


def beyond_last(connection: sqlite3.Connection, dataset: DatasetId) -> int | None:
    """Returns the promised upper of a chain if it says more than the time of the last block; else ``None``."""
    upper = promised(connection, dataset)
    row = connection.execute(
        "SELECT raw FROM datasets JOIN blocks ON dataset = number AND sequence = head_sequence WHERE id = ?", (dataset,)
    ).fetchone()
    if upper is None or row is None or upper <= to_millis(decode_block(row[0]).system_time):
        return None
    return upper


def forget(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Takes back what another node promised of a history that is given up here."""
    connection.execute("UPDATE datasets SET upper = NULL WHERE id = ?", (dataset,))


def check(connection: sqlite3.Connection, append: Append) -> None:
    """Raises Conflict if the frontier is not the expected one, or if a block would come before it."""
    if append.upper is not None and (actual := upper_of(connection, append.dataset)) != append.upper.expected:
        raise Conflict(
            f"the frontier moved: it is {actual}, the append was planned at {append.upper.expected}",
            rule="compare-and-append",
            hint="plan again: the blocks get a time that is not before it",
            place=append.dataset.short,
        )
    upper = promised(connection, append.dataset)
    if upper is None or not append.blocks:
        return
    time = to_millis(decode_block(append.blocks[0].raw).system_time)
    if time < upper:
        raise Conflict(
            f"a block of time {time} would follow, and the times before {upper} are complete",
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
