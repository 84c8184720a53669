"""Reads flows, which are resources of the type Flow, as plans; and stores their runs, and how far each of them is.

A flow whose dataset is not here has no plan: it waits. Each run is a FlowRun; what is to be known without it, such as
the times that have fired, is in one row for each dataset of a flow, replaced before and after each run. A derived
dataset that follows its inputs has such a row too, under its id. Blocking, on a given connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from chain.errors import NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.seals import Sealed
from odfd.access.relations import Action
from odfd.access.uses import Uses
from odfd.flows import former_forms, runs
from odfd.flows.manifest import DesiredFlow, declared_flow
from odfd.flows.plan import EVERY, Cause, FlowPlan, Record, acted_on, is_template, of_the_node
from odfd.flows.tasks import RUN
from odfd.resources.resource import ACCOUNT, Resource, account_handle, canonical
from odfd.resources.status import UNRESOLVED, ResourceStatus
from odfd.resources.store import ResourceStore

TYPE: Final = "Flow"
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
    former_forms.convert,
    former_forms.outcomes,
    former_forms.bound_runs,
    former_forms.referring,
)
RUNS: Final = Sealed("flow_runs", ("key", "record"), "delete the flow and apply it again: odfctl delete flow NAME")
_RECORD: Final = msgspec.json.Decoder(Record)
_GONE: Final = "it continues when that comes again; to mean another of the name, apply it again"
_READ_FLOWS: Final = 10_000
"""Flows that are kept as they were read, since plans are asked for at every change."""


def key_of(flow: str) -> str:
    """Returns the key of a flow, by its id, in the table of records."""
    return f"flow {flow}"


def key_for(plan: FlowPlan) -> str:
    """Returns the key of a declared plan: that of its flow, or of one dataset of a selection."""
    is_whole = plan.selection is None or plan.target == EVERY
    return key_of(plan.id) if is_whole else f"{key_of(plan.id)} {plan.target}"


def plan_of(connection: sqlite3.Connection, flow: Resource, uses: Uses | None) -> FlowPlan:
    """Returns the plan of a flow. ``uses``: judges whether it may use what it names; ``None``: as if it might.

    Raises NotFound for what is not here and its tasks need, and Refused for what its account may not use: it waits.
    """
    store = ResourceStore(connection)

    def resolve(key: str, place: str) -> DatasetId:
        handle = flow.references.get(key)
        target = None if handle is None else store.row_with_did("Dataset", handle.did or "")
        if target is None or target.did is None:
            name = key.partition(":")[2]
            text = f"no dataset {name!r} here" if handle is None else f"the dataset {name!r} that was meant is gone"
            hint = "the flow begins when it is here" if handle is None else _GONE
            raise NotFound(text, rule=UNRESOLVED, hint=hint, place=place)
        return DatasetId.parse(target.did)

    desired = _read(flow.name, canonical(flow.spec), canonical(flow.annotations))
    plan = desired.plan(flow.id, resolve)
    for key in (*(task.uses for task in plan.tasks), *(each.source for each in plan.arrivals)):
        handle = None if key is None else flow.references.get(key)
        if key is not None and (handle is None or store.row(handle.id) is None):
            type_, _, name = key.partition(":")
            text = f"no {type_} {name!r} here" if handle is None else f"the {type_} {name!r} that was meant is gone"
            hint = f"the flow begins when it is here: apply the {type_}" + ("" if handle is None else " and the Flow")
            raise NotFound(text, rule=UNRESOLVED, hint=hint)
    if uses is not None:
        check_uses(connection, flow, plan, uses)
    return plan


def check_uses(connection: sqlite3.Connection, flow: Resource, plan: FlowPlan, uses: Uses) -> None:
    """Raises Refused if the account that a flow, or a task, acts as may not use now what its plan names.

    Raises NotFound if it acts as an account that is not here.
    """
    account = uses.acting(flow)
    if account is None:
        return
    if (matter := of_the_node(plan.tasks)) is not None:
        raise uses.nodes_own(account, matter)
    store, acted = ResourceStore(connection), dict(acted_on(plan.tasks))
    for key, handle in flow.references.items():
        found = None if handle is None else store.row(handle.id)
        if found is not None and not key.startswith(f"{ACCOUNT}:"):
            needed = plan.needs if found.did == str(plan.target) else acted.get(key, Action.READ)
            uses.check(account, found, key, needed)
    if plan.selection is not None and plan.target != EVERY:  # no reference of the flow names it
        found = store.row_with_did("Dataset", str(plan.target))
        if found is not None:
            uses.check(account, found, f"Dataset:{found.name}", plan.needs)


@lru_cache(maxsize=_READ_FLOWS)
def _read(name: str, spec: str, annotations: str) -> DesiredFlow:
    return declared_flow(name, msgspec.json.decode(spec), msgspec.json.decode(annotations))


def flows(connection: sqlite3.Connection, uses: Uses | None) -> list[FlowPlan]:
    """Lists the plans of flows by name, without those that wait."""
    return _plan(connection, ResourceStore(connection).all(TYPE), uses)


def flows_of(connection: sqlite3.Connection, dataset: DatasetId, uses: Uses | None) -> list[FlowPlan]:
    """Lists the plans of the flows of a dataset."""
    if dataset == EVERY:
        return [plan for plan in flows(connection, uses) if plan.target == EVERY]
    store = ResourceStore(connection)
    row = store.row_with_did("Dataset", str(dataset))
    referring = [] if row is None else store.referring(TYPE, row.id)
    return [plan for plan in _plan(connection, referring, uses) if plan.target == dataset]


def templates(connection: sqlite3.Connection, uses: Uses | None) -> list[FlowPlan]:
    """Lists the flows of selections that have a plan for each selected dataset."""
    return [plan for plan in flows(connection, uses) if is_template(plan)]


def _plan(connection: sqlite3.Connection, found: list[Resource], uses: Uses | None) -> list[FlowPlan]:
    plans = []
    for each in found:
        try:
            plans.append(plan_of(connection, each, uses))
        except (NotFound, Refused):
            continue  # it waits, which its status tells
    return plans


def forget_runs(connection: sqlite3.Connection, flow: str) -> None:
    """Deletes the records of the runs of a deleted flow."""
    first = key_of(flow)
    connection.execute("DELETE FROM flow_runs WHERE key = ? OR key GLOB ?", (first, f"{first} *"))


def forget(connection: sqlite3.Connection, dataset: DatasetId) -> list[tuple[str, bool]]:
    """Deletes the records of a dataset that is about to be deleted.

    Returns the names of its flows, each with whether it stays, and waits for the dataset.
    """
    store, plans = ResourceStore(connection), flows_of(connection, dataset, None)
    found = [held for plan in plans if (held := store.get(plan.id)) is not None]
    for each in found:
        forget_runs(connection, each.id)
    connection.execute("DELETE FROM flow_runs WHERE key = ? OR key GLOB ?", (str(dataset), f"flow * {dataset}"))
    return [(each.name, not each.owners) for each in found]


def hand_on(connection: sqlite3.Connection, old: DatasetId, new: DatasetId) -> None:
    """Lets records of runs for one dataset be for another: of flows of many datasets, and of one without a flow."""
    for key, record in list(RUNS.rows(connection, "key = ? OR key GLOB ?", (str(old), f"flow * {old}"))):
        connection.execute("DELETE FROM flow_runs WHERE key = ?", (key,))
        RUNS.put(connection, f"{key.removesuffix(str(old))}{new}", record)


def record(connection: sqlite3.Connection, key: str) -> Record | None:
    row = RUNS.one(connection, "key = ?", (key,))
    return None if row is None else _RECORD.decode(row[1])


def records(connection: sqlite3.Connection) -> dict[str, Record]:
    return {row[0]: _RECORD.decode(row[1]) for row in RUNS.rows(connection)}


def keep_record(connection: sqlite3.Connection, key: str, record: Record) -> None:
    RUNS.put(connection, key, msgspec.json.encode(record))


def begin_run(
    connection: sqlite3.Connection, plan: FlowPlan, record: Record, news: Sequence[Cause], now: Instant
) -> None:
    """Stores the run of a flow that begins, unless it goes on with one that was cut off. ``news``: what caused it."""
    store = ResourceStore(connection)
    flow = store.get(plan.id)
    if flow is None or store.row(record.run) is not None:
        return
    target = None if plan.target == EVERY else store.row_with_did("Dataset", str(plan.target))
    name = ""
    if target is not None:
        is_own = target.account in (None, flow.account)
        name = target.name if is_own else f"{store.account_name(target.account or '')}/{target.name}"
    before = store.get(record.retried)

    def asker(id_: str | None) -> Mapping[str, str] | None:
        held = store.get(id_) if id_ else None
        return (
            account_handle(held.id, held.name, held.spec) if held is not None else store.owner() if id_ == "" else None
        )

    told = [(each, asker(each.by)) for each in news]
    store.bring(runs.begin(flow, plan, record, told, f"Dataset:{name}" if name else None, before, now), None)


def end_run(
    connection: sqlite3.Connection, run: str, status: Callable[[Resource], ResourceStatus], now: Instant
) -> None:
    """Stores how a run ended, and forgets those that its flow keeps no longer; costs as much as these are."""
    store = ResourceStore(connection)
    held = store.get(run)
    if held is None:
        return
    store.observe(run, held.generation, [status(held)], now)
    flow = store.get(held.owners[0].id)
    if flow is not None:
        most, age = runs.retention_of(flow)
        for old in store.surplus(RUN, flow.id, flow.account, most, Instant(now - age)):
            if old.id != run and old.status.phase != "Reconciling":
                store.forget(old, now)


def cut_off(connection: sqlite3.Connection) -> list[Resource]:
    """Lists the runs of flows that no record goes on with: their flow is for another dataset since."""
    going_on = {each.run for each in records(connection).values()}
    return [
        each
        for each in ResourceStore(connection).all(RUN)
        if each.owners and each.status.phase == "Reconciling" and each.id not in going_on
    ]
