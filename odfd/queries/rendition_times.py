"""Says which rendition a name meant at a time: as this node handed over, or as the owner of a mirror signed it."""

from __future__ import annotations

from collections.abc import Sequence

from chain.errors import NotFound
from chain.ids import DatasetId
from odfd.renditions.chain_timeline import SignedSwitch, row_at, rows_of
from odfd.store import collections
from odfd.store.catalog import Catalog, DatasetEntry, is_one_chain
from odfd.store.directory import StateDirectory


def active_at(home: StateDirectory, ref: str, entry: DatasetEntry, time: int) -> DatasetEntry:
    """Returns the rendition that a name meant at a time, in milliseconds; an id means one dataset at all times.

    Raises NotFound if that one is not here, as the owner of the mirror says.
    """
    if is_one_chain(ref):
        return entry
    with home.database.read() as connection:
        state = collections.of(connection, entry.id)
        then = collections.active_at(connection, entry.id, time)
        if then != entry.id:
            return Catalog(connection).resolve(str(then))
    row = row_at(owner_timeline(home, entry.id), time)
    if row is None or any(member.has(row.to) for member in state.members):
        return entry
    raise NotFound(
        f"{entry.name} was another rendition then, which is not here: {row.to}",
        rule="rendition-missing",
        hint=f"odfctl mirror add {row.to}; or ask for a later time: odfctl get renditions {entry.name}",
    )


def owner_timeline(home: StateDirectory, dataset: DatasetId) -> Sequence[SignedSwitch]:
    """Returns all handovers that led to a mirrored rendition, as its owner signed them; none for one of this node."""
    return () if home.keys.has_dataset_key(dataset) else rows_of(home.chains.chain(dataset), dataset)


def since_of(home: StateDirectory, dataset: DatasetId) -> int | None:
    """Returns the time, in milliseconds, from which on the renditions of a mirror are here; ``None``: all are.

    Earlier times are those of renditions that its owner handed over from before it was mirrored.
    """
    rows = owner_timeline(home, dataset)
    if not rows:
        return None
    with home.database.read() as connection:
        state = collections.of(connection, dataset)
    since = None
    for row in reversed(rows):
        if not any(member.has(row.to) and not member.is_gone for member in state.members):
            return since
        since = row.time
    return None
