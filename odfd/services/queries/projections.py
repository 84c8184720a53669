"""Computes the tables of Projections, and reports how far each is behind its inputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import trio

from chain.data.parquet import open_slice
from chain.errors import Fault, NotFound
from chain.ids import DatasetId
from chain.instant import Instant
from chain.wording import plural
from odfd.control import wire
from odfd.datasets.shard_reading import resolve_chains
from odfd.queries.askers import OWNER_ITSELF, Asker, Bound, Crowd, QueryCaller
from odfd.queries.planning import KeptTable
from odfd.queries.projections import (
    TYPE,
    ProjectionSpec,
    ProjectionStore,
    RecordedInput,
    TableRecord,
    fingerprint,
    spec_of,
)
from odfd.queries.sharded_cuts import heads_of
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.references import reference_key
from odfd.resources.resource import Resource
from odfd.resources.status import UNRESOLVED, ConditionValue
from odfd.resources.store import ResourceStore
from odfd.runtime.clock import Clock
from odfd.services.queries.service import QueryService
from odfd.store.catalog import Catalog, NamedId
from odfd.store.directory import PROJECTIONS, StateDirectory


class ProjectionState(msgspec.Struct, frozen=True, kw_only=True):
    """The table of a projection, and the current heads of its inputs."""

    record: TableRecord | None
    inputs: Sequence[RecordedInput]
    is_current: bool

    @property
    def lag(self) -> int:
        """Returns the number of input blocks that the table does not include."""
        held = {} if self.record is None else {input_.dataset: input_.size for input_ in self.record.inputs}
        return sum(max(0, input_.size - held.get(input_.dataset, 0)) for input_ in self.inputs)


class ProjectionTables:
    """The tables of one node. ``most``: bytes of one."""

    def __init__(self, home: StateDirectory, queries: QueryService, clock: Clock, most: int) -> None:
        self._home, self._queries, self._clock, self._most = home, queries, clock, most
        self._store = ProjectionStore(home.folder(PROJECTIONS))
        with home.database.read() as connection:
            self._store.sweep({each.id for each in ResourceStore(connection).all(TYPE)})

    def find(self, name: str, asker: Asker) -> KeptTable | None:
        """Returns the table of a projection by name, if a caller may read it. Blocking.

        Raises Refused while the account of the projection may not read an input: the table goes with that right.
        """
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            found = store.find_any(TYPE, name) if asker.reads is None else store.resolve(TYPE, name, asker.account)
            if found is None or (asker.reads is not None and not asker.reads(found.id)):
                return None
            fault = self._home.uses.fault(store, found)
        if fault is not None:
            raise fault
        return self._store.table(found.id, found.name)

    def is_declared(self, name: str) -> bool:
        """Whether there is a projection of that name, even if it has no table yet. Blocking."""
        with self._home.database.read() as connection:
            return ResourceStore(connection).find_any(TYPE, name) is not None

    def state(self, resource: Resource) -> ProjectionState:
        """Returns the state of a projection. Blocking. Raises NotFound for an input that is missing or empty."""
        spec = spec_of(resource.spec)
        inputs = [shard for shards, _ in self._inputs(resource, spec) for shard in shards]
        record = self._store.find(resource.id)
        is_current = (
            record is not None
            and record.spec == fingerprint(resource.spec)
            and [(input_.dataset, input_.block) for input_ in record.inputs]
            == [(input_.dataset, input_.block) for input_ in inputs]
        )
        return ProjectionState(record=record, inputs=inputs, is_current=is_current)

    async def compute(self, resource: Resource) -> None:
        """Computes the table again, from the current inputs. Raises Fault."""
        spec = spec_of(resource.spec)
        inputs = await trio.to_thread.run_sync(lambda: list(self._inputs(resource, spec)))
        bound = {name.lower(): _bind(shards) for shards, names in inputs for name in names}
        request = wire.QueryRequest(sql=spec.project.sql)
        part = self._store.part(resource.id)
        try:
            asker = Asker(bound=bound, caller=_caller(resource))
            plan, rows, content = await self._queries.keep(request, asker, part, self._most)
            read = {str(shard.dataset): shard.cut for view in plan.views for shard in view.shards or (view,)}
            recorded = [
                shard
                if (cut := read.get(shard.dataset)) is None
                else msgspec.structs.replace(shard, size=cut.size, block=str(cut.block))
                for shards, _ in inputs
                for shard in shards
            ]

            def keep() -> None:
                with open_slice(part) as found:
                    schema = found.schema.remove_metadata().serialize().to_pybytes()
                record = TableRecord(
                    spec=fingerprint(resource.spec), inputs=tuple(recorded), schema=schema, rows=rows,
                    size=part.stat().st_size, content=content, at=Instant(self._clock.now()),
                )  # fmt: skip
                self._store.keep(resource.id, part, record)

            await trio.to_thread.run_sync(keep)
        finally:
            part.unlink(missing_ok=True)

    def remove(self, resource: Resource) -> None:
        """Deletes the table of a projection. Blocking."""
        self._store.remove(resource.id)

    def _inputs(
        self, resource: Resource, spec: ProjectionSpec
    ) -> Sequence[tuple[Sequence[RecordedInput], Sequence[str]]]:
        """Returns the shards of each input at their heads, with the names by which the query may call it.

        Raises NotFound.
        """
        found = []
        for input_ in spec.inputs:
            key = reference_key(input_.dataset_ref, "Dataset")
            held = resource.references.get(key)
            with self._home.database.read() as connection:
                entry = None
                if held is not None and held.did is not None:
                    entry = Catalog(connection).find(DatasetId.parse(held.did))
                if entry is not None:
                    self._home.uses.find_meant(ResourceStore(connection), resource, key)
            shards = () if entry is None else resolve_chains(self._home, NamedId(str(entry.id)))
            heads = heads_of(self._home, [shard.id for shard in shards]) if shards else ()
            if entry is None or None in heads:
                text = f"no dataset {input_.dataset_ref[:120]!r} here"
                raise NotFound(text, rule=UNRESOLVED, hint="it is computed when the dataset exists")
            names = (input_.name,) if input_.alias is not None else (input_.name, entry.name)
            recorded = [
                RecordedInput(name=shard.name, dataset=str(shard.id), size=head.size, block=str(head.hash))
                for shard, head in zip(shards, heads, strict=True)
                if head is not None
            ]
            found.append((recorded, names))
        return found


def _bind(shards: Sequence[RecordedInput]) -> Bound:
    ids = tuple(DatasetId.parse(shard.dataset) for shard in shards)
    return Bound(ids[0], shards=ids if len(ids) > 1 else ())


def _caller(resource: Resource) -> QueryCaller:
    """Returns with whom the queries of a projection take turns: those of its account."""
    return OWNER_ITSELF if resource.account is None else QueryCaller(Crowd.ACCOUNTS, resource.account)


class ProjectionController(Controller):
    """Keeps the table of a projection, and reports how far it is behind its inputs."""

    type = TYPE
    conditions: Collection[str] = ("Table",)

    def __init__(self, tables: ProjectionTables) -> None:
        self._tables = tables
        self._faults: dict[str, Fault] = {}
        """Faults of computations, by id of the Projection, until they are reported beside the present table."""

    def observe(self, resource: Resource) -> ObservedState:
        fault = self._faults.pop(resource.id, None)
        state = self._tables.state(resource)
        told = {} if state.record is None else {"Table": _table_condition(state, state.record)}
        if state.is_current or fault is not None:
            return ObservedState(told=told, fault=fault)
        return ObservedState(told=told, steps=("compute the table",), is_drift=False)

    async def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        try:
            await self._tables.compute(resource)
        except Fault as fault:
            self._faults[resource.id] = fault

    def finalize(self, resource: Resource) -> None:
        self._faults.pop(resource.id, None)
        self._tables.remove(resource)


def _table_condition(state: ProjectionState, record: TableRecord) -> ConditionValue:
    inputs = [
        {"name": input_.name, "did": input_.dataset, "head": {"hash": input_.block, "sequenceNumber": input_.size - 1}}
        for input_ in record.inputs
    ]
    value = {"rows": record.rows, "bytes": record.size, "lag": state.lag, "inputs": inputs}
    behind = f", {plural(state.lag, 'block')} behind" if state.lag else ""
    return ConditionValue(value=value, message=f"{plural(record.rows, 'row')}{behind}")
