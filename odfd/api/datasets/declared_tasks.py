"""Performs each task that a manifest declares once, and shows declared tasks and all others in one shape.

Every task that a command, a flow or a manifest begins is on the board (``odfd.runtime.tasks``) and is shown as a
resource of the type Task. A declared task is stored, and so is its outcome; the others live as long as the daemon.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

import msgspec
import trio

from chain import instant
from chain.errors import Environment, Fault, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from odfd.api.datasets.flow_tasks import FlowTasks, end_of, fault_of
from odfd.api.resources.declarations import DeclarationService
from odfd.api.resources.node_types import live_id
from odfd.api.resources.reading import read_drafts
from odfd.control import wire
from odfd.control.board import BoardTasks, finding
from odfd.datasets.catalog import TYPE as DATASET
from odfd.flows import runs, store
from odfd.flows.dialect import PULL, PUSH
from odfd.flows.former_forms import OUTCOME
from odfd.flows.plan import FlowPlan, Outcome, Record
from odfd.flows.runs import GOOD, Told
from odfd.flows.selection import EVERY
from odfd.flows.spec import OWN_TASKS
from odfd.flows.tasks import MOST_FINISHED, RUN, TYPE, target_of, tasks_of
from odfd.obs.events import EventLog
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.references import FinalState, reference_key
from odfd.resources.resource import UUID, Resource
from odfd.resources.status import UNRESOLVED, Condition, ConditionValue, ResourceStatus
from odfd.resources.store import ResourceStore
from odfd.runtime.clock import Clock
from odfd.runtime.subjects import Sees, about
from odfd.runtime.tasks import Task, TaskBoard, TaskState, named
from odfd.state.directory import StateDirectory
from odfd.workers.flows import Ended, ended_by

_CANCELLED: Final = "cancelled"
_ENDS: Final = {TaskState.DONE: Outcome.UPDATED, TaskState.CANCELLED: Outcome.CANCELLED}
_STOPPED: Final = ("draining", "interrupted")
"""Rules of the faults of a task that the stop of the daemon cut off; it is begun again after the next start."""
_KINDS: Final[Mapping[str, str]] = {
    "pull": PULL, "compact": "Compaction", "gc": "GarbageCollection", "push": PUSH, "reset": "Reset",
    "verify": "Verify", "webhook": "WebhookCall",
}  # fmt: skip
"""Kinds in RFC-019's form, by kind of task on the board; others have one under a URI of our own."""
_STATES: Final[Mapping[str, Any]] = {
    "Pending": "waiting", "Reconciling": "running", "Ready": "done", "Failed": "failed",
}  # fmt: skip


