"""Converts the rows of a state directory in which each chain of a collection was a resource of its own.

A handover swapped names then, so that what was declared stayed with the former rendition. Now the first chain's row,
to which people's references lead, gets the name, and stands for the active rendition; the others go.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from chain.wording import plural
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore

_DATASET: Final = "Dataset"
_MIRROR: Final = "Mirror"


class FormerCollection(NamedTuple):
    """A collection by the dids of its chains."""

    chains: Sequence[str]
    """All, the first one first."""
    active: str
    renditions: int


def gather(connection: sqlite3.Connection, collections: Sequence[FormerCollection]) -> Sequence[str]:
    """Gathers the rows of each collection, within an open transaction. Returns a line for each."""
    store = ResourceStore(connection)
    return [line for each in collections for line in [_gathered(store, each)] if line is not None]


def _gathered(store: ResourceStore, collection: FormerCollection) -> str | None:
    dids = collection.chains
    rows = {did: row for did in dids if (row := store.with_did(_DATASET, did)) is not None}
    active = rows.get(collection.active)
    if active is None:
        return None  # it was deleted, and each of the others is a dataset by itself
    first = rows.get(dids[0], active)
    now = max(each.updated_at for each in rows.values())
    whole = msgspec.structs.replace(_declared(first, active), name=active.name, did=active.did, updated_at=now)
    inner = [each for each in rows.values() if each.id != first.id]
    if not inner:
        return None
    store.gather(whole, inner, now)
    _exchange_mirrors(store, first, active)
    return (
        f"the dataset {active.name} is one resource over {plural(len(dids), 'chain')} of "
        f"{plural(collection.renditions, 'rendition')}: what was declared of it and what refers to it is with its name"
    )


def _declared(first: Resource, active: Resource) -> Resource:
    """Returns the row that stays, with what was declared last: an apply after a handover wrote to the active row."""
    if active.id == first.id or active.spec is None:
        return first
    return msgspec.structs.replace(
        first, spec=active.spec, labels=active.labels, annotations=active.annotations, account=active.account,
        managers=active.managers, references=active.references, generation=first.generation + 1,
    )  # fmt: skip


def _exchange_mirrors(store: ResourceStore, first: Resource, active: Resource) -> None:
    """Lets the mirror that people declared be that of the active rendition, and the other one that of the first."""
    assert first.did is not None
    assert active.did is not None
    old, new = store.with_did(_MIRROR, first.did), store.with_did(_MIRROR, active.did)
    if old is None or new is None or old.id == new.id:
        return
    store.exchange(_MIRROR, first.did, active.did, new.updated_at)
    now_old, now_new = store.get(old.id), store.get(new.id)
    assert now_old is not None
    assert now_new is not None
    swapped = (
        msgspec.structs.replace(now_old, name=new.name, spec=new.spec, generation=old.generation + 1),
        msgspec.structs.replace(now_new, name=old.name, spec=old.spec, generation=new.generation + 1),
    )
    store.put_all(swapped, new.updated_at)
