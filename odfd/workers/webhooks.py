"""Calls the targets that people declared, when datasets come, move or go: each news at least once, off their way.

A dataset that moved is touched; what its targets have not been told of it becomes one delivery, kept before it is tried
and until it was answered. So a crash repeats a call under the same id, and loses none. Failed calls come again after
growing pauses; a target that fails has one call at a time. Alive while ``run`` is.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
import trio

from chain.errors import Environment, Fault, NotFound
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from odfd.control.assembly import Context
from odfd.datasets.catalog import Catalog
from odfd.resources.declared import DeclaredResource, DeclaredStore
from odfd.resources.references import reference_key
from odfd.resources.sets import OpenedSecret, binding
from odfd.resources.status import UNRESOLVED
from odfd.resources.store import Resources
from odfd.runtime.reconcile_loop import UNTIL_POKED, KeyedReconcileLoop
from odfd.runtime.supervision import Life
from odfd.state.directory import StateDirectory
from odfd.webhooks import store
from odfd.webhooks.call import call, judge
from odfd.webhooks.delivery import (
    CallRecord,
    Delivery,
    ToldDataset,
    ToldHead,
    event_of,
    is_dead,
    new_delivery,
    pause_after,
    signed_headers,
    signing_key,
    told_head,
)
from odfd.webhooks.target import WebhookPolicy, policy_of, secret_key
from p2p.ip import IpNetwork

TYPE: Final = "WebhookTarget"
START_SECONDS: Final = 5.0
"""After a start, before all datasets are compared with what was told of them."""
AT_ONCE: Final = 4
"""Calls of one target; one, while it fails."""
FAILING: Final = 5
"""Calls in a row that failed, from which on the target is said to."""


class WebhookState(NamedTuple):
    """The delivery state of a target."""

    calls: CallRecord
    waiting: int


class _Target(NamedTuple):
    resource: DeclaredResource
    policy: WebhookPolicy


class _Call(NamedTuple):
    target: DeclaredResource
    dataset: str
    delivery: Delivery
    secret: OpenedSecret


class _Standing(NamedTuple):
    """A dataset as it is."""

    name: str | None
    """``None``: it is gone."""
    head: ToldHead | None


class WebhookWorker:
    """The worker of all targets of one node."""

    def __init__(
        self, home: StateDirectory, context: Context, inside: tuple[IpNetwork, ...], new_id: Callable[[], str]
    ) -> None:
        self.inside = inside
        """Networks beside the Internet where targets may be."""
        self._home, self._new_id = home, new_id
        self._clock, self._events = context.clock, context.events
        self._random = random.SystemRandom()
        self.loop: KeyedReconcileLoop[DatasetId] = KeyedReconcileLoop(self._round, start_after=START_SECONDS)
        self._targets: Sequence[_Target] | None = None
        """As they are declared; ``None``: to be read anew."""
        self._at_work: set[tuple[str, str]] = set()
        """Target and dataset."""
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

    async def state(self, target: DeclaredResource) -> WebhookState:
        """Returns the state of a target's deliveries, which start now. Raises Fault where they cannot."""
        state = await trio.to_thread.run_sync(self._state, target)
        self._targets = None
        self.loop.poke()
        return state

    async def remove(self, target: DeclaredResource) -> None:
        """Stops the deliveries to a deleted target."""
        self._targets = None

        def remove() -> None:
            with self._home.database.write() as connection:
                store.remove(connection, target.id)

        await trio.to_thread.run_sync(remove)

    def _state(self, target: DeclaredResource) -> WebhookState:
        policy_of(target.annotations)
        with self._home.database.write() as connection:
            signing_key(self._secret(connection, target).reveal())
            calls = store.calls(connection, target.id)
            if calls is None or calls.generation != target.generation:
                calls = self._begin(connection, target, calls)
            return WebhookState(calls, store.waiting(connection, target.id))

    def _begin(self, connection: sqlite3.Connection, target: DeclaredResource, calls: CallRecord | None) -> CallRecord:
        """It is told of what comes after it was declared, or declared in another way."""
        policy, known = policy_of(target.annotations), set(store.datasets(connection, target.id))
        for each in Catalog(Resources(connection)).entries():
            head = told_head(self._home.chains.chain(each.id).head())
            if head is not None and policy.names(each.name) and str(each.id) not in known:
                store.keep(connection, target.id, str(each.id), ToldDataset(name=each.name, head=head), None)
        begun = msgspec.structs.replace(calls or CallRecord(generation=0), generation=target.generation, failures=0)
        store.keep_calls(connection, target.id, begun)
        return begun

    def _secret(self, connection: sqlite3.Connection, target: DeclaredResource) -> OpenedSecret:
        """Raises Fault."""
        text, key = target.spec["secret"], secret_key(target.spec["secret"])
        handle = target.references.get(reference_key(text, "SecretSet"))
        held = None if handle is None else DeclaredStore(connection).get(handle.id)
        if held is None:
            raise NotFound(f"there is no {text.partition('#')[0]}", rule=UNRESOLVED, hint="apply the SecretSet")
        sealed = held.spec["secrets"].get(key)
        if sealed is None:
            hint = f"apply the SecretSet with it, or name one of {', '.join(sorted(held.spec['secrets'])) or 'another'}"
            raise Environment(f"SecretSet {held.name} has no {key!r}", rule="webhook-secret", hint=hint)
        return self._home.secrets.open(sealed["value"], (binding(held.id, key),))

    async def _round(self) -> float:
        touched, now = self.loop.take(), self._clock.now()
        if self._targets is None:
            touched = None
            self._targets = await trio.to_thread.run_sync(self._read)
        if not self._targets:
            return UNTIL_POKED
        calls, due = await trio.to_thread.run_sync(self._look, self._targets, touched, now)
        for each in calls:
            self._at_work.add((each.target.id, each.dataset))
            assert self._nursery is not None
            self._nursery.start_soon(self._call, each)
        return UNTIL_POKED if due is None else max(0.0, (due - now) / SECOND)

    def _read(self) -> list[_Target]:
        """Those that can be called."""
        found = []
        with self._home.database.read() as connection:
            for each in DeclaredStore(connection).all(TYPE):
                if store.calls(connection, each.id) is not None:
                    try:
                        found.append(_Target(each, policy_of(each.annotations)))
                    except Fault:
                        continue  # its status says so
        return found

    def _look(
        self, targets: Sequence[_Target], touched: Iterable[DatasetId] | None, now: Instant
    ) -> tuple[list[_Call], Instant | None]:
        """Note what is to be told, and take what is to be told now; and when there is more."""
        with self._home.database.write() as connection:
            standing = self._standing(connection, targets, touched)
            for target in targets:
                for dataset, here in standing.items():
                    self._note(connection, target, dataset, here, now)
            calls = [each for target in targets for each in self._due(connection, target.resource, now)]
            dues = [store.next_due(connection, target.resource.id, now) for target in targets]
        return calls, min((each for each in dues if each is not None), default=None)

    def _standing(
        self, connection: sqlite3.Connection, targets: Sequence[_Target], touched: Iterable[DatasetId] | None
    ) -> dict[str, _Standing]:
        """Of touched datasets, or of all that are here or that a target was told of."""
        catalog = Catalog(Resources(connection))
        if touched is None:
            found = {str(each.id): _Standing(each.name, self._head(each.id)) for each in catalog.entries()}
            gone = {each for one in targets for each in store.datasets(connection, one.resource.id)} - found.keys()
            return found | {each: _Standing(None, None) for each in gone}
        entries = {dataset: catalog.find(dataset) for dataset in touched}
        return {
            str(dataset): _Standing(None, None) if entry is None else _Standing(entry.name, self._head(dataset))
            for dataset, entry in entries.items()
        }

    def _head(self, dataset: DatasetId) -> ToldHead | None:
        return told_head(self._home.chains.chain(dataset).head())

    def _note(
        self, connection: sqlite3.Connection, target: _Target, dataset: str, here: _Standing, now: Instant
    ) -> None:
        """Make a delivery of what the target was not told of a dataset, where none of it is under way."""
        held = store.told(connection, target.resource.id, dataset)
        name = here.name or ("" if held is None else held.name)
        before = None if held is None else held.head
        event = event_of(before, here.head)
        if event is None or (held is not None and held.delivery is not None):
            return
        if held is None and not target.policy.names(name):
            return
        if not target.policy.wants(event):
            self._told(connection, target.resource.id, dataset, ToldDataset(name=name, head=here.head))
            return
        delivery = new_delivery(event, dataset, name, (before, here.head), self._new_id(), now)
        store.keep(
            connection, target.resource.id, dataset, ToldDataset(name=name, head=before, delivery=delivery), now
        )  # fmt: skip

    def _told(self, connection: sqlite3.Connection, target: str, dataset: str, record: ToldDataset) -> None:
        if record.head is None:
            store.forget(connection, target, dataset)
        else:
            store.keep(connection, target, dataset, record, None)

    def _due(self, connection: sqlite3.Connection, target: DeclaredResource, now: Instant) -> list[_Call]:
        """Of one target, as many as it may have. None where its secret cannot be had: its status says so."""
        busy = {dataset for one, dataset in self._at_work if one == target.id}
        calls = store.calls(connection, target.id)
        room = (1 if calls is None or calls.failures >= FAILING else AT_ONCE) - len(busy)
        found = [] if room <= 0 else store.due(connection, target.id, now, room + len(busy))
        try:
            secret = self._secret(connection, target) if found else None
        except Fault:
            return []
        return [
            _Call(target, dataset, held.delivery, secret)
            for dataset, held in found
            if dataset not in busy and held.delivery is not None and secret is not None
        ][:room]

    async def _call(self, each: _Call) -> None:
        url, delivery, failure = each.target.spec["url"], each.delivery, None
        try:
            headers = signed_headers(delivery, signing_key(each.secret.reveal()), self._clock.now())
            said = f"answered {await call(url, headers, delivery.body.encode(), judge(url, self.inside))}"
        except Fault as fault:
            said = failure = fault.message
        before, after = await trio.to_thread.run_sync(self._settle, each, failure, said)
        self._at_work.discard((each.target.id, each.dataset))
        self._tell(each.target.name, before, after)
        self.loop.touch(DatasetId.parse(each.dataset))

    def _settle(self, each: _Call, failure: str | None, said: str) -> tuple[CallRecord | None, CallRecord | None]:
        """Keep what became of a call; the record before and after, ``None`` where the target is gone."""
        now, target = self._clock.now(), each.target.id
        with self._home.database.write() as connection:
            calls, held = store.calls(connection, target), store.told(connection, target, each.dataset)
            if calls is None or held is None or held.delivery is None:
                return None, None
            tried = msgspec.structs.replace(held.delivery, attempts=held.delivery.attempts + 1)
            is_over = failure is None or is_dead(tried, now)
            if is_over:
                self._told(connection, target, each.dataset, ToldDataset(name=tried.name, head=tried.head))
            else:
                due = Instant(now + pause_after(tried.attempts, self._random.randrange))
                store.keep(connection, target, each.dataset, msgspec.structs.replace(held, delivery=tried), due)
            if failure is None and calls.failures:
                store.hasten(connection, target, now)
            after = msgspec.structs.replace(
                calls,
                delivered=calls.delivered + (failure is None),
                dead=calls.dead + (failure is not None and is_over),
                failures=0 if failure is None else calls.failures + 1,
                said=said,
            )
            store.keep_calls(connection, target, after)
        return calls, after

    def _tell(self, name: str, before: CallRecord | None, after: CallRecord | None) -> None:
        if before is None or after is None:
            return
        if after.dead > before.dead:
            self._events.emit("webhook.given-up", name, after.said)
        if before.failures < FAILING <= after.failures:
            self._events.emit("webhook.failed", name, after.said)
        if after.failures == 0 and before.failures >= FAILING:
            self._events.emit("webhook.answered", name, after.said)
