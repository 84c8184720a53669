"""Converts stored Flows and Tasks of former programs to the form of RFC-019 (ADR 97)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from chain.errors import Environment
from chain.wording import plural
from odfd.flows.dialect import prepare, prepare_task, to_present
from odfd.flows.plan import Outcome
from odfd.flows.tasks import MOST_FINISHED, RUN
from odfd.flows.tasks import TYPE as TASK
from odfd.resources.references import FinalState, reference_key
from odfd.resources.resource import Resource, handle_of
from odfd.resources.store import ResourceStore

_FLOW: Final = "Flow"
OUTCOME: Final = "Outcome"
"""The condition of a Task that has ended."""


def convert(connection: sqlite3.Connection) -> Sequence[str]:
    """Rewrites them; returns a line for each. Raises Environment for one that has no such form, before it writes."""
    store = ResourceStore(connection)
    found = list(_find_former(store))
    for each, _ in found:
        store.rewrite(each, each.updated_at)
    return [line for _, line in found]


def outcomes(connection: sqlite3.Connection) -> Sequence[str]:
    """Gives the outcomes of declared Tasks that have ended the words of RFC-019."""
    store = ResourceStore(connection)
    for each in store.all(TASK):
        held = each.status.conditions.get(OUTCOME)
        if held is not None and isinstance(held.value, str):
            said = msgspec.structs.replace(held, value=Outcome(held.value).told)
            status = msgspec.structs.replace(each.status, conditions={**each.status.conditions, OUTCOME: said})
            store.observe(each.id, each.generation, [status], each.updated_at)
    return ()


def referring(connection: sqlite3.Connection) -> Sequence[str]:
    """Gives the runs of flows that go on what their flows refer to, since they are done as they were begun."""
    store, told = ResourceStore(connection), []
    for run in store.all(RUN):
        flow = store.get(run.owners[0].id) if run.owners and run.status.phase == "Reconciling" else None
        if flow is not None and not run.references:
            store.rewrite(msgspec.structs.replace(run, references=flow.references), run.updated_at)
            told.append(f"the run {run.name} means what its flow does")
    return told


def bound_runs(connection: sqlite3.Connection) -> Sequence[str]:
    """Forgets finished Tasks and FlowRuns but for the newest of each account; returns a line for each type."""
    store, told = ResourceStore(connection), []
    for type_ in (TASK, RUN):
        gone = [
            old
            for account in {each.account for each in store.all(type_)}
            for old in store.surplus(type_, None, account, MOST_FINISHED)
            if {OUTCOME, f"Run{OUTCOME}"} & old.status.conditions.keys()
        ]
        for each in gone:
            store.forget(each, each.updated_at)
        if gone:
            told.append(f"{plural(len(gone), f'finished {type_}')} forgotten: the newest {MOST_FINISHED} stay")
    return told


def _find_former(store: ResourceStore) -> Iterator[tuple[Resource, str]]:
    """Yields those that change, in their present form, each with the line that tells of it."""
    for type_, prepares in ((_FLOW, prepare), (TASK, prepare_task)):
        for each in store.all(type_):
            form = to_present(prepares, each.spec, each.annotations)
            if form.mistakes:
                raise Environment(
                    f"{type_} {each.name} has no form of RFC-019: {form.mistakes[0].path}: {form.mistakes[0].message}",
                    rule="flow-form",
                    hint=f"start the program of before, and change or delete it: odfctl delete {type_.lower()} NAME",
                )
            if (form.spec, form.annotations) == (each.spec, each.annotations):
                continue
            references = dict(each.references)
            if type_ == TASK and "target" in form.spec:
                key = reference_key(str(form.spec["target"]), "Dataset")
                meant = FinalState((), store).find(key, each.account)
                references[key] = None if meant is None else handle_of(meant)
            after = msgspec.structs.replace(each, spec=form.spec, annotations=form.annotations, references=references)
            yield after, f"{type_} {each.name} has the form of RFC-019 now: {'; '.join(form.remarks)}"
