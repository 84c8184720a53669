"""Stores every resource of a node, of every type: one row for what is declared, one for its status, one log of changes.

A change of a resource and its event are written in one transaction, and the numbers of events are in the order of
commits. Whatever makes, renames or deletes something that is a resource writes here: there is no other desired state.
"""

from __future__ import annotations

import itertools
import operator
import sqlite3
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.instant import SECOND, Instant
from odfd.resources.label_schemas import index_labels
from odfd.resources.reader import BODY, DECLARATIONS, DELETING, EVENTS, STATUSES, ResourceReader
from odfd.resources.registry import OF_ACCOUNTS
from odfd.resources.resource import Json, Op, Resource, canonical, derived_id, handle_of
from odfd.resources.status import DELETING as DELETING_CONDITION
from odfd.resources.status import ResourceStatus, pending

KEPT, MOST, MOST_BYTES, KEPT_FOR = 10_000, 100_000, 64 << 20, 24 * 3600 * SECOND
"""The newest ``KEPT`` events are kept, and others for ``KEPT_FOR``, while they are ``MOST`` and fill ``MOST_BYTES``."""
TRIMMED_EVERY: Final = 1_000
"""Number of new events after which old ones are removed."""


KeepOwned: TypeAlias = "Callable[[ResourceStore, Resource, Instant], None]"
"""Writes what a resource owns now. Raises Invalid."""


