"""Stores intents: an append-only log of applied and deleted ones, and a table of those in force.

Each event of the log says that something of a kind and name is wanted, or no longer; the generation counts the events
that applied it since it was last not wanted. The result of an intent is its status, which replaces the one before and
is in no log. Names are compared without regard to case. The caller holds the transaction in which intents are written,
so that an intent and its effects are one commit.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from chain.instant import Instant
from chain.store.seals import Row, Sealed

STEP: Final = """
    CREATE TABLE res_events (
        rv INTEGER PRIMARY KEY AUTOINCREMENT,
        at INTEGER NOT NULL,
        op TEXT NOT NULL,
        id TEXT NOT NULL,
        type TEXT NOT NULL,
        body BLOB NOT NULL,
        seal BLOB
    ) STRICT;
    CREATE TABLE res_current (
        id TEXT NOT NULL,
        type TEXT NOT NULL,
        key TEXT NOT NULL,
        did TEXT,
        rv INTEGER NOT NULL,
        body BLOB NOT NULL,
        seal BLOB,
        PRIMARY KEY (id)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX res_current_name ON res_current (type, key);
    CREATE UNIQUE INDEX res_current_did ON res_current (did) WHERE did IS NOT NULL;
    CREATE TABLE res_labels (
        type TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        id TEXT NOT NULL,
        PRIMARY KEY (type, key, value, id)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX res_labels_id ON res_labels (id);
    CREATE TABLE res_touched (kind TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (kind, key)) STRICT, WITHOUT ROWID;
    CREATE TRIGGER res_came AFTER INSERT ON resources WHEN NEW.kind IN ('dataset', 'flow') BEGIN
        INSERT OR IGNORE INTO res_touched VALUES (NEW.kind, NEW.key);
    END;
    CREATE TRIGGER res_went AFTER DELETE ON resources WHEN OLD.kind IN ('dataset', 'flow') BEGIN
        INSERT OR IGNORE INTO res_touched VALUES (OLD.kind, OLD.key);
    END;
    INSERT INTO res_touched SELECT kind, key FROM resources WHERE kind IN ('dataset', 'flow');
    CREATE TABLE res_log (epoch TEXT NOT NULL) STRICT;
    INSERT INTO res_log SELECT lower(hex(randomblob(4)));
"""
"""The tables of ``odfd.resources.declared``: a step of this module's tables."""
INTENTS_STEP: Final = """
    -- Wishes that are resources of their own types.
    CREATE TRIGGER res_wish_came AFTER INSERT ON resources
    WHEN NEW.kind IN ('mirror', 'network', 'blocked-peer', 'validator') BEGIN
        INSERT OR IGNORE INTO res_touched VALUES (NEW.kind, NEW.key);
    END;
    CREATE TRIGGER res_wish_went AFTER DELETE ON resources
    WHEN OLD.kind IN ('mirror', 'network', 'blocked-peer', 'validator') BEGIN
        INSERT OR IGNORE INTO res_touched VALUES (OLD.kind, OLD.key);
    END;
    INSERT INTO res_touched SELECT kind, key FROM resources
        WHERE kind IN ('mirror', 'network', 'blocked-peer', 'validator');
"""
"""A later step: triggers for intents that are resources of their own types."""
REFERENCES_STEP: Final = """
    -- What resources refer to: dst is NULL where it was never here.
    CREATE TABLE res_refs (
        src TEXT NOT NULL,
        key TEXT NOT NULL,
        dst TEXT,
        did TEXT,
        PRIMARY KEY (src, key)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX res_refs_dst ON res_refs (dst);
    CREATE INDEX res_refs_key ON res_refs (key) WHERE dst IS NULL;
    CREATE INDEX res_refs_did ON res_refs (did) WHERE did IS NOT NULL;
"""
"""A later step: the table of references between resources."""
OWNERS_STEP: Final = """
    CREATE TABLE res_owners (
        owner TEXT NOT NULL,
        child TEXT NOT NULL,
        PRIMARY KEY (owner, child)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX res_owners_child ON res_owners (child);
"""
HISTORY_STEP: Final = "CREATE INDEX res_events_id ON res_events (id, rv);"
"""A later step: an index that finds the events of one resource without reading the whole log."""
DELETING_STEP: Final = """
    -- Deleted resources whose effects are not undone yet; body as in res_current.
    CREATE TABLE res_deleting (
        id TEXT PRIMARY KEY,
        body BLOB NOT NULL,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
"""


INTENT_LOG: Final = Sealed(
    "resource_events",
    ("kind", "key", "name", "spec", "at"),
    "restore the database from a backup, or begin anew with another state directory and mirror again",
)
IN_FORCE: Final = Sealed(
    "resources",
    ("kind", "key", "name", "spec", "status", "generation", "created_at", "updated_at", "about"),
    INTENT_LOG.hint,
)
ROOM: Final = "resources"
STEPS: Final = (
    """
    CREATE TABLE resource_events (
        seq INTEGER PRIMARY KEY,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        name TEXT NOT NULL,
        spec BLOB
    ) STRICT;
    CREATE INDEX resource_events_key ON resource_events (kind, key, seq);
    """,
    INTENT_LOG.step,
    """
    -- What a wish is about, where its name does not tell: which names stand for a dataset is asked at every turn.
    ALTER TABLE resource_events ADD COLUMN about TEXT;
    UPDATE resource_events SET about = substr(CAST(spec AS TEXT), 28, instr(substr(CAST(spec AS TEXT), 28), '"') - 1)
        WHERE kind = 'dataset' AND CAST(spec AS TEXT) GLOB '{"renditions":[[]{"shards":[[]"did:odf:*';
    CREATE INDEX resource_events_about ON resource_events (about, kind, key) WHERE about IS NOT NULL;
    """,
    """
    -- What is in force: the log grows with all that was ever wished, and no question should cost that.
    CREATE TABLE resources (
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        name TEXT NOT NULL,
        spec BLOB NOT NULL,
        status BLOB,
        generation INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        about TEXT,
        seal BLOB,
        PRIMARY KEY (kind, key)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX resources_about ON resources (about, kind) WHERE about IS NOT NULL;
    DROP INDEX resource_events_about;
    INSERT INTO resources
        WITH last AS (SELECT kind, key, max(seq) AS seq FROM resource_events GROUP BY kind, key),
             since AS (SELECT kind, key, max(seq) AS seq FROM resource_events WHERE spec IS NULL GROUP BY kind, key),
             alive AS (
                 SELECT e.kind, e.key, count(*) AS generation, min(e.seq) AS first FROM resource_events AS e
                 LEFT JOIN since ON since.kind = e.kind AND since.key = e.key
                 WHERE e.seq > coalesce(since.seq, 0) GROUP BY e.kind, e.key
             )
        SELECT e.kind, e.key, e.name, e.spec, NULL, alive.generation,
               (SELECT at FROM resource_events WHERE seq = alive.first), e.at, e.about, NULL
        FROM last JOIN resource_events AS e ON e.seq = last.seq
        JOIN alive ON alive.kind = e.kind AND alive.key = e.key;
    -- Publications said in each wish what had become of the one before.
    UPDATE resources SET status = spec WHERE kind = 'publication';
    DELETE FROM resource_events WHERE kind = 'publication'
        AND seq NOT IN (SELECT max(seq) FROM resource_events GROUP BY kind, key);
    """,
    STEP,
    INTENTS_STEP,
    REFERENCES_STEP,
    OWNERS_STEP,
    HISTORY_STEP,
    DELETING_STEP,
)
"""Tables, as the steps that made them; steps are added at the end and never changed."""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """An intent in force. ``spec`` is the JSON of the kind's own value, ``status`` the last reported one."""

    kind: str
    name: str
    spec: bytes
    status: bytes | None
    generation: int
    created_at: Instant
    updated_at: Instant


class Resources:
    """Reads and writes the intents in force, over one SQLite connection. No query costs in proportion to the log."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def apply(self, kind: str, name: str, spec: bytes, now: Instant, about: str | None = None) -> bool:
        """Records an intent; ``False`` if it is unchanged and nothing was written. ``about``: its second key."""
        before = self.get(kind, name)
        if before is not None and before.spec == spec:
            return False
        self._append(now, kind, name, spec)
        status, generation, created = (None, 0, now) if before is None else (
            before.status, before.generation, before.created_at
        )  # fmt: skip
        self._put(
            Resource(kind=kind, name=name, spec=spec, status=status, generation=generation + 1, created_at=created,
                     updated_at=now), about
        )  # fmt: skip
        return True

    def delete(self, kind: str, name: str, now: Instant) -> bool:
        if self.get(kind, name) is None:
            return False
        self._append(now, kind, name, None)
        self._db.execute("DELETE FROM resources WHERE kind = ? AND key = ?", (kind, name.casefold()))
        return True

    def tell(self, kind: str, name: str, status: bytes) -> bool:
        """Records the status of an intent; ``False`` if it is no longer in force."""
        row = IN_FORCE.one(self._db, "kind = ? AND key = ?", (kind, name.casefold()))
        if row is None:
            return False
        self._put(msgspec.structs.replace(_resource(row), status=status), row[-1])
        return True

    def get(self, kind: str, name: str) -> Resource | None:
        row = IN_FORCE.one(self._db, "kind = ? AND key = ?", (kind, name.casefold()))
        return None if row is None else _resource(row)

    def all(self, kind: str) -> list[Resource]:
        """Lists the intents of a kind by name."""
        return [_resource(row) for row in IN_FORCE.rows(self._db, "kind = ? ORDER BY key", (kind,))]

    def about(self, kind: str, about: str) -> list[Resource]:
        """Lists the intents of a kind with this second key, by name."""
        rows = IN_FORCE.rows(self._db, "about = ? AND kind = ? ORDER BY key", (about, kind))
        return [_resource(row) for row in rows]

    def _append(self, now: Instant, kind: str, name: str, spec: bytes | None) -> None:
        INTENT_LOG.put(self._db, kind, name.casefold(), name, spec, now)

    def _put(self, each: Resource, about: str | None) -> None:
        IN_FORCE.put(
            self._db, each.kind, each.name.casefold(), each.name, each.spec, each.status, each.generation,
            each.created_at, each.updated_at, about,
        )  # fmt: skip


def _resource(row: Row) -> Resource:
    kind, _, name, spec, status, generation, created, updated, _ = row
    return Resource(
        kind=kind, name=name, spec=bytes(spec), status=None if status is None else bytes(status),
        generation=generation, created_at=Instant(created), updated_at=Instant(updated),
    )  # fmt: skip
