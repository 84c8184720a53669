"""Adds up row counts, and stores those of each transaction of this node, since the format has no field for them.

A record belongs to the last block of its transaction, and is written in the transaction that appends it. A transaction
that appended nothing, because it knew all that it read, is added to a separate record at the unchanged head. Each
record carries the sum of all up to it, so a sum is one read whatever the number of transactions. Blocks that this node
did not make, or made before it counted, have none. Synchronous, on the given connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

import msgspec

from chain.data.operations import Operations
from chain.ids import DatasetId
from chain.store.seals import Sealed
from engines.contract import MAX_REMARKS, RowCounts, SkippedFile, bounded_list

_NUMBERS: Final = tuple(name for name in RowCounts.__struct_fields__ if name not in ("skipped", "remarks"))
_ZEROS: Final[dict[str, Any]] = dict.fromkeys(_NUMBERS, 0)
NOTHING_READ: Final = RowCounts(**_ZEROS)


def add_counts(one: RowCounts, other: RowCounts) -> RowCounts:
    """Adds counts; a count that is unknown in one is unknown in the sum. A skipped file counts once."""
    numbers: dict[str, Any] = {}
    for name in _NUMBERS:
        pair = getattr(one, name), getattr(other, name)
        numbers[name] = None if None in pair else sum(pair)
    remarks = all_remarks(one.remarks, other.remarks)
    return RowCounts(skipped=together(one.skipped, other.skipped), remarks=remarks, **numbers)


def together(one: tuple[SkippedFile, ...], other: tuple[SkippedFile, ...]) -> tuple[SkippedFile, ...]:
    """Joins lists of skipped files, each once, up to the limit."""
    return bounded_list((*one, *other))


def all_remarks(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Joins remarks, each once, up to the limit."""
    return tuple(dict.fromkeys((*one, *other)))[:MAX_REMARKS]


def says_something(counts: RowCounts) -> bool:
    """Whether any row was read, any file skipped, or there is a remark."""
    return bool(counts.skipped or counts.remarks) or any(getattr(counts, name) for name in _NUMBERS)


def with_written(counts: RowCounts, written: Operations) -> RowCounts:
    """Replaces the engine's count of written rows by that of the slice."""
    return msgspec.structs.replace(
        counts, appended=written.append, corrected=written.corrections, retracted=written.retract
    )


ROOM: Final = "row counts"
STEPS: Final = (
    """
    CREATE TABLE row_counts (
        dataset BLOB NOT NULL,
        sequence INTEGER NOT NULL,
        idle INTEGER NOT NULL,
        own BLOB NOT NULL,
        total BLOB NOT NULL,
        seal BLOB,
        PRIMARY KEY (dataset, sequence, idle)
    ) STRICT, WITHOUT ROWID;
    """,
)
COUNTS: Final = Sealed(
    "row_counts", ("dataset", "sequence", "idle", "own", "total"), "odfctl reset drops counts together with blocks"
)
_ORDER: Final = "ORDER BY sequence, idle"
_NEWEST: Final = "ORDER BY sequence DESC, idle DESC LIMIT 1"


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """The sum over several transactions; ``since``: the block that was the head after the first of them."""

    since: int
    transactions: int
    counts: RowCounts

    def __add__(self, other: Sum) -> Sum:
        return Sum(
            since=self.since,
            transactions=self.transactions + other.transactions,
            counts=add_counts(self.counts, other.counts),
        )


class KeptCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Stored counts. ``total`` is of all transactions; ``last`` of the newest, or of all idle ones at this head."""

    total: Sum
    last: Sum


def keep(
    connection: sqlite3.Connection, dataset: DatasetId, sequence: int, counts: RowCounts, *, idle: bool = False
) -> None:
    """Stores the counts of a transaction whose last block is ``sequence``; ``idle``: which left that head unchanged."""
    _add(connection, dataset, sequence, idle, Sum(since=sequence, transactions=1, counts=counts))


def of_blocks(connection: sqlite3.Connection, dataset: DatasetId, first: int, last: int) -> dict[int, RowCounts]:
    """Returns counts by the last block of each transaction, for blocks ``first`` to ``last``."""
    where = f"dataset = ? AND sequence BETWEEN ? AND ? AND idle = 0 {_ORDER}"
    return {row[1]: _sum(row[3]).counts for row in COUNTS.rows(connection, where, (dataset, first, last))}


def newest(connection: sqlite3.Connection, dataset: DatasetId) -> KeptCounts | None:
    """Returns the newest counts; ``None`` if this node counted no transaction of the dataset."""
    row = COUNTS.one(connection, f"dataset = ? {_NEWEST}", (dataset,))
    return None if row is None else KeptCounts(total=_sum(row[4]), last=_sum(row[3]))


def cut(connection: sqlite3.Connection, dataset: DatasetId, size: int) -> None:
    """Deletes later counts when the chain is cut to ``size`` blocks."""
    connection.execute("DELETE FROM row_counts WHERE dataset = ? AND sequence >= ?", (dataset, size))


def move(connection: sqlite3.Connection, dataset: DatasetId, start: int, moved: Callable[[int], int]) -> None:
    """Renumbers after blocks from ``start`` on are rewritten without loss of rows. ``moved``: a block's new number."""
    rows = list(COUNTS.rows(connection, f"dataset = ? AND sequence >= ? {_ORDER}", (dataset, start)))
    cut(connection, dataset, start)
    for _, number, idle, own, _ in sorted(rows, key=lambda row: (moved(row[1]), row[2])):
        _add(connection, dataset, moved(number), bool(idle), msgspec.structs.replace(_sum(own), since=moved(number)))


def _add(connection: sqlite3.Connection, dataset: DatasetId, sequence: int, idle: bool, own: Sum) -> None:
    """Adds counts to the record at this place, which is the newest, or as a new record after all others."""
    there = COUNTS.one(connection, "dataset = ? AND sequence = ? AND idle = ?", (dataset, sequence, int(idle)))
    if there is not None:
        own = _sum(there[3]) + own
    before = COUNTS.one(
        connection, f"dataset = ? AND (sequence, idle) < (?, ?) {_NEWEST}", (dataset, sequence, int(idle))
    )
    plain = msgspec.structs.replace(own, counts=msgspec.structs.replace(own.counts, skipped=(), remarks=()))
    total = plain if before is None else _sum(before[4]) + plain
    COUNTS.put(connection, dataset, sequence, int(idle), msgspec.json.encode(own), msgspec.json.encode(total))


def _sum(stored: bytes) -> Sum:
    return msgspec.json.decode(stored, type=Sum)