class TaskController(Controller):
    """Begins each declared task once, and reports how it ended."""

    type = TYPE
    outcome: str = OUTCOME
    conditions: Collection[str] = (OUTCOME,)

    def __init__(self, home: StateDirectory, tasks: FlowTasks, clock: Clock) -> None:
        self._home, self._tasks, self._clock = home, tasks, clock
        self._begun: dict[str, Task] = {}
        """Running and ended tasks by id of the resource; an ended one is removed once its outcome is stored."""

    def check(self, before: Resource, after: Resource | None) -> None:
        """Checks that a task keeps its name, its spec and its target. Raises Refused."""
        if after is None:
            return
        if (before.name, before.spec) != (after.name, after.spec):
            word = "task" if self.type == TYPE else self.type
            text = f"the {word} {before.name} is done once, as it was declared"
            hint = f"give another one another name, or delete it first: odfctl delete {word.lower()} {before.name}"
            raise Refused(text, rule="immutable", hint=hint)

    async def observe(self, resource: Resource) -> ObservedState:
        held = resource.status.conditions.get(self.outcome)
        if held is not None:
            self._begun.pop(resource.id, None)
            kept = {
                key: ConditionValue(value=each.value, code=each.code, message=each.message)
                for key, each in resource.status.conditions.items()
                if key in self.conditions
            }
            # Refused, so that the controller does not begin it again.
            failed = Refused(held.message, rule=held.code, hint=resource.status.hint) if held.code else None
            return ObservedState(told=kept, fault=failed)
        task = self._begun.get(resource.id)
        if task is None:
            return ObservedState(steps=("begin the task",), is_drift=False)
        if not task.finished.is_set():
            return ObservedState(goes_on=True)
        fault = fault_of(task)
        is_cut = task.state is TaskState.CANCELLED and self._tasks.board.is_stopping
        if is_cut or (fault is not None and fault.rule in _STOPPED):
            fault = Environment("the daemon stopped before it ended", rule="interrupted", hint="it is begun again")
            return ObservedState(fault=fault, goes_on=False)
        if fault is not None and fault.rule == UNRESOLVED:  # something it needs is gone: it waits for that
            self._begun.pop(resource.id)
            return ObservedState(fault=fault, goes_on=False)
        told, refused = self._ended(resource, task, fault)
        return ObservedState(told=told, fault=refused, goes_on=False)

    def _ended(self, resource: Resource, task: Task, fault: Fault | None) -> tuple[Told, Refused | None]:  # noqa: ARG002
        """Returns what is stored of a finished task, and its fault unless it ended well."""
        outcome = _outcome(task, fault)
        hint = "" if fault is None else fault.hint
        return {OUTCOME: outcome}, Refused(outcome.message, rule=outcome.code, hint=hint) if outcome.code else None

    async def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        plan = await trio.to_thread.run_sync(self._plan, resource)
        await trio.to_thread.run_sync(self._forget_old, resource)
        with named(_board_id(resource)):
            self._begun[resource.id] = await self._begin(plan, Record(since=self._clock.now(), run=resource.id))

    async def _begin(self, plan: FlowPlan, record: Record) -> Task:
        return await self._tasks.begin(plan, record)

    def _forget_old(self, resource: Resource) -> None:
        """Forgets finished ones of the same account, but for the newest. Blocking."""
        with self._home.database.write() as connection:
            held = ResourceStore(connection)
            for each in held.surplus(self.type, None, resource.account, MOST_FINISHED):
                if self.outcome in each.status.conditions:
                    held.forget(each, self._clock.now())

    async def finalize(self, resource: Resource) -> None:
        self._begun.pop(resource.id, None)
        self._tasks.cancel(resource.id)
        with suppress(NotFound):
            self._tasks.board.cancel(_board_id(resource)).is_declared = False

    def _plan(self, resource: Resource) -> FlowPlan:
        """Returns the task as a plan with one task. Blocking.

        Raises NotFound while its dataset, or something else that it refers to, is not here, and Refused while its
        account may not use it so.
        """
        headers = {"name": resource.name, "annotations": resource.annotations}
        text = json.dumps({"$schema": self.type, "headers": headers, "spec": resource.spec})
        (draft,) = read_drafts([wire.ManifestText(source=resource.name, text=text, base="")])
        plan = FlowPlan(id=resource.id, name=resource.name, target=EVERY, tasks=tasks_of(draft))
        others: dict[str, DatasetId] = {}
        with self._home.database.read() as connection:
            for key in resource.references:
                meant = self._home.uses.meant(ResourceStore(connection), resource, key)
                if meant.type == DATASET and meant.did is not None:
                    others[key] = DatasetId.parse(meant.did)
            store.check_uses(connection, resource, plan, self._home.uses)
        target = target_of(resource.spec)
        if self.type == RUN:
            tasks = [
                msgspec.structs.replace(each, dataset=None if each.on is None else others[each.on])
                for each in plan.tasks
            ]
            plan = msgspec.structs.replace(plan, tasks=tuple(tasks))
        return plan if target is None else msgspec.structs.replace(plan, target=self._target(resource, target, plan))

    def _target(self, resource: Resource, target: str, plan: FlowPlan) -> DatasetId:
        """Returns the dataset that a task names, as its account means it. Raises NotFound, Refused."""
        hint = "it begins when the dataset is here"
        if resource.account is None:
            try:
                return self._home.resolve(target).id
            except NotFound as fault:
                raise NotFound(fault.message, rule=UNRESOLVED, hint=hint) from fault
        with self._home.database.read() as connection:
            found = FinalState((), ResourceStore(connection)).find(reference_key(target, DATASET), resource.account)
            if found is None or found.did is None:
                raise NotFound(f"there is no dataset {target[:120]!r} here", rule=UNRESOLVED, hint=hint)
            self._home.uses.check(self._home.uses.acting(resource), found, f"Dataset:{target}", plan.needs)
        return DatasetId.parse(found.did)


