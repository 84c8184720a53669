"""Hands a collection on to another rendition, with all that is kept by the id of the chain that its name means."""

from __future__ import annotations

import sqlite3

from chain.instant import Instant
from odfd.datasets.catalog import Catalog
from odfd.flows import store as flows
from odfd.renditions.tables import Member
from odfd.webhooks import store as webhooks


def hand_on(connection: sqlite3.Connection, old: Member, new: Member, now: Instant) -> None:
    """Lets the resource of a collection, and what flows and webhooks remember of it, be of the new rendition."""
    Catalog(connection).hand_on(old.dataset, new.dataset, now)
    flows.hand_on(connection, old.dataset, new.dataset)
    webhooks.hand_on(connection, str(old.dataset), str(new.dataset))
