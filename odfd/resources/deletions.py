"""Keeps deleted resources until their effects are undone; the transaction that deletes a resource writes its row.

Functions take a connection within its open transaction.
"""

from __future__ import annotations

import sqlite3

import msgspec

from odfd.resources.declared import DELETING, DeclaredResource

_BODY = msgspec.json.Decoder(DeclaredResource)


def unfinished(connection: sqlite3.Connection) -> list[DeclaredResource]:
    """Lists them with their last state, and with why they could not be undone in their status."""
    return [_BODY.decode(body) for _, body in DELETING.rows(connection, "TRUE ORDER BY id")]


def find(connection: sqlite3.Connection, resource_id: str) -> DeclaredResource | None:
    row = DELETING.one(connection, "id = ?", (resource_id,))
    return None if row is None else _BODY.decode(row[1])


def hold_back(connection: sqlite3.Connection, resource: DeclaredResource) -> None:
    """Records a new status of one, unless it came back."""
    if find(connection, resource.id) is not None:
        DELETING.put(connection, resource.id, msgspec.json.encode(resource, order="deterministic"))


def end(connection: sqlite3.Connection, resource_id: str) -> None:
    """Records that nothing is left of it."""
    connection.execute("DELETE FROM res_deleting WHERE id = ?", (resource_id,))
