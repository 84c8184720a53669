"""Saves the view of each dataset, so that the first list after a start need not read every chain.

A row is deleted in the transaction that changes anything that it depends on (``drop``), so an existing row is current
as far as this program writes. Readers check the rest: the head of the chain, the time, the policy. Rows are a cache:
any of them may be missing, and a damaged one counts as missing. Synchronous, on the given connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.store.seals import Sealed

ROOM: Final = "saved views"
SAVED: Final = Sealed(
    "saved_views",
    ("dataset", "head", "basis", "at", "until", "inputs", "view"),
    "a start makes it again: systemctl restart odfd",
)
STEPS: Final = (
    """
    CREATE TABLE saved_views (
        dataset BLOB PRIMARY KEY,
        head BLOB,
        basis BLOB NOT NULL,
        at INTEGER NOT NULL,
        until INTEGER NOT NULL,
        inputs BLOB NOT NULL,
        view BLOB NOT NULL,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
    -- Which views rest on a dataset beside its own.
    CREATE TABLE saved_view_inputs (
        input BLOB NOT NULL,
        dataset BLOB NOT NULL,
        PRIMARY KEY (input, dataset)
    ) STRICT, WITHOUT ROWID;
    """,
)
TABLES: Final = ("saved_views", "saved_view_inputs")


class SavedView(msgspec.Struct, frozen=True, kw_only=True):
    """The encoded ``view`` of ``dataset`` at ``head``, valid from ``at`` until before ``until``."""

    dataset: DatasetId
    head: Multihash | None
    """The head of the chain; ``None`` if no block of it was here."""
    basis: bytes
    """Identifies the rules and settings by which it was made."""
    at: Instant
    until: Instant
    inputs: tuple[bytes, ...]
    """What it depends on other than ``dataset``, in the form that ``drop`` takes."""
    view: bytes


def put(connection: sqlite3.Connection, saved: SavedView) -> None:
    """Replaces the saved view of the dataset."""
    inputs = msgspec.msgpack.encode(saved.inputs)
    SAVED.put(connection, saved.dataset, saved.head, saved.basis, saved.at, saved.until, inputs, saved.view)
    rows = [(input_, saved.dataset) for input_ in saved.inputs]
    connection.executemany("INSERT OR IGNORE INTO saved_view_inputs VALUES (?, ?)", rows)


def whole(connection: sqlite3.Connection) -> Iterator[SavedView]:
    """Yields all undamaged saved views, read with one query."""
    for dataset, head, basis, at, until, inputs, view in SAVED.whole(connection):
        with suppress(msgspec.MsgspecError):
            yield SavedView(
                dataset=DatasetId(dataset),
                head=None if head is None else Multihash(head),
                basis=basis,
                at=Instant(at),
                until=Instant(until),
                inputs=msgspec.msgpack.decode(inputs, type=tuple[bytes, ...]),
                view=view,
            )


def drop(connection: sqlite3.Connection, touched: Collection[bytes | None]) -> None:
    """Deletes views that depend on anything touched; ``None`` stands for everything."""
    if None in touched:
        for table in TABLES:
            connection.execute(f"DELETE FROM {table}")  # noqa: S608
        return
    connection.executemany(
        "DELETE FROM saved_views WHERE dataset = ?1"
        " OR dataset IN (SELECT dataset FROM saved_view_inputs WHERE input = ?1)",
        _keys(touched),
    )
    connection.executemany("DELETE FROM saved_view_inputs WHERE input = ?1", _keys(touched))


def _keys(touched: Iterable[bytes | None]) -> Iterator[tuple[bytes | None]]:
    return ((each,) for each in touched)
