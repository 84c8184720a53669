"""Performs the tasks of a flow's run in order, each as the task that a person would submit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import trio

from chain.errors import Conflict, Environment, Fault, Refused
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.state import transform_of
from chain.wording import plural
from odfd.control import wire
from odfd.errors import Bug, sole_faults
from odfd.flows.plan import EVERY, FlowPlan, Outcome, Record, Step
from odfd.flows.runs import TaskEnd, task_name
from odfd.flows.schedule import offset_at
from odfd.flows.spec import (
    CompactionTask,
    GarbageCollectionTask,
    IngestTask,
    OnFailure,
    OnNoOp,
    PullTask,
    PushTask,
    ResetTask,
    SyncFromTask,
    SyncToTask,
    TransformTask,
    VerifyChainTask,
    VerifyTask,
    WebhookCallTask,
)
from odfd.ingest.trigger import TriggerTime
from odfd.resources.manifest import parse_size
from odfd.runtime.slots import waiting
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report, Task, TaskBoard, TaskPhase, routine
from odfd.services.datasets.history_rewrite import HistoryRewriteService
from odfd.services.datasets.verification import VerificationService
from odfd.services.flows.worker import Ended, ended_by
from odfd.services.ingest.ingest_pull import IngestPullService
from odfd.services.ingest.sources import SourceReader
from odfd.services.maintenance.garbage_collection import GarbageCollector
from odfd.services.transfer.push import PRIVATE, RACED, PushService
from odfd.services.webhooks.calls import WebhookWorker
from odfd.store.directory import StateDirectory

_GOOD: Final = {each.value: each for each in (Outcome.UPDATED, Outcome.UP_TO_DATE, Outcome.BLOCKED)}
_GOES_ON: Final = frozenset({Outcome.UPDATED, Outcome.UP_TO_DATE})
_FIRST: Final = "#0"
_Submit: TypeAlias = Callable[[], wire.TaskRef]


class FlowTasks(NamedTuple):
    """Performs the tasks of flows and declared tasks, through the services that people use."""

    home: StateDirectory
    board: TaskBoard
    pulling: IngestPullService
    verification: VerificationService
    rewriting: HistoryRewriteService
    collection: GarbageCollector
    webhooks: WebhookWorker
    pushing: PushService
    sources: SourceReader
    now: Callable[[], Instant]
    at_work: dict[trio.CancelScope, str]
    """The runs under way, and the ids that their records have.

    Two have the same id while a flow is declared for a dataset again that it was taken from: the run goes on twice.
    """

    async def run(self, plan: FlowPlan, record: Record) -> Ended:
        """Performs one run of a flow, until it is cancelled, and returns how it ended."""
        with trio.CancelScope() as scope:
            self.at_work[scope] = record.run
            try:
                return await self._in_order(plan, record)
            finally:
                del self.at_work[scope]
        return Ended(Outcome.CANCELLED, "it was deleted")

    def cancel(self, run: str) -> None:
        """Cancels a run and its task, if it is under way."""
        for scope in self._scopes(run):
            scope.cancel()

    def _scopes(self, run: str) -> list[trio.CancelScope]:
        return [scope for scope, each in self.at_work.items() if each == run]

    async def _in_order(self, plan: FlowPlan, record: Record) -> Ended:
        """Performs the tasks of a run.

        It ends with the first task that fails, unless that says ``onFailure: Continue``, or that had nothing to do and
        says ``onNoOp: Break``.
        """
        ended: list[Ended] = []
        steps: list[TaskEnd] = []
        failed: Ended | None = None
        for place, each in enumerate(plan.tasks):
            done = await self._perform(plan, record, each, place)
            ended.append(done)
            steps.append(TaskEnd(task_name(plan, place), done.task, done.outcome, done.message, self.now()))
            if done.outcome not in _GOES_ON and (
                each.said.on_failure is not OnFailure.CONTINUE or done.outcome is Outcome.CANCELLED
            ):
                failed = done
                break
            if each.said.on_no_op is OnNoOp.BREAK and done.outcome is Outcome.UP_TO_DATE:
                break
        is_updated = any(each.outcome is Outcome.UPDATED for each in ended)
        return Ended(
            failed.outcome if failed is not None else Outcome.UPDATED if is_updated else Outcome.UP_TO_DATE,
            "; ".join(each.message for each in ended if each.message),
            next((each.head for each in reversed(ended) if each.head is not None), None),
            None if failed is None else failed.retry,
            tuple(steps),
        )

    async def _perform(self, plan: FlowPlan, record: Record, task: Step, place: int) -> Ended:
        try:
            with sole_faults():
                if not isinstance(task.said, WebhookCallTask):
                    return await self._await_end(record.run, partial(self._submit, plan, record, task))
                said = await self.webhooks.call_for(plan, record, task.said, task.uses or "", place)
                return Ended(Outcome.UPDATED, said)
        except Fault as fault:
            return ended_by(fault)._replace(retry=task.retry)

    def begin(self, plan: FlowPlan, record: Record) -> Task:
        """Begins the task of a plan that has one. Blocking. Raises what the submission raises."""
        (task,) = plan.tasks
        said, key = task.said, task.uses or ""
        if not isinstance(said, WebhookCallTask):
            return self.board.get(self._submit(plan, record, task).id)

        async def call(_: Report) -> str:
            return await self.webhooks.call_for(plan, record, said, key, 0)

        return self.board.submit("webhook", key.partition(":")[2], call)

    def begin_run(self, plan: FlowPlan, record: Record, ends: dict[str, Ended]) -> Task:
        """Begins the tasks of a plan, in order, as one task. Blocking.

        ``ends``: gets how the run ended, by its id.
        """

        async def work(_: Report) -> str:
            async with waiting(connected=False):  # its tasks have slots of their own
                ended = ends[record.run] = await self.run(plan, record)
            if ended.outcome in _GOES_ON:
                return ended.message
            hint = "odfctl get tasks shows what its tasks did"
            if ended.outcome in (Outcome.FAILED, Outcome.BLOCKED):
                raise Environment(ended.message, rule="flow-run", hint=hint)
            raise Refused(ended.message, rule="flow-run", hint=hint)

        target = self.home.name_of(plan.target) if plan.target != EVERY else ""
        return self.board.submit("run", target, work, about(*(task.dataset or plan.target for task in plan.tasks)))

    def _submit(self, plan: FlowPlan, record: Record, task: Step) -> wire.TaskRef:
        dataset, user, key = task.dataset or plan.target, record.run or plan.id, task.uses
        target = str(dataset)
        match task.said:
            case IngestTask() | PullTask() | TransformTask() as said:
                if isinstance(said, TransformTask):
                    self._check_derived(dataset)
                uncacheable = isinstance(said, PullTask) and bool(said.fetch_uncacheable)
                source = None if key is None else self.sources.find_meant(user, key)
                request = wire.PullRequest(refs=(target,), fetch_uncacheable=uncacheable, source=source)
                return self.pulling.pull(request, _trigger(plan, record))
            case SyncFromTask(source=place):
                name = self.home.name_of(dataset)
                return self.pulling.pull(wire.PullRequest(refs=(place.url,), as_name=name))
            case SyncToTask(destination=place):
                return self.pushing.push(wire.PushRequest(refs=(target,), to=place.url))
            case VerifyTask(replay_transform=replays):
                request_ = wire.VerifyRequest(level="reproduced" if replays else "data")
                return self.verification.verify(target, request_)
            case VerifyChainTask():
                return self.verification.verify(target, wire.VerifyRequest(level="chain"))
            case PushTask():
                return self.pushing.push_for(target, user, key or "")
            case CompactionTask() as said:
                size = None if said.max_slice_size is None else parse_size(said.max_slice_size)
                merging = wire.RewriteRequest(
                    action="compact", max_slice_bytes=size, max_slice_rows=said.max_slice_records
                )
                return self.rewriting.rewrite(target, merging)
            case ResetTask() as said:
                earlier = wire.RewriteRequest(
                    action="reset", to=said.new_block_hash or _FIRST, before=said.old_block_hash
                )
                return self.rewriting.rewrite(target, earlier)
            case GarbageCollectionTask():
                return self.collection.collect(wire.CollectRequest())
        raise Bug(f"a call of a webhook is no task of the board: {task.said}", rule="bug")

    def _check_derived(self, dataset: DatasetId) -> None:
        """Raises Refused for a dataset that has no transform. Blocking."""
        if transform_of(self.home.chains.chain(dataset)) is None:
            raise Refused(
                "the dataset is no derived one",
                rule="transform-target",
                hint="RFC-019, Transform: kind: Ingest with a Source brings data into a source dataset",
            )

    async def _await_end(self, run: str, submit: _Submit) -> Ended:
        with routine():
            begun = await trio.to_thread.run_sync(submit)
        task = self.board.get(begun.id)
        try:
            await task.finished.wait()
        except trio.Cancelled:
            if any(scope.cancel_called for scope in self._scopes(run)):
                self.board.cancel(task.id)
            raise
        return end_of(task)._replace(task=task.id)


def _trigger(plan: FlowPlan, record: Record) -> TriggerTime | None:
    """Returns the time that a run is for, with the offset of its schedule's time zone; ``None`` outside of flows."""
    if record.pending is None:
        return None
    return TriggerTime(Instant(record.pending // SECOND * SECOND), offset_at(plan.schedule, record.pending))


def end_of(task: Task) -> Ended:
    """Returns how a finished task ended."""
    if task.state is TaskPhase.CANCELLED:
        return Ended(Outcome.CANCELLED, "it was cancelled")
    if task.fault is not None:
        return ended_by(task.fault)
    return _judge(task.result)


def fault_of(task: Task) -> Fault | None:
    """Returns the fault of a finished task, or else the first fault among the datasets of its result."""
    items = task.result.items if isinstance(task.result, wire.PullResult | wire.PushResult) else ()
    return task.fault or next((item.fault.fault() for item in items if item.fault is not None), None)


def _judge(result: object) -> Ended:
    """Returns how a task ended that has a result."""
    match result:
        case str():
            return Ended(Outcome.UPDATED, result)
        case wire.PullResult():
            (item,) = result.items
            if item.outcome in _GOOD:
                return Ended(_GOOD[item.outcome], item.message)
            return ended_by(item.fault.fault()) if item.fault is not None else Ended(Outcome.FAILED, item.message)
        case wire.VerifyReport(ok=True):
            return Ended(Outcome.UPDATED, f"{plural(result.blocks, 'block')} verified ({result.level})")
        case wire.VerifyReport():
            rules = ", ".join(sorted({failure.rule for failure in result.failures}))
            return Ended(Outcome.REFUSED, f"verification failed: {rules}; odfctl verify {result.ref} shows more")
        case wire.PushResult(items=(item,)):
            return _judge_push(item)
        case wire.RewriteResult(outcome="rewritten"):
            text = f"{plural(result.merged, 'slice')} merged into {result.into:,}"
            return Ended(Outcome.UPDATED, text, result.head)
        case wire.RewriteResult():
            return Ended(Outcome.UP_TO_DATE, result.message)
        case wire.CollectResult():
            done = Outcome.UPDATED if result.objects else Outcome.UP_TO_DATE
            return Ended(done, f"{plural(result.objects, 'object')} freed, {plural(result.bytes, 'byte')}")
    raise Bug(f"a task of a flow ended with {type(result).__name__}", rule="bug")


def _judge_push(item: wire.PushItem) -> Ended:
    """Returns how a push ended.

    A private dataset is blocked until it is published. A conflict with the repository is final, except for a race with
    another push, which is tried again.
    """
    if item.fault is not None:
        fault = item.fault.fault()
        if fault.rule == PRIVATE:
            return Ended(Outcome.BLOCKED, fault.message)
        stays = isinstance(fault, Conflict) and fault.rule != RACED
        return Ended(Outcome.REFUSED, str(fault)) if stays else ended_by(fault)
    text = f"{plural(item.blocks, 'block')} pushed to {item.place}" if item.blocks else f"{item.place} is up to date"
    return Ended(Outcome.UPDATED if item.blocks else Outcome.UP_TO_DATE, text)
