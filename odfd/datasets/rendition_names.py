"""Gives the name of a collection to the rendition that it hands over to."""

from __future__ import annotations

import sqlite3

from chain.ids import DatasetId
from chain.instant import Instant
from odfd.datasets.catalog import Catalog
from odfd.renditions.tables import Member
from odfd.resources.store import Resources


def swap_names(connection: sqlite3.Connection, old: Member, new: Member, now: Instant) -> dict[DatasetId, str]:
    """The name of the old rendition means the new one, and the old one is called after its number. Returns both."""
    catalog = Catalog(Resources(connection))
    name = catalog.name_of(old.dataset)
    former = catalog.rename(catalog.resolve(str(old.dataset)), f"{name}.r{old.row.number}", now)
    active = catalog.rename(catalog.resolve(str(new.dataset)), name, now)
    return {old.dataset: former.name, new.dataset: active.name}