class ResourceStore(ResourceReader):
    """Reads and writes resources over one SQLite connection, within its open transaction."""

    def __init__(self, connection: sqlite3.Connection, owning: KeepOwned | None = None) -> None:
        """``owning`` writes the resources that written ones make; without it none are."""
        super().__init__(connection)
        self._owning = owning
        self._parked: set[str] = set()
        """Ids of resources that are without their names while several swap them."""
        self._fresh: dict[str, Resource] = {}
        """What ``put_all`` has read and nothing has written since, by id."""

    def put(self, resource: Resource, now: Instant) -> int:
        """Writes a resource; returns the number of the event. Raises Invalid if another one has its name or object."""
        held = self._fresh.get(resource.id) or self.get(resource.id)
        if held is None or _identity(held) != _identity(resource):
            self._check_free(resource)
        status = ResourceStatus() if held is None else held.status
        if held is not None and held.generation != resource.generation:
            # RFC-018 allows few changes of the phase: a watch sees each of them, also one that is over at once.
            *between, status = pending(status) or (status,)
            for each in between:
                self._append("Observed", msgspec.structs.replace(held, status=each), now)
        self._parked.discard(resource.id)
        after = msgspec.structs.replace(resource, status=status)
        rv = self._write("Added" if held is None else "Modified", after, now, held)
        if held is None or (held.name, *_identity(held)) != (resource.name, *_identity(resource)):
            self._heal(resource, now)
        if self._owning is not None:
            self._owning(self, resource, now)
        return rv

    def declare(
        self, type_: str, name: str, spec: Json, now: Instant, did: str | None = None, *, renames: bool = False
    ) -> bool:
        """Writes what a command of the node's owner declares; ``False`` if it stood so before.

        The resource is found by its ``did``, else by its name; labels, annotations, and, unless ``renames``, its name
        stay. Raises Invalid.
        """
        held = self.find_named(type_, name, None) if did is None else self.with_did(type_, did)
        if held is None:
            id_ = derived_id(type_, did or name, str(now))
            self.put(Resource(id=id_, type=type_, name=name, did=did, spec=spec, created_at=now, updated_at=now), now)
            return True
        name = name if renames else held.name
        if (held.name, held.spec) == (name, spec):
            return False
        after = msgspec.structs.replace(held, name=name, spec=spec, generation=held.generation + 1, updated_at=now)
        self.put(after, now)
        return True

    def withdraw(self, type_: str, name: str, now: Instant, did: str | None = None) -> bool:
        """Deletes what ``declare`` wrote; ``False`` if it is not here."""
        held = self.find_named(type_, name, None) if did is None else self.with_did(type_, did)
        if held is not None:
            self.delete(held, now)
        return held is not None

    def put_all(self, resources: Sequence[Resource], now: Instant) -> None:
        """Writes several resources, which may swap their names, together with their parts, whose names change too."""
        self._fresh = self.among(resource.id for resource in resources)
        for resource in resources:
            held = self._fresh.get(resource.id)
            if held is not None and (held.key, held.account) != (resource.key, resource.account):
                self._parked |= {resource.id, *(child.id for child in self.list_owned(resource.id))}
        for resource_id in sorted(self._parked):
            # The index of names is unique after each statement, so two that swap names cannot be written one after the
            # other.
            self._rekey(resource_id, _park(resource_id))
        for resource in resources:
            self.put(resource, now)
        for resource_id in sorted(self._parked):
            held = self.get(resource_id)
            if held is not None:
                self._rekey(resource_id, held.key)  # its name is not changed
        self._parked.clear()
        self._fresh.clear()

    def observe(self, resource_id: str, generation: int, statuses: Sequence[ResourceStatus], now: Instant) -> bool:
        """Records the statuses of a resource in order; ``False`` if it is gone or has another generation."""
        held = self.get(resource_id)
        if held is None or held.generation != generation:
            return False
        for status in statuses:
            after = msgspec.structs.replace(held, status=status, updated_at=now)
            self._append("Observed", after, now)
            STATUSES.put(self._db, resource_id, _encode(after.status))
        return True

    def rewrite(self, resource: Resource, now: Instant) -> None:
        """Writes a resource whose declaration has another form but the same meaning."""
        self._write("Observed", resource, now)

    def blank(self, resource_id: str) -> None:
        """Removes the specs from the superseded events of a resource."""
        rows = list(EVENTS.rows(self._db, "id = ? ORDER BY rv DESC", (resource_id,)))
        last = rows[0][2] if rows else ""
        for rv, at, op, _, type_, body in rows if last == "Deleted" else rows[1:]:
            emptied = msgspec.structs.replace(BODY.decode(body), spec=None)
            EVENTS.put(self._db, rv, at, op, resource_id, type_, _encode(emptied))

    def delete(self, resource: Resource, now: Instant) -> int:
        """Deletes a resource, and notes that its effects are to be undone; returns the number of the event.

        A resource that it owns goes with it, unless that has another owner.
        """
        rv, body = self._append("Deleted", resource, now)
        # In the transaction of the deletion: a crash after it still leaves what is to be undone.
        DELETING.put(self._db, resource.id, body)
        for table, column in (
            ("declarations", "id"), ("statuses", "id"), ("res_labels", "id"), ("res_refs", "src"),
            ("res_owners", "child"),
        ):  # fmt: skip
            self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (resource.id,))  # noqa: S608
        for each in self.list_owned(resource.id):
            self.disown(each, resource.id, now)
        return rv

    def forget(self, resource: Resource, now: Instant) -> None:
        """Deletes a resource of which nothing is to be undone."""
        self.delete(resource, now)
        self.end(resource.id)

    def disown(self, child: Resource, owner: str, now: Instant) -> None:
        """Removes an owner of a resource; deletes a resource that has no other."""
        others = tuple(each for each in child.owners if each.id != owner)
        if others:
            self.put(msgspec.structs.replace(child, owners=others, updated_at=now), now)
        else:
            self.delete(child, now)

    def exchange(self, type_: str, old: str, new: str, now: Instant) -> None:
        """Lets the resource that stands for the object ``old`` stand for ``new``, for all that refers to it.

        If another one stands for ``new``, that stands for ``old`` then.
        """
        held, other = self.with_did(type_, old), self.with_did(type_, new)
        pairs = [(each, did) for each, did in ((held, new), (other, old)) if each is not None]
        for each, _ in pairs:
            # The index of dids is unique too. The seal covers the old did: ``put`` makes both anew.
            self._db.execute("UPDATE declarations SET did = NULL, seal = NULL WHERE id = ?", (each.id,))
        for each, did in pairs:
            self.put(msgspec.structs.replace(each, did=did, updated_at=now), now)

    def gather(self, into: Resource, gone: Sequence[Resource], now: Instant) -> None:
        """Writes one resource in place of several: what refers to these means it, and what they made is its own.

        Nothing is undone of what ``gone`` stand for.
        """
        referrers = {src: None for each in gone for src in self.referrers(each.id)}
        ids = {each.id for each in gone}
        parts = {
            (each.type, owner.part) for each in self.list_owned(into.id) for owner in each.owners if owner.id == into.id
        }
        for child in [child for each in gone for child in self.list_owned(each.id)]:
            owners = tuple(
                msgspec.structs.replace(owner, id=into.id, name=into.name) if owner.id in ids else owner
                for owner in child.owners
            )
            if not any((child.type, owner.part) in parts for owner in owners if owner.id == into.id):
                self.put(msgspec.structs.replace(child, owners=owners, updated_at=now), now)
        for each in gone:
            self.delete(each, now)
            self.end(each.id)
        if into != self.get(into.id):
            self.put(into, now)
        for src in referrers:
            referrer = self.get(src)
            if referrer is not None:
                references = {
                    key: handle_of(into) if held is not None and held.id in ids else held
                    for key, held in referrer.references.items()
                }
                self._write("Observed", msgspec.structs.replace(referrer, references=references), now)

    def bring(self, resource: Resource, before: Resource | None) -> None:
        """Writes a resource with its status, such as one of an older store; with an event only if it changed."""
        if resource != before:
            self._write("Added" if before is None else "Observed", resource, resource.updated_at)
            return
        last = EVENTS.one(self._db, "id = ? ORDER BY rv DESC LIMIT 1", (resource.id,))
        self._keep(resource, resource.key, 0 if last is None else last[0])

    # Deleted resources whose effects are not undone yet.

    def deleting(self) -> list[Resource]:
        """Lists them with their last state, and with why they could not be undone in their status."""
        return [BODY.decode(body) for _, body in DELETING.rows(self._db, "TRUE ORDER BY id")]

    def find_deleting(self, resource_id: str) -> Resource | None:
        row = DELETING.one(self._db, "id = ?", (resource_id,))
        return None if row is None else BODY.decode(row[1])

    def held_back(self, type_: str, ref: str) -> Resource | None:
        """Returns the one of a type that could not be undone yet, by its id, or a name of the node's owner."""
        return next(
            (
                each
                for each in self.all_held_back(type_)
                if each.id == ref or (each.account is None and each.key == ref.casefold())
            ),
            None,
        )

    def all_held_back(self, type_: str) -> list[Resource]:
        """Returns those of a type that could not be undone yet."""
        return [each for each in self.deleting() if each.type == type_ and DELETING_CONDITION in each.status.conditions]

    def hold_back(self, resource: Resource) -> None:
        """Records a new status of one, unless it came back."""
        if self.find_deleting(resource.id) is not None:
            DELETING.put(self._db, resource.id, _encode(resource))

    def end(self, resource_id: str) -> None:
        """Records that nothing is left of it."""
        self._db.execute("DELETE FROM res_deleting WHERE id = ?", (resource_id,))

    def trim(self, now: Instant, kept: int, kept_for: int) -> int:
        """Removes events that need not be kept, except one; returns their number."""
        return self._db.execute(
            "DELETE FROM res_events WHERE rv <= (SELECT max(rv) FROM res_events) - ?"
            " AND rv < coalesce((SELECT rv FROM res_events WHERE at > ? ORDER BY rv LIMIT 1), 9223372036854775807)"
            " OR rv IN (SELECT rv FROM (SELECT rv, row_number() OVER w AS nth, sum(length(body)) OVER w - length(body)"
            " AS later FROM res_events WINDOW w AS (ORDER BY rv DESC)) WHERE later >= ? OR nth > ?)",
            (kept, now - kept_for, MOST_BYTES, MOST),
        ).rowcount

    # Inside.

    def _check_free(self, resource: Resource) -> None:
        other = self.find_named(resource.type, resource.name, resource.account)
        if other is not None and other.id != resource.id:
            text = f"{resource.name} is the name of another {resource.type}, {other.id}"
            raise Invalid(text, rule="name-taken", hint="choose another name")
        same = None if resource.did is None else self.with_did(resource.type, resource.did)
        if same is not None and same.id != resource.id:
            text = f"{resource.did} is here already, as the {resource.type} {same.name}"
            raise Invalid(text, rule="object-taken", hint=f"rename or delete {same.name}")

    def _heal(self, came: Resource, now: Instant) -> None:
        """Resolves references to a new resource: those that never found it, and those to an earlier one of its did.

        A name without an account means one of the account that refers.
        """
        owner = None if came.account is None else self.get(came.account)
        long = came.id if owner is None else f"{owner.key}/{came.key}"
        keys = [f"{came.type}:{each}" for each in (came.id, came.did or came.id, long)]
        rows = self._db.execute(
            "SELECT src, res_refs.key FROM res_refs JOIN declarations ON declarations.id = src"
            " WHERE (dst IS NULL AND (res_refs.key IN (?, ?, ?) OR (res_refs.key = ? AND (? OR account = ?))))"
            " OR (res_refs.did = ? AND res_refs.key GLOB ?) OR dst = ? ORDER BY src, res_refs.key",
            (*keys, f"{came.type}:{came.key}", came.type not in OF_ACCOUNTS, came.account or "", came.did,
             f"{came.type}:*", came.id),
        )  # fmt: skip
        for src, found in itertools.groupby(rows.fetchall(), key=operator.itemgetter(0)):
            referrer = self.get(src)
            assert referrer is not None
            references = {**referrer.references, **dict.fromkeys((key for _, key in found), handle_of(came))}
            if references != referrer.references:
                self._write("Observed", msgspec.structs.replace(referrer, references=references), now)

    def _write(self, op: Op, resource: Resource, now: Instant, held: Resource | None = None) -> int:
        rv, _ = self._append(op, resource, now)
        is_parked = op == "Observed" and resource.id in self._parked
        self._keep(resource, _park(resource.id) if is_parked else resource.key, rv, held)
        if op != "Observed":
            self.end(resource.id)  # one that comes back is not undone
        return rv

    def _keep(self, resource: Resource, key: str, rv: int, held: Resource | None = None) -> None:
        """Writes the row of a resource, and what is found by it.

        ``held``: as it stands, so that a part which is as it was is not written again.
        """
        body = _encode(msgspec.structs.replace(resource, status=ResourceStatus()))
        DECLARATIONS.put(
            self._db, resource.id, resource.type, resource.account or "", key, resource.name, resource.did,
            resource.created_at, rv, body,
        )  # fmt: skip
        if held is None or held.status != resource.status:
            STATUSES.put(self._db, resource.id, _encode(resource.status))
        if held is None or held.references != resource.references:
            rows = [
                (resource.id, ref, None if found is None else found.id, None if found is None else found.did)
                for ref, found in resource.references.items()
            ]
            self._index("res_refs", "src", resource.id, rows)
        if held is None or held.owners != resource.owners:
            self._index("res_owners", "child", resource.id, [(owner.id, resource.id) for owner in resource.owners])
        self.index_labels(resource)

    def index_labels(self, resource: Resource) -> None:
        """Writes the rows by which a resource is found by its labels."""
        labels = [(label, canonical(value)) for label, value in index_labels(resource).items()]
        self._index("res_labels", "id", resource.id, [(resource.type, *row, resource.id) for row in labels])

    def _index(self, table: str, column: str, resource_id: str, rows: Sequence[tuple[str | None, ...]]) -> None:
        """Writes all rows of a resource in a table by which it is found."""
        self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (resource_id,))  # noqa: S608
        if rows:
            places = ", ".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT INTO {table} VALUES ({places})", rows)  # noqa: S608

    def _rekey(self, resource_id: str, key: str) -> None:
        """Sets the key, in place of its name, by which a resource is found."""
        self._db.execute("UPDATE declarations SET key = ?, seal = NULL WHERE id = ?", (key, resource_id))

    def _append(self, op: Op, resource: Resource, now: Instant) -> tuple[int, bytes]:
        self._fresh.pop(resource.id, None)
        body = _encode(resource)
        rv = self._next()
        EVENTS.put(self._db, rv, now, op, resource.id, resource.type, body)
        if rv % TRIMMED_EVERY == 0:
            self.trim(now, KEPT, KEPT_FOR)
        return rv, body

    def _next(self) -> int:
        """Returns the number of the next event, which is never used again, even after old events are removed."""
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'res_events'").fetchone()
        return 1 if row is None else int(row[0]) + 1


def _identity(resource: Resource) -> tuple[str | None, str, str | None]:
    """Returns that of which one resource of a type may have each part."""
    return resource.account, resource.key, resource.did


def _park(resource_id: str) -> str:
    """Returns a key that no resource has, in place of its name."""
    return f"\0{resource_id}"


def _encode(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
