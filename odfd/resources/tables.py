"""Defines the tables of resources, as the steps that made them, and converts what earlier versions stored."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from chain.errors import Environment
from chain.instant import Instant
from chain.store.seals import Sealed
from odfd.resources import records
from odfd.resources.label_schemas import ACCESS, by_short_name
from odfd.resources.reader import DELETING, EVENTS, STATUSES
from odfd.resources.records import RECORDS
from odfd.resources.references import ANY, reference_key
from odfd.resources.registry import OF_ACCOUNTS
from odfd.resources.resource import Resource, derived_id, handle_of

if TYPE_CHECKING:
    from odfd.resources.store import ResourceStore

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
"""The tables of declared resources, which triggers told of changes of the intents."""
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
    "restore the database from a backup, or begin again with another state directory and mirror again",
)
IN_FORCE: Final = Sealed(
    "resources",
    ("kind", "key", "name", "spec", "status", "generation", "created_at", "updated_at", "about"),
    INTENT_LOG.hint,
)
_FORMER_STEPS: Final = (
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


CURRENT: Final = Sealed("res_current", ("id", "type", "key", "did", "rv", "body"), INTENT_LOG.hint)
_TYPES: Final = {
    "dataset": "Dataset",
    "flow": "Flow",
    "mirror": "Mirror",
    "network": "Network",
    "blocked-peer": "Peer",
    "validator": "Validator",
}
"""Types of resources by the kind of intent."""
_KINDS: Final = frozenset(_TYPES.values())
_RUNS: Final = Sealed("flow_runs", ("key", "record"), INTENT_LOG.hint)
_RECORDS: Final = ("accepted-policy", "publication", "quarantine", "source-base")
DROPPED: Final = """
    DROP TABLE res_touched;
    DROP TABLE res_current;
    DROP TABLE resources;
    DROP TABLE resource_events;
