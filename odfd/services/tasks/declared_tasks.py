"""Performs each task that a manifest declares once, and shows declared tasks and all others in one shape.

Every task that a command, a flow or a manifest begins is on the board (``odfd.runtime.tasks``) and is shown as a
resource of the type Task. A declared task is stored, and so is its outcome; the others live as long as the daemon.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

import msgspec
import trio

from chain import instant
from chain.errors import Environment, Fault, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from odfd.control import wire
from odfd.control.board import BoardTasks, finding, task_state
from odfd.flows import runs
from odfd.flows.dialect import PULL, PUSH
from odfd.flows.former_forms import OUTCOME
from odfd.flows.plan import EVERY, FlowPlan, Outcome, Record
from odfd.flows.runs import GOOD, Told
from odfd.flows.spec import OWN_TASKS
from odfd.flows.tasks import MOST_FINISHED, RUN, TYPE, target_of, tasks_of
from odfd.obs.events import EventLog
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.references import FinalState, reference_key
from odfd.resources.resource import Resource
from odfd.resources.status import UNRESOLVED, Condition, ConditionValue, ResourceStatus
from odfd.resources.store import ResourceStore
from odfd.runtime.clock import Clock
from odfd.runtime.subjects import Sees, Subjects
from odfd.runtime.tasks import Task, TaskBoard, TaskPhase, name_next
from odfd.services.flows.worker import Ended, ended_by
from odfd.services.resources.node_types import live_id
from odfd.services.resources.reading import read_drafts
from odfd.services.tasks.flow_tasks import FlowTasks, end_of, fault_of
from odfd.store import flow_runs as store
from odfd.store.catalog import TYPE as DATASET
from odfd.store.directory import StateDirectory

_CANCELLED: Final = "cancelled"
_ENDS: Final = {TaskPhase.DONE: Outcome.UPDATED, TaskPhase.CANCELLED: Outcome.CANCELLED}
_STOPPED: Final = ("draining", "interrupted")
"""Rules of the faults of a task that the stop of the daemon cut off; it is begun again after the next start."""
_KINDS: Final[Mapping[str, str]] = {
    "pull": PULL, "compact": "Compaction", "gc": "GarbageCollection", "push": PUSH, "reset": "Reset",
    "verify": "Verify", "webhook": "WebhookCall",
}  # fmt: skip
"""Kinds in RFC-019's form, by kind of task on the board; others have one under a URI of our own."""


