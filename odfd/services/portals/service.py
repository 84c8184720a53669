"""Takes rows into portals by their rules, opens portals to auditors, and audits the portals of others.

No peer learns which private dataset a Portal takes rows from, and no account but that which has the Portal. Only those
who may read that dataset too learn what is withheld or left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple, Protocol

import trio

from chain.errors import Fault, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block
from chain.model.portal import RULE
from chain.state import load_state
from chain.store.base import Head, UpperMove
from chain.wording import plural
from odfd.access.relations import Action
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.control.operations import DATASET_PATH, Owner, operation
from odfd.datasets.commit import Commit, CommitPart, block_time
from odfd.datasets.local_data import need_data
from odfd.ingest.driver import IngestDependencies, load
from odfd.portals.manifest import TYPE, PortalSpec, rule_of, spec_of
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.references import reference_key
from odfd.resources.resource import Resource
from odfd.resources.status import UNRESOLVED, ConditionValue
from odfd.resources.store import ResourceStore
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report
from odfd.services.access.input_rights import check_inputs
from odfd.services.portals.audit import Audited, audited_blocks
from odfd.services.portals.publication import (
    PortalInput,
    PortalTake,
    blocks_since,
    check_portal_chain,
    cut_of,
    input_hash,
    opening_text,
    plan_take,
    read_opening,
    salt_of,
)
from odfd.store.catalog import Catalog, DatasetEntry
from odfd.store.directory import StateDirectory

_SAID: Final = 20
"""Blocks that differ of which an audit says why."""


class Noting(Protocol):
    """Signs the result of an audit of one block; ``Observer.note`` implements it. Blocking."""

    def __call__(self, dataset: DatasetId, block: Block, *, is_same: bool, seen: bytes) -> bool:
        """Whether the result is new."""


class Portal(NamedTuple):
    """A Portal whose two datasets are here."""

    id: str
    name: str
    spec: PortalSpec
    input: DatasetId
    dataset: DatasetId


class TakenRows(NamedTuple):
    """The result of taking rows into a portal once."""

    blocks: int
    rows: int
    left_out: int
    withheld: str
    head: Head | None


class PortalService:
    """The API service for portals. ``note`` signs what an audit finds."""

    def __init__(self, home: StateDirectory, deps: IngestDependencies, context: Context, note: Noting) -> None:
        self._home, self._deps, self._note = home, deps, note
        self._board, self._events = context.board, context.events

    def of(self, dataset: DatasetId) -> Portal | None:
        """Returns the Portal that gives rows to a dataset, or ``None``. Blocking. Raises NotFound, Refused for two.

        One whose account may not write the dataset counts for nothing, and stops no other.
        """
        with self._home.database.read() as connection:
            store, row = ResourceStore(connection), Catalog(connection).resource_of(dataset)
            referrers = [] if row is None else [store.get(referrer) for referrer in store.referrers(row.id)]
            found = [
                referrer
                for referrer in referrers
                if referrer is not None
                and referrer.type == TYPE
                and _target(referrer, spec_of(referrer.spec).dataset) == dataset
                if row is not None and self._home.uses.may(referrer.account, row, Action.WRITE)
            ]
        if len(found) > 1:
            text = f"{found[0].name} and {found[1].name} are Portals of one dataset"
            raise Refused(text, rule="portal-dataset", hint=f"odfctl delete portal {found[1].name}")
        return self.resolve(found[0]) if found else None

    def inputs(self, datasets: Sequence[DatasetId]) -> list[DatasetId]:
        """Lists the private inputs of those of the datasets that are portals. Blocking."""
        found: list[DatasetId] = []
        for dataset in datasets:
            with suppress(Fault):  # a fault is reported when the portal is pulled
                portal = self.of(dataset)
                found += () if portal is None else (portal.input,)
        return found

    def resolve(self, resource: Resource) -> Portal:
        """Returns a Portal with its datasets. Raises NotFound if one is not here, or not this node's own; Refused."""
        spec = spec_of(resource.spec)
        found = [_target(resource, each) for each in (spec.input, spec.dataset)]
        for text, dataset in zip((spec.input, spec.dataset), found, strict=True):
            if dataset is None or not self._home.keys.has_dataset_key(dataset):
                raise NotFound(
                    f"there is no dataset {text} of this node", rule=UNRESOLVED, hint="odfctl get datasets lists them"
                )
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            for text, action in ((spec.input, Action.READ), (spec.dataset, Action.WRITE)):
                self._home.uses.find_meant(store, resource, reference_key(text, "Dataset"), action)
        assert found[0] is not None
        assert found[1] is not None
        return Portal(resource.id, resource.name, spec, found[0], found[1])

    def check(self, portal: Portal) -> bool:
        """Whether the private dataset has blocks that the portal has not looked at. Blocking. Raises as ``take``."""
        source, state = self._input(portal), load(self._deps, portal.dataset)
        rule = rule_of(portal.spec, input_hash(source.salt, portal.input))
        check_portal_chain(self._home.name_of(portal.dataset), state, rule)
        cut = cut_of(state.last_data)
        return any(True for _ in blocks_since(source.salt, portal.input, source.chain, cut))

    def pull(self, entry: DatasetEntry, report: Report, *, portal: Portal) -> wire.PullItem:
        """Takes all rows that the rule lets through. Nobody else may write the dataset meanwhile. Blocking."""
        report.begin(f"taking rows into {entry.name}", None, "rows")
        done = self.take(portal)
        text = f"{plural(done.left_out, 'row')} left out by the rule" if done.left_out else ""
        message = "; ".join(part for part in (done.withheld, text) if part)
        outcome: Literal["updated", "blocked", "up-to-date"]
        outcome = "updated" if done.blocks else "blocked" if done.withheld else "up-to-date"
        head = None if done.head is None else str(done.head.hash)
        return wire.PullItem(
            ref=entry.name, outcome=outcome, message=message, blocks=done.blocks, records=done.rows, head=head
        )

    def take(self, portal: Portal) -> TakenRows:
        """Takes all rows that the rule lets through. Nobody else may write the dataset meanwhile. Blocking.

        Raises Fault.
        """
        check_inputs(self._home, portal.dataset, [portal.input])
        blocks = rows = left_out = 0
        while True:
            end_if_unwanted()
            take, expected, upper, time = self._plan(portal)
            left_out += take.left_out
            if not take.events:
                break
            part = CommitPart(
                dataset=portal.dataset,
                expected=expected,
                events=take.events,
                objects=take.objects,
                time=time,
                upper=UpperMove(upper),
            )
            (head,) = self._deps.committer.commit_now(Commit(parts=(part,)))
            blocks, rows = blocks + len(take.events), rows + take.rows
            told = about(portal.dataset)
            name, text = self._home.name_of(portal.dataset), plural(take.rows, "record")
            self._events.emit("dataset.appended", name, text, about=told, blocks=len(take.events), records=take.rows)
            if not take.more:
                return TakenRows(blocks, rows, left_out, "", head)
        withheld = "; ".join(each.message for each in take.withheld)
        return TakenRows(
            blocks, rows, left_out, f"nothing is published of it: {withheld}" if withheld else "", expected
        )

    def _plan(self, portal: Portal) -> tuple[PortalTake, Head, int, Instant]:
        """Plans blocks to append. Returns the head and the frontier that the plan rests on, and its time."""
        upper, state = self._deps.store.upper(portal.dataset), load(self._deps, portal.dataset)
        source, time = self._input(portal), block_time(state, self._deps.now(), upper)
        rule = rule_of(portal.spec, input_hash(source.salt, portal.input))
        check_portal_chain(self._home.name_of(portal.dataset), state, rule)
        take = plan_take(self._deps, source, self._home.chains.chain(portal.dataset), state, rule, time)
        assert state.head is not None, "a dataset that is here has a Seed"
        return take, Head(state.head, state.sequence_number), upper, time

    def _input(self, portal: Portal) -> PortalInput:
        chain = self._home.chains.chain(portal.input)
        salt = salt_of(self._home.keys.node_key(), portal.dataset)
        return PortalInput(portal.input, chain, load_state(chain), salt)

    @operation("GET", DATASET_PATH + "/opening", needs=Owner.PORTALS)
    def open(self, ref: str) -> wire.PortalOpening:
        """Returns what an auditor needs beside the private dataset.

        Raises NotFound; Refused for a dataset without Portal.
        """
        entry = self._home.resolve(ref)
        portal = self.of(entry.id)
        if portal is None:
            hint = "odfctl get portals lists them"
            raise Refused(f"no Portal gives rows to {entry.name}", rule=RULE, hint=hint)
        salt = salt_of(self._home.keys.node_key(), portal.dataset)
        text = opening_text(portal.dataset, portal.input, salt).decode()
        return wire.PortalOpening(name=entry.name, input=self._home.name_of(portal.input), text=text)

    @operation("POST", DATASET_PATH + "/audit", needs=Owner.PORTALS)
    def audit(self, ref: str, request: wire.AuditRequest) -> wire.TaskRef:
        """Audits a portal against its private dataset. Result: AuditResult.

        Raises NotFound if one of the two is not here, Invalid for the opening.
        """
        entry = self._home.resolve(ref)
        dataset, salt = read_opening(request.opening.encode(), entry.id)
        private = self._home.resolve(str(dataset))

        def work(report: Report) -> wire.AuditResult:
            report.begin(f"auditing {entry.name}", None, "blocks")
            return self._audit(entry, private, salt, report)

        return task_ref(self._board.submit("audit", entry.name, work, about(entry.id, private.id)))

    def _audit(self, entry: DatasetEntry, private: DatasetEntry, salt: bytes, report: Report) -> wire.AuditResult:
        for each in (entry, private):
            need_data(self._home, each.id, each.name, whole=True)
        chains, found = self._home.chains, list[Audited]()
        blocks = audited_blocks(self._home.objects, chains.chain(entry.id), chains.chain(private.id), private.id, salt)
        signed = 0
        for one in blocks:
            found.append(one)
            report.done = len(found)
            end_if_unwanted()
            seen = (cut_of(one.block.event) or "").encode()
            signed += self._note(entry.id, one.block, is_same=one.is_same, seen=seen)
        different = [one for one in found if not one.is_same]
        return wire.AuditResult(
            ref=entry.name,
            blocks=len(found),
            same=len(found) - len(different),
            signed=signed,
            differences=tuple(
                wire.AuditDifference(block=one.block.sequence_number, why=one.why) for one in different[:_SAID]
            ),
        )


