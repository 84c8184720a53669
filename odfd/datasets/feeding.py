"""Decides whether a dataset takes incoming rows: its rendition is the active one, and it is no portal."""

from __future__ import annotations

from chain.errors import Refused
from chain.ids import DatasetId
from chain.model.events import SetDataSchema
from chain.model.portal import is_portal as is_portal_schema
from odfd.store import collections
from odfd.store.directory import StateDirectory


def is_portal(home: StateDirectory, dataset: DatasetId) -> bool:
    """Whether a dataset is a portal, by the rule in its schema."""
    said = home.chains.chain(dataset).last_of(("SetDataSchema",))
    return said is not None and isinstance(said.event, SetDataSchema) and is_portal_schema(said.event.schema)


def check_fed(home: StateDirectory, dataset: DatasetId) -> None:
    """Raises Refused for a rendition that is not active, and for a portal, which takes rows by its rule."""
    with home.database.read() as connection:
        collections.check_fed(connection, dataset)
    if is_portal(home, dataset):
        raise Refused(
            f"{home.name_of(dataset)} is a portal: its rows come from the dataset that its Portal names",
            rule="portal-rows",
            hint="odfctl get portals lists them; odfctl pull NAME takes what the rule lets be",
        )


def is_fed(home: StateDirectory, dataset: DatasetId, is_named: bool) -> bool:
    """Whether a dataset accepts incoming rows. Raises Refused as ``check_fed`` if not and ``is_named``."""
    try:
        check_fed(home, dataset)
    except Refused:
        if is_named:
            raise
        return False
    return True
