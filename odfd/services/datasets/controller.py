"""Observes declared datasets."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import msgspec
import trio

from chain import instant
from chain.errors import Environment, Invalid, NotFound
from chain.ids import DatasetId, DatasetName
from chain.model.events import Seed
from odfd.access.uses import NOT_GRANTED
from odfd.control import wire
from odfd.datasets import failing
from odfd.datasets.manifest import KEPT_ELSEWHERE
from odfd.resources.controller import ApplyBatch, Controller, Intent, ObservedState
from odfd.resources.label_schemas import DATASET_KIND
from odfd.resources.plan import DesiredResource, PlannedResource
from odfd.resources.reader import ResourceReader
from odfd.resources.resource import Json, Resource
from odfd.resources.status import ConditionValue
from odfd.runtime.subjects import Sees
from odfd.services.datasets.deletion import DatasetDeletion
from odfd.services.datasets.planning import DatasetPlanning
from odfd.services.flows.service import FlowService
from odfd.services.ingest.own_roots import check_own_root
from odfd.services.views.dataset_states import DatasetStates
from odfd.services.views.views import with_failure
from odfd.store.captures import keeps_raw
from odfd.store.catalog import TYPE, Catalog, DatasetEntry
from odfd.store.directory import StateDirectory

MAX_KINDS: Final = 100_000
"""Datasets whose kind is remembered, since it is read from a chain once; takes some 10 MB."""


class DatasetController(Controller):
    """Reports the state of a dataset's chain on this node, not how far it may be relied on."""

    type = TYPE
    prepares = "always"
    has_own_events = True
    own_labels = (DATASET_KIND, "did")
    conditions: Collection[str] = ("DatasetState",)
    hears = (
        "attestation", "authority", "cosignature", "damage", "dataset", "evidence", "head", "mirror", "publication",
        "verdict",
    )  # fmt: skip

    def __init__(
        self,
        home: StateDirectory,
        states: DatasetStates,
        described: Callable[[DatasetId], None],
        flows: FlowService,
        planning: DatasetPlanning,
        deletion: DatasetDeletion,
    ) -> None:
        self._home, self._planning, self._deletion = home, planning, deletion
        self._states, self._views = states, states.views
        self._described = described
        self._kinds: dict[str, str] = {}
        self._flows = flows

    def check(self, before: Resource, after: Resource | None) -> None:
        """Checks that only bytes which come in here are to be kept, and a new name. Blocking. Raises Refused, Invalid.

        A new name may not be that of a chain inside a collection.
        """
        if after is not None and before.name != after.name:
            with self._home.catalog() as catalog:
                for fault in catalog.inner_fault(after.name, after.account):
                    raise fault
        if after is not None and after.did is not None and keeps_raw(after.annotations) > keeps_raw(before.annotations):
            check_own_root(self._home, DatasetId.parse(after.did), after.name, KEPT_ELSEWHERE)

    def labels(self, resource: Resource) -> Mapping[str, str]:
        kind = self._kind(resource)
        labels = {} if kind is None else {DATASET_KIND: kind}
        return labels if resource.did is None else {**labels, "did": resource.did}

    def _kind(self, resource: Resource) -> str | None:
        """Returns the declared kind, or that of the chain's Seed; ``None`` for a mirror without blocks yet."""
        if resource.spec is not None:
            return str(resource.spec["kind"])
        if resource.did is None:
            return None
        if resource.did not in self._kinds:
            chain = self._home.chains.chain(DatasetId.parse(resource.did))
            if chain.head() is None:
                return None
            event = chain.block_at(0).event
            assert isinstance(event, Seed)
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            self._kinds[resource.did] = event.dataset_kind.value
        return self._kinds[resource.did]

    def spec_to_store(self, desired: DesiredResource, before: Resource | None) -> Json:
        """Returns the spec without its did, which the resource has. Raises Invalid.

        A spec of a did alone declares nothing: what stands stays as it is. So do fields that a snapshot cannot state.
        """
        spec = {key: value for key, value in desired.spec.items() if key != "did"}
        if spec:
            held = None if before is None else before.spec
            spec = {**held, **spec} if desired.is_partial and held is not None else spec
            is_same = held is not None and {key: value for key, value in held.items() if key != "did"} == spec
            return held if is_same else spec
        if before is None or before.did != desired.spec["did"]:
            text = f"there is no dataset {desired.name} with the id {desired.spec['did'][:120]}"
            hint = "mirror it first; or declare it: spec needs kind and metadata"
            raise Invalid(text, rule="dataset-did", hint=hint)
        return before.spec

    def order(self, planned: Sequence[PlannedResource], batch: ApplyBatch) -> Sequence[PlannedResource]:
        """Returns inputs before what derives from them."""
        return self._planning.order(planned, batch)

    async def prepare(self, planned: PlannedResource, batch: ApplyBatch) -> Intent | None:
        return await self._planning.prepare(planned, batch)

    async def follow_changes(self, changed: Sequence[PlannedResource]) -> None:
        await self._planning.follow_names(changed)

    @contextmanager
    def deletion(self, connection: sqlite3.Connection, gone: Resource, *, purge: bool) -> Iterator[None]:
        """Deletes its chains. Raises Refused while others derive from it, or a reader holds its history."""
        if gone.did is not None:
            self._deletion.record(connection, gone.id, Catalog(connection).resolve(gone.did), purge=purge)
        yield

    async def finalize(self, resource: Resource) -> None:
        await self._deletion.settle(resource.id)

    async def observe(self, resource: Resource) -> ObservedState:
        if resource.did is not None and resource.status.observed_generation != resource.generation:
            self._described(DatasetId.parse(resource.did))
            await self._flows.look([DatasetId.parse(resource.did)])  # its name and labels may select it for others
        seen = await trio.to_thread.run_sync(self._observe, resource)
        was_refused = resource.status.code == NOT_GRANTED
        if was_refused and resource.did is not None and (seen.fault is None or seen.fault.rule != NOT_GRANTED):
            self._flows.touch(DatasetId.parse(resource.did))  # its account may read its inputs again
        return seen

    def states(
        self,
        resources: Sequence[wire.ResourceView],
        sees: Sees | None,  # noqa: ARG002  whoever reads a dataset is told its state
    ) -> Mapping[str, wire.Value]:
        ids = {resource.headers["did"]: resource.id for resource in resources if "did" in resource.headers}
        views = self._states.complete(list(self._looked_at(resources)))
        return {ids[view.id]: msgspec.convert(view, wire.DatasetState, from_attributes=True) for view in views}

    def _looked_at(self, resources: Sequence[wire.ResourceView]) -> Iterator[wire.DatasetView]:
        """Yields the views of datasets that are still here."""
        for resource in resources:
            with suppress(NotFound):
                if (did := resource.headers.get("did")) is not None:
                    created = instant.parse(resource.headers["createdAt"])
                    entry = DatasetEntry(name=DatasetName(resource.name), id=DatasetId.parse(did), created_at=created)
                    yield self._views.dataset(entry)

    def _observe(self, resource: Resource) -> ObservedState:
        entry = self._home.resolve(resource.did or resource.name)
        view = self._views.dataset(entry)
        with self._home.database.read() as connection:
            fails = failing.of(connection, entry.id)
            view = with_failure(view, fails)
            fault = self._home.uses.fault(ResourceReader(connection), resource) or fails
        state = ConditionValue(value=view.state, message=", ".join(view.conditions))
        if view.state != "damaged":
            return ObservedState(told={"DatasetState": state}, fault=fault)
        why = view.rely_on.fact if view.rely_on is not None else "it cannot be read"
        return ObservedState(told={"DatasetState": state}, fault=Environment(why, rule="damaged", hint="odfctl doctor"))
