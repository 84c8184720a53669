"""Stores declared flows, and the records of their runs. Synchronous, on the given connection.

A flow is a resource about the dataset that it pulls. The record of its runs is one row, replaced before and after each
run. A derived dataset that follows its inputs has a record too, under its id.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.seals import Sealed
from odfd.flows.plan import FlowPlan, Ingest, Record
from odfd.flows.selection import EVERY, is_template
from odfd.resources.store import Resources

KIND: Final = "flow"
ROOM: Final = "flows"
STEPS: Final = (
    """
    CREATE TABLE flow_runs (
        key TEXT NOT NULL,
        record BLOB NOT NULL,
        seal BLOB,
        PRIMARY KEY (key)
    ) STRICT, WITHOUT ROWID;
    """,
)
RUNS: Final = Sealed("flow_runs", ("key", "record"), "delete the flow and apply it again: odfctl delete flow NAME")


class _StoredPlan(FlowPlan, frozen=True, kw_only=True):
    """A plan as it is stored, also by releases without ``tasks``."""

    fetch_uncacheable: bool = False


_PLAN: Final = msgspec.json.Decoder(_StoredPlan, dec_hook=lambda _, text: DatasetId.parse(text))
"""Decodes plans; the hook is for dids, the only type that msgspec does not know."""
_RECORD: Final = msgspec.json.Decoder(Record)


def key_of(name: str) -> str:
    """Returns the key of a flow in the table of records."""
    return f"flow {name.casefold()}"


def key_for(plan: FlowPlan) -> str:
    """Returns the key of a declared plan: that of its flow, or of one dataset of a selection."""
    is_whole = plan.selection is None or plan.target == EVERY
    return key_of(plan.name) if is_whole else f"{key_of(plan.name)} {plan.target}"


def keep(connection: sqlite3.Connection, plan: FlowPlan, now: Instant) -> bool:
    """Declares a flow; ``False`` if it was declared so before."""
    spec = msgspec.json.encode(plan, enc_hook=str, order="deterministic")
    return Resources(connection).apply(KIND, plan.name, spec, now, about=str(plan.target))


def find(connection: sqlite3.Connection, name: str) -> FlowPlan | None:
    found = Resources(connection).get(KIND, name)
    return None if found is None else _plan(found.spec)


def flows(connection: sqlite3.Connection) -> list[FlowPlan]:
    """Lists flows by name."""
    return [_plan(each.spec) for each in Resources(connection).all(KIND)]


def flows_of(connection: sqlite3.Connection, dataset: DatasetId) -> list[FlowPlan]:
    """Lists the flows of a dataset."""
    return [_plan(each.spec) for each in Resources(connection).about(KIND, str(dataset))]


def templates(connection: sqlite3.Connection) -> list[FlowPlan]:
    """Lists the flows of selections that have a plan for each selected dataset."""
    return [plan for plan in flows_of(connection, EVERY) if is_template(plan)]


def _plan(spec: bytes) -> FlowPlan:
    stored = _PLAN.decode(spec)
    parts = {name: getattr(stored, name) for name in FlowPlan.__struct_fields__}
    if stored.fetch_uncacheable:
        parts["tasks"] = (Ingest(fetch_uncacheable=True),)
    return FlowPlan(**parts)


def remove(connection: sqlite3.Connection, name: str, now: Instant) -> bool:
    first = key_of(name)
    connection.execute(
        "DELETE FROM flow_runs WHERE key = ? OR substr(key, 1, ?) = ?", (first, len(first) + 1, f"{first} ")
    )
    return Resources(connection).delete(KIND, name, now)


def rename(connection: sqlite3.Connection, name: str, to: str, now: Instant) -> None:
    """Removes a flow that is about to be declared under another name, and gives that the records of its runs."""
    first, other = key_of(name), key_of(to)
    moved = [
        (row[0], row[1])
        for row in RUNS.rows(connection, "key = ? OR substr(key, 1, ?) = ?", (first, len(first) + 1, f"{first} "))
    ]
    for key, held in moved:
        RUNS.put(connection, other + key.removeprefix(first), held)
    remove(connection, name, now)


def forget(connection: sqlite3.Connection, dataset: DatasetId, now: Instant) -> list[str]:
    """Deletes a deleted dataset's flows, and its records of selections' flows; returns the names of the flows."""
    names = [plan.name for plan in flows_of(connection, dataset)]
    for name in names:
        remove(connection, name, now)
    connection.execute("DELETE FROM flow_runs WHERE key = ? OR key GLOB ?", (str(dataset), f"flow * {dataset}"))
    return names


def record(connection: sqlite3.Connection, key: str) -> Record | None:
    row = RUNS.one(connection, "key = ?", (key,))
    return None if row is None else _RECORD.decode(row[1])


def records(connection: sqlite3.Connection) -> dict[str, Record]:
    return {row[0]: _RECORD.decode(row[1]) for row in RUNS.rows(connection)}


def keep_record(connection: sqlite3.Connection, key: str, record: Record) -> None:
    RUNS.put(connection, key, msgspec.json.encode(record))
