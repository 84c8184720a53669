"""Converts the rows of a state directory in which each chain of a collection was a resource of its own.

A handover swapped names then, so that what was declared stayed with the former rendition. Now the first chain's row,
to which people's references lead, gets the name, and stands for the active rendition; the others go. So it is with the
rows of mirrors. A recorded difference was a dataset of its own too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from chain.wording import plural
from odfd.resources import records
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore

_DATASET: Final = "Dataset"
_MIRROR: Final = "Mirror"
INNER_MIRROR: Final = "inner-mirror"
"""The kind of the records about mirrors of chains inside collections, by their dids."""


class FormerCollection(NamedTuple):
    """A collection by the dids of its chains."""

    chains: Sequence[str]
    """All, the first one first."""
    active: str
    renditions: int


def gather(connection: sqlite3.Connection, collections: Sequence[FormerCollection]) -> Sequence[str]:
    """Gathers the rows of each collection, within an open transaction. Returns a line for each."""
    return [line for collection in collections for line in [_gather(connection, collection)] if line is not None]


def take_in(connection: sqlite3.Connection, dataset: str, collection: str, handover: int | None) -> str | None:
    """Removes the row of a recorded difference, by dids, as it is inside its collection. Returns a line that says so.

    ``None``: there is none.
    """
    store = ResourceStore(connection)
    row, whole = store.with_did(_DATASET, dataset), store.with_did(_DATASET, collection)
    if row is None or whole is None:
        return None
    store.gather(whole, [row], whole.updated_at)
    return f"the recorded difference {row.name} is inside {whole.name}, as {whole.name}.h{handover}, and no dataset"


def _gather(connection: sqlite3.Connection, collection: FormerCollection) -> str | None:
    store = ResourceStore(connection)
    dataset = _one(store, _DATASET, collection)
    mirror = _one(store, _MIRROR, collection)
    for each in () if mirror is None else mirror.others:
        part = {key: each.spec[key] for key in ("via", "paused") if key in each.spec}
        records.put(connection, INNER_MIRROR, str(each.did), msgspec.json.encode(part), each.updated_at)
    for found in (dataset, mirror):
        if found is not None:
            store.gather(found.whole, found.inner, found.whole.updated_at)
    if dataset is None:
        return None
    return (
        f"the dataset {dataset.whole.name} is one resource over {plural(len(collection.chains), 'chain')} of "
        f"{plural(collection.renditions, 'rendition')}: its declaration and references to it are under its name"
    )


class _Rows(NamedTuple):
    """The row that stays, as it will be, and those that go."""

    whole: Resource
    inner: Sequence[Resource]
    others: Sequence[Resource]
    """The rows of the chains inside, as they were."""


def _one(store: ResourceStore, type_: str, collection: FormerCollection) -> _Rows | None:
    """Returns what becomes of the rows of one type; ``None``: there is one at the most.

    So it is left too if the active rendition has none: it was deleted, and each of the others is by itself.
    """
    rows = {did: row for did in collection.chains if (row := store.with_did(type_, did)) is not None}
    active = rows.get(collection.active)
    if active is None or len(rows) == 1:
        return None
    first = rows.get(collection.chains[0], active)
    whole = msgspec.structs.replace(
        _declare(first, active), name=active.name, did=active.did,
        updated_at=max(row.updated_at for row in rows.values()),
    )  # fmt: skip
    inner = [row for row in rows.values() if row.id != first.id]
    return _Rows(whole, inner, [row for row in rows.values() if row.id != active.id])


def _declare(first: Resource, active: Resource) -> Resource:
    """Returns the row that stays, with what was declared last: an apply after a handover wrote to the active row."""
    if active.id == first.id or active.spec is None:
        return first
    if active.type == _MIRROR:  # made by the handover, and not by an apply
        first = msgspec.structs.replace(first, spec=active.spec, generation=first.generation + 1)
        return first if not active.labels else msgspec.structs.replace(first, labels=active.labels)
    return msgspec.structs.replace(
        first, spec=active.spec, labels=active.labels, annotations=active.annotations, account=active.account,
        managers=active.managers, references=active.references, generation=first.generation + 1,
    )  # fmt: skip
