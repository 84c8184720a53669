"""Starts the runs of flows, at their times or at news, and the pulls of derived datasets whose inputs have new data.

``odfd.flows.scheduler`` decides; this worker starts the runs, as the same tasks that people start, and stores their
records. Commits and mirrors report new data, and one comparison of heads after a start finds earlier data; the worker
never polls. Works while ``run`` runs; a run that a stop interrupts begins again after the next start.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import msgspec
import trio

from chain.errors import Conflict, Environment, Fault, NotFound, Refused, Remote
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.model.events import SetTransform
from chain.state import transform_of
from odfd.access.uses import NOT_GRANTED
from odfd.control.assembly import Context
from odfd.datasets.creation import input_ids
from odfd.errors import sole_faults
from odfd.flows import runs
from odfd.flows.manifest import DerivationPolicy, derivation_policy
from odfd.flows.plan import BAD, EVERY, FlowPlan, FlowPolicy, Outcome, Record, Retry, for_dataset, is_template
from odfd.flows.runs import TaskEnd
from odfd.flows.scheduler import Entry, Firing, Scheduler
from odfd.resources.selectors import selects
from odfd.resources.store import ResourceStore
from odfd.runtime.alarm import WallAlarm, alarm_of
from odfd.runtime.hanging_calls import in_loop
from odfd.runtime.reconcile_loop import UNTIL_POKED, KeyedReconcileLoop
from odfd.runtime.supervision import Life
from odfd.services.flows.flow_subjects import about_flow
from odfd.services.flows.push_triggers import PushTriggers
from odfd.store import flow_runs as store
from odfd.store.catalog import Catalog, Labels
from odfd.store.directory import StateDirectory
from odfd.transform.pending import is_behind

RUNNING: Final = 128
"""Runs at a time; further ones wait, and none is dropped. The task board has as many places for them besides people's
tasks, and a run that waits long for a source takes no place from others there."""
START_SECONDS: Final = 5.0
"""Seconds until the first comparison of all heads, so that requests right after a start do not wait for it."""
LOGGED_EVERY: Final = 3600 * SECOND
"""Least time between two lines of the log about failures of one plan: at most 24 lines a day."""
LOGGED_CHARACTERS: Final = 300
LOOK_SECONDS: Final = 60.0
"""Without an alarm of the system the clock is looked at this often while anything is due at all: it may have been set,
or the machine slept."""
_TRANSFORM: Final = SetTransform.__name__


class Ended(NamedTuple):
    """The end of a run, or of one of its tasks."""

    outcome: Outcome
    message: str
    head: str | None = None
    """The hash of the head that it wrote; ``None``: it wrote none."""
    retry: Retry | None = None
    """Retries of the task that failed; ``None`` for those of the flow."""
    steps: tuple[TaskEnd, ...] = ()
    """How the tasks of a run ended, in order."""
    task: str = ""
    """The name of the task that ended so."""


Perform: TypeAlias = Callable[[FlowPlan, Record], Awaitable[Ended]]


class FollowSettings(NamedTuple):
    """How derived datasets without a flow follow their inputs."""

    on: bool
    cooldown: int
    """Nanoseconds between two pulls."""


class _Found(NamedTuple):
    key: str
    plan: FlowPlan
    record: Record | None
    behind: bool
    head: str | None = None
    """The target's head, if new blocks of the target make the plan run."""


