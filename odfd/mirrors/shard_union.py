"""Makes one collection of shards that others write and that are here, once each of them says that it belongs."""

from __future__ import annotations

import sqlite3

from chain.data.partition import FUNCTION
from chain.instant import Instant
from chain.statements.card import CardShards
from odfd.mirrors.mirror_handover import united
from odfd.store import collections, mirror_specs
from odfd.store.catalog import Catalog
from odfd.store.ledger.log import Ledger


def unite(connection: sqlite3.Connection, shards: CardShards, now: Instant) -> str | None:
    """Stores the collection that a card lists; returns why it cannot be stored yet instead, or ``None``."""
    ids, catalog = shards.ids, Catalog(connection)
    if shards.function != FUNCTION:
        return f"its shards are divided by {shards.function}, which this version does not know"
    for each in ids:
        newest = Ledger(connection).newest_head(each)
        if newest is None or newest[0].collection != ids[0]:
            return f"no head of {catalog.name_of(each)} says yet that it is one of {len(ids)} shards of it"
    state = united(collections.of(connection, ids[0]), ids, shards.by)
    if state is None:
        return "it was read as one chain here before: mirror the collection under another name"
    collections.keep(connection, state)
    for each in ids[1:]:
        catalog.take_in(each, now)
        mirror_specs.take_in(connection, each, now)
    return None