class FlowRunController(TaskController):
    """Does the tasks of each declared FlowRun once, in order, and reports how they ended.

    Those of a flow are done by ``odfd.workers.flows``, which stores how they ended.
    """

    type = RUN
    outcome = runs.OUTCOME
    conditions: Collection[str] = (runs.STATUS, runs.CAUSES, runs.RETRY, runs.OUTCOME)

    def __init__(self, home: StateDirectory, tasks: FlowTasks, clock: Clock) -> None:
        super().__init__(home, tasks, clock)
        self._ends: dict[str, Ended] = {}

    async def observe(self, resource: Resource) -> ObservedState:
        if resource.owners and self.outcome not in resource.status.conditions:
            return ObservedState(goes_on=True)
        return await super().observe(resource)

    def _ended(self, resource: Resource, task: Task, fault: Fault | None) -> tuple[Told, Refused | None]:  # noqa: ARG002
        ended = self._ends.pop(resource.id, None) or end_of(task)
        return runs.outcome_of(ended.outcome, ended.message, ended.steps)

    async def _begin(self, plan: FlowPlan, record: Record) -> Task:
        return await self._tasks.begin_run(plan, record, self._ends)


def _board_id(resource: Resource) -> str:
    """Returns the id that a declared task has on the board: its name, which only the owner's tasks have alone."""
    return resource.name if resource.account is None and resource.type == TYPE else resource.id


def _outcome(task: Task, fault: Fault | None) -> ConditionValue:
    """Returns the condition that is stored for a finished task."""
    end = end_of(task)
    if end.outcome in GOOD:
        return ConditionValue(value=end.outcome.told, message=end.message)
    code = _CANCELLED if end.outcome is Outcome.CANCELLED else fault.rule if fault is not None else ""
    message = end.message if fault is None else fault.message
    return ConditionValue(value=end.outcome.told, code=code or end.outcome.value, message=message)


def live_tasks(board: TaskBoard, node: str, since: Instant) -> Callable[[], Sequence[Resource]]:
    """Returns a function that lists the tasks on the board that no manifest declares.

    ``since``: when the daemon started.
    """

    def one(task: Task) -> Resource:
        began = task.submitted_at or since
        spec = {"kind": _KINDS.get(task.kind) or f"{OWN_TASKS}/{task.kind.capitalize()}"}
        spec |= {"target": task.target} if task.target and "," not in task.target else {}
        return Resource(
            id=live_id(node, str(since), TYPE, task.id), type=TYPE, name=task.id, spec=spec,
            status=_status(task, began),
            created_at=began, updated_at=task.finished_at or task.started_at or began,
        )  # fmt: skip

    return lambda: [one(task) for task in board.list() if not task.is_declared]


def _status(task: Task, began: Instant) -> ResourceStatus:
    at = task.finished_at or began
    found = finding(task.result) if task.state is TaskState.DONE else ""
    outcome = Outcome.REFUSED if found else _ENDS.get(task.state, Outcome.REFUSED)
    if task.state is TaskState.FAILED and task.fault is not None:
        outcome = ended_by(task.fault).outcome
    message = found or ("" if task.fault is None else task.fault.message)
    told = {
        OUTCOME: Condition(value=outcome.told, message=message, updated_at=at, observed_generation=1)
    }  # fmt: skip
    match task.state:
        case TaskState.WAITING:
            return ResourceStatus()
        case TaskState.RUNNING:
            return ResourceStatus(phase="Reconciling")
        case TaskState.DONE if found:
            return ResourceStatus(
                phase="Failed", code="finding", message=found, observed_generation=1, reconciled_at=at, conditions=told
            )
        case TaskState.DONE:
            return ResourceStatus(phase="Ready", observed_generation=1, reconciled_at=at, conditions=told)
        case _:
            fault = task.fault or Refused("somebody cancelled it", rule=_CANCELLED)
            return ResourceStatus(
                phase="Failed", code=fault.rule or type(fault).__name__.lower(), message=fault.message,
                hint=fault.hint, observed_generation=1, reconciled_at=at, conditions=told,
            )  # fmt: skip


