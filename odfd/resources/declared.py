"""Stores declared resources: their ids, labels, annotations and specs as they are now, and each change as an event.

A row in ``res_current`` is the last event of its resource; one transaction writes both, and the numbers of events are
in the order of commits. Types whose truth is kept elsewhere (datasets, flows) have a row here too: triggers note which
of them were made or removed, by whatever code, and ``adopt`` records that before anything is read.
"""

from __future__ import annotations

import itertools
import json
import operator
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from chain.errors import Invalid, NotFound
from chain.instant import SECOND, Instant
from chain.store.seals import Row, Sealed
from odfd.resources.status import UNRESOLVED, ResourceStatus, drifted, pending

FOLLOWED: Final = {
    "dataset": "Dataset",
    "flow": "Flow",
    "mirror": "Mirror",
    "network": "Network",
    "blocked-peer": "Peer",
    "validator": "Validator",
}
"""Types of resources by the kind of intent that they stand for."""
NAMED_HERE: Final = ("Peer", "Validator")
"""Types whose intents have no names; the names that people gave them are kept only here."""
_HINT: Final = "restore the database from a backup"
EVENTS: Final = Sealed("res_events", ("rv", "at", "op", "id", "type", "body"), _HINT)
CURRENT: Final = Sealed("res_current", ("id", "type", "key", "did", "rv", "body"), _HINT)
DELETING: Final = Sealed("res_deleting", ("id", "body"), _HINT)
_MADE: Final = ("res_labels", "res_refs", "res_owners", "res_touched", "res_log")
TABLES: Final = (EVENTS.table, CURRENT.table, DELETING.table, *_MADE)
Op: TypeAlias = Literal["Added", "Modified", "Deleted", "Observed"]
"""The kind of an event; ``Observed`` changes only the status, or what references are resolved to."""
Json: TypeAlias = Any
IntentKey: TypeAlias = tuple[str, str]
"""The kind and the key of an intent."""
Adopted: TypeAlias = tuple[str, str | None, Json]
"""Name, did and spec of an intent's resource; ``None`` for what the intent does not tell.

A link may take the place of the did.
"""


class ResourceHandle(msgspec.Struct, frozen=True):
    """The resource that a reference is resolved to. Its did also finds a resource that was deleted and made again."""

    id: str
    name: str
    """The present name of the resource."""
    did: str | None = None


class OwnerReference(msgspec.Struct, frozen=True, kw_only=True):
    """An owner of a resource, which is deleted with the last of its owners."""

    id: str
    type: str
    name: str
    part: str = ""
    """Identifies the part of the owner that the resource is."""


class DeclaredResource(msgspec.Struct, frozen=True, kw_only=True):
    """A declared resource. ``spec`` is plain JSON; ``None`` if no manifest declared the resource."""

    id: str
    type: str
    name: str
    did: str | None = None
    account: str | None = None
    """Id of the Account that owns it; ``None`` for the node's owner."""
    labels: Mapping[str, Json] = {}
    annotations: Mapping[str, Json] = {}
    managers: Mapping[str, str] = {}
    """Who set ``labels.KEY``, ``annotations.KEY`` or ``spec``, if that was not a plain apply of manifests."""
    spec: Json = None
    references: Mapping[str, ResourceHandle | None] = {}
    """What its references are resolved to, by ``references.reference_key``; ``None`` if a target never existed here."""
    owners: tuple[OwnerReference, ...] = ()
    """The resources that made it; empty if people declared it."""
    generation: int = 1
    status: ResourceStatus = ResourceStatus()
    """Written only by ``DeclaredStore.observe``."""
    created_at: Instant
    updated_at: Instant


class ResourceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a resource; for a deletion with its last state."""

    rv: int
    at: Instant
    op: Op
    resource: DeclaredResource


def handle_of(resource: DeclaredResource) -> ResourceHandle:
    return ResourceHandle(resource.id, resource.name, resource.did)


KEPT, MOST, MOST_BYTES, KEPT_FOR = 10_000, 100_000, 64 << 20, 24 * 3600 * SECOND
"""The newest ``KEPT`` events are kept, and others for ``KEPT_FOR``, while they are ``MOST`` and fill ``MOST_BYTES``."""
TRIMMED_EVERY: Final = 1_000
"""Number of new events after which old ones are removed."""
_AMONG: Final = "id IN (SELECT value FROM json_each(?))"
_BODY: Final = msgspec.json.Decoder(DeclaredResource)


def canonical(value: Json) -> str:
    """Encodes a value as its canonical JSON text, by which labels are compared."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class Owning(Protocol):
    """Stores the resources that others own."""

    def keep(self, store: DeclaredStore, owner: DeclaredResource, now: Instant) -> None:
        """Writes what ``owner`` owns now. Raises Invalid."""

    def ended(self, child: DeclaredResource) -> None:
        """Stops what acts for a resource that was deleted with its owners."""


class DeclaredStore:
    """Reads and writes resources over one SQLite connection, within its open transaction."""

    def __init__(self, connection: sqlite3.Connection, owning: Owning | None = None) -> None:
        """``owning`` writes the resources that written ones make; without it none are."""
        self._db = connection
        self._owning = owning
        self._parked: set[str] = set()
        """Ids of resources that are without their names while several swap them."""

    def get(self, resource_id: str) -> DeclaredResource | None:
        return _resource(CURRENT.one(self._db, "id = ?", (resource_id,)))

    def named(self, type_: str, name: str) -> DeclaredResource | None:
        return _resource(CURRENT.one(self._db, "type = ? AND key = ?", (type_, name.casefold())))

    def meant(self, type_: str, name: str, key: str) -> DeclaredResource:
        """Returns the resource that a reference of a named resource is resolved to, whatever its name is now.

        ``key`` is as in ``references``. Another resource that took the name since is not returned. Raises NotFound.
        """
        held = self.named(type_, name)
        handle = None if held is None else held.references.get(key)
        found = None if handle is None else self.get(handle.id)
        if found is None:
            of = key.partition(":")[0]
            raise NotFound(f"there is no {key}", rule=UNRESOLVED, hint=f"apply the {of}, and the {type_} {name} again")
        return found

    def with_did(self, did: str) -> DeclaredResource | None:
        return _resource(CURRENT.one(self._db, "did = ?", (did,)))

    def all(self, type_: str | None = None, label: tuple[str, Json] | None = None) -> list[DeclaredResource]:
        """Lists resources by type and name. With a ``label``, those that have it with this value, by an index."""
        if type_ is not None and label is not None:
            where = "id IN (SELECT id FROM res_labels WHERE type = ? AND key = ? AND value IN (?, ?)) ORDER BY key"
            values = (canonical(label[1]), str(label[1]))
            rows = CURRENT.rows(self._db, where, (type_, label[0], *values))
        elif type_ is not None:
            rows = CURRENT.rows(self._db, "type = ? ORDER BY type, key", (type_,))
        else:
            rows = CURRENT.rows(self._db, "TRUE ORDER BY type, key")
        return [found for row in rows if (found := _resource(row)) is not None]

    def page(self, type_: str, after: str, limit: int, label: tuple[str, Json] | None = None) -> list[DeclaredResource]:
        """Lists at most ``limit`` resources of a type by name, after a name in lower case; ``label`` as in ``all``."""
        where, values = "type = ? AND key > ?", [type_, after]
        if label is not None:
            where += " AND id IN (SELECT id FROM res_labels WHERE type = ? AND key = ? AND value IN (?, ?))"
            values += [type_, label[0], canonical(label[1]), str(label[1])]
        rows = CURRENT.rows(self._db, f"{where} ORDER BY key LIMIT ?", (*values, limit))
        return [found for row in rows if (found := _resource(row)) is not None]

    def put(self, resource: DeclaredResource, now: Instant) -> int:
        """Writes a resource; returns the number of the event. Raises Invalid if another one has its name."""
        other = self.named(resource.type, resource.name)
        if other is not None and other.id != resource.id:
            text = f"{resource.name} is the name of another {resource.type}, {other.id}"
            raise Invalid(text, rule="name-taken", hint="choose another name")
        held = self.get(resource.id)
        status = ResourceStatus() if held is None else held.status
        if held is not None and held.generation != resource.generation:
            *between, status = pending(status) or (status,)
            for each in between:
                self._append("Observed", msgspec.structs.replace(held, status=each), now)
        op: Op = "Added" if held is None else "Modified"
        self._parked.discard(resource.id)
        rv = self._write(op, msgspec.structs.replace(resource, status=status), now)
        if held is None or (held.name, held.did) != (resource.name, resource.did):
            self._heal(resource, now)
        if self._owning is not None:
            self._owning.keep(self, resource, now)
        return rv

    def _heal(self, came: DeclaredResource, now: Instant) -> None:
        """Resolves references to a new resource: those that never found it, and those to an earlier one of its did."""
        keys = [f"{came.type}:{each}" for each in (came.id, came.did or came.id, came.name.casefold())]
        rows = self._db.execute(
            "SELECT src, key FROM res_refs WHERE (dst IS NULL AND key IN (?, ?, ?)) OR did = ? OR dst = ?"
            " ORDER BY src, key",
            (*keys, came.did, came.id),
        )
        for src, found in itertools.groupby(rows.fetchall(), key=operator.itemgetter(0)):
            referrer = self.get(src)
            assert referrer is not None
            references = {**referrer.references, **dict.fromkeys((key for _, key in found), handle_of(came))}
            if references != referrer.references:
                self._write("Observed", msgspec.structs.replace(referrer, references=references), now)

    def observe(self, resource_id: str, generation: int, statuses: Sequence[ResourceStatus], now: Instant) -> bool:
        """Records the statuses of a resource in order; ``False`` if it is gone or has another generation."""
        held = self.get(resource_id)
        if held is None or held.generation != generation:
            return False
        for each in statuses:
            self._write("Observed", msgspec.structs.replace(held, status=each, updated_at=now), now)
        return True

    def referrers(self, resource_id: str) -> list[str]:
        """Lists the ids of the resources that refer to this one, by an index."""
        rows = self._db.execute("SELECT DISTINCT src FROM res_refs WHERE dst = ? ORDER BY src", (resource_id,))
        return [src for (src,) in rows]

    def owned(self, owner: str) -> list[DeclaredResource]:
        """Lists the resources of an owner, by an index."""
        rows = CURRENT.rows(self._db, "id IN (SELECT child FROM res_owners WHERE owner = ?) ORDER BY id", (owner,))
        return [found for row in rows if (found := _resource(row)) is not None]

    def dangling(self, resource_id: str) -> list[str]:
        """Lists the unresolved references of a resource, by key."""
        rows = self._db.execute(
            "SELECT res_refs.key FROM res_refs LEFT JOIN res_current ON res_current.id = dst"
            " WHERE src = ? AND res_current.id IS NULL ORDER BY res_refs.key",
            (resource_id,),
        )
        return [key for (key,) in rows]

    def strand(self, type_: str, name: str, now: Instant) -> bool:
        """Makes a declared resource wait for what acted for it; ``False`` if it is not declared, or owned."""
        held = self.named(type_, name)
        if held is None or held.spec is None or held.owners:
            return False
        kind = next(kind for kind, each in FOLLOWED.items() if each == type_)
        self._db.execute("DELETE FROM res_touched WHERE kind = ? AND key = ?", (kind, name.casefold()))
        return self.observe(held.id, held.generation, pending(held.status), now)

    def _write(self, op: Op, resource: DeclaredResource, now: Instant) -> int:
        rv, body = self._append(op, resource, now)
        is_parked = op == "Observed" and resource.id in self._parked
        key = _parked(resource.id) if is_parked else resource.name.casefold()
        CURRENT.put(self._db, resource.id, resource.type, key, resource.did, rv, body)
        self._db.execute("DELETE FROM res_refs WHERE src = ?", (resource.id,))
        self._db.executemany(
            "INSERT INTO res_refs VALUES (?, ?, ?, ?)",
            [(resource.id, key, handle and handle.id, handle and handle.did)
             for key, handle in resource.references.items()],
        )  # fmt: skip
        if op == "Observed":
            return rv
        self._db.execute("DELETE FROM res_deleting WHERE id = ?", (resource.id,))  # one that comes back is not undone
        self._db.execute("DELETE FROM res_owners WHERE child = ?", (resource.id,))
        self._db.executemany(
            "INSERT INTO res_owners VALUES (?, ?)", [(each.id, resource.id) for each in resource.owners]
        )
        self._db.execute("DELETE FROM res_labels WHERE id = ?", (resource.id,))
        self._db.executemany(
            "INSERT INTO res_labels VALUES (?, ?, ?, ?)",
            [(resource.type, label, canonical(value), resource.id) for label, value in resource.labels.items()],
        )
        return rv

    def put_all(self, resources: Sequence[DeclaredResource], now: Instant) -> None:
        """Writes several resources, which may swap their names, together with their parts, whose names change too."""
        for each in resources:
            held = self.get(each.id)
            if held is not None and held.name.casefold() != each.name.casefold():
                self._parked |= {each.id, *(child.id for child in self.owned(each.id))}
        for resource_id in sorted(self._parked):
            self._key(resource_id, _parked(resource_id))
        for each in resources:
            self.put(each, now)
        for resource_id in sorted(self._parked):
            held = self.get(resource_id)
            if held is not None:
                self._key(resource_id, held.name.casefold())  # its name is not changed
        self._parked.clear()

    def _key(self, resource_id: str, key: str) -> None:
        """Sets the key, in place of its name, by which a resource is found."""
        self._db.execute("UPDATE res_current SET key = ?, seal = NULL WHERE id = ?", (key, resource_id))

    def rewrite(self, resource: DeclaredResource, now: Instant) -> None:
        """Writes a resource whose declaration has another form but the same meaning."""
        self._write("Observed", resource, now)

    def blank(self, resource_id: str) -> None:
        """Removes the specs from the superseded events of a resource."""
        rows = list(EVENTS.rows(self._db, "id = ? ORDER BY rv DESC", (resource_id,)))
        last = rows[0][2] if rows else ""
        for rv, at, op, _, type_, body in rows if last == "Deleted" else rows[1:]:
            emptied = msgspec.structs.replace(_decoded(body), spec=None)
            EVENTS.put(self._db, rv, at, op, resource_id, type_, msgspec.json.encode(emptied, order="deterministic"))

    def delete(self, resource: DeclaredResource, now: Instant) -> int:
        """Deletes a resource, and notes that its effects are to be undone; returns the number of the event."""
        rv, body = self._append("Deleted", resource, now)
        DELETING.put(self._db, resource.id, body)
        self._db.execute("DELETE FROM res_current WHERE id = ?", (resource.id,))
        self._db.execute("DELETE FROM res_labels WHERE id = ?", (resource.id,))
        self._db.execute("DELETE FROM res_refs WHERE src = ?", (resource.id,))
        self._db.execute("DELETE FROM res_owners WHERE child = ?", (resource.id,))
        for each in self.owned(resource.id):
            self.disown(each, resource.id, now)
        return rv

    def disown(self, child: DeclaredResource, owner: str, now: Instant) -> None:
        """Removes an owner of a resource; deletes a resource that has no other."""
        others = tuple(each for each in child.owners if each.id != owner)
        if others:
            self.put(msgspec.structs.replace(child, owners=others, updated_at=now), now)
            return
        self.delete(child, now)
        if self._owning is not None:
            self._owning.ended(child)

    def events(self, since: int, limit: int, most_bytes: int | None = None) -> list[ResourceEvent]:
        """Lists at most ``limit`` events after ``since``, in order.

        After the first event, stops before there are more than ``most_bytes``.
        """
        found: list[ResourceEvent] = []
        size = 0
        for row in EVENTS.rows(self._db, "rv > ? ORDER BY rv LIMIT ?", (since, limit)):
            size += len(row[5])
            if found and most_bytes is not None and size > most_bytes:
                break
            found.append(_event(row))
        return found

    def standing_at(self, number: int) -> list[DeclaredResource] | None:
        """Lists resources as they were at an event's number, but for statuses; ``None`` if the log no longer tells."""
        select = "SELECT id, op, min(rv) FROM res_events WHERE rv > ? GROUP BY id"
        later = {id_: (op, rv) for id_, op, rv in self._db.execute(select, (number,))}
        found = [each for each in self.all() if each.id not in later]
        for id_, (op, rv) in later.items():
            last = EVENTS.one(self._db, "id = ? AND rv <= ? ORDER BY rv DESC LIMIT 1", (id_, number))
            if op == "Modified" and last is None:
                return None
            row = None if op == "Added" else last or EVENTS.one(self._db, "rv = ?", (rv,))
            found += [] if row is None else [_event(row).resource]
        return found

    def moves(self, after: int, upto: int) -> list[tuple[int, str, Op]]:
        """Lists number, id and kind of the events with numbers above ``after`` and up to ``upto``."""
        select = "SELECT rv, id, op FROM res_events WHERE rv > ? AND rv <= ? ORDER BY rv"
        return list(self._db.execute(select, (after, upto)))

    def history(self, resource_id: str | None, limit: int, without: Sequence[str] = ()) -> list[ResourceEvent]:
        """Lists the last events of one resource, or of all except those of the types ``without``, in order."""
        others = f"type NOT IN ({', '.join('?' * len(without))})"
        where, values = ("id = ?", (resource_id,)) if resource_id is not None else (others, tuple(without))
        rows = list(EVENTS.rows(self._db, f"{where} ORDER BY rv DESC LIMIT ?", (*values, limit)))
        return [_event(row) for row in reversed(rows)]

    def history_of(self, ids: Collection[str], limit: int, without: Sequence[str]) -> list[ResourceEvent]:
        """Lists the last events of some resources, except those of the types ``without``, in order."""
        where = f"{_AMONG} AND type NOT IN ({', '.join('?' * len(without))})"
        values: list[str | int] = [json.dumps(sorted(ids)), *without]
        rows = list(EVENTS.rows(self._db, f"{where} ORDER BY rv DESC LIMIT ?", (*values, limit)))
        return [_event(row) for row in reversed(rows)]

    def before(self, event: ResourceEvent) -> DeclaredResource | None:
        """Returns the resource as of its previous event; ``None`` if that is not kept."""
        row = EVENTS.one(self._db, "id = ? AND rv < ? ORDER BY rv DESC LIMIT 1", (event.resource.id, event.rv))
        return None if row is None else _resource(row)

    def deleted(self, type_: str, name: str) -> DeclaredResource | None:
        """Returns the last deleted resource of a type with this name, id or did, while the log has it."""
        rows = EVENTS.rows(self._db, "type = ? AND op = 'Deleted' ORDER BY rv DESC", (type_,))
        found, key = (_decoded(row[5]) for row in rows), name.casefold()
        return next((each for each in found if key in (each.id, each.did, each.name.casefold())), None)

    def trim(self, now: Instant, kept: int, kept_for: int) -> int:
        """Removes events that need not be kept, except one; returns their number."""
        return self._db.execute(
            "DELETE FROM res_events WHERE rv <= (SELECT max(rv) FROM res_events) - ?"
            " AND rv < coalesce((SELECT rv FROM res_events WHERE at > ? ORDER BY rv LIMIT 1), 9223372036854775807)"
            " OR rv IN (SELECT rv FROM (SELECT rv, row_number() OVER w AS nth, sum(length(body)) OVER w - length(body)"
            " AS later FROM res_events WINDOW w AS (ORDER BY rv DESC)) WHERE later >= ? OR nth > ?)",
            (kept, now - kept_for, MOST_BYTES, MOST),
        ).rowcount

    def floor(self) -> int:
        """Returns the number after which the log is complete; events up to it were removed."""
        (first,) = self._db.execute("SELECT coalesce(min(rv), 1) FROM res_events").fetchone()
        return int(first) - 1

    def newest(self) -> int:
        """Returns the number of the last event; zero before the first."""
        (found,) = self._db.execute("SELECT coalesce(max(rv), 0) FROM res_events").fetchone()
        return int(found)

    def epoch(self) -> str:
        """Returns the identity of the log, which its versions name."""
        return str(self._db.execute("SELECT epoch FROM res_log").fetchone()[0])

    def touched(self) -> list[IntentKey]:
        """Lists the intents, by kind and key, that were made, changed or removed since they were adopted."""
        return list(self._db.execute("SELECT kind, key FROM res_touched ORDER BY kind, key"))

    def adopt(self, intents: Mapping[IntentKey, Adopted | None], new_id: Callable[[], str], now: Instant) -> None:
        """Records changes of touched intents: the name, did and spec of each, or ``None`` for a removed one."""
        here = {intent[1] for intent in intents.values() if intent is not None and intent[1] is not None}
        for (kind, key), intent in intents.items():
            held = self.with_did(f"{kind} {key}") or self.named(FOLLOWED[kind], key)
            if held is None or held.did in here or not (intent is None or intent[1] != held.did is not None):
                continue
            if intent is None and held.owners:
                # Its owner still declares it; the lost intent is made again.
                text = f"the {kind} {key} was removed, and {held.owners[0].type} {held.owners[0].name} declares it"
                self.observe(held.id, held.generation, drifted(held.status, held.generation, text, now), now)
            else:
                self.delete(held, now)
        changed = [
            found
            for (kind, _), intent in intents.items()
            if intent is not None and (found := self._came(FOLLOWED[kind], intent, new_id, now)) is not None
        ]
        self.put_all(changed, now)
        self._db.executemany("DELETE FROM res_touched WHERE kind = ? AND key = ?", list(intents))

    def _came(self, type_: str, intent: Adopted, new_id: Callable[[], str], now: Instant) -> DeclaredResource | None:
        """Returns the resource to write for an intent; ``None`` if nothing changed."""
        name, did, spec = intent
        held = (self.with_did(did) if did is not None else None) or self.named(type_, name)
        if held is None:
            return DeclaredResource(
                id=new_id(), type=type_, name=name, did=did, spec=spec, created_at=now, updated_at=now
            )  # fmt: skip
        name = held.name if type_ in NAMED_HERE else name
        spec = held.spec if spec is None else spec
        if (held.name, held.did, held.spec) == (name, did, spec):
            return None
        generation = held.generation + ((held.name, held.spec) != (name, spec))
        return msgspec.structs.replace(
            held, name=name, did=did, spec=spec, generation=generation, updated_at=now
        )  # fmt: skip

    def _append(self, op: Op, resource: DeclaredResource, now: Instant) -> tuple[int, bytes]:
        body = msgspec.json.encode(resource, order="deterministic")
        rv = self._next()
        EVENTS.put(self._db, rv, now, op, resource.id, resource.type, body)
        if rv % TRIMMED_EVERY == 0:
            self.trim(now, KEPT, KEPT_FOR)
        return rv, body

    def _next(self) -> int:
        """Returns the number of the next event, which is never used again, even after old events are removed."""
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'res_events'").fetchone()
        return 1 if row is None else int(row[0]) + 1


def _parked(resource_id: str) -> str:
    """Returns a key that no resource has, in place of its name."""
    return f"\0{resource_id}"


def _resource(row: Row | None) -> DeclaredResource | None:
    return None if row is None else _decoded(row[5])


def _event(row: Row) -> ResourceEvent:
    return ResourceEvent(rv=row[0], at=Instant(row[1]), op=row[2], resource=_decoded(row[5]))


def _decoded(body: bytes) -> DeclaredResource:
    return _BODY.decode(body)


def fold(events: Iterator[ResourceEvent] | Sequence[ResourceEvent]) -> dict[str, DeclaredResource]:
    """Returns the resources after all events, by id."""
    found: dict[str, DeclaredResource] = {}
    for each in events:
        if each.op == "Deleted":
            found.pop(each.resource.id, None)
        else:
            found[each.resource.id] = each.resource
    return found
