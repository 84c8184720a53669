"""Defines the tables of resources, as the steps that made them."""

from __future__ import annotations

from typing import Final

from odfd.resources import former_store, records
from odfd.resources.reader import DELETING, EVENTS, STATUSES

ROOM: Final = "resources"
STEPS: Final = (
    *former_store.STEPS,
    """
    -- Every resource as it is declared. account: the id of its Account, empty for the node's owner.
    CREATE TABLE declarations (
        id TEXT PRIMARY KEY,
        type TEXT NOT NULL,
        account TEXT NOT NULL,
        key TEXT NOT NULL,
        name TEXT NOT NULL,
        did TEXT,
        created_at INTEGER NOT NULL,
        rv INTEGER NOT NULL,
        body BLOB NOT NULL,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX declarations_name ON declarations (account, type, key);
    CREATE INDEX declarations_key ON declarations (type, key);
    CREATE UNIQUE INDEX declarations_did ON declarations (type, did) WHERE did IS NOT NULL;
    -- What became of it; apart, as it changes often, and nothing that a dataset shows depends on it.
    CREATE TABLE statuses (id TEXT PRIMARY KEY, body BLOB NOT NULL, seal BLOB) STRICT, WITHOUT ROWID;
    """,
    records.STEP,
    former_store.convert,
    former_store.DROPPED,
    former_store.convert_labels,
    former_store.index_labels,
    former_store.convert_webhooks,
)
"""Tables, as the steps that made them; steps are added at the end and never changed."""
_MADE: Final = ("res_labels", "res_refs", "res_owners", "res_log")
UNWATCHED: Final = (STATUSES.table, EVENTS.table, DELETING.table, *_MADE)
"""Tables that nothing which is shown of datasets depends on."""
