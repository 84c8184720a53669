"""Remembers deleted datasets whose data stays here: unmanaged, until a person adopts or deletes them for good.

A deleted dataset has no name, no flows and no mirror, and is disclosed to nobody. Its chain is set aside
(``chain.store.former_epochs``); its key, objects, captures and received pushes stay. The rows here add what an adoption
cannot see from the chain. The key of a dataset that was deleted for good is kept for a while. Synchronous, on the given
connection.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DID_ODF, DatasetId
from chain.instant import DAY, SECOND, Instant
from chain.store import former_epochs
from chain.store.seals import Row, Sealed
from odfd.store import captures, incidents, pushes
from odfd.store.holdings import Extent

ROOM: Final = "unmanaged"
_TABLE: Final = Sealed(
    "unmanaged", ("dataset", "name", "at", "body"), "odfctl adopt DID NAME takes it back all the same"
)
STEPS: Final = (
    """
    CREATE TABLE unmanaged (
        dataset BLOB PRIMARY KEY,
        name TEXT NOT NULL,
        at INTEGER NOT NULL,
        body BLOB NOT NULL,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE purged (
        dataset BLOB PRIMARY KEY,
        at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
)
"""Tables, as the steps that made them; steps are added at the end and never changed."""
KEY_KEPT: Final = 30 * DAY * SECOND
"""Nanoseconds that a key outlives its deleted dataset: for withdrawals, and to get the data back from a peer."""


class Remains(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a deleted dataset that are not in its chain."""

    blocks: int
    bytes: int | None = None
    """Bytes of all slices; ``None`` if unknown."""
    data: int = 0
    """Number of blocks, from the first, whose objects were here and verified."""
    epoch: int = 0
    extent: Extent = Extent()


class Unmanaged(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted dataset whose data is kept."""

    dataset: DatasetId
    name: str
    """The name that it had."""
    at: Instant
    """When it was deleted."""
    remains: Remains


def keep(connection: sqlite3.Connection, unmanaged: Unmanaged) -> None:
    body = msgspec.json.encode(unmanaged.remains)
    _TABLE.put(connection, unmanaged.dataset, unmanaged.name, unmanaged.at, body)


def all_of(connection: sqlite3.Connection) -> list[Unmanaged]:
    """Lists the unmanaged datasets, newest deletion first. Of a damaged row only the id is used."""
    return [_read(row, whole=whole) for row, whole in _TABLE.every(connection, "TRUE ORDER BY at DESC, dataset")]


def find(connection: sqlite3.Connection, dataset: DatasetId) -> Unmanaged:
    """Returns an unmanaged dataset by its id. Raises NotFound."""
    row, whole = _TABLE.look(connection, "dataset = ?", (dataset,))
    if row is None:
        raise NotFound(
            f"no data of a deleted dataset {dataset.short} is kept here",
            rule="dataset-ref",
            hint="odfctl get unmanaged lists what is; to get it from elsewhere: odfctl mirror add, or odfctl import",
        )
    return _read(row, whole=whole)


def resolve(connection: sqlite3.Connection, ref: str) -> Unmanaged:
    """Returns an unmanaged dataset by its did or former name. Raises NotFound; Invalid for the name of several."""
    if ref.startswith(DID_ODF):
        return find(connection, DatasetId.parse(ref))
    named = [each for each in all_of(connection) if each.name.casefold() == ref.casefold()]
    if len(named) > 1:
        dids = ", ".join(str(each.dataset) for each in named)
        raise Invalid(f"{len(named)} deleted datasets were called {ref}", rule="dataset-ref", hint=f"say which: {dids}")
    if not named:
        hint = "odfctl get unmanaged lists them"
        raise NotFound(f"no data of a deleted dataset {ref[:80]!r} is kept here", rule="dataset-ref", hint=hint)
    return named[0]


def check_managed(connection: sqlite3.Connection, dataset: DatasetId, also: str = "") -> None:
    """Raises Refused if a dataset is to be named anew while its former data is kept. ``also`` ends the message."""
    if former_epochs.is_set_aside(connection, dataset):
        raise Refused(
            f"the data of {dataset.short}, which was deleted, is still kept here{also}",
            rule="dataset-kept",
            hint=f"odfctl adopt {dataset} takes it back; to begin again: odfctl delete unmanaged {dataset}",
        )


def take_back(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Puts the chain back among the chains; the caller names it in the same transaction, and then settles it."""
    former_epochs.take_back(connection, dataset)
    key_settled(connection, dataset)


def pop(connection: sqlite3.Connection, dataset: DatasetId) -> Remains | None:
    """Returns and deletes what was known of a dataset that was taken back; ``None`` for any other dataset."""
    row, whole = _TABLE.look(connection, "dataset = ?", (dataset,))
    if row is None or former_epochs.is_set_aside(connection, dataset):
        return None
    connection.execute("DELETE FROM unmanaged WHERE dataset = ?", (dataset,))
    return _read(row, whole=whole).remains


def destroy(connection: sqlite3.Connection, dataset: DatasetId, now: Instant) -> None:
    """Deletes chain, captures and pushes; the next collection frees the objects, and a later one the key."""
    former_epochs.drop_aside(connection, dataset)
    connection.execute("DELETE FROM unmanaged WHERE dataset = ?", (dataset,))
    forget_data(connection, dataset, now)


def forget_data(connection: sqlite3.Connection, dataset: DatasetId, now: Instant) -> None:
    """Deletes what belongs to the data of a dataset, and begins the time for which its key is kept."""
    for table in (captures.CAPTURES, pushes.PUSHES, incidents.INCIDENTS):
        table.forget(connection, dataset)
    connection.execute("INSERT OR REPLACE INTO purged VALUES (?, ?)", (dataset, now))


def keys_due(connection: sqlite3.Connection, now: Instant) -> list[DatasetId]:
    """Lists datasets that were deleted for good so long ago that their keys are due to be deleted."""
    rows = connection.execute("SELECT dataset FROM purged WHERE at <= ? ORDER BY at", (now - KEY_KEPT,))
    return [DatasetId(row[0]) for row in rows]


def key_settled(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Forgets that a dataset was deleted for good, since its key is deleted or it is here again."""
    connection.execute("DELETE FROM purged WHERE dataset = ?", (dataset,))


def _read(row: Row, *, whole: bool) -> Unmanaged:
    dataset, name, at, body = row
    remains = msgspec.json.decode(body, type=Remains) if whole else Remains(blocks=0)
    known = (name, Instant(at)) if whole else ("", Instant(0))
    return Unmanaged(dataset=DatasetId(dataset), name=known[0], at=known[1], remains=remains)
