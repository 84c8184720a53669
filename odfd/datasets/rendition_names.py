"""Moves the name of a collection to the rendition that it hands over to."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from chain.ids import DatasetId
from chain.instant import Instant
from odfd.datasets.catalog import Catalog
from odfd.renditions import tables
from odfd.renditions.tables import Member


def swap_names(connection: sqlite3.Connection, old: Member, new: Member, now: Instant) -> dict[DatasetId, str]:
    """Gives the old rendition's name to the new one, and the old one a name with its number. Returns both names."""
    catalog = Catalog(connection)
    name = catalog.name_of(old.dataset)
    former = catalog.rename(catalog.resolve(str(old.dataset)), f"{name}.r{old.row.number}", now)
    active = catalog.rename(catalog.resolve(str(new.dataset)), name, now)
    return {old.dataset: former.name, new.dataset: active.name}


def shard_name(base: str, number: int, place: int) -> str:
    """Returns the name of a shard after the first, which does not change when the first is renamed."""
    return f"{base}.r{number}.s{place}"


def rename_shards(connection: sqlite3.Connection, shards: Sequence[DatasetId], base: str, now: Instant) -> None:
    """Renames the shards after the first with their collection. Raises Invalid."""
    catalog, state = Catalog(connection), tables.of(connection, shards[0])
    number = state.number_of(shards[0])
    for place, each in enumerate(shards[1:], start=1):
        catalog.rename(catalog.resolve(str(each)), shard_name(base, number, place), now)