class TaskService(BoardTasks):
    """The API service for tasks: those on the board, and declared ones that wait or ended before this start."""

    def __init__(self, board: TaskBoard, home: StateDirectory, resources: DeclarationService, events: EventLog) -> None:
        super().__init__(board)
        self._home, self._resources, self._events = home, resources, events

    async def list(self, *, brief: bool = False, sees: Sees | None = None) -> Sequence[wire.TaskView]:
        """Lists tasks. ``brief`` leaves out the results of finished ones, which may be large.

        ``sees``: the rights of an account, which gets the declared tasks of accounts that it may read, besides others.
        """
        views = await super().list(brief=brief, sees=sees)
        there = {view.id for view in views}
        declared = await trio.to_thread.run_sync(self._declared)
        if sees is not None:
            of_accounts = [id_ for id_ in declared if UUID.match(id_)]
            told = await sees([about(each) for each in of_accounts])
            declared = {id_: declared[id_] for id_, is_told in zip(of_accounts, told, strict=True) if is_told}
        marked = [_marked(each, declared.get(each.id)) for each in views]
        return [*(view for name, view in declared.items() if name not in there), *marked]

    async def get(self, task_id: str) -> wire.TaskView:
        """Shows a task, by its id or as ``account/name``. Raises NotFound."""
        task_id = await trio.to_thread.run_sync(self._meant, task_id)
        declared = (await trio.to_thread.run_sync(self._declared)).get(task_id)
        try:
            found = await super().get(task_id)
        except NotFound:
            if declared is None:
                raise
            return declared
        return _marked(found, declared)

    async def cancel(self, task_id: str) -> wire.TaskView:
        """Cancels a task, and deletes it if it is declared. Raises NotFound."""
        view = await self.get(task_id)
        task_id = view.id
        if view.declared:
            await self._resources.delete(TYPE, task_id)
        try:
            ended = await super().cancel(task_id)
        except NotFound:  # it never began
            return msgspec.structs.replace(view, state="cancelled" if view.state == "waiting" else view.state)
        return _marked(ended, view)

    async def follow(self, task_id: str) -> AsyncIterator[wire.TaskView]:
        """Yields snapshots of a task, a few a second at most, until it is finished.

        Raises NotFound at the first step.
        """
        while True:
            grown, view = self._events.grown, await self.get(task_id)
            task_id = view.id
            if task_id in {task.id for task in self._board.list()}:
                async with aclosing(super().follow(task_id)) as snapshots:  # type: ignore[type-var]
                    async for each in snapshots:
                        yield each
                return
            yield view
            if view.state not in ("waiting", "running"):
                return
            await grown.wait()

    def _meant(self, task_id: str) -> str:
        """Returns the id that the task ``account/name`` has on the board; another text as it is."""
        if "/" not in task_id:
            return task_id
        with self._home.database.read() as connection:
            found = ResourceStore(connection).called(TYPE, task_id, None)
        return task_id if found is None else _board_id(found)

    def _declared(self) -> Mapping[str, wire.TaskView]:
        with self._home.database.read() as connection:
            resources = ResourceStore(connection)
            accounts = resources.account_names(TYPE)
            return {_board_id(each): _view_of(each, accounts.get(each.id)) for each in resources.all(TYPE)}


def _marked(view: wire.TaskView, declared: wire.TaskView | None) -> wire.TaskView:
    """Returns the view of a task on the board with what its declaration says, if it has one."""
    if declared is None or not declared.declared:
        return view
    return msgspec.structs.replace(view, declared=True, account=declared.account)


def _view_of(each: Resource, account: str | None) -> wire.TaskView:
    """Shows a declared task that is not on the board, by its stored status."""
    status, outcome = each.status, each.status.conditions.get(OUTCOME)
    # A task that failed without an outcome never began: it waits for something.
    state: Any = "waiting" if outcome is None and status.phase == "Failed" else _STATES[status.phase]
    state = _CANCELLED if status.code == _CANCELLED and outcome is not None else state
    fault = Refused(status.message, rule=status.code, hint=status.hint) if state == "failed" else None
    return wire.TaskView(
        id=_board_id(each), kind=str(each.spec["kind"]).rpartition("/")[2].lower(),
        target=target_of(each.spec) or "", state=state,
        message=status.message if status.phase == "Failed" else "", declared=True, account=account,
        finished_at=None if outcome is None else instant.render(outcome.updated_at),
        fault=None if fault is None else wire.Problem.of(fault),
    )  # fmt: skip
