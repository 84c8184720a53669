"""Reconciles resources with their declarations, and records the result of each.

Changes are read from the log of resources and reported by events of the node; each resource has one attempt at a time.
The controller of its type observes and compares; the steps that differ are performed, and the resource is observed
again. The result is stored as the resource's status, which only this worker writes, and only if it changed. Works while
``run`` runs; an attempt that a crash interrupted is reported as such after the next start.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec
import trio

from chain.errors import Environment, Fault
from chain.instant import SECOND, Instant
from odfd.access.manifest import RELATIONS
from odfd.control.assembly import Context
from odfd.errors import Bug, sole_fault
from odfd.obs.events import Event
from odfd.resources.controller import Controller, Controllers, ObservedState
from odfd.resources.references import SETS
from odfd.resources.registry import ACTING
from odfd.resources.resource import ACCOUNT, Resource, ResourceEvent
from odfd.resources.status import (
    DANGLING,
    DELETING,
    UNRESOLVED,
    ConditionValue,
    ResourceStatus,
    drift,
    fail,
    held_back,
    is_unchanged,
    move,
    pending,
    ready,
)
from odfd.resources.store import ResourceStore
from odfd.resources.types import ResourceType
from odfd.resources.workqueue import HOURLY, WorkQueue
from odfd.runtime.hanging_calls import in_loop, invoke
from odfd.runtime.reconcile_loop import UNTIL_POKED, ReconcileLoop
from odfd.runtime.subjects import Subjects
from odfd.runtime.supervision import Life
from odfd.store.catalog import outer_name
from odfd.store.directory import StateDirectory

AT_ONCE: Final = 8
PAGE: Final = 500
DRIFT_SECONDS: Final = 600
"""Seconds between two checks of resources whose changes no event reports; varied by a fifth."""
ATTEMPT_SECONDS: Final = 30.0
QUIET_SECONDS: Final = 5
"""Seconds after a start until resources that were as declared are checked again, since a start has other work."""
LOOKS_A_SECOND: Final = 100
"""Checks a second, on average, after a start, so that requests do not wait behind thousands of them."""
T = TypeVar("T")
Named: TypeAlias = tuple[str, str]
"""Type, and name, DID or id, of a resource."""


class Reconciler:
    """Reconciles all resources of one node."""

    def __init__(
        self,
        home: StateDirectory,
        context: Context,
        types: Iterable[ResourceType],
        controllers: Controllers,
    ) -> None:
        self._controllers = controllers
        kinds = tuple(types)
        self._silent = {kind.name for kind in kinds if kind.is_silent}
        self._followers = {kind.name for kind in kinds if kind.follows_datasets}
        self._home = home
        self._clock, self._events, self._logger = context.clock, context.events, context.logger
        self._random = random.SystemRandom()
        self.queue = WorkQueue(self._random.randrange)
        self.loop = ReconcileLoop(self._round)
        self._cursor: int | None = None
        self._heard: set[Named] = set()
        self._looking = False
        """Whether received events are being looked up, so that their resources are in no queue yet."""
        self._position = self._events.last
        """Number of the last received event of the node."""
        self._regranted = False
        """Whether rights may have changed of which no resource tells: something was published, or is not any more."""
        self._waiting: set[str] = set()
        """Ids of resources that failed because of a missing reference."""
        self._nursery: trio.Nursery | None = None
        self.turned = trio.Event()
        """Set when the next attempt has ended, and then replaced."""

    async def run(self, life: Life) -> None:
        self.queue, self._cursor = WorkQueue(self._random.randrange), None
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._listen)
            try:
                await self.loop.run(life)
            finally:
                self._nursery = None
                self._turn_over()  # nobody waits for what will not be
            nursery.cancel_scope.cancel()

    @in_loop
    def touch(self, type_: str, name: str) -> None:
        """Marks a resource as possibly changed."""
        self._heard.add((type_, name))
        self.loop.poke()

    @in_loop
    def regrant(self) -> None:
        """Marks what accounts have as possibly having other rights."""
        self._regranted = True
        self.loop.poke()

    async def wait_settled(self) -> None:
        """Waits until no resource waits or is worked on; attempts that are due later do not count."""
        turned = self.turned
        self.loop.poke()  # nobody tells the loop that time has passed
        while True:
            await turned.wait()
            turned = self.turned
            newest = await self._read(ResourceStore.newest)
            heard = not self._heard and not self._looking and self._position == self._events.last
            if newest != self._cursor:
                self.loop.poke()  # whoever wrote it did not; what is heard or done pokes by itself
            elif heard and not self._regranted and self.queue.is_idle:
                return

    async def wait_undone(self, resource_id: str) -> None:
        """Waits until what a deleted resource made is undone, or could not be; no longer than one attempt may take."""
        self.loop.poke()
        with trio.move_on_after(ATTEMPT_SECONDS):
            while self._nursery is not None:
                turned = self.turned
                gone, *_ = await self._read(lambda store: _look(store, resource_id))
                if gone is None or DELETING in gone.status.conditions:
                    return
                await turned.wait()

    async def _listen(self) -> None:
        """Follows events of the node, and marks the resources that they may change."""
        async for news in self._events.follow(self._position):
            if isinstance(news, Event):
                self._position = news.sequence
                self._heard |= self._controllers.told_by(news)
                self.loop.poke()

    async def _round(self) -> float:
        self._looking = True
        try:
            heard, self._heard = self._heard, set()
            regranted, self._regranted = self._regranted, False
            # ``_heard`` is taken before this read: an event that comes during it is for the next round.
            self._cursor, touched = await self._read(lambda store: self._list_touched(store, heard, regranted))
            for each in touched:
                self.queue.touch(each)
        finally:
            self._looking = False
        now = self._clock.now()
        room = AT_ONCE if self._nursery is not None else 0
        for each in self.queue.take(now, room):
            assert self._nursery is not None
            self._nursery.start_soon(self._turn, each)
        self._turn_over()
        due = self.queue.next_time()
        return UNTIL_POKED if due is None else max(0.0, (due - now) / SECOND)

    def _list_touched(
        self, store: ResourceStore, heard: Collection[Named], regranted: bool
    ) -> tuple[int, Sequence[str]]:
        """Reads the log of resources: returns the new cursor, and the ids of changed resources, at first of all.

        Deleted ones precede the others, which may take their places. Blocking.
        """
        cursor = self._cursor
        if cursor is None:
            return store.newest(), [*(each.id for each in store.deleting()), *self._at_start(store.all())]
        gone: list[str] = []
        found = [
            namesake.id
            for type_, name in sorted(heard)
            for namesake in store.namesakes(type_, name)
            or list(filter(None, [store.with_did(type_, name), store.get(name)]))
            or store.namesakes(type_, outer_name(name))
        ]
        found += [src for each in found for src in self._following(store, each)]
        while events := store.events(cursor, PAGE):
            cursor = events[-1].rv
            found += [event.resource.id for event in events if event.op in ("Added", "Modified")]
            last = {event.resource.id: event for event in events}
            found += [id_ for id_, each in last.items() if each.resource.status.phase == "Pending"]
            deleted = [event.resource for event in events if event.op == "Deleted"]
            gone += (each.id for each in deleted)
            sets = [event.resource for event in events if event.op == "Modified" and event.resource.type in SETS]
            found += [src for each in (*deleted, *sets) for src in store.referrers(each.id)]
            regranted = regranted or any(_changes_rights(store, event) for event in events)
            found += sorted(self._waiting) if any(event.op == "Added" for event in events) else ()
        found += store.foreign_users(ACTING) if regranted else ()
        return cursor, [*gone, *found]

    def _following(self, store: ResourceStore, resource_id: str) -> Sequence[str]:
        """Returns the ids of resources that refer to this one and follow its changes."""
        referrers = [store.get(referrer) for referrer in store.referrers(resource_id)]
        return [referrer.id for referrer in referrers if referrer is not None and referrer.type in self._followers]

    async def _finalize(self, gone: Resource) -> None:
        """Undoes the effects of a deleted resource, or says why it cannot, and tries again later."""
        fault = await self._fault_of(gone, invoke(self._controllers.of(gone.type).finalize, gone))
        now = self._clock.now()
        if fault is not None:
            retry_at = Instant(now + (self.queue.pause(fault, gone.status.failures) or HOURLY))
            status = held_back(gone.status, gone.generation, fault, retry_at, now)
            told = {"type": gone.type, "name": gone.name, "fault": str(fault), "hint": fault.hint}
            self._logger.error("what a deleted resource made is not undone yet", **told)
            self.queue.later(gone.id, retry_at)

        def end(store: ResourceStore) -> Sequence[str]:
            if fault is not None:
                store.hold_back(msgspec.structs.replace(gone, status=status))
                return ()
            store.end(gone.id)
            return [each.id for each in store.all(gone.type) if each.status.phase == "Failed"]

        for each in await self._write(end):
            self.queue.touch(each)  # it may have waited for the place

    def _at_start(self, resources: Sequence[Resource]) -> Sequence[str]:
        """Returns the ids to check now; the others, whose changes events report,
        are spread over the time after the start."""
        at_rest = [resource for resource in resources if _is_at_rest(resource) and resource.type not in self._silent]
        first, spread = self._clock.now() + QUIET_SECONDS * SECOND, 1 + len(at_rest) * SECOND // LOOKS_A_SECOND
        for each in at_rest:
            self.queue.later(each.id, Instant(first + self._random.randrange(spread)))
        resting = {each.id for each in at_rest}
        return [resource.id for resource in resources if resource.id not in resting]

    async def _turn(self, resource_id: str) -> None:
        try:
            await self._attempt(resource_id)
        finally:
            self.queue.end(resource_id)
            self._turn_over()
            self.loop.poke()

    def _turn_over(self) -> None:
        turned, self.turned = self.turned, trio.Event()
        turned.set()

    async def _attempt(self, resource_id: str) -> None:
        resource, dangling, is_deleted = await self._read(lambda store: _look(store, resource_id))
        if resource is not None and is_deleted:
            await self._finalize(resource)
            return
        if resource is None:
            return
        controller = self._controllers.of(resource.type)
        seen = _with_dangling(await self._try_steps(controller, resource, ()), dangling)
        self._note_waiting(resource_id, seen)
        if _is_as_it_was(resource, seen):
            self._requeue(resource)
            return
        at_work = resource.status.phase == "Reconciling"
        if seen.goes_on is not None and at_work:
            if not seen.goes_on:
                await self._end(resource, (self._status_after(resource, resource.status, seen),))
            return
        way = (*_waiting(resource, seen, self._clock.now()),)
        way = (*way, move(way[-1] if way else resource.status, "Reconciling"))
        if seen.steps and seen.fault is None:
            if not await self._observe(resource, way):
                return
            seen = _with_dangling(await self._try_steps(controller, resource, seen.steps), dangling)
            self._note_waiting(resource_id, seen)
            if not seen.goes_on:
                await self._end(resource, (self._status_after(resource, way[-1], seen),))
        elif seen.goes_on:
            await self._observe(resource, way)
        else:
            await self._end(resource, (*way, self._status_after(resource, way[-1], seen)))

    def _note_waiting(self, resource_id: str, seen: ObservedState) -> None:
        is_waiting = seen.fault is not None and seen.fault.rule == UNRESOLVED
        (self._waiting.add if is_waiting else self._waiting.discard)(resource_id)

    async def _end(self, resource: Resource, statuses: Sequence[ResourceStatus]) -> None:
        if await self._observe(resource, statuses):
            self._notify(resource, statuses[-1])

    async def _try_steps(self, controller: Controller, resource: Resource, steps: Sequence[str]) -> ObservedState:
        """Performs steps and observes the resource again; a fault becomes part of the observed state."""
        seen = ObservedState()

        async def attempt() -> None:
            nonlocal seen
            for step in steps:
                await invoke(controller.perform, resource, step)
            seen = await invoke(controller.observe, resource)

        if (fault := await self._fault_of(resource, attempt())) is not None:
            return ObservedState(fault=fault)
        if steps and seen.steps and seen.fault is None:
            text = f"done, and not so afterwards: {', '.join(seen.steps)}"
            return msgspec.structs.replace(seen, fault=Bug(text, rule="not-settled"))
        return seen

    async def _fault_of(self, resource: Resource, attempt: Awaitable[None]) -> Fault | None:
        """Runs what a controller does for a resource; its mistake is told of that resource, and stops no other."""
        try:
            with trio.fail_after(ATTEMPT_SECONDS):
                await attempt
        except trio.TooSlowError:
            text = f"not done in {ATTEMPT_SECONDS:g} seconds"
            return Environment(text, rule="reconcile-timeout", hint="it is tried again by itself")
        except Exception as error:  # noqa: BLE001  see above
            fault = sole_fault(error)
            if fault is None:
                self._logger.error("a controller failed", type=resource.type, name=resource.name, fault=repr(error))
                fault = Bug(f"{type(error).__name__}: {error}", rule="controller")
            return fault
        return None

    def _status_after(self, resource: Resource, at_work: ResourceStatus, seen: ObservedState) -> ResourceStatus:
        """Returns the status after an attempt. ``at_work``: the status during the attempt."""
        now, generation = self._clock.now(), resource.generation
        if seen.fault is None:
            return ready(at_work, generation, seen.told, now)
        if at_work.observed_generation != generation:
            at_work = msgspec.structs.replace(at_work, failures=0)
        pause = self.queue.pause(seen.fault, at_work.failures)
        retry_at = None if pause is None else Instant(now + pause)
        return fail(at_work, generation, seen.told, seen.fault, retry_at, now)

    def _notify(self, resource: Resource, status: ResourceStatus) -> None:
        """Reports a new status to those who wait for it, and schedules the next attempt."""
        if status.retry_at is not None:
            self.queue.later(resource.id, status.retry_at)
        else:
            self._requeue(resource)
        before = resource.status
        if status.phase == "Failed" and (before.phase, before.code) != ("Failed", status.code):
            self._events.emit(
                "resource.failed",
                resource.name,
                status.message,
                about=Subjects(things=frozenset({resource.id})),
                type=resource.type,
                code=status.code,
            )
        else:
            self._events.nudge()

    def _requeue(self, resource: Resource) -> None:
        """Schedules the next check of a resource whose changes no event reports."""
        if resource.type not in self._silent:
            return
        spread = self._random.randrange(DRIFT_SECONDS * 4 // 5, DRIFT_SECONDS * 6 // 5)
        self.queue.later(resource.id, Instant(self._clock.now() + spread * SECOND))

    async def _observe(self, resource: Resource, statuses: Sequence[ResourceStatus]) -> bool:
        now = self._clock.now()
        return await self._write(lambda store: store.observe(resource.id, resource.generation, statuses, now))

    async def _read(self, call: Callable[[ResourceStore], T]) -> T:
        """Calls a function in a worker thread with the resources at one time."""

        def read() -> T:
            with self._home.database.read() as connection:
                return call(ResourceStore(connection))

        return await trio.to_thread.run_sync(read)

    async def _write(self, call: Callable[[ResourceStore], T]) -> T:
        """Calls a function in a worker thread with the resources, in one transaction."""

        def write() -> T:
            with self._home.database.write() as connection:
                return call(ResourceStore(connection))

        return await trio.to_thread.run_sync(write)


def _look(store: ResourceStore, resource_id: str) -> tuple[Resource | None, Sequence[str], bool]:
    """Reads a resource, the names of missing resources that it refers to, and whether it is deleted."""
    if (held := store.get(resource_id)) is not None:
        return held, store.dangling(resource_id), False
    return store.find_deleting(resource_id), (), True


def _changes_rights(store: ResourceStore, event: ResourceEvent) -> bool:
    """Whether an account may have other rights after a change: by a grant, or on what now belongs to another."""
    if event.resource.type in (ACCOUNT, RELATIONS):
        return True
    before = store.before(event) if event.op == "Modified" else None
    return before is not None and before.account != event.resource.account


def _with_dangling(seen: ObservedState, dangling: Sequence[str]) -> ObservedState:
    """Adds the condition about missing references, which all types have."""
    if not dangling:
        return seen
    condition = ConditionValue(value=True, message=f"not here: {', '.join(dangling)}")
    return msgspec.structs.replace(seen, told={**seen.told, DANGLING: condition})


def _is_at_rest(resource: Resource) -> bool:
    """Whether it was as declared at the last check, and its declaration has not changed since."""
    return resource.status.phase == "Ready" and resource.status.observed_generation == resource.generation


def _waiting(resource: Resource, seen: ObservedState, now: Instant) -> Sequence[ResourceStatus]:
    """Returns the statuses before steps are performed: ``Drift`` until then for a resource that was as declared and is
    not any more, without a new declaration; otherwise pending."""
    if not seen.steps or not seen.is_drift or not _is_at_rest(resource):
        return pending(resource.status)
    return drift(resource.status, resource.generation, f"to be done: {', '.join(seen.steps)}", now)


def _is_as_it_was(resource: Resource, seen: ObservedState) -> bool:
    """Whether nothing is to be done, and nothing new to be reported."""
    status = resource.status
    if status.observed_generation != resource.generation or seen.steps or not is_unchanged(status, seen.told):
        return False
    if seen.fault is None:
        return status.phase == "Ready"
    same = (status.phase, status.code, status.message) == ("Failed", seen.fault.rule, seen.fault.message)
    return same and status.retry_at is None
