"""Resources as an append-only log of wishes: each event says that something of a kind and name shall be, or no longer.

The current wish is the last event of its (kind, name); generations count the events that applied it. Names are equal
without regard to case. Writes go through a connection that the caller holds a transaction on, so that a wish and what
it brings about are one commit.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from chain.instant import Instant
from chain.store.seals import Sealed

WISHES: Final = Sealed(
    "resource_events",
    ("kind", "key", "name", "spec", "at"),
    "restore the database from a backup, or begin anew with another state directory and mirror again",
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
    WISHES.step,
    """
    -- What a wish is about, where its name does not tell: which names stand for a dataset is asked at every turn.
    ALTER TABLE resource_events ADD COLUMN about TEXT;
    UPDATE resource_events SET about = substr(CAST(spec AS TEXT), 28, instr(substr(CAST(spec AS TEXT), 28), '"') - 1)
        WHERE kind = 'dataset' AND CAST(spec AS TEXT) GLOB '{"renditions":[[]{"shards":[[]"did:odf:*';
    CREATE INDEX resource_events_about ON resource_events (about, kind, key) WHERE about IS NOT NULL;
    """,
)
"""Tables, as the steps that made them; steps are added at the end and never changed."""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A wish in force. ``spec`` is the JSON of the kind's own value."""

    kind: str
    name: str
    spec: bytes
    generation: int
    created_at: Instant
    updated_at: Instant


class Resources:
    """The log over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def apply(self, kind: str, name: str, spec: bytes, now: Instant, about: str | None = None) -> bool:
        """Wish it so; ``False`` when it was already so and nothing was written. ``about``: what else finds it."""
        found = self.get(kind, name)
        if found is not None and found.spec == spec:
            return False
        self._append(now, kind, name, spec)
        if about is not None:
            self._db.execute("UPDATE resource_events SET about = ? WHERE seq = last_insert_rowid()", (about,))
        return True

    def delete(self, kind: str, name: str, now: Instant) -> bool:
        if self.get(kind, name) is None:
            return False
        self._append(now, kind, name, None)
        return True

    def get(self, kind: str, name: str) -> Resource | None:
        return next(iter(self._select("kind = ? AND key = ?", (kind, name.casefold()))), None)

    def all(self, kind: str) -> list[Resource]:
        """By name."""
        return sorted(self._select("kind = ?", (kind,)), key=lambda resource: resource.name.casefold())

    def about(self, kind: str, about: str) -> list[Resource]:
        """Those in force that are about it, or were once: whoever asks looks at what each says now."""
        rows = self._db.execute(
            "SELECT DISTINCT key FROM resource_events WHERE about = ? AND kind = ? ORDER BY key", (about, kind)
        ).fetchall()
        return [found for (key,) in rows if (found := self.get(kind, key)) is not None]

    def _append(self, now: Instant, kind: str, name: str, spec: bytes | None) -> None:
        WISHES.put(self._db, kind, name.casefold(), name, spec, now)

    def _select(self, where: str, values: tuple[str, ...]) -> list[Resource]:
        """Resources whose last event is not a deletion; their events since the last deletion make the generation."""
        current: dict[tuple[str, str], Resource] = {}
        for kind, key, name, spec, at in WISHES.rows(self._db, f"{where} ORDER BY seq", values):
            if spec is None:
                current.pop((kind, key), None)
                continue
            before = current.get((kind, key))
            current[kind, key] = Resource(
                kind=kind,
                name=name,
                spec=bytes(spec),
                generation=1 if before is None else before.generation + 1,
                created_at=Instant(at) if before is None else before.created_at,
                updated_at=Instant(at),
            )
        return list(current.values())
