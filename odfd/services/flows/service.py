"""Shows, runs, pauses and removes flows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import trio

from chain import instant
from chain.errors import Invalid, NotFound, Refused
from chain.ids import DID_ODF, DatasetId
from chain.instant import Instant
from chain.state import load_state, transform_of
from chain.wording import plural
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.operations import FLOW_PATH, Permission, operation
from odfd.flows.plan import BAD, EVERY, FlowPlan, is_template
from odfd.flows.schedule import duration_text
from odfd.flows.scheduler import Entry
from odfd.flows.spec import IngestTask, TransformTask
from odfd.ingest.acceptance import check_root
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.plan import PlannedResource
from odfd.resources.resource import ACCOUNT, Resource, ResourceHandle
from odfd.resources.status import ConditionValue, ResourceStatus
from odfd.resources.store import ResourceStore
from odfd.runtime.subjects import Sees, Subjects, about
from odfd.services.flows.flow_subjects import about_flow
from odfd.services.flows.worker import FlowWorker
from odfd.services.resources.node_types import live_id
from odfd.store import flow_runs as store
from odfd.store.catalog import TYPE as DATASET
from odfd.store.catalog import Catalog
from odfd.store.directory import StateDirectory

CheckSource: TypeAlias = Callable[[str, str, DatasetId], None]
"""Takes the id of a flow, the key of its reference to a Source, and a dataset. Blocking."""


class _Found(NamedTuple):
    """A flow that is in force, or a derived dataset that follows its inputs without one."""

    id: str
    """The id of its resource."""
    plan: FlowPlan
    about: Subjects
    entries: Sequence[tuple[str, Entry]] = ()
    target: DatasetId | None = None
    """The dataset of which it is asked for, if it is of many."""


class FlowService:
    """The API service for the flows of a node."""

    def __init__(self, home: StateDirectory, worker: FlowWorker, context: Context, check_source: CheckSource) -> None:
        """``check_source``: raises the fault that keeps a dataset from taking from the Source of a flow's task."""
        self._home, self._check_source = home, check_source
        self._worker = worker
        self._clock = context.clock
        self._events = context.events
        self._since = context.clock.now()

    async def list_undeclared(self) -> Sequence[Resource]:
        """Lists the derived datasets that follow their inputs without a flow, each as the flow that would do so."""
        await self._worker.wait_loaded()
        plans = [entry.plan for _, entry in self._worker.scheduler.entries() if not entry.plan.declared]
        return await trio.to_thread.run_sync(lambda: list(self._following(plans)))

    def _following(self, plans: Sequence[FlowPlan]) -> Iterator[Resource]:
        with self._home.database.read() as connection:
            for plan in plans:
                dataset = Catalog(connection).resource_of(plan.target)
                if dataset is not None and dataset.did == str(plan.target):  # not of what is inside of a collection
                    target = f"{DATASET}:{plan.name}"
                    yield Resource(
                        id=_live_id(plan.target), type=store.TYPE, name=plan.name, account=dataset.account,
                        spec={
                            "target": target, "triggers": [{"kind": "InputsUpdated"}], "tasks": [{"kind": "Transform"}],
                        },
                        references={target: ResourceHandle(dataset.id, dataset.name, str(plan.target))},
                        generation=0, status=ResourceStatus(phase="Ready"),
                        created_at=self._since, updated_at=self._since,
                    )  # fmt: skip

    async def states(self, resources: Sequence[wire.ResourceView], sees: Sees | None) -> Mapping[str, wire.FlowState]:
        """Returns the states of those flows that are in force. ``sees``: as of ``Controller.states``."""
        await self._worker.wait_loaded()
        found = {resource.id: self._entries(resource) for resource in resources}

        def look() -> Mapping[str, wire.FlowState]:
            told = found if sees is None else {id_: self._filter_seen(each, sees) for id_, each in found.items()}
            return self._states(told, tells_idle=sees is None)

        return await trio.to_thread.run_sync(look)

    async def subjects(self, resources: Sequence[wire.ResourceView]) -> Mapping[str, Sequence[Subjects]]:
        """Returns what flows are about, by their ids: once for each dataset of one that is in force."""
        await self._worker.wait_loaded()
        plans = {resource.id: [entry.plan for _, entry in self._entries(resource)] for resource in resources}
        return await trio.to_thread.run_sync(
            lambda: {id_: [about_flow(self._home, each) for each in found] for id_, found in plans.items()}
        )

    def _entries(self, view: wire.ResourceView) -> Sequence[tuple[str, Entry]]:
        if view.generation:
            return self._worker.scheduler.of_flow(view.id)
        dids = (each.get("did") for each in view.status.get("references", ()))
        found = [(did, self._worker.scheduler.find(did)) for did in dids if did is not None]
        return [(key, entry) for key, entry in found if entry is not None]

    def _states(
        self, found: Mapping[str, Sequence[tuple[str, Entry]]], *, tells_idle: bool
    ) -> Mapping[str, wire.FlowState]:
        told = {}
        with self._home.database.read() as connection:
            name_of = partial(_collection, Catalog(connection))
            for id_, entries in found.items():
                idle = self._idle(connection, id_) if tells_idle and not entries else None
                plan = entries[0][1].plan if entries else idle
                states = {each.plan.target: _state_of(each, name_of) for _, each in entries}
                if plan is not None:
                    is_one = plan.selection is None or (plan.target == EVERY and plan is not idle)
                    told[id_] = states[plan.target] if is_one else _whole_state(plan, states, name_of)
        return told

    def _idle(self, connection: sqlite3.Connection, id_: str) -> FlowPlan | None:
        """Returns the plan of a flow of many datasets; ``None`` for another one."""
        held = ResourceStore(connection).get(id_)
        try:
            plan = None if held is None else store.plan_of(connection, held, self._home.uses)
        except (NotFound, Refused):
            return None  # it waits
        return plan if plan is not None and is_template(plan) else None

    @operation(needs=Permission.BY_RULE)
    async def pause(self, name: str) -> str:
        """Pauses a flow until it is resumed, also over restarts; a run under way continues. Returns its id."""
        return await self._pause(name, paused=True)

    @operation(needs=Permission.BY_RULE)
    async def resume(self, name: str) -> str:
        """Resumes a paused flow; times during the pause are not made up for. Returns its id. Raises NotFound."""
        return await self._pause(name, paused=False)

    @operation(needs=Permission.BY_RULE)
    async def run(self, name: str, request: wire.FlowRunRequest, by: str | None = None) -> str:
        """Runs a flow as soon as it may, because an account asks for it. Returns its id.

        ``by``: the id of the account; ``None``: the node's owner.

        Raises NotFound; Refused for a flow that declares no trigger ``Manual``.
        """
        found = await self._find(name, request.target)
        if not found.plan.on_request:
            hint = "RFC-019, FlowTrigger: add {kind: Manual} to its triggers"
            raise Refused(f"{found.plan.name} has no manual trigger", rule="flow-trigger", hint=hint)
        if not found.entries:
            text = f"{name} is for no dataset" + ("" if request.target is None else f" {request.target}")
            raise NotFound(text, rule="flow-name", hint=f"odfctl get flow {name}")
        await self._worker.request([key for key, _ in found.entries], by or "")
        self._tell("flow.requested", found.plan, found.about)
        return found.id

    @operation("POST", FLOW_PATH + "/backfill", needs=Permission.BY_RULE)
    async def backfill(self, name: str, request: wire.BackfillRequest, by: str | None = None) -> wire.BackfillView:
        """Runs a flow for scheduled times that did not fire: one run for each, oldest first, also over restarts.

        ``by``: as of ``run``. Raises NotFound; Invalid for a flow without a schedule, and for a range that ends before
        it begins.
        """
        first, last = instant.parse(request.first), instant.parse(request.to)
        if last < first:
            raise Invalid("the range ends before it begins", rule="flow-backfill", hint="--from is before --to")
        found = await self._find(name, request.target)
        scheduled = [key for key, each in found.entries if each.plan.schedule is not None and each.plan.target != EVERY]
        if not scheduled:
            text = f"{name} has no times" + (f" for {request.target}" if request.target is not None else "")
            raise Invalid(text, rule="flow-backfill", hint="a flow with a Schedule has: odfctl get flows")
        count, left = await self._worker.backfill(scheduled, first, last, by or "")
        self._tell("flow.backfilled", found.plan, found.about, f"{plural(count, 'past time')} to run for")
        return wire.BackfillView(flow=found.plan.name, times=count, left_from=_text(left))

    async def put_in_force(self, planned: Sequence[PlannedResource]) -> None:
        """Puts applied flows in force, and tells of each."""
        targets, told = await trio.to_thread.run_sync(self._look_at, planned)
        await self._worker.look(targets)
        for action, plan, subjects in told:
            self._tell(f"flow.{action}", plan, subjects, id=str(plan.target))

    async def in_force(self, resource: Resource) -> wire.FlowState:
        """Returns the state of a flow. Raises NotFound for one that waits for a thing, Refused for a right."""
        try:
            plan = await trio.to_thread.run_sync(self._plan_checked, resource)
        except (NotFound, Refused):
            await self._worker.look(_named_by(resource) | {EVERY})  # what it did ends with the thing or the right
            raise
        is_new = resource.status.observed_generation != resource.generation
        if is_new or resource.status.phase != "Ready":  # what it refers to may have come
            await self._worker.look({plan.target})
        entries = self._worker.scheduler.of_flow(resource.id)
        told = await trio.to_thread.run_sync(partial(self._states, {resource.id: entries}, tells_idle=True))
        if resource.id not in told:
            raise NotFound(f"nothing of {resource.name} is in force", rule="flow-name", hint="odfctl logs shows why")
        return told[resource.id]

    async def end_deleted(self, resource: Resource) -> None:
        """Ends what a deleted flow did."""
        targets = {entry.plan.target for _, entry in self._worker.scheduler.of_flow(resource.id)}
        await trio.to_thread.run_sync(self._forget, resource)
        await self._worker.look(_named_by(resource) | targets)
        others = (
            handle.id if handle is not None else key
            for key, handle in resource.references.items()
            if not key.startswith(f"{ACCOUNT}:")
        )
        self._events.emit("flow.deleted", resource.name, about=about(*others, inputs=True))

    async def look(self, targets: Collection[DatasetId]) -> None:
        """Makes the worker look again at which flows of these datasets are in force."""
        await self._worker.look(targets)

    def touch(self, dataset: DatasetId) -> None:
        """Makes what waits for a right on the inputs of a dataset try again."""
        self._worker.loop.touch(dataset)

    def seen_counts(self, sees: Sees) -> wire.FlowCounts:
        """Counts the flows that an account may see in ``list``. Blocking."""
        return _counts([entry for _, entry in self._filter_seen(self._worker.entries(), sees)])

    def counts(self) -> wire.FlowCounts:
        """Counts flows for the status of the node."""
        return _counts([entry for _, entry in self._worker.scheduler.entries()])

    def _filter_seen(self, entries: Sequence[tuple[str, Entry]], sees: Sees) -> Sequence[tuple[str, Entry]]:
        seen = sees([about_flow(self._home, entry.plan) for _, entry in entries])
        return [each for each, is_seen in zip(entries, seen, strict=True) if is_seen]

    async def _find(self, name: str, target: str | None = None) -> _Found:
        """Returns the flow of a name or id; or else the derived dataset of a name or did that follows its inputs.

        ``target``: the dataset of which it is, if it is of many. Raises NotFound, also for a flow that waits.
        """
        await self._worker.wait_loaded()
        follows = next((each.plan for _, each in self._worker.scheduler.entries() if _follows(each.plan, name)), None)
        found = await trio.to_thread.run_sync(self._seek, name, target, follows)
        if found.plan.declared:
            entries = self._worker.scheduler.of_flow(found.id)
        else:
            entries = [entry for entry in self._worker.scheduler.entries() if _follows(entry[1].plan, name)][:1]
        if found.target is not None:
            entries = [entry for entry in entries if entry[1].plan.target == found.target]
        return found._replace(entries=entries)

    async def _pause(self, name: str, *, paused: bool) -> str:
        found = await self._find(name)
        template = store.key_of(found.id) if is_template(found.plan) else None
        await self._worker.pause([key for key, _ in found.entries], template, paused=paused)
        self._tell("flow.paused" if paused else "flow.resumed", found.plan, found.about)
        return found.id

    def _tell(self, kind: str, plan: FlowPlan, subjects: Subjects, message: str = "", **data: object) -> None:
        self._events.emit(kind, plan.name, message, about=subjects, **data)

    def _seek(self, name: str, target: str | None, follows: FlowPlan | None) -> _Found:
        """Returns the flow that the node's owner means by a name or id, or else ``follows``. Raises NotFound."""
        with self._home.database.read() as connection:
            held = ResourceStore(connection).find_any(store.TYPE, name)
            plan = follows if held is None else store.plan_of(connection, held, self._home.uses)
        wanted = None if target is None else self._home.resolve(target).id
        if plan is None:
            raise NotFound(f"there is no flow {name!r}", rule="flow-name", hint="odfctl get flows lists them")
        id_ = _live_id(plan.target) if held is None else held.id
        return _Found(id_, plan, about_flow(self._home, plan), target=wanted)

    def _plan_checked(self, resource: Resource) -> FlowPlan:
        """Returns the plan of a flow that can be in force. Raises NotFound, Refused."""
        with self._home.database.read() as connection:
            plan = store.plan_of(connection, resource, self._home.uses)
        self._check_derived(plan)
        self._check_targets(plan)
        return plan

    def _check_derived(self, plan: FlowPlan) -> None:
        """Raises Refused for a flow that follows the inputs of a dataset without any."""
        if plan.follows is None:
            return
        derived = plan.follows.dataset or plan.target
        if derived != EVERY and transform_of(self._home.chains.chain(derived)) is None:
            raise Refused(
                f"{self._home.name_of(derived)} is no derived dataset, and has no inputs",
                rule="flow-trigger",
                hint="RFC-019, FlowTrigger: InputsUpdated is of a derived dataset; write kind: Event with a target",
            )

    def _check_targets(self, plan: FlowPlan) -> None:
        """Raises Refused for a flow with a task that its dataset never takes."""
        for task in plan.tasks:
            dataset = task.dataset or plan.target
            if dataset == EVERY:
                continue
            if isinstance(task.said, IngestTask):
                self._check_takes(dataset)
                if task.uses is not None:
                    self._check_source(plan.id, task.uses, dataset)
            elif isinstance(task.said, TransformTask) and transform_of(self._home.chains.chain(dataset)) is None:
                raise Refused(
                    f"{self._home.name_of(dataset)} is no derived dataset, and has no transform",
                    rule="flow-target",
                    hint="RFC-019, Transform: kind: Ingest with a Source brings data into a source dataset",
                )

    def _check_takes(self, dataset: DatasetId) -> None:
        """Raises Refused for a dataset that takes nothing from a Source: no own root, or one that is pushed to."""
        is_own, name = self._home.keys.has_dataset_key(dataset), self._home.name_of(dataset)
        state = load_state(self._home.chains.chain(dataset)) if is_own else None
        check_root(name, "flow-target", is_own=is_own, kind=None if state is None else state.kind)
        if state is not None and state.polling_source is None and state.active_push_sources:
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

    def _look_at(
        self, planned: Sequence[PlannedResource]
    ) -> tuple[Collection[DatasetId], Sequence[tuple[str, FlowPlan, Subjects]]]:
        """Returns the datasets that applied flows are for, and what was done to each flow that does not wait."""
        targets, told = {EVERY}, []
        for each in planned:
            targets |= _named_by(each.after) | (set() if each.before is None else _named_by(each.before))
            if (plan := self._plan_of(each.after)) is not None:
                targets.add(plan.target)
                told.append((each.action, plan, about_flow(self._home, plan)))
        return targets, told

    def _forget(self, resource: Resource) -> None:
        with self._home.database.write() as connection:
            store.forget_runs(connection, resource.id)


