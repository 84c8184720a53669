"""Decides which webhook calls are due, and records their results. Synchronous, over the node's database.

A dataset that moved is compared with what its targets were notified of. The difference becomes one delivery, stored
before the first try and until it is answered. So a crash repeats a call under the same id, and loses none.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from chain import instant
from chain.errors import Fault, NotFound
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from odfd.access.relations import Action
from odfd.flows.plan import FlowPlan, Record
from odfd.flows.spec import WebhookCallTask
from odfd.flows.tasks import fill
from odfd.resources.references import reference_key
from odfd.resources.resource import Resource
from odfd.resources.sets import OpenedSecret, binding
from odfd.resources.store import ResourceStore
from odfd.services.webhooks.flow_call import FlowRun, call_of, event_text
from odfd.store import webhook_calls as store
from odfd.store.catalog import TYPE as DATASET
from odfd.store.catalog import Catalog, Labels
from odfd.store.directory import StateDirectory
from odfd.store.webhook_delivery import (
    CallRecord,
    Delivery,
    NotifiedDataset,
    NotifiedHead,
    event_of,
    is_dead,
    new_delivery,
    notified_head,
    pause_after,
)
from odfd.store.webhook_target import WebhookPolicy, has_policy, policy_of, secret_key, signing_key

TYPE: Final = "WebhookTarget"
FLOW: Final = "Flow"
AT_ONCE: Final = 4
"""Calls to one target at a time; only one while it fails."""
FAILING: Final = 5
"""Failed calls in a row from which on the target is reported as failing."""


class WebhookState(NamedTuple):
    """The delivery state of a target."""

    calls: CallRecord
    waiting: int


class CallTarget(NamedTuple):
    """A target that can be called."""

    resource: Resource
    policy: WebhookPolicy


class DueCall(NamedTuple):
    """A call to make now."""

    target: Resource
    dataset: str
    delivery: Delivery
    secret: OpenedSecret | None
    """``None``: the call is not signed."""


class _Standing(NamedTuple):
    """The present state of a dataset."""

    name: str | None
    """Its name; ``None``: it was deleted."""
    head: NotifiedHead | None


class WebhookDeliveries:
    """Manages the deliveries of one node. Called from worker threads."""

    def __init__(self, home: StateDirectory, new_id: Callable[[], str], labels: Labels) -> None:
        self._home, self._new_id, self._labels = home, new_id, labels
        self._random = random.SystemRandom()

    def state(self, target: Resource) -> WebhookState:
        """Returns the state of a target's deliveries, and starts them if need be. Raises Fault if they cannot start."""
        policy_of(target.annotations)
        with self._home.database.write() as connection:
            secret = self._secret(connection, target)
            if secret is not None:
                signing_key(secret.reveal())
            calls = store.calls(connection, target.id)
            if calls is None or calls.generation != target.generation:
                calls = self._begin(connection, target, calls)
            return WebhookState(calls, store.waiting(connection, target.id))

    def remove(self, target: Resource) -> None:
        """Deletes the deliveries to a deleted target."""
        with self._home.database.write() as connection:
            store.remove(connection, target.id)

    def targets(self) -> list[CallTarget]:
        """Lists the targets that can be called."""
        found = []
        with self._home.database.read() as connection:
            for each in ResourceStore(connection).all(TYPE):
                if store.calls(connection, each.id) is not None:
                    try:
                        found.append(CallTarget(each, policy_of(each.annotations)))
                    except Fault:
                        continue  # its status says so
        return found

    def take(
        self,
        targets: Sequence[CallTarget],
        touched: Iterable[DatasetId] | None,
        busy: Collection[tuple[str, str]],
        now: Instant,
    ) -> tuple[list[DueCall], Instant | None]:
        """Stores new deliveries of ``touched`` datasets, or all; returns the calls to make, and when more are due.

        ``busy``: target and dataset of each call in progress.
        """
        with self._home.database.write() as connection:
            # A target that was deleted since it was read must leave no record behind.
            targets = [target for target in targets if store.calls(connection, target.resource.id) is not None]
            standing = self._standing(connection, targets, touched)
            for target in targets:
                for dataset, here in standing.items():
                    self._note(connection, target, dataset, here, now)
            calls = [each for target in targets for each in self._due(connection, target.resource, busy, now)]
            dues = [store.next_due(connection, target.resource.id, now) for target in targets]
        return calls, min((due for due in dues if due is not None), default=None)

    def settle(
        self, each: DueCall, failed: bool, said: str, now: Instant
    ) -> tuple[CallRecord | None, CallRecord | None]:
        """Records the result of a call; returns the record before and after, ``None`` if the target was deleted."""
        target = each.target.id
        with self._home.database.write() as connection:
            calls, held = store.calls(connection, target), store.find(connection, target, each.dataset)
            # The target or the dataset's record may have been deleted during the call.
            if calls is None or held is None or held.delivery is None:
                return None, None
            tried = msgspec.structs.replace(held.delivery, attempts=held.delivery.attempts + 1)
            is_over = not failed or is_dead(tried, now)
            if is_over:
                self._record(connection, target, each.dataset, NotifiedDataset(name=tried.name, head=tried.head))
            else:
                due = Instant(now + pause_after(tried.attempts, self._random.randrange))
                store.keep(connection, target, each.dataset, msgspec.structs.replace(held, delivery=tried), due)
            counted = msgspec.structs.replace(calls, dead=calls.dead + (failed and is_over))
            after = self._count(connection, target, counted, failed, said, now)
        return calls, after

    def for_flow(self, plan: FlowPlan, record: Record, task: WebhookCallTask, key: str, place: int) -> DueCall:
        """Returns the call that a task of a flow's run makes. Raises NotFound for its target, and as ``state`` does."""
        with self._home.database.read() as connection:
            resources = ResourceStore(connection)
            target = self._home.uses.find_meant(resources, resources.get(record.run or plan.id), key, Action.WRITE)
            secret = self._secret(connection, target)
            entry = Catalog(connection).find(plan.target)
        run = FlowRun(
            id=plan.id,
            flow=plan.name,
            dataset=str(plan.target),
            name="" if entry is None else entry.name,
            time=record.pending if record.pending is not None else record.since,
            is_update=plan.on_update,
            before=self._block(plan.target, record.seen) if plan.on_update else None,
            head=self._head(plan.target),
        )
        body = fill(task.payload, event_text(run), instant.render(run.time))
        return DueCall(target, str(plan.target), call_of(run, body, place), secret)

    def note_call(
        self, target: str, failed: bool, said: str, now: Instant
    ) -> tuple[CallRecord | None, CallRecord | None]:
        """Records the result of a flow's call; returns the record before and after, ``None`` if there is none."""
        with self._home.database.write() as connection:
            calls = store.calls(connection, target)
            if calls is None:
                return None, None
            after = self._count(connection, target, calls, failed, said, now)
        return calls, after

    def _count(
        self,
        connection: sqlite3.Connection,
        target: str,
        calls: CallRecord,
        failed: bool,
        said: str,
        now: Instant,
    ) -> CallRecord:
        """Stores and returns the record with one more call."""
        if not failed and calls.failures:
            store.hasten(connection, target, now)
        after = msgspec.structs.replace(
            calls,
            delivered=calls.delivered + (not failed),
            failures=0 if not failed else calls.failures + 1,
            said=said,
        )
        store.keep_calls(connection, target, after)
        return after

    def _block(self, dataset: DatasetId, block: str | None) -> NotifiedHead | None:
        """Returns a block as a head to notify; ``None`` if it is not in the present history."""
        try:
            found = None if not block else self._home.chains.chain(dataset).block_by_hash(Multihash.parse(block))
        except Fault:
            return None
        return None if found is None else NotifiedHead(str(block), found.sequence_number)

    def _begin(self, connection: sqlite3.Connection, target: Resource, calls: CallRecord | None) -> CallRecord:
        """Starts notifications with the changes after the target's declaration."""
        policy, known = policy_of(target.annotations), set(store.datasets(connection, target.id))
        catalog = Catalog(connection)
        for entry in catalog.entries():
            head = notified_head(self._home.chains.chain(entry.id).head())
            facts = partial(catalog.facts, entry.id, self._labels)
            is_new = head is not None and policy.means(entry.name, facts) and str(entry.id) not in known
            if is_new and self._may_learn(connection, target, str(entry.id)):
                store.keep(connection, target.id, str(entry.id), NotifiedDataset(name=entry.name, head=head), None)
        begun = CallRecord(generation=target.generation, dead=0 if calls is None else calls.dead)
        store.keep_calls(connection, target.id, begun)
        return begun

    def _secret(self, connection: sqlite3.Connection, target: Resource) -> OpenedSecret | None:
        """Returns the secret that signs a target's calls; ``None`` for one without. Raises Fault if it is not here."""
        own = target.spec.get("secret")
        if own is not None:
            return self._home.secrets.open(own["value"], (binding(target.id, "secret"),))
        text = target.spec.get("secretRef")
        if text is None:
            return None
        key = secret_key(text)
        held = self._home.uses.find_meant(ResourceStore(connection), target, reference_key(text, "SecretSet"))
        sealed = held.spec["secrets"].get(key)
        if sealed is None:
            hint = f"apply the SecretSet with it, or name one of {', '.join(sorted(held.spec['secrets'])) or 'another'}"
            raise NotFound(f"SecretSet {held.name} has no {key!r}", rule="webhook-secret", hint=hint)
        return self._home.secrets.open(sealed["value"], (binding(held.id, key),))

    def _standing(
        self, connection: sqlite3.Connection, targets: Sequence[CallTarget], touched: Iterable[DatasetId] | None
    ) -> dict[str, _Standing]:
        """Returns the touched datasets, or all that are here or that a target was notified of."""
        catalog = Catalog(connection)
        if touched is None:
            found = {str(entry.id): _Standing(entry.name, self._head(entry.id)) for entry in catalog.entries()}
            gone = {
                dataset for one in targets for dataset in store.datasets(connection, one.resource.id)
            } - found.keys()
            return found | {each: _Standing(None, None) for each in gone}
        entries = {dataset: catalog.find(dataset) for dataset in touched}
        return {
            str(dataset): _Standing(None, None) if entry is None else _Standing(entry.name, self._head(dataset))
            for dataset, entry in entries.items()
            if entry is None or not entry.is_inner
        }

    def _head(self, dataset: DatasetId) -> NotifiedHead | None:
        return notified_head(self._home.chains.chain(dataset).head())

    def _note(
        self, connection: sqlite3.Connection, target: CallTarget, dataset: str, here: _Standing, now: Instant
    ) -> None:
        """Makes a delivery of the changes that a target was not notified of, unless one of the dataset is open."""
        if here.name is not None and not self._may_learn(connection, target.resource, dataset):
            store.forget(connection, target.resource.id, dataset)
            return
        held = store.find(connection, target.resource.id, dataset)
        name = here.name or ("" if held is None else held.name)
        before = None if held is None else held.head
        event = event_of(before, here.head)
        if event is None or (held is not None and held.delivery is not None):
            return
        facts = partial(Catalog(connection).facts, DatasetId.parse(dataset), self._labels)
        if held is None and not target.policy.means(name, facts):
            return
        if not target.policy.wants(event) or _is_called_by_flows(connection, target.resource):
            self._record(connection, target.resource.id, dataset, NotifiedDataset(name=name, head=here.head))
            return
        delivery = new_delivery(event, dataset, name, (before, here.head), self._new_id(), now)
        store.keep(
            connection, target.resource.id, dataset, NotifiedDataset(name=name, head=before, delivery=delivery), now
        )  # fmt: skip

    def _may_learn(self, connection: sqlite3.Connection, target: Resource, dataset: str) -> bool:
        """Whether the account of a target may read a dataset now, and so be told of its changes."""
        # The owner may read all.
        if target.account is None:
            return True
        found = ResourceStore(connection).row_with_did(DATASET, dataset)
        return found is not None and self._home.uses.may(target.account, found)

    def _is_still_told(self, connection: sqlite3.Connection, target: Resource, dataset: str) -> bool:
        """Whether a delivery may be made: its dataset is gone, or may still be read. Deletes one that may not."""
        is_here = ResourceStore(connection).row_with_did(DATASET, dataset) is not None
        if not is_here or self._may_learn(connection, target, dataset):
            return True
        store.forget(connection, target.id, dataset)
        return False

    def _record(self, connection: sqlite3.Connection, target: str, dataset: str, record: NotifiedDataset) -> None:
        if record.head is None:
            store.forget(connection, target, dataset)
        else:
            store.keep(connection, target, dataset, record, None)

    def _due(
        self,
        connection: sqlite3.Connection,
        target: Resource,
        at_work: Collection[tuple[str, str]],
        now: Instant,
    ) -> list[DueCall]:
        """Returns a target's permitted calls; none if its secret is missing, which its status reports."""
        busy = {dataset for one, dataset in at_work if one == target.id}
        calls = store.calls(connection, target.id)
        # One at a time while it fails: more would most likely fail too, each after up to CALL_SECONDS.
        room = (1 if calls is None or calls.failures >= FAILING else AT_ONCE) - len(busy)
        due = [] if room <= 0 else store.due(connection, target.id, now, room + len(busy))
        # Rights are asked for again at the call: they may have been taken away since the delivery was stored.
        found = [each for each in due if self._is_still_told(connection, target, each[0])]
        try:
            secret = self._secret(connection, target) if found else None
        except Fault:
            return []
        return [
            DueCall(target, dataset, held.delivery, secret)
            for dataset, held in found
            if dataset not in busy and held.delivery is not None
        ][:room]


def _is_called_by_flows(connection: sqlite3.Connection, target: Resource) -> bool:
    """Whether a Flow calls a target that has no policy: calls of its own would tell each change twice.

    Asked in the transaction that passes over a change: if the flow is gone by then, nobody else tells of the change.
    """
    return not has_policy(target.annotations) and bool(ResourceStore(connection).referring(FLOW, target.id))