class TaskController(Controller):
    """Begins each declared task once, and reports how it ended."""

    type = TYPE
    outcome: str = OUTCOME
    conditions: Collection[str] = (OUTCOME,)

    def __init__(self, home: StateDirectory, tasks: FlowTasks, clock: Clock) -> None:
        self._home, self._tasks, self._clock = home, tasks, clock
        self._begun: dict[str, Task] = {}
        """Running and ended tasks by id of the resource; an ended one is removed once its outcome is stored."""

    def states(self, resources: Sequence[wire.ResourceView], sees: Sees | None) -> Mapping[str, wire.Value]:
        board = self._on_board(resources)
        seen = [True] * len(board) if sees is None else sees([task.about for task in board.values()])
        told = {id_: task_state(task) for (id_, task), is_seen in zip(board.items(), seen, strict=True) if is_seen}
        left = [resource.id for resource in resources if resource.id not in board and resource.generation]
        return {
            **self._stored_states(left),
            **{id_: msgspec.structs.replace(state, result=None) for id_, state in told.items()},
        }

    def _stored_states(self, ids: Sequence[str]) -> Mapping[str, wire.Value]:
        with self._home.database.read() as connection:
            return {id_: _stored_state(each) for id_, each in ResourceStore(connection).among(ids).items()}

    async def subjects(self, resources: Sequence[wire.ResourceView]) -> Mapping[str, Sequence[Subjects]]:
        return {id_: [task.about] for id_, task in self._on_board(resources).items()}

    def _on_board(self, resources: Sequence[wire.ResourceView]) -> dict[str, Task]:
        """Returns those tasks of the board that some Tasks are, by the ids of these."""
        board = {task.id: task for task in self._tasks.board.list()}
        ids = {resource.id: resource.id if "account" in resource.headers else resource.name for resource in resources}
        return {id_: board[key] for id_, key in ids.items() if key in board}

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
        is_cut = task.state is TaskPhase.CANCELLED and self._tasks.board.is_stopping
        if is_cut or (fault is not None and fault.rule in _STOPPED):
            fault = Environment("the daemon stopped before it ended", rule="interrupted", hint="it is begun again")
            return ObservedState(fault=fault, goes_on=False)
        if fault is not None and fault.rule == UNRESOLVED:  # something it needs is gone: it waits for that
            self._begun.pop(resource.id)
            return ObservedState(fault=fault, goes_on=False)
        told, refused = self._end(resource, task, fault)
        return ObservedState(told=told, fault=refused, goes_on=False)

    def _end(self, resource: Resource, task: Task, fault: Fault | None) -> tuple[Told, Refused | None]:  # noqa: ARG002
        """Returns what is stored of a finished task, and its fault unless it ended well."""
        outcome = _outcome(task, fault)
        hint = "" if fault is None else fault.hint
        return {OUTCOME: outcome}, Refused(outcome.message, rule=outcome.code, hint=hint) if outcome.code else None

    def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        plan = self._plan(resource)
        self._forget_old(resource)
        with name_next(_board_id(resource)):
            self._begun[resource.id] = self._begin(plan, Record(since=self._clock.now(), run=resource.id))

    def _begin(self, plan: FlowPlan, record: Record) -> Task:
        return self._tasks.begin(plan, record)

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
                meant = self._home.uses.find_meant(ResourceStore(connection), resource, key)
                if meant.type == DATASET and meant.did is not None:
                    others[key] = DatasetId.parse(meant.did)
            store.check_uses(connection, resource, plan, self._home.uses)
        target = target_of(resource.spec)
        if self.type == RUN:
            tasks = [
                msgspec.structs.replace(task, dataset=None if task.on is None else others[task.on])
                for task in plan.tasks
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

    Those of a flow are done by ``odfd.services.flows.worker``, which stores how they ended.
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

    def _end(self, resource: Resource, task: Task, fault: Fault | None) -> tuple[Told, Refused | None]:  # noqa: ARG002
        ended = self._ends.pop(resource.id, None) or end_of(task)
        return runs.outcome_of(ended.outcome, ended.message, ended.steps)

    def _on_board(self, resources: Sequence[wire.ResourceView]) -> dict[str, Task]:  # noqa: ARG002
        return {}  # its tasks are there, and not the run

    def _stored_states(self, ids: Sequence[str]) -> Mapping[str, wire.Value]:  # noqa: ARG002
        return {}

    def _begin(self, plan: FlowPlan, record: Record) -> Task:
        return self._tasks.begin_run(plan, record, self._ends)


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


def live_tasks(board: TaskBoard, node: str, since: Instant) -> Callable[[], Awaitable[Sequence[Resource]]]:
    """Returns a function that lists the tasks on the board that no manifest declares.

    ``since``: when the daemon started.
    """

    def one(task: Task) -> Resource:
        began = task.submitted_at or since
        spec = {"kind": _KINDS.get(task.kind) or f"{OWN_TASKS}/{task.kind.capitalize()}"}
        spec |= {"target": task.target} if task.target and "," not in task.target else {}
        return Resource(
            id=live_id(node, str(since), TYPE, task.id), type=TYPE, name=task.id, spec=spec,
            status=_status(task, began), generation=0,
            created_at=began, updated_at=task.finished_at or task.started_at or began,
        )  # fmt: skip

    async def list_undeclared() -> Sequence[Resource]:
        return [one(task) for task in board.list() if not task.is_declared]

    return list_undeclared


def _status(task: Task, began: Instant) -> ResourceStatus:
    at = task.finished_at or began
    found = finding(task.result) if task.state is TaskPhase.DONE else ""
    outcome = Outcome.REFUSED if found else _ENDS.get(task.state, Outcome.REFUSED)
    if task.state is TaskPhase.FAILED and task.fault is not None:
        outcome = ended_by(task.fault).outcome
    message = found or ("" if task.fault is None else task.fault.message)
    told = {
        OUTCOME: Condition(value=outcome.told, message=message, updated_at=at, observed_generation=0)
    }  # fmt: skip
    match task.state:
        case TaskPhase.WAITING:
            return ResourceStatus()
        case TaskPhase.RUNNING:
            return ResourceStatus(phase="Reconciling")
        case TaskPhase.DONE if found:
            return ResourceStatus(phase="Failed", code="finding", message=found, reconciled_at=at, conditions=told)
        case TaskPhase.DONE:
            return ResourceStatus(phase="Ready", reconciled_at=at, conditions=told)
        case _:
            fault = task.fault or Refused("it was cancelled", rule=_CANCELLED)
            return ResourceStatus(
                phase="Failed", code=fault.rule or type(fault).__name__.lower(), message=fault.message,
                hint=fault.hint, reconciled_at=at, conditions=told,
            )  # fmt: skip


class TaskService(BoardTasks):
    """The API service for tasks: those on the board, and declared ones that wait or ended before this start."""

    def __init__(
        self,
        board: TaskBoard,
        home: StateDirectory,
        delete: Callable[[str, str], Awaitable[object]],
        events: EventLog,
    ) -> None:
        """``delete``: deletes a resource, given its type and name."""
        super().__init__(board)
        self._home, self._delete, self._events = home, delete, events

    async def get(self, task_id: str) -> wire.TaskState:
        """Returns the state of a task, by its id or as ``account/name``. Raises NotFound."""
        found = await self._find(task_id)
        return task_state(found) if isinstance(found, Task) else _stored_state(found)

    async def cancel(self, task_id: str) -> wire.TaskState:
        """Cancels a task, and deletes it if it is declared. Raises NotFound."""
        found = await self._find(task_id)
        if isinstance(found, Resource) or found.is_declared:
            await self._delete(TYPE, task_id)
        if isinstance(found, Task):
            return await super().cancel(found.id)
        state = _stored_state(found)  # it never began, or ended before this start
        return msgspec.structs.replace(state, state="cancelled") if state.state == "waiting" else state

    async def follow(self, task_id: str) -> AsyncIterator[wire.TaskState]:
        """Yields states of a task, a few a second at most, until it is finished.

        Raises NotFound at the first step.
        """
        while True:
            grown, found = self._events.grown, await self._find(task_id)
            if isinstance(found, Task):
                async with aclosing(super().follow(found.id)) as snapshots:  # type: ignore[type-var]
                    async for snapshot in snapshots:
                        yield snapshot
                return
            state = _stored_state(found)
            yield state
            if state.state != "waiting":
                return
            await grown.wait()

    async def _find(self, task_id: str) -> Task | Resource:
        """Returns a task of the board, or one that is declared and not there. Raises NotFound."""
        with suppress(NotFound):
            return self._board.get(task_id)
        held = await trio.to_thread.run_sync(self._find_declared, task_id)
        if held is None:
            return self._board.get(task_id)
        with suppress(NotFound):
            return self._board.get(_board_id(held))
        return held

    def _find_declared(self, task_id: str) -> Resource | None:
        with self._home.database.read() as connection:
            return ResourceStore(connection).find_any(TYPE, task_id)


def _stored_state(each: Resource) -> wire.TaskState:
    """Returns the state of a declared task that is not on the board, by its stored status."""
    status, outcome = each.status, each.status.conditions.get(OUTCOME)
    # A task that failed without an outcome never began: it waits for something.
    state: Any = "waiting" if outcome is None else "failed" if status.phase == "Failed" else "done"
    state = _CANCELLED if status.code == _CANCELLED and outcome is not None else state
    fault = Refused(status.message, rule=status.code, hint=status.hint) if state == "failed" else None
    return wire.TaskState(
        kind=str(each.spec["kind"]).rpartition("/")[2].lower(), target=target_of(each.spec) or "", state=state,
        message=status.message if status.phase == "Failed" else "",
        finished_at=None if outcome is None else instant.render(outcome.updated_at),
        fault=None if fault is None else wire.Problem.of(fault),
    )  # fmt: skip