def _target(resource: Resource, text: str) -> DatasetId | None:
    held = resource.references.get(reference_key(text, "Dataset"))
    return None if held is None or held.did is None else DatasetId.parse(held.did)


class PortalController(Controller):
    """Takes rows into a portal when its private dataset has more, and reports what the rule withholds."""

    type = TYPE
    conditions: Collection[str] = ("Rows",)

    def __init__(self, home: StateDirectory, portals: PortalService) -> None:
        self._home, self._portals = home, portals
        self._last: dict[str, tuple[str, ConditionValue]] = {}
        """The head of the private dataset when rows were last taken, and the result, by id of the Portal."""

    def observe(self, resource: Resource) -> ObservedState:
        portal = self._portals.resolve(resource)
        is_due, now = self._portals.check(portal), self._head(portal)
        head, said = self._last.get(resource.id, ("", None))
        told = {} if said is None else {"Rows": said}
        if not is_due or head == now:
            return ObservedState(told=told)
        return ObservedState(told=told, steps=("take rows",), is_drift=False)

    async def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        portal = await trio.to_thread.run_sync(self._portals.resolve, resource)
        head, taken = await self._home.turns.perform(
            portal.dataset, lambda: (self._head(portal), self._portals.take(portal))
        )
        value = {"rows": taken.rows, "leftOut": taken.left_out, "withheld": bool(taken.withheld)}
        text = taken.withheld or f"{plural(taken.rows, 'row')} taken, {taken.left_out:,} left out"
        self._last[resource.id] = head, ConditionValue(value=value, message=text)

    async def finalize(self, resource: Resource) -> None:
        self._last.pop(resource.id, None)

    def _head(self, portal: Portal) -> str:
        head = self._home.chains.chain(portal.input).head()
        return "" if head is None else str(head.hash)
