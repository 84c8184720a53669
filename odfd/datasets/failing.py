"""Remembers of derived datasets here that their transforms fail, until one works: nothing in a chain tells it.

Synchronous, on the given connection.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from chain.errors import Fault, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from odfd.resources import records

KIND: Final = "failing-transform"
"""The kind of the records, by the did of the dataset."""


class _Failure(msgspec.Struct, frozen=True):
    message: str
    rule: str
    hint: str


def note(connection: sqlite3.Connection, dataset: DatasetId, fault: Fault | None, now: Instant) -> bool:
    """Notes why the transform of a dataset fails, or that it works; returns whether that is another than before."""
    known = records.get(connection, KIND, str(dataset))
    if fault is None:
        records.remove(connection, KIND, str(dataset))
        return known is not None
    said = msgspec.json.encode(_Failure(str(fault), fault.rule or "transform", fault.hint or ""))
    records.put(connection, KIND, str(dataset), said, now)
    return known is None or known.body != said


def of(connection: sqlite3.Connection, dataset: DatasetId) -> Refused | None:
    """Returns why the transform of a dataset fails."""
    found = records.get(connection, KIND, str(dataset))
    return None if found is None else _fault(found.body)


def all_of(connection: sqlite3.Connection) -> dict[str, Refused]:
    """Returns why transforms fail, by the dids of their datasets."""
    return {each.key: _fault(each.body) for each in records.of_kind(connection, KIND)}


def _fault(body: bytes) -> Refused:
    said = msgspec.json.decode(body, type=_Failure)
    return Refused(said.message, rule=said.rule, hint=said.hint)
