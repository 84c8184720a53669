"""Calls the targets that people declared, when datasets come, move or go: each change at least once, asynchronously.

Failed calls are repeated after growing pauses; a failing target gets one call at a time. Works while ``run`` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import trio

from chain.errors import Fault, Remote
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.wording import plural
from odfd.control.assembly import Context
from odfd.flows.plan import FlowPlan, Record
from odfd.flows.spec import WebhookCallTask
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.resource import Resource
from odfd.resources.status import ConditionValue
from odfd.runtime.hanging_calls import in_loop
from odfd.runtime.reconcile_loop import UNTIL_POKED, KeyedReconcileLoop
from odfd.runtime.subjects import about
from odfd.runtime.supervision import Life
from odfd.services.webhooks.call import call, judge, reach
from odfd.services.webhooks.webhook_deliveries import (
    FAILING,
    TYPE,
    CallTarget,
    DueCall,
    WebhookDeliveries,
    WebhookState,
)
from odfd.store.catalog import Labels
from odfd.store.directory import StateDirectory
from odfd.store.webhook_delivery import CallRecord, signed_headers
from odfd.store.webhook_target import signing_key
from p2p.ip import IpNetwork

START_SECONDS: Final = 5.0
"""Seconds after a start until all datasets are compared with what targets were notified of."""


class WebhookWorker:
    """Calls all targets of one node."""

    def __init__(
        self,
        home: StateDirectory,
        context: Context,
        inside: Callable[[], tuple[IpNetwork, ...]],
        new_id: Callable[[], str],
        labels: Labels,
    ) -> None:
        """``inside``: returns the networks outside the Internet in which targets may be."""
        self._inside = inside
        self._deliveries = WebhookDeliveries(home, new_id, labels)
        self._clock, self._events = context.clock, context.events
        self.loop: KeyedReconcileLoop[DatasetId] = KeyedReconcileLoop(self._round, start_after=START_SECONDS)
        self._targets: Sequence[CallTarget] | None = None
        """The declared targets; ``None``: they must be read again."""
        self._changes = 0
        """Counts changes of targets: a list that was read across one of them is used once, and read again."""
        self._at_work: set[tuple[str, str]] = set()
        """Target and dataset of each call in progress."""
        self._nursery: trio.Nursery | None = None

    async def run(self, life: Life) -> None:
        self._targets, self._at_work = None, set()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await self.loop.run(life)
            finally:
                self._nursery = None
            nursery.cancel_scope.cancel()

    async def state(self, target: Resource) -> WebhookState:
        """Returns the state of a target's deliveries, and starts them if need be. Raises Fault if they cannot start."""
        state = await trio.to_thread.run_sync(self._deliveries.state, target)
        self._read_again()
        self.loop.poke()
        return state

    async def reach(self, target: Resource) -> str:
        """Asks whether a server is at a target's address, as ``odfd.services.webhooks.call.reach``. Raises Remote."""
        url = target.spec["url"]
        return await reach(url, judge(url, self._inside()))

    def remove(self, target: Resource) -> None:
        """Stops the deliveries to a deleted target. Blocking."""
        self._read_again()
        self._deliveries.remove(target)
        self._read_again()

    @in_loop
    def _read_again(self) -> None:
        self._targets = None
        self._changes += 1

    async def call_for(self, plan: FlowPlan, record: Record, task: WebhookCallTask, key: str, place: int) -> str:
        """Makes the call of a task of a flow's run; returns the target's answer. ``key``: the reference to the target.

        Raises Remote if the answer is no success, and the fault that prevents a call.
        """
        wanted = await trio.to_thread.run_sync(self._deliveries.for_flow, plan, record, task, key, place)
        said, fault = await self._send(wanted)
        before, after = await trio.to_thread.run_sync(
            self._deliveries.note_call, wanted.target.id, fault is not None, said, self._clock.now()
        )
        self._log_result(wanted.target, before, after)
        self.loop.poke()
        if fault is not None:
            fault.place = f"WebhookTarget {wanted.target.name}"
            raise fault
        return f"{wanted.target.name} {said}"

    async def _round(self) -> float:
        touched, now = self.loop.take(), self._clock.now()
        known, changes, at_work = self._targets, self._changes, frozenset(self._at_work)

        def look() -> tuple[Sequence[CallTarget], Sequence[DueCall], Instant | None]:
            targets = self._deliveries.targets() if known is None else known
            if not targets:
                return targets, (), None
            return targets, *self._deliveries.take(targets, touched if known is not None else None, at_work, now)

        targets, calls, due = await trio.to_thread.run_sync(look)
        if changes == self._changes:
            self._targets = targets
        for each in calls:
            self._at_work.add((each.target.id, each.dataset))
            assert self._nursery is not None
            self._nursery.start_soon(self._call, each)
        return UNTIL_POKED if due is None else max(0.0, (due - now) / SECOND)

    async def _call(self, each: DueCall) -> None:
        said, fault = await self._send(each)
        before, after = await trio.to_thread.run_sync(
            self._deliveries.settle, each, fault is not None, said, self._clock.now()
        )
        self._at_work.discard((each.target.id, each.dataset))
        self._log_result(each.target, before, after)
        self.loop.touch(DatasetId.parse(each.dataset))

    async def _send(self, each: DueCall) -> tuple[str, Fault | None]:
        """Signs and makes a call. Returns the target's answer,
        or the reason why there is no good one, and the fault."""
        url = each.target.spec["url"]
        try:
            key = None if each.secret is None else signing_key(each.secret.reveal())
            headers = signed_headers(each.delivery, key, self._clock.now())
            status = await call(url, headers, each.delivery.body.encode(), judge(url, self._inside()))
        except Fault as fault:
            return fault.message, fault
        return f"answered {status}", None

    def _log_result(self, target: Resource, before: CallRecord | None, after: CallRecord | None) -> None:
        if before is None or after is None:
            return
        name, told = target.name, about(target.id)
        if after.dead > before.dead:
            self._events.emit("webhook.given-up", name, after.said, about=told)
        if before.failures < FAILING <= after.failures:
            self._events.emit("webhook.failed", name, after.said, about=told)
        if before.failures == 0 < after.failures < FAILING:
            self._events.emit("webhook.retried", name, after.said, about=told)
        if after.failures == 0 and (before.failures or not before.delivered):
            self._events.emit("webhook.answered", name, after.said, about=told)