class FlowWorker:
    """Runs all flows of one node."""

    def __init__(
        self,
        home: StateDirectory,
        context: Context,
        follow: Callable[[], FollowSettings],
        perform: Perform,
        ran: Callable[[str], None],
        labels: Labels,
    ) -> None:
        """``perform``: performs a run, until the time that its record has. ``ran``: called with each flow that ran."""
        self.perform, self._ran, self._labels = perform, ran, labels
        self._home = home
        self._clock, self._events, self._logger = context.clock, context.events, context.logger
        self._follow = follow
        self.scheduler = Scheduler(random.SystemRandom())
        self.loop: KeyedReconcileLoop[DatasetId] = KeyedReconcileLoop(self._round, start_after=START_SECONDS)
        self._arrivals = PushTriggers(home, self.scheduler, self.loop.poke)
        self.arrived = self._arrivals.note_push
        """Called with the id of a Source to which records were pushed."""
        self.applied = self._arrivals.note_apply
        self._looking = trio.Lock()
        self._is_loaded = False
        self._running = 0
        self.turned = trio.Event()
        """Set when the next run has ended, and then replaced."""
        self._nursery: trio.Nursery | None = None
        self._alarm: WallAlarm | None = None
        self._life: Life | None = None

    async def run(self, life: Life) -> None:
        self._life, self._running, self._is_loaded = life, 0, False
        with alarm_of(self._clock) as self._alarm:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._alarm is not None:
                    nursery.start_soon(self._alarm.run, self.loop.poke)
                try:
                    await trio.to_thread.run_sync(self._end_cut_off)  # before the first begins: none is under way
                    await self.loop.run(life)
                finally:
                    self._nursery = None
                    self.scheduler.interrupt(self._clock.now())
                nursery.cancel_scope.cancel()

    async def look(self, datasets: Collection[DatasetId] = ()) -> None:
        """Puts the declared flows of these datasets in force before it returns;
        after a start, those of all datasets."""
        await self._evaluate(datasets)
        self.loop.poke()

    @in_loop
    def entries(self) -> Sequence[tuple[str, Entry]]:
        """Lists the plans in force by their keys."""
        return list(self.scheduler.entries())

    async def wait_loaded(self) -> None:
        """Waits, after a start, until the flows of all datasets are in force."""
        async with self._looking:
            is_loaded = self._is_loaded
        if not is_loaded:
            await self.look()

    async def pause(self, keys: Collection[str], template: str | None, *, paused: bool) -> None:
        """Pauses or resumes plans of one flow, which are in force.
        ``template``: for datasets that join the flow later."""
        now = self._clock.now()
        kept = [(key, self.scheduler.pause(key, now, paused=paused)) for key in keys]
        templates = [] if template is None else [(template, Record(since=now, paused=paused))]
        await self._keep(kept, templates)
        self.loop.poke()

    async def request(self, keys: Collection[str], by: str) -> None:
        """Runs plans, which are in force, as soon as they may. ``by``: as of ``Scheduler.request``."""
        now = self._clock.now()
        await self._keep([(key, self.scheduler.request(key, now, by)) for key in keys])
        self.loop.poke()

    async def backfill(
        self, keys: Collection[str], first: Instant, last: Instant, by: str
    ) -> tuple[int, Instant | None]:
        """Plans runs for past times of plans with schedules, which are in force.

        ``by``: as of ``Scheduler.request``. Returns the number of runs, and the first time for which a plan has no
        room.
        """
        now = self._clock.now()
        told = {key: self.scheduler.backfill(key, first, last, now, by) for key in keys}
        await self._keep([(key, record) for key, (record, _, _) in told.items()])
        self.loop.poke()
        left = [at for _, _, at in told.values() if at is not None]
        return sum(count for _, count, _ in told.values()), min(left, default=None)

    async def _round(self) -> float:
        touched = self.loop.take()
        if touched is None:
            self._is_loaded = False
        await self._evaluate(touched or ())
        for dataset in sorted(touched or ()):
            self.scheduler.touch(dataset, self._clock.now())
            self._arrivals.news(dataset)
        await self._arrivals.look(self._clock.now())
        if self._nursery is None or self._running >= RUNNING:
            return UNTIL_POKED
        now = self._clock.now()
        firings = self.scheduler.due(now, RUNNING - self._running)
        if declared := [firing for firing in firings if firing.plan.declared]:
            # Recorded before the runs start: a crash during a run then leads to the same run again, not to a missed
            # one.
            await trio.to_thread.run_sync(self._begin, declared)
        for firing in firings:
            self._running += 1
            self._nursery.start_soon(self._run, firing)
        following = self.scheduler.next_time()
        if self._alarm is not None:
            self._alarm.set(following)
            return UNTIL_POKED
        return UNTIL_POKED if following is None else min(max(0.0, (following - now) / SECOND), LOOK_SECONDS)

    async def _evaluate(self, datasets: Collection[DatasetId]) -> None:
        async with self._looking:
            everything, self._is_loaded = not self._is_loaded, True
            if everything or EVERY in datasets:
                read = partial(self._read_all, everything=everything)
            else:
                read = partial(self._read, sorted(datasets), everything=False)
            found = await trio.to_thread.run_sync(read)
            now, kept = self._clock.now(), []
            for dataset, plans in found.items():
                for gone in set(self.scheduler.keys_of(dataset)) - {plan.key for plan in plans}:
                    self.scheduler.drop(gone)
                for plan in plans:
                    kept += self._put(plan, now)
            if kept:
                await self._keep(kept)

    def _put(self, each: _Found, now: Instant) -> list[tuple[str, Record]]:
        """Puts a plan in force; returns its record to store, if it changed."""
        there = self.scheduler.find(each.key)
        if there is not None and there.plan == each.plan and not each.behind:
            return []
        if there is not None and there.plan.is_inside and not each.plan.is_inside and each.record is not None:
            # A handover gave it the name, and the stored record with the runs of the rendition before (hand_on).
            was = each.record
            there.record = msgspec.structs.replace(
                there.record, runs=was.runs, failures=was.failures, missed=was.missed, ended_at=was.ended_at,
                outcome=was.outcome, message=was.message,
            )  # fmt: skip
        before = each.record if there is None else there.record
        after = before
        if each.plan.on_update and (before is None or before.seen is None):  # it owes nothing of the past
            after = msgspec.structs.replace(before or Record(since=now), seen=each.head or "")
        record = self.scheduler.put(each.key, each.plan, after, now, touched=each.behind)
        self._arrivals.note(each.key, each.plan)
        return [(each.key, record)] if each.plan.declared and record != before else []

    def _end_cut_off(self) -> None:
        """Ends the runs that a stop cut off, and that nothing goes on with."""
        now = self._clock.now()
        with self._home.database.read() as connection:
            found = store.cut_off(connection)
        for each in found:
            with self._home.database.write() as connection:
                store.end_run(
                    connection, each.id, lambda run: runs.end(run, Outcome.CANCELLED, "it was cut off", (), now), now
                )

    def _read_all(self, *, everything: bool) -> dict[DatasetId, list[_Found]]:
        with self._home.database.read() as connection:
            plans = store.flows(connection, self._home.uses)
        targets = {plan.target for plan in plans}
        if any(map(is_template, plans)):
            with self._home.catalog() as catalog:
                targets |= {entry.id for entry in catalog.entries()}
        known = {entry.plan.target for _, entry in self.scheduler.entries()}
        return self._read(sorted({*targets, *known, *self._home.chains.having(_TRANSFORM)}), everything=everything)

    def _read(self, datasets: Sequence[DatasetId], *, everything: bool) -> dict[DatasetId, list[_Found]]:
        """Reads every plan that pulls one of these datasets."""
        found: dict[DatasetId, list[_Found]] = {}
        with self._home.database.read() as connection:
            templates = store.templates(connection, self._home.uses)
        for dataset in datasets:
            with self._home.database.read() as connection:
                plans = [
                    *self._list_declared(connection, dataset),
                    *self._list_selected(connection, dataset, templates),
                ]
                known = [(store.key_for(plan), plan, self._record(connection, plan)) for plan in plans]
                follows = not any(plan.pulls for plan in plans)
                record = store.record(connection, str(dataset)) if follows else None
            try:
                if follows:
                    known += [(str(dataset), plan, record) for plan in self._following(dataset)]
                found[dataset] = [
                    self._find(key, self._following_inputs(plan), held, everything=everything)
                    for key, plan, held in known
                ]
            except Fault as fault:  # a chain that cannot be read is told by whoever shows it, and stops no other
                self._logger.error("flows of a dataset cannot be listed", dataset=dataset.short, fault=str(fault))
        return found

    def _list_declared(self, connection: sqlite3.Connection, dataset: DatasetId) -> list[FlowPlan]:
        """Returns the flows that name the dataset, without templates, which are no plans themselves."""
        plans = store.flows_of(connection, dataset, self._home.uses)
        return [plan for plan in plans if not is_template(plan)]

    def _list_selected(
        self, connection: sqlite3.Connection, dataset: DatasetId, templates: Sequence[FlowPlan]
    ) -> list[FlowPlan]:
        """Returns the plans that flows of many datasets have for one of them."""
        if not templates:
            return []
        with self._home.catalog() as catalog:
            entry = catalog.find(dataset)
        if entry is None or entry.is_inner:
            return []
        labels, account = Catalog(connection).facts(dataset, self._labels)
        return [
            for_dataset(template, dataset)
            for template in templates
            if template.selection is not None
            and selects(template.selection, entry.name, labels, account)
            and self._may_use(connection, for_dataset(template, dataset))
        ]

    def _may_use(self, connection: sqlite3.Connection, plan: FlowPlan) -> bool:
        flow = ResourceStore(connection).get(plan.id)
        try:
            if flow is not None:
                store.check_uses(connection, flow, plan, self._home.uses)
        except (NotFound, Refused):
            return False
        return flow is not None

    def _record(self, connection: sqlite3.Connection, plan: FlowPlan) -> Record | None:
        """Returns a plan's record. A dataset that joins a flow of many is paused if the flow is,
        and past times do not count."""
        found = store.record(connection, store.key_for(plan))
        if plan.selection is None or found is not None:
            return found
        held = store.record(connection, store.key_of(plan.id))
        return Record(since=self._clock.now(), paused=True) if held is not None and held.paused else None

    def _find(self, key: str, plan: FlowPlan, record: Record | None, *, everything: bool) -> _Found:
        behind = self._is_behind(key, plan, everything=everything)
        if not plan.on_update:
            return _Found(key, plan, record, behind)
        head = self._head(plan.target)
        unseen = record is not None and record.seen is not None and (head or "") != record.seen
        return _Found(key, plan, record, behind or (everything and unseen), head)

    def _head(self, dataset: DatasetId) -> str | None:
        head = self._home.chains.chain(dataset).head()
        return None if head is None else str(head.hash)

    def _following(self, dataset: DatasetId) -> list[FlowPlan]:
        """Returns the plan by which a derived dataset without a flow follows its inputs."""
        if not self._home.keys.has_dataset_key(dataset):
            return []
        transform = transform_of(self._home.chains.chain(dataset))
        with self._home.catalog() as catalog:
            entry = catalog.find(dataset)
        if entry is None or transform is None:
            return []
        follow, said = self._follow(), self._policy_of(dataset)
        if said.is_manual if said is not None else not follow.on:
            return []
        inputs = frozenset(input_ids(transform)) - {dataset}
        own = None if said is None else said.cooldown
        policy = FlowPolicy(cooldown=follow.cooldown if own is None else own)
        return [
            FlowPlan(
                name=entry.name,
                target=dataset,
                inputs=inputs,
                policy=policy,
                declared=False,
                is_inside=entry.is_inner,
            )
        ]

    def _following_inputs(self, plan: FlowPlan) -> FlowPlan:
        """Returns a plan that follows the inputs of a derived dataset with those that it has now."""
        if (follows := plan.follows) is None:
            return plan
        derived = follows.dataset or plan.target
        transform = transform_of(self._home.chains.chain(derived))
        found = frozenset() if transform is None else frozenset(input_ids(transform)) - {plan.target}
        return msgspec.structs.replace(
            plan,
            inputs=plan.inputs | found,
            batched=found if follows.least > 1 else frozenset(),
            cooldowns={**dict.fromkeys(map(str, found), follows.cooldown), **plan.cooldowns},
        )

    def _policy_of(self, dataset: DatasetId) -> DerivationPolicy | None:
        with self._home.database.read() as connection:
            resource = Catalog(connection).resource_of(dataset)
        return None if resource is None else derivation_policy(resource)

    def _is_behind(self, key: str, plan: FlowPlan, *, everything: bool) -> bool:
        """Whether one of its inputs has unread blocks; computed only for a new or changed plan."""
        there = self.scheduler.find(key)
        if not plan.inputs or (there is not None and there.plan == plan and not everything):
            return False
        return is_behind(self._home.chains, plan.target, plan.inputs)

    async def _run(self, firing: Firing) -> None:
        try:
            watched = firing.plan.target if firing.plan.on_update else None
            before, refused = await trio.to_thread.run_sync(self._look, firing.plan)
            ended = await self._perform(firing) if refused is None else ended_by(refused)
            outcome, message, written, retry, *_ = ended
            # A run that the stop of the node cut off did not fail; it is due again at the next start.
            if self._life is not None and self._life.stopping.is_set() and outcome is not Outcome.UPDATED:
                return
            if watched is not None:
                self.scheduler.untouch(firing.key)
            after = None if watched is None else await trio.to_thread.run_sync(self._head, watched)
            seen = written or before
            now = self._clock.now()
            record = self.scheduler.finish(firing.key, outcome, message, now, seen, touched=after != seen, retry=retry)
            self._arrivals.note(firing.key, firing.plan)
            await trio.to_thread.run_sync(self._end, firing, record, ended)
            if outcome in BAD:
                self._log_failure(firing, outcome, message, record.failures if record is not None else 1)
        finally:
            self._running -= 1
            turned, self.turned = self.turned, trio.Event()
            turned.set()
            self._ran(firing.plan.name)
            self.loop.poke()

    def _log_failure(self, firing: Firing, outcome: Outcome, message: str, failures: int) -> None:
        """Logs that a flow fails, once an hour: one that runs every second would fill a disk in weeks."""
        entry, now = self.scheduler.find(firing.key), self._clock.now()
        if entry is None or (entry.logged_at is not None and 0 <= now - entry.logged_at < LOGGED_EVERY):
            return
        entry.logged_at = now
        text = message[:LOGGED_CHARACTERS]
        self._logger.info("flow fails", flow=firing.plan.name, outcome=outcome.value, failures=failures, message=text)

    def _look(self, plan: FlowPlan) -> tuple[str | None, Fault | None]:
        """Returns the head whose new blocks make a plan run, and why it may not run: its account lost, since it is in
        force, the right to what a run of it uses.
        """
        head = self._head(plan.target) if plan.on_update else None
        with self._home.database.read() as connection:
            flow = ResourceStore(connection).get(plan.id)
            try:
                if flow is not None:
                    store.check_uses(connection, flow, plan, self._home.uses)
            except Fault as fault:
                return head, fault
        return head, None

    async def _perform(self, firing: Firing) -> Ended:
        try:
            with sole_faults():
                return await self.perform(firing.plan, firing.record)
        except Fault as fault:
            return ended_by(fault)

    def _begin(self, firings: Sequence[Firing]) -> None:
        with self._home.database.write() as connection:
            for firing in firings:
                store.keep_record(connection, firing.key, firing.record)
                store.begin_run(connection, firing.plan, firing.record, firing.causes, self._clock.now())

    def _end(self, firing: Firing, record: Record | None, ended: Ended) -> None:
        """Stores the end of a run, also of one whose flow is for another dataset since; tells of one that failed."""
        now = self._clock.now()
        with self._home.database.write() as connection:
            is_here = not firing.plan.declared or ResourceStore(connection).row(firing.plan.id) is not None
            if record is not None and is_here:
                store.keep_record(connection, firing.key, record)
            if firing.plan.declared:
                store.end_run(
                    connection, firing.record.run,
                    lambda run: runs.end(run, ended.outcome, ended.message, ended.steps, now), now,
                )  # fmt: skip
        if ended.outcome in BAD:
            told, failures = about_flow(self._home, firing.plan), record.failures if record is not None else 1
            self._events.emit("flow.failed", firing.plan.name, ended.message, about=told, failures=failures)

    async def _keep(self, records: Sequence[tuple[str, Record]], templates: Sequence[tuple[str, Record]] = ()) -> None:
        """Stores records, except those of flows that were deleted meanwhile, and those for datasets to come."""

        def keep() -> None:
            with self._home.database.write() as connection:
                for key, each in records:
                    if self.scheduler.find(key) is not None:
                        store.keep_record(connection, key, each)
                for key, each in templates:
                    store.keep_record(connection, key, each)

        await trio.to_thread.run_sync(keep)


def ended_by(fault: Fault) -> Ended:
    """Builds the end of a failed run: the fault's family decides whether a retry may help."""
    if fault.rule == NOT_GRANTED:
        return Ended(Outcome.BLOCKED, str(fault))
    passes = isinstance(fault, Environment | Remote | Conflict) and not isinstance(fault, NotFound)
    return Ended(Outcome.FAILED if passes else Outcome.REFUSED, str(fault))