def _counts(entries: Sequence[Entry]) -> wire.FlowCounts:
    entries = [entry for entry in entries if not entry.plan.is_inside]
    due = [(entry.due, entry.plan.name) for entry in entries if entry.due is not None]
    at, name = min(due, default=(None, None))
    return wire.FlowCounts(
        flows=len(entries),
        running=sum(entry.running for entry in entries),
        failing={entry.plan.name: entry.record.failures for entry in entries if entry.record.outcome in BAD},
        next=name,
        next_at=_text(at),
    )


def _state_of(entry: Entry, name_of: Callable[[DatasetId], str]) -> wire.FlowState:
    record = entry.record
    return wire.FlowState(
        when=_when(entry.plan, name_of),
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


def _whole_state(
    plan: FlowPlan, states: Mapping[DatasetId, wire.FlowState], name_of: Callable[[DatasetId], str]
) -> wire.FlowState:
    """Returns the state of a flow of many datasets: its earliest next run, and the last that failed, if any did."""
    found = states.values()
    ended = sorted(((each.last, did) for did, each in states.items() if each.last is not None))
    failed = (each for each in reversed(ended) if states[each[1]].outcome == "Failed")
    _, did = next(failed, ended[-1] if ended else (None, None))
    told = None if did is None else states[did]
    present = {each.state for each in found}
    return wire.FlowState(
        when=_when(plan, name_of),
        state=next((each for each in ("running", "retrying", "waiting", "paused") if each in present), "waiting"),
        next=min((each.next for each in found if each.next is not None), default=None),
        last=ended[-1][0] if ended else None,
        outcome=told.outcome if told is not None else None,
        recoverable=told.recoverable if told is not None else None,
        message=f"{name_of(did)}: {told.message}" if told is not None and did is not None else "",
        runs=sum(each.runs for each in found),
        failures=max((each.failures for each in found), default=0),
        missed=sum(each.missed for each in found),
        owed=sum(each.owed for each in found),
    )


def _state(entry: Entry) -> Literal["waiting", "running", "retrying", "paused"]:
    if entry.running:
        return "running"
    if entry.is_paused:
        return "paused"
    return "retrying" if entry.record.retry_at is not None else "waiting"


def _collection(catalog: Catalog, dataset: DatasetId) -> str:
    """Returns the name of the dataset that a chain is, or is inside of."""
    held = catalog.resource_of(dataset)
    return catalog.name_of(dataset) if held is None else held.name


def _when(plan: FlowPlan, name_of: Callable[[DatasetId], str]) -> str:
    parts = [str(plan.schedule)] if plan.schedule is not None else []
    by_cooldown: dict[int, set[str]] = {}
    for input_ in plan.inputs - plan.batched:
        by_cooldown.setdefault(plan.cooldown(str(input_)), set()).add(name_of(input_))
    for cooldown, names in sorted(by_cooldown.items()):
        parts.append(f"new data of {', '.join(sorted(names))}, each {duration_text(cooldown)} at most")
    if plan.follows is not None and plan.batched:
        of, longest = ", ".join(sorted(set(map(name_of, plan.batched)))), duration_text(plan.follows.longest)
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


def _follows(plan: FlowPlan, name: str) -> bool:
    """Whether a plan is that of a derived dataset, of a name or did, that follows its inputs."""
    return not plan.declared and name.casefold() in (plan.name.casefold(), str(plan.target), _live_id(plan.target))


def _live_id(dataset: DatasetId) -> str:
    """Returns the id that a dataset has as an undeclared flow."""
    return live_id(store.TYPE, str(dataset))


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

    async def follow_changes(self, changed: Sequence[PlannedResource]) -> None:
        await self._flows.put_in_force(changed)

    async def states(self, resources: Sequence[wire.ResourceView], sees: Sees | None) -> Mapping[str, wire.Value]:
        return await self._flows.states(resources, sees)

    async def subjects(self, resources: Sequence[wire.ResourceView]) -> Mapping[str, Sequence[Subjects]]:
        return await self._flows.subjects(resources)

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
        await self._flows.end_deleted(resource)