"""
_BODY: Final = msgspec.json.Decoder(Resource)


class _Intent(NamedTuple):
    """One intent in force, as it was stored."""

    kind: str
    key: str
    name: str
    spec: Any
    created_at: Instant
    updated_at: Instant


def convert(connection: sqlite3.Connection) -> Sequence[str]:
    """Writes the declarations and records; returns a line for each thing that changed. Raises Environment."""
    from odfd.resources.store import ResourceStore  # it names this step of its tables

    store = ResourceStore(connection)
    held = {each.id: each for each in (_BODY.decode(row[5]) for row in CURRENT.rows(connection))}
    linked = {(each.type, each.did or f"flow {each.key}"): each for each in held.values() if each.type in _KINDS}
    lines: list[str] = []
    for intent in _intents(connection):
        before = linked.get((_TYPES[intent.kind], _link(intent)))
        after = _declare(intent, before)
        if before is not None:
            del held[before.id]
        if before is None or (before.name, before.spec) != (after.name, after.spec):
            was = "" if before is None or before.name == after.name else f", which was {before.name}"
            lines.append(f"{after.type} {after.name}{was} is declared as it stood")
        store.bring(after, before)
    for each in held.values():
        is_lost = each.type in _KINDS and each.type != "Flow" and not each.owners
        if is_lost:
            lines.append(f"{each.type} {each.name} is not declared any more: it was removed")
        elif each.account is not None and each.type not in OF_ACCOUNTS:
            lines.append(f"{each.type} {each.name} is of the node now, and of no account")
            store.bring(msgspec.structs.replace(each, account=None), each)
        else:
            store.bring(each, each)
    _resolve_values(store)
    lines += _keep_runs(connection, store)
    _keep_records(connection)
    return lines


def _resolve_values(store: ResourceStore) -> None:
    """Resolves the sets that Sources read values from, which were looked up by name at each use."""
    for each in store.all("Source"):
        texts = (each.spec.get("config") or {}).values()
        keys = {reference_key(str(text), ANY) for text in texts}
        found = {key: next(iter(store.namesakes(*key.split(":", 1))), None) for key in sorted(keys)}
        handles = {key: None if held is None else handle_of(held) for key, held in found.items()}
        if handles:
            store.rewrite(msgspec.structs.replace(each, references={**each.references, **handles}), each.updated_at)


def _intents(connection: sqlite3.Connection) -> Iterator[_Intent]:
    for kind, key, name, spec, _, _, created, updated, _ in IN_FORCE.rows(connection, "TRUE ORDER BY kind, key"):
        if kind in _TYPES:
            yield _Intent(kind, key, name, msgspec.json.decode(spec), Instant(created), Instant(updated))
        elif kind not in _RECORDS:
            raise Environment(f"an intent of the unknown kind {kind!r}", rule="database-version", hint=INTENT_LOG.hint)


def _keep_records(connection: sqlite3.Connection) -> None:
    for kind, key, _, spec, status, _, _, updated, _ in IN_FORCE.rows(connection):
        if kind in _RECORDS:
            RECORDS.put(connection, kind, key, spec, status, updated)


def _keep_runs(connection: sqlite3.Connection, store: ResourceStore) -> Sequence[str]:
    """Gives the records of the runs of flows the ids of flows, in place of their names."""
    moved: list[str] = []
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'flow_runs'").fetchone() is None:
        return moved  # a state of before flows
    for key, record in list(_RUNS.rows(connection, "key GLOB 'flow *'")):
        _, name, *target = key.split(" ")
        flow = store.find_named("Flow", name, None)
        connection.execute("DELETE FROM flow_runs WHERE key = ?", (key,))
        if flow is not None:
            _RUNS.put(connection, " ".join(("flow", flow.id, *target)), record)
        else:
            moved.append(f"the runs of the flow {name}, which is gone, are forgotten")
    return moved


def _link(intent: _Intent) -> str:
    """Returns what the declaration of an intent had in the place of a did."""
    if intent.kind == "dataset":
        return _chain_of(intent)
    return f"{intent.kind} {intent.key}"


def _chain_of(intent: _Intent) -> str:
    return str(intent.spec["renditions"][-1]["shards"][0])


def _declare(intent: _Intent, before: Resource | None) -> Resource:
    """Returns the resource that an intent is now. ``before``: its declaration, which an apply may have left behind."""
    name, did, spec = _read(intent, before)
    if before is not None:
        return msgspec.structs.replace(
            before, name=name, did=did, spec=before.spec if spec is None else spec,
            account=before.account if before.type in OF_ACCOUNTS else None,
            created_at=min(before.created_at, intent.created_at),
        )  # fmt: skip
    type_ = _TYPES[intent.kind]
    return Resource(
        id=derived_id(type_, did or name, str(intent.created_at)), type=type_, name=name, did=did, spec=spec,
        created_at=intent.created_at, updated_at=intent.updated_at,
    )  # fmt: skip


def _read(intent: _Intent, before: Resource | None) -> tuple[str, str | None, Any]:
    """Returns name, did and spec of a resource; no spec if the intent does not tell one."""
    said = intent.spec
    match intent.kind:
        case "dataset":
            return intent.name, _chain_of(intent), None
        case "flow":
            if before is None or before.spec is None:
                raise Environment(
                    f"the flow {intent.name} has no manifest here: it is of before flows were resources",
                    rule="database-version",
                    hint="start the program that wrote it, delete the flow, and apply it again after the upgrade",
                )
            return intent.name, None, None
        case "mirror":
            more = {key: value for key, value in said.items() if key not in ("dataset", "name")}
            return said["name"], said["dataset"], {"source": said["dataset"], **more}
        case "network":
            texts = {"policyKey": said.get("policy_key"), "invitedBy": said.get("invited_by")}
            spec = {"bootstrap": said["bootstrap"]} | {key: text for key, text in texts.items() if text}
            return said["name"], None, spec
        case "blocked-peer":
            name = intent.name if before is None else before.name
            return name, intent.name, {"peerId": intent.name, "blocked": True}
        case _:
            name = intent.name.removeprefix("did:key:") if before is None else before.name
            return name, intent.name, {"did": intent.name, "group": str(said["group"])}


def convert_labels(connection: sqlite3.Connection) -> Sequence[str]:
    """Rewrites URIs of labels with a schema as short names. Returns a line for each resource that others
    may read by a label that had no effect before.
    """
    from odfd.resources.store import ResourceStore  # it names this step of its tables

    store, lines = ResourceStore(connection), []
    for each in store.all():
        labels = by_short_name(each.labels)
        if labels != each.labels:
            store.rewrite(msgspec.structs.replace(each, labels=labels), each.updated_at)
        acting = sorted(key for key in ACCESS if labels.get(key) is True) if each.type == "Dataset" else ()
        lines += [f"Dataset {each.name} is read as its label {key} says, which had no effect before" for key in acting]
    return lines


def index_labels(connection: sqlite3.Connection) -> Sequence[str]:
    """Writes the kinds of datasets into the index of labels."""
    from odfd.resources.store import ResourceStore  # as above

    store = ResourceStore(connection)
    for each in store.all("Dataset"):
        store.index_labels(each)
    return ()


def convert_webhooks(connection: sqlite3.Connection) -> Sequence[str]:
    """Rewrites WebhookTargets whose ``secret`` was a reference: it is ``secretRef`` now. Returns a line for each."""
    from odfd.resources.store import ResourceStore  # it names this step of its tables

    store, lines = ResourceStore(connection), []
    for each in store.all("WebhookTarget"):
        if each.spec is not None and isinstance(each.spec.get("secret"), str):
            rest = {key: value for key, value in each.spec.items() if key != "secret"}
            spec = {**rest, "secretRef": each.spec["secret"]}
            store.rewrite(msgspec.structs.replace(each, spec=spec), each.updated_at)
            lines.append(f"WebhookTarget {each.name} has its secret as secretRef: a secret is the value itself")
    return lines


ROOM: Final = "resources"
STEPS: Final = (
    *_FORMER_STEPS,
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
    convert,
    DROPPED,
    convert_labels,
    index_labels,
    convert_webhooks,
)
"""Tables, as the steps that made them; steps are added at the end and never changed."""
_MADE: Final = ("res_labels", "res_refs", "res_owners", "res_log")
UNWATCHED: Final = (STATUSES.table, EVENTS.table, DELETING.table, *_MADE)
"""Tables that nothing which is shown of datasets depends on."""