UNKNOWN: Final = "Unknown"
"""The value of a condition that is neither so nor not, as far as is known."""


class WebhookController(Controller):
    """Reports whether the target answers, and which deliveries were given up."""

    type = TYPE
    conditions: Collection[str] = ("Answers",)
    hears = ("webhook",)

    def __init__(self, webhooks: WebhookWorker) -> None:
        self._webhooks = webhooks

    async def observe(self, resource: Resource) -> ObservedState:
        calls, waiting = await self._webhooks.state(resource)
        failing, silence = calls.failures >= FAILING, ""
        if not calls.delivered and not failing:  # whether it answers is not known before somebody asks
            silence = await self._webhooks.reach(resource)
        lost = f"{plural(calls.dead, 'delivery', 'deliveries')} given up" if calls.dead else ""
        repeated = f"a call failed, and is repeated: {calls.said}" if calls.failures and not failing else ""
        unknown = f"it accepted the connection, but did not answer HEAD: {silence}" if silence else ""
        message = "; ".join(each for each in (unknown, repeated, lost) if each)
        told = {"Answers": ConditionValue(value=UNKNOWN if silence else not failing, message=message)}
        if not failing:
            return ObservedState(told=told)
        text = f"{calls.said}; {plural(waiting, 'delivery waits', 'deliveries wait')}"
        return ObservedState(told=told, fault=Remote(text, rule="webhook-failed", hint="it is tried again by itself"))

    def finalize(self, resource: Resource) -> None:
        self._webhooks.remove(resource)
