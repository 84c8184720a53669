"""Reads resources: what is declared, the status of each, and the log of their changes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from chain.errors import Invalid
from chain.instant import Instant
from chain.store.seals import Row, Sealed
from odfd.resources.registry import OWNER
from odfd.resources.resource import (
    ACCOUNT,
    Json,
    Op,
    Resource,
    ResourceEvent,
    account_did,
    account_handle,
    canonical,
    derived_id,
)
from odfd.resources.status import ResourceStatus

_HINT: Final = "restore the database from a backup"
DECLARATIONS: Final = Sealed(
    "declarations", ("id", "type", "account", "key", "name", "did", "created_at", "rv", "body"), _HINT
)
STATUSES: Final = Sealed("statuses", ("id", "body"), _HINT)
EVENTS: Final = Sealed("res_events", ("rv", "at", "op", "id", "type", "body"), _HINT)
DELETING: Final = Sealed("res_deleting", ("id", "body"), _HINT)
_NAMED: Final = "account = ? AND type = ? AND key = ?"
_AMONG: Final = "id IN (SELECT value FROM json_each(?))"
BODY: Final = msgspec.json.Decoder(Resource)
_STATUS: Final = msgspec.json.Decoder(ResourceStatus)


_LABELLED: Final = "id IN (SELECT id FROM res_labels WHERE type = ? AND key = ? AND value IN (?, ?, 'null'))"


class NamedRow(NamedTuple):
    """The parts of a resource that are read without its body."""

    id: str
    account: str | None
    name: str
    did: str | None
    created_at: Instant


def place(name: str, id_: str) -> str:
    """Returns the place of a resource in a list of its type. Several accounts may have resources of one name."""
    return f"{name.casefold()}\0{id_}"


class ResourceReader:
    """Reads resources over one SQLite connection, within its open transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def get(self, resource_id: str) -> Resource | None:
        return self._one("id = ?", (resource_id,))

    def find_named(self, type_: str, name: str, account: str | None) -> Resource | None:
        """Returns the resource of an account by its name. ``account``: its id; ``None`` for the node's owner."""
        return self._one(_NAMED, (account or "", type_, name.casefold()))

    def namesakes(self, type_: str, name: str) -> list[Resource]:
        """Lists the resources of all accounts that have a name; that of the node's owner first."""
        return self._several("type = ? AND key = ? ORDER BY account", (type_, name.casefold()))

    def find_any(self, type_: str, ref: str) -> Resource | None:
        """Returns what the node's owner means by a name, ``account/name``, id, or the did that it stands for.

        The owner sees all, so a name that only one other account has means that one. Raises Invalid if several have it.
        """
        found = self.resolve(type_, ref, None)
        others = self.namesakes(type_, ref) if found is None else []
        if len(others) > 1:
            raise ambiguous(self, type_, ref, others)
        return next(iter(others), found)

    def with_did(self, type_: str, did: str) -> Resource | None:
        found = self._one("type = ? AND did = ?", (type_, did))
        if found is not None or type_ != ACCOUNT:
            return found
        return next((each for each in self.all(ACCOUNT) if account_did(each.id, each.spec) == did), None)

    def owner(self) -> dict[str, str]:
        """Returns the handle of the account of the node's owner."""
        return account_handle(derived_id(ACCOUNT, OWNER, self.epoch()), OWNER)

    def among(self, ids: Iterable[str]) -> dict[str, Resource]:
        """Returns the resources that are here of some ids, by id, with one read for all."""
        return {each.id: each for each in self._several(_AMONG, (json.dumps(list(ids)),))}

    def rows(self, type_: str) -> list[NamedRow]:
        """Lists the resources of a type by name, without their bodies."""
        return [_to_named(row) for row in DECLARATIONS.rows(self._db, "type = ? ORDER BY type, key", (type_,))]

    def row(self, resource_id: str) -> NamedRow | None:
        """Returns what ``get`` does, without its body."""
        return self._row("id = ?", (resource_id,))

    def row_named(self, type_: str, name: str, account: str | None) -> NamedRow | None:
        """Returns what ``named`` does, without its body."""
        return self._row(_NAMED, (account or "", type_, name.casefold()))

    def resolve(self, type_: str, ref: str, account: str | None) -> Resource | None:
        """Returns what an account calls by a name, ``account/name``, id or did: its own, else the node's owner's.

        ``account``: ``None`` for callers without one.
        """
        owner, _, name = ref.rpartition("/")
        if owner:
            held = self.find_named(ACCOUNT, owner, None)
            is_known = held is not None or owner.casefold() == OWNER
            return self.find_named(type_, name, None if held is None else held.id) if is_known else None
        own = None if account is None else self.find_named(type_, ref, account)
        found = own or self.find_named(type_, ref, None) or self.get(ref) or self.with_did(type_, ref)
        return found if found is not None and found.type == type_ else None

    def row_with_did(self, type_: str, did: str) -> NamedRow | None:
        """Returns what ``with_did`` does, without its body."""
        return self._row("type = ? AND did = ?", (type_, did))

    def all(self, type_: str | None = None, label: tuple[str, Json] | None = None) -> list[Resource]:
        """Lists resources by type and name. With a ``label``, those that have it with this value, by an index.

        Those of which the declaration does not say the value are among them, for whoever knows it.
        """
        if type_ is not None and label is not None:
            return self._several(f"{_LABELLED} ORDER BY key", (type_, label[0], canonical(label[1]), str(label[1])))
        if type_ is not None:
            return self._several("type = ? ORDER BY type, key", (type_,))
        return self._several("TRUE ORDER BY type, key", ())

    def page(self, type_: str, after: str, limit: int, label: tuple[str, Json] | None = None) -> list[Resource]:
        """Lists at most ``limit`` resources of a type by name, after a place (``place``); ``label`` as in ``all``."""
        key, _, id_ = after.partition("\0")
        where, values = "type = ? AND (key, id) > (?, ?)", [type_, key, id_]
        if label is not None:
            where += f" AND {_LABELLED}"
            values += [type_, label[0], canonical(label[1]), str(label[1])]
        return self._several(f"{where} ORDER BY key, id LIMIT ?", (*values, limit))

    def referrers(self, resource_id: str) -> list[str]:
        """Lists the ids of the resources that refer to this one, by an index."""
        rows = self._db.execute("SELECT DISTINCT src FROM res_refs WHERE dst = ? ORDER BY src", (resource_id,))
        return [src for (src,) in rows]

    def referring(self, type_: str, resource_id: str) -> list[Resource]:
        """Lists the resources of a type that refer to this one."""
        where = "type = ? AND id IN (SELECT src FROM res_refs WHERE dst = ?) ORDER BY key"
        return self._several(where, (type_, resource_id))

    def foreign_users(self, acting: Collection[str]) -> list[str]:
        """Lists the ids of what accounts have that uses what others have, or is of a type that acts on what is there.

        Also of what acts with the rights of an account without being its own. ``acting``: these types.
        """
        rows = self._db.execute(
            "SELECT own.id FROM declarations AS own WHERE own.account != '' AND (own.type IN"
            " (SELECT value FROM json_each(?1)) OR EXISTS (SELECT 1 FROM res_refs JOIN declarations AS theirs"
            " ON theirs.id = dst WHERE src = own.id AND theirs.account != own.account)) OR own.type IN"
            " (SELECT value FROM json_each(?1)) AND EXISTS (SELECT 1 FROM res_refs WHERE src = own.id"
            " AND key GLOB 'Account:*') ORDER BY own.id",
            (json.dumps(sorted(acting)),),
        )
        return [each for (each,) in rows]

    def list_owned(self, owner: str) -> list[Resource]:
        """Lists the resources of an owner, by an index."""
        return self._several("id IN (SELECT child FROM res_owners WHERE owner = ?) ORDER BY id", (owner,))

    def surplus(
        self, type_: str, owner: str | None, account: str | None, most: int, since: Instant | None = None
    ) -> list[Resource]:
        """Lists the resources of a type, an account and an owner, beside the newest, and those made before a time.

        ``owner``: an id; ``None``: of no owner.
        """
        where = (
            "id IN (SELECT id FROM (SELECT id, created_at, row_number() OVER (ORDER BY created_at DESC, id) AS nth"
            " FROM declarations WHERE account = ? AND type = ? AND id {}) WHERE nth > ? OR created_at < ?)"
        )
        owned = "NOT IN (SELECT child FROM res_owners WHERE owner != ?)"
        if owner is not None:
            owned = "IN (SELECT child FROM res_owners WHERE owner = ?)"
        return self._several(where.format(owned), (account or "", type_, owner or "", most, since or 0))

    def dangling(self, resource_id: str) -> list[str]:
        """Lists the unresolved references of a resource, by key."""
        rows = self._db.execute(
            "SELECT res_refs.key FROM res_refs LEFT JOIN declarations ON declarations.id = dst"
            " WHERE src = ? AND declarations.id IS NULL ORDER BY res_refs.key",
            (resource_id,),
        )
        return [key for (key,) in rows]

    def account_name(self, account: str) -> str:
        """Returns the name of an account; its id if it is gone."""
        held = self.get(account)
        return account if held is None else held.name

    # The log.

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

    def standing_at(self, number: int) -> list[Resource] | None:
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

    def history(
        self, ids: Collection[str] | None, limit: int, without: Sequence[str] = (), upto: int | None = None
    ) -> list[ResourceEvent]:
        """Lists the last events of some resources, or of all, except those of the types ``without``, in order.

        ``upto``: the number of the last event that may be among them.
        """
        where = f"type NOT IN ({', '.join('?' * len(without))})"
        values: tuple[str | int, ...] = tuple(without)
        if upto is not None:
            where, values = f"rv <= ? AND {where}", (upto, *values)
        if ids is not None and len(ids) == 1:
            where, values = f"id = ? AND {where}", (*ids, *values)  # by an index, in their order
        elif ids is not None:
            where, values = f"{_AMONG} AND {where}", (json.dumps(sorted(ids)), *values)
        rows = EVENTS.rows(self._db, f"{where} ORDER BY rv DESC LIMIT ?", (*values, limit))
        return [_event(row) for row in reversed(list(rows))]

    def before(self, event: ResourceEvent) -> Resource | None:
        """Returns the resource as of its previous event; ``None`` if that is not kept."""
        row = EVENTS.one(self._db, "id = ? AND rv < ? ORDER BY rv DESC LIMIT 1", (event.resource.id, event.rv))
        return None if row is None else BODY.decode(row[5])

    def find_deleted(self, type_: str, name: str) -> Resource | None:
        """Returns the last deleted resource of a type with this name, id or did, while the log has it."""
        rows = EVENTS.rows(self._db, "type = ? AND op = 'Deleted' ORDER BY rv DESC", (type_,))
        found, key = (BODY.decode(row[5]) for row in rows), name.casefold()
        return next((each for each in found if key in (each.id, each.did, each.key)), None)

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

    # Inside.

    def _row(self, where: str, values: Sequence[Any]) -> NamedRow | None:
        row = DECLARATIONS.one(self._db, where, values)
        return None if row is None else _to_named(row)

    def _one(self, where: str, values: Sequence[Any]) -> Resource | None:
        row = DECLARATIONS.one(self._db, where, values)
        if row is None:
            return None
        status = STATUSES.one(self._db, "id = ?", (row[0],))
        return _resource(row, None if status is None else status[1])

    def _several(self, where: str, values: Sequence[Any]) -> list[Resource]:
        rows = list(DECLARATIONS.rows(self._db, where, values))
        if not rows:
            return []
        told = STATUSES.rows(self._db, _AMONG, (json.dumps([row[0] for row in rows]),))
        statuses: dict[str, bytes] = dict(told)
        return [_resource(row, statuses.get(row[0])) for row in rows]


def _resource(row: Row, status: bytes | None) -> Resource:
    resource = BODY.decode(row[8])
    return resource if status is None else msgspec.structs.replace(resource, status=_STATUS.decode(status))


def _to_named(row: Row) -> NamedRow:
    id_, _, account, _, name, did, created, *_ = row
    return NamedRow(id_, account or None, name, did, Instant(created))


def _event(row: Row) -> ResourceEvent:
    return ResourceEvent(rv=row[0], at=Instant(row[1]), op=row[2], resource=BODY.decode(row[5]))


def ambiguous(reader: ResourceReader, type_: str, name: str, several: Iterable[Resource]) -> Invalid:
    """Returns the fault for a name that several accounts have, and the node's owner has not."""
    ids = ", ".join(f"{each.id} ({reader.account_name(each.account or '')}'s)" for each in several)
    return Invalid(
        f"several accounts have a {type_} {name[:80]}", rule="ambiguous-name", hint=f"name one by its id: {ids}"
    )
