"""Declares, lists, pauses and removes flows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Literal

import trio

from chain import instant
from chain.errors import Invalid, NotFound, Refused
from chain.ids import DID_ODF, DatasetId
from chain.instant import Instant
from chain.state import load_state, transform_of
from chain.wording import plural
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.datasets.catalog import TYPE as DATASET
from odfd.flows import store
from odfd.flows.plan import BAD, FlowPlan, Ingest
from odfd.flows.schedule import duration_text
from odfd.flows.scheduler import Entry
from odfd.flows.selection import EVERY
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.plan import PlannedResource
from odfd.resources.resource import Resource
from odfd.resources.status import ConditionValue
from odfd.resources.store import ResourceStore
from odfd.runtime.subjects import Sees
from odfd.state.directory import StateDirectory
from odfd.state.flow_subjects import about_flow
from odfd.workers.flows import FlowWorker


class FlowService:
    """The API service for the flows of a node."""

    def __init__(self, home: StateDirectory, worker: FlowWorker, context: Context) -> None:
        self._home = home
        self._worker = worker
        self._clock = context.clock
        self._events = context.events
        self.withdraw: Callable[..., Awaitable[wire.ResourceView]] = _nobody
        """Deletes the resource of a type and name; set by the service of declarations."""

    async def list(self, sees: Sees | None = None) -> Sequence[wire.FlowView]:
        """Lists flows by name, then the derived datasets that follow their inputs.

        A flow of many datasets is listed once for each of them. ``sees``: the rights of an account, which gets only the
        flows of which it may read every dataset.
        """
        await self._worker.look()
        if sees is not None:
            return await trio.to_thread.run_sync(self._views, await self._seen(sees))
        views = await trio.to_thread.run_sync(self._views, list(self._worker.scheduler.entries()))
        there = {entry.plan.id for _, entry in self._worker.scheduler.entries()}
        idle = [each for each in await trio.to_thread.run_sync(self._templates) if each.id not in there]
        accounts = await trio.to_thread.run_sync(self._accounts)
        more = [_whole_view(each, (), accounts) for each in idle]
        return sorted((*views, *more), key=lambda view: (view.kind, view.name.casefold(), view.target))

    async def get(self, name: str) -> wire.FlowView:
        """Shows a flow; one of many datasets is shown as a whole. Raises NotFound."""
        return await trio.to_thread.run_sync(self._one, *await self._find(name))

    async def pause(self, name: str) -> wire.FlowView:
        """Pauses a flow until it is resumed, also over restarts; a run under way continues."""
        return await self._paused(name, paused=True)

    async def resume(self, name: str) -> wire.FlowView:
        """Resumes a paused flow; times during the pause are not made up for. Raises NotFound."""
        return await self._paused(name, paused=False)

    async def run(self, name: str, request: wire.FlowRunRequest) -> wire.FlowView:
        """Runs a flow as soon as it may, because a person asks for it.

        Raises NotFound; Refused for a flow that declares no trigger ``Manual``.
        """
        (template, found), target = await self._find(name), request.target
        if target is not None:
            entry = await trio.to_thread.run_sync(self._home.resolve, target)
            found = [each for each in found if each[1].plan.target == entry.id]
        plan = template or (found[0][1].plan if found else None)
        if plan is not None and not plan.on_request:
            hint = "RFC-019, FlowTrigger: add {kind: Manual} to its triggers"
            raise Refused(f"{plan.name} has no trigger for people", rule="flow-trigger", hint=hint)
        if plan is None or not found:
            text = f"{name} is for no dataset" + ("" if target is None else f" {target}")
            raise NotFound(text, rule="flow-name", hint=f"odfctl get flow {name}")
        await self._worker.request([key for key, _ in found])
        told = await trio.to_thread.run_sync(about_flow, self._home, plan)
        self._events.emit("flow.requested", plan.name, about=told)
        return await trio.to_thread.run_sync(self._one, template, found)

    async def backfill(self, name: str, request: wire.BackfillRequest) -> wire.BackfillView:
        """Makes up for scheduled times that did not fire: one run for each, oldest first, also over restarts.

        Raises NotFound; Invalid for a flow without a schedule, and for a range that ends before it begins.
        """
        first, last = instant.parse(request.first), instant.parse(request.to)
        if last < first:
            raise Invalid("the range ends before it begins", rule="flow-backfill", hint="--from is before --to")
        _, found = await self._find(name)
        if request.target is not None:
            entry = await trio.to_thread.run_sync(self._home.resolve, request.target)
            found = [each for each in found if each[1].plan.target == entry.id]
        scheduled = [key for key, entry in found if entry.plan.schedule is not None and entry.plan.target != EVERY]
        if not scheduled:
            text = f"{name} has no times" + (f" for {request.target}" if request.target is not None else "")
            raise Invalid(text, rule="flow-backfill", hint="a flow with a Schedule has: odfctl get flows")
        count, left = await self._worker.backfill(scheduled, first, last)
        told = await trio.to_thread.run_sync(about_flow, self._home, found[0][1].plan)
        self._events.emit("flow.backfilled", name, f"{plural(count, 'time')} to make up for", about=told)
        return wire.BackfillView(flow=found[0][1].plan.name, times=count, left_from=_text(left))

    async def delete(self, name: str, *, force: bool = False) -> wire.FlowView:
        """Deletes a flow and returns its last view. ``force`` deletes also one that another resource made.

        Raises NotFound; Invalid for a dataset that follows its inputs, which is no flow.
        """
        try:
            template, found = await self._find(name)
        except NotFound:
            return _waiting_view(await self.withdraw(store.TYPE, name, force=force))
        plan = template or found[0][1].plan
        if not plan.declared:
            raise Invalid(
                f"{name} is no flow: a derived dataset that follows its inputs",
                rule="flow-name",
                hint=f"odfctl flow pause {name}, or set flows.follow = false for all",
            )
        view = await trio.to_thread.run_sync(self._one, template, found)
        told = await trio.to_thread.run_sync(about_flow, self._home, plan)
        await self.withdraw(store.TYPE, name, force=force)
        await self._worker.look({plan.target})
        self._events.emit("flow.deleted", plan.name, about=told)
        return view

    async def changed(self, planned: Sequence[PlannedResource]) -> None:
        """Puts applied flows in force, and tells of each."""
        await self._worker.look(await trio.to_thread.run_sync(self._targets, planned))
        for each in planned:
            plan = await trio.to_thread.run_sync(self._plan_of, each.after)
            if plan is not None:
                told = await trio.to_thread.run_sync(about_flow, self._home, plan)
                self._events.emit(f"flow.{each.action}", plan.name, about=told, id=str(plan.target))

    async def in_force(self, resource: Resource) -> wire.FlowView:
        """Shows a flow that is in force. Raises NotFound for one that waits for a dataset, Refused for a right."""
        try:
            plan = await trio.to_thread.run_sync(self._planned, resource)
            await trio.to_thread.run_sync(self._check_derived, plan)
            await trio.to_thread.run_sync(self._check_pulled, plan)
        except Refused:
            await self._worker.look(_named_by(resource) | {EVERY})  # what it did ends with the right to it
            raise
        is_new = resource.status.observed_generation != resource.generation
        if is_new or resource.status.phase != "Ready":  # what it refers to may have come
            await self._worker.look({plan.target})
        return await self.get(resource.id)

    async def removed(self, resource: Resource) -> None:
        """Ends what a deleted flow did."""
        await trio.to_thread.run_sync(self._forget, resource)
        await self._worker.look(_named_by(resource))

    async def look(self, targets: Collection[DatasetId]) -> None:
        """Makes the worker look again at which flows of these datasets are in force."""
        await self._worker.look(targets)

    def touch(self, dataset: DatasetId) -> None:
        """Makes what waits for a right on the inputs of a dataset try again."""
        self._worker.loop.touch(dataset)

    async def seen_counts(self, sees: Sees) -> wire.FlowCounts:
        """Counts the flows that an account may see in ``list``."""
        return _counts([entry for _, entry in await self._seen(sees)])

    def counts(self) -> wire.FlowCounts:
        """Counts flows for the status of the node."""
        return _counts([entry for _, entry in self._worker.scheduler.entries()])

    async def _seen(self, sees: Sees) -> Sequence[tuple[str, Entry]]:
        entries = list(self._worker.scheduler.entries())
        abouts = await trio.to_thread.run_sync(
            lambda: [about_flow(self._home, entry.plan) for _, entry in entries]
        )  # fmt: skip
        return [each for each, is_seen in zip(entries, await sees(abouts), strict=True) if is_seen]

    async def _find(self, name: str) -> tuple[FlowPlan | None, Sequence[tuple[str, Entry]]]:
        """Returns a flow of many datasets with an entry for each of them, or ``None`` and the one entry of that name.

        That entry may be a derived dataset that follows its inputs, which is found by its dataset's name. Raises
        NotFound.
        """
        await self._worker.look()
        name = await trio.to_thread.run_sync(self._sought, name)
        templates = await trio.to_thread.run_sync(self._templates)
        template = next((each for each in templates if name.casefold() in (each.name.casefold(), each.id)), None)
        found = [(key, entry) for key, entry in self._worker.scheduler.entries() if _is_named(entry, name)]
        if template is not None:
            return template, [each for each in found if each[1].plan.selection is not None]
        if not found:
            raise NotFound(f"there is no flow {name!r}", rule="flow-name", hint="odfctl get flows lists them")
        return None, [max(found, key=lambda each: each[1].plan.declared)]

    async def _paused(self, name: str, *, paused: bool) -> wire.FlowView:
        template, found = await self._find(name)
        key = None if template is None else store.key_of(template.id)
        await self._worker.pause([key for key, _ in found], key, paused=paused)
        plan = template or found[0][1].plan
        told = await trio.to_thread.run_sync(about_flow, self._home, plan)
        self._events.emit("flow.paused" if paused else "flow.resumed", plan.name, about=told)
        return await trio.to_thread.run_sync(self._one, template, found)

    def _templates(self) -> Sequence[FlowPlan]:
        """Returns the flows of many datasets."""
        with self._home.database.read() as connection:
            return store.templates(connection, self._home.uses)

    def _sought(self, name: str) -> str:
        """Returns the id of the flow that a name means; another name, as that of a derived dataset, as it is."""
        with self._home.database.read() as connection:
            held = ResourceStore(connection).sought(store.TYPE, name)
        return name if held is None else held.id

    def _planned(self, resource: Resource) -> FlowPlan:
        with self._home.database.read() as connection:
            return store.plan_of(connection, resource, self._home.uses)

    def _check_derived(self, plan: FlowPlan) -> None:
        """Raises Refused for a flow that follows the inputs of a dataset without any."""
        if plan.follows is None:
            return
        derived = plan.follows.dataset or plan.target
        if derived != EVERY and transform_of(self._home.chains.chain(derived)) is None:
            raise Refused(
                f"{self._home.name_of(derived)} is no derived dataset, and has no inputs",
                rule="flow-trigger",
                hint="RFC-019, FlowTrigger: InputsUpdated is of a derivative dataset; write kind: Event with a target",
            )

    def _check_pulled(self, plan: FlowPlan) -> None:
        """Raises Refused for a flow that ingests from a Source into an own root whose records are pushed."""
        fetching = [each for each in plan.tasks if type(each) is Ingest and each.dataset in (None, plan.target)]
        if not fetching or plan.target == EVERY or not self._home.keys.has_dataset_key(plan.target):
            return
        state, name = load_state(self._home.chains.chain(plan.target)), self._home.name_of(plan.target)
        if state.polling_source is None and state.active_push_sources:
            raise Refused(
                f"{name} takes no pull: it has no polling source",
                rule="flow-target",
                hint=f"odfctl ingest {name} FILE gives it records; once it has a source, a run makes the flow Ready",
            )

    def _plan_of(self, resource: Resource) -> FlowPlan | None:
        with self._home.database.read() as connection:
            held = ResourceStore(connection).get(resource.id)
            try:
                return None if held is None else store.plan_of(connection, held, self._home.uses)
            except (NotFound, Refused):
                return None  # it waits

    def _targets(self, planned: Sequence[PlannedResource]) -> Collection[DatasetId]:
        found = {EVERY}
        for each in planned:
            found |= _named_by(each.after) | (set() if each.before is None else _named_by(each.before))
            now = self._plan_of(each.after)
            found |= set() if now is None else {now.target}
        return found

    def _forget(self, resource: Resource) -> None:
        with self._home.database.write() as connection:
            store.forget_runs(connection, resource.id)

    def _accounts(self) -> Mapping[str, str]:
        """Returns the names of accounts that have flows or datasets, by the ids of flows and the dids of datasets."""
        with self._home.database.read() as connection:
            return ResourceStore(connection).account_names(store.TYPE, DATASET)

    def _one(self, template: FlowPlan | None, found: Sequence[tuple[str, Entry]]) -> wire.FlowView:
        """Shows a flow, of which these are the entries: one of many datasets as a whole."""
        views = self._views(found)
        return views[0] if template is None else _whole_view(template, views, self._accounts())

    def _views(self, entries: Sequence[tuple[str, Entry]]) -> Sequence[wire.FlowView]:
        accounts = self._accounts()
        with self._home.catalog() as catalog:
            views = [_view(entry, catalog.name_of, accounts) for _, entry in entries]
        return sorted(views, key=lambda view: (view.kind, view.name.casefold(), view.target))


def _counts(entries: Sequence[Entry]) -> wire.FlowCounts:
    due = [(entry.due, entry.plan.name) for entry in entries if entry.due is not None]
    at, name = min(due, default=(None, None))
    return wire.FlowCounts(
        flows=len(entries),
        running=sum(entry.running for entry in entries),
        failing={entry.plan.name: entry.record.failures for entry in entries if entry.record.outcome in BAD},
        next=name,
        next_at=_text(at),
    )


def _view(entry: Entry, name_of: Callable[[DatasetId], str], accounts: Mapping[str, str]) -> wire.FlowView:
    plan, record = entry.plan, entry.record
    return wire.FlowView(
        name=plan.name,
        id=plan.id,
        account=accounts.get(plan.id if plan.declared else str(plan.target)),
        kind="flow" if plan.declared else "follow",
        target=name_of(plan.target) if plan.target != EVERY else str(plan.selection),
        tasks=tuple(str(each.__struct_config__.tag) for each in plan.tasks),
        when=_when(plan, name_of),
        state=_state(entry),
        next=_text(entry.due),
        last=_text(record.ended_at),
        outcome=record.outcome.kind if record.outcome is not None else None,
        recoverable=record.outcome.is_recoverable if record.outcome is not None else None,
        message=record.message,
        runs=record.runs,
        failures=record.failures,
        missed=record.missed,
        owed=len(record.owed),
    )


def _whole_view(plan: FlowPlan, views: Sequence[wire.FlowView], accounts: Mapping[str, str]) -> wire.FlowView:
    """Shows a flow of many datasets as one: its earliest next run, and the latest last run that failed, if any did."""
    ended = sorted((each for each in views if each.last is not None), key=lambda each: each.last or "")
    told = next((each for each in reversed(ended) if each.outcome == "Failed"), ended[-1] if ended else None)
    states = {each.state for each in views}
    return wire.FlowView(
        name=plan.name,
        id=plan.id,
        account=accounts.get(plan.id),
        kind="flow",
        target=str(plan.selection),
        tasks=tuple(str(each.__struct_config__.tag) for each in plan.tasks),
        when=views[0].when if views else _when(plan, str),
        state=next((each for each in ("running", "retrying", "waiting", "paused") if each in states), "waiting"),
        next=min((each.next for each in views if each.next is not None), default=None),
        last=ended[-1].last if ended else None,
        outcome=told.outcome if told is not None else None,
        recoverable=told.recoverable if told is not None else None,
        message=f"{told.target}: {told.message}" if told is not None else "",
        runs=sum(each.runs for each in views),
        failures=max((each.failures for each in views), default=0),
        missed=sum(each.missed for each in views),
        owed=sum(each.owed for each in views),
    )


def _state(entry: Entry) -> Literal["waiting", "running", "retrying", "paused"]:
    if entry.running:
        return "running"
    if entry.is_paused:
        return "paused"
    return "retrying" if entry.record.retry_at is not None else "waiting"


def _when(plan: FlowPlan, name_of: Callable[[DatasetId], str]) -> str:
    parts = [str(plan.schedule)] if plan.schedule is not None else []
    by_cooldown: dict[int, list[str]] = {}
    for each in plan.inputs - plan.batched:
        by_cooldown.setdefault(plan.cooldown(str(each)), []).append(name_of(each))
    for cooldown, names in sorted(by_cooldown.items()):
        parts.append(f"new data of {', '.join(sorted(names))}, each {duration_text(cooldown)} at most")
    if plan.follows is not None and plan.batched:
        of, longest = ", ".join(sorted(map(name_of, plan.batched))), duration_text(plan.follows.longest)
        parts.append(f"{plural(plan.follows.least, 'record')} of {of}, or one that is {longest} old")
    if plan.on_update:
        parts.append(f"new blocks of it, each {duration_text(plan.cooldown(str(plan.target)))} at most")
    for arrival in plan.arrivals:
        what = plural(arrival.least, "record") if arrival.least > 1 else "a record"
        source = arrival.source.partition(":")[2]
        parts.append(f"{what} pushed to {source}, or one that is {duration_text(arrival.longest)} old")
    return "; ".join(parts) or "on request"


def _named_by(resource: Resource) -> set[DatasetId]:
    """Returns the datasets that a flow refers to."""
    dids = (handle.did for handle in resource.references.values() if handle is not None)
    return {DatasetId.parse(did) for did in dids if did is not None and did.startswith(DID_ODF)}


def _waiting_view(gone: wire.ResourceView) -> wire.FlowView:
    """Shows a flow that waited for a dataset, and so was in force nowhere."""
    target = gone.spec["target"] if isinstance(gone.spec, dict) else ""
    account = gone.headers.get("account", {}).get("name")
    return wire.FlowView(
        name=gone.name, id=gone.id, account=account, kind="flow", target=target, when="", state="waiting"
    )  # fmt: skip


async def _nobody(type_: str, name: str, *, force: bool) -> wire.ResourceView:  # noqa: ARG001
    raise NotFound(f"there is no flow {name!r}", rule="flow-name", hint="odfctl get flows lists them")


def _is_named(entry: Entry, name: str) -> bool:
    plan = entry.plan
    return name.casefold() in (plan.name.casefold(), plan.id, str(plan.target) if name.startswith(DID_ODF) else "")


def _text(time: Instant | None) -> str | None:
    return None if time is None else instant.render(time)


class FlowController(Controller):
    """Reports whether a flow is in force, and how its last run ended: one that was refused does not work."""

    type = store.TYPE
    has_own_events = True
    conditions: Collection[str] = ("LastRun",)
    hears = ("flow",)

    def __init__(self, flows: FlowService) -> None:
        self._flows = flows

    async def applied(self, changed: Sequence[PlannedResource]) -> None:
        await self._flows.changed(changed)

    async def observe(self, resource: Resource) -> ObservedState:
        view = await self._flows.in_force(resource)
        if view.outcome is None:
            return ObservedState()
        told = {"LastRun": ConditionValue(value=view.outcome, message=view.message)}
        if view.recoverable is not False:
            return ObservedState(told=told)
        hint = "change what it names, or the flow: the next run that ends well makes it Ready"
        return ObservedState(told=told, fault=Refused(view.message, rule="flow-refused", hint=hint))

    async def finalize(self, resource: Resource) -> None:
        await self._flows.removed(resource)
