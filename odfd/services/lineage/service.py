"""Traces datasets and records (``lineage_query``) to the datasets and records that they were made from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec
import trio

from chain import instant
from chain.codec.arrow_schema import schema_of
from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.state import load_state
from odfd.control import wire
from odfd.control.board import task_ref
from odfd.control.operations import DATASET_PATH, Permission, operation
from odfd.datasets.shard_reading import resolve_chains
from odfd.renditions.sharded_inputs import inputs_of
from odfd.runtime.tasks import Report, TaskBoard
from odfd.services.lineage.question import origin_of
from odfd.services.lineage.restricted_reader import MayRead, RestrictedChains
from odfd.services.lineage.trace import Trace, absent, find_block
from odfd.services.views.views import DatasetViews
from odfd.store import collections
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.transform.driver import TransformDependencies

MAX_LIMIT: Final = 1000
"""Most rows that are listed of one record."""
MAX_GRAPH: Final = 10_000
"""Most datasets of one graph."""


class LineageService:
    """The API service for lineage; traces of records are tasks.

    ``fresh_id`` names questions to engines; ``views`` tell which pins nobody here has.
    """

    def __init__(
        self,
        home: StateDirectory,
        deps: TransformDependencies,
        board: TaskBoard,
        fresh_id: Callable[[], str],
        views: DatasetViews,
    ) -> None:
        self._home = home
        self._deps = deps
        self._board = board
        self._fresh_id = fresh_id
        self._views = views

    @operation("POST", DATASET_PATH + "/lineage", needs=Permission.BY_RULE)
    def trace(self, ref: str, request: wire.LineageRequest, may_read: MayRead | None = None) -> wire.TaskRef:
        """Traces a record to those that it was made from; of several shards, the record of this offset of each.

        Result: Lineage. ``may_read``: the rights of an account. Raises NotFound, Invalid.
        """
        if not 1 <= request.limit <= MAX_LIMIT:
            raise Invalid(f"limit {request.limit}", rule="lineage-limit", hint=f"1 to {MAX_LIMIT} rows of each record")
        entries = self._find_having(ref, request)
        entry = entries[0]
        trace = Trace(self._home, self._deps, entries, request, self._fresh_id, may_read)

        async def work(report: Report) -> wire.Lineage:
            found = await trace.run(report)
            remarks = await trio.to_thread.run_sync(self._remark_on, found)
            return msgspec.structs.replace(found, remarks=remarks)

        return task_ref(self._board.submit("lineage", entry.name, work))

    @operation("GET", DATASET_PATH + "/lineage", needs=Permission.BY_RULE)
    def graph(self, ref: str, may_read: MayRead | None = None) -> wire.LineageGraph:
        """Returns the datasets that a dataset derives from and that derive from it.

        ``may_read``: the rights of an account, to which other datasets appear not to be here.
        """
        return _Graph(self._home, may_read).of(ref)

    def _remark_on(self, found: wire.Lineage) -> tuple[str, ...]:
        """Names the blocks of records whose engine nobody here has."""
        blocks: dict[str, set[int]] = {}
        for record in found.records:
            if record.sequence_number is not None:
                blocks.setdefault(record.id, set()).add(record.sequence_number)
        with self._home.catalog() as catalog:
            entries = [entry for block in blocks if (entry := catalog.find(DatasetId.parse(block))) is not None]
        return tuple(
            f"{entry.name}: {pin.text}"
            for entry in entries
            for pin in self._views.cache.dataset(entry).unheld
            if any(pin.first <= number <= pin.last for number in blocks[str(entry.id)])
        )

    def _find_having(self, ref: str, request: wire.LineageRequest) -> Sequence[DatasetEntry]:
        """Returns the chains of a dataset that have the record. Raises NotFound, Invalid."""
        entries = resolve_chains(self._home, ref)
        having, missing = [], []
        for entry in entries:
            try:
                self._check(entry, request)
                having.append(entry)
            except NotFound as fault:
                missing.append(fault)
        if not having:
            raise missing[0]
        return having

    def _check(self, entry: DatasetEntry, request: wire.LineageRequest) -> None:
        """Checks a question before anything is computed. Raises NotFound, Invalid."""
        chain = self._home.chains.chain(entry.id)
        find_block(entry.name, chain, request.record)
        state = load_state(chain)
        if request.column is None or state.schema is None:
            return
        system = (state.vocab.offset, state.vocab.operation_type, state.vocab.system_time)
        names = [field.name for field in schema_of(state.schema).fields if field.name not in system]
        if request.column not in names:
            raise Invalid(
                f"{entry.name} has no data column {request.column!r}", rule="lineage-column",
                hint=f"columns: {', '.join(names)}",
            )  # fmt: skip


class _Graph:
    """Makes one graph of datasets; a collection is one node, by its first shard. Blocking."""

    def __init__(self, home: StateDirectory, may_read: MayRead | None) -> None:
        self._home = home
        with home.catalog() as catalog:
            self._names = {entry.id: entry.name for entry in catalog.chains()}
        with home.database.read() as connection:
            members = [member for state in collections.every(connection) for member in state.members]
        self._firsts = {shard: member.dataset for member in members for shard in member.shards}
        self._shards = {member.dataset: member.shards for member in members}
        if may_read is not None:
            shown = may_read(list(self._names))
            self._names = {dataset: name for dataset, name in self._names.items() if dataset in shown}
            may_read = _among(self._names)
        self._chains = RestrictedChains(home, may_read)

    def of(self, ref: str) -> wire.LineageGraph:
        start = self._first(self._home.resolve(ref).id)
        nodes = {start: self._node(start, "self")}
        self._climb(nodes, start)
        self._descend(nodes, start)
        return wire.LineageGraph(ref=self._name(start), id=str(start), nodes=tuple(nodes.values()))

    def _first(self, dataset: DatasetId) -> DatasetId:
        return self._firsts.get(dataset, dataset)

    def _name(self, dataset: DatasetId) -> str:
        return self._names.get(dataset, dataset.short)

    def _climb(self, nodes: dict[DatasetId, wire.LineageNode], start: DatasetId) -> None:
        waiting = deque([start])
        while waiting and len(nodes) < MAX_GRAPH:
            for input_ in nodes[waiting.popleft()].inputs:
                above = DatasetId.parse(input_.id)
                if above not in nodes:
                    nodes[above] = self._node(above, "upstream")
                    waiting.append(above)

    def _descend(self, nodes: dict[DatasetId, wire.LineageNode], start: DatasetId) -> None:
        """Adds what derives from the dataset; looks at every dataset once, however many derive from one another."""
        readers: dict[str, list[DatasetId]] = {}
        for each in dict.fromkeys(map(self._first, self._names)):
            for source, _ in self._inputs(each):
                readers.setdefault(str(source), []).append(each)
        waiting = deque([start])
        while waiting and len(nodes) < MAX_GRAPH:
            for below in readers.get(str(waiting.popleft()), []):
                if below not in nodes:
                    nodes[below] = self._node(below, "downstream")
                    waiting.append(below)

    def _node(self, dataset: DatasetId, relation: str) -> wire.LineageNode:
        fields = {"ref": self._name(dataset), "id": str(dataset), "relation": relation}
        shards = self._shards.get(dataset, (dataset,))
        chains = [chain for shard in shards if (chain := self._chains.chain(shard)).head() is not None]
        if len(chains) < len(shards):
            problem = wire.Problem.of(absent(self._name(dataset), dataset))
            return msgspec.convert({**fields, "problem": msgspec.to_builtins(problem)}, wire.LineageNode)
        states = [load_state(chain) for chain in chains]
        times = [state.watermark for state in states if state.watermark is not None]
        inputs = [{"ref": self._name(each), "id": str(each), "alias": alias} for each, alias in self._inputs(dataset)]
        return msgspec.convert(
            {
                **fields,
                "kind": "derivative" if states[0].set_transform is not None else "root",
                "records": sum(state.next_offset for state in states),
                "watermark": instant.render(min(times)) if len(times) == len(states) else None,
                "source": self._source(dataset),
                "inputs": inputs,
            },
            wire.LineageNode,
        )

    def _inputs(self, dataset: DatasetId) -> list[tuple[DatasetId, str]]:
        """Returns the inputs of the transform in force with their aliases, except those without a did."""
        declared = load_state(self._chains.chain(dataset)).set_transform
        found = []
        for each in () if declared is None else inputs_of(declared):
            try:
                found.append((self._first(DatasetId.parse(each.shards[0])), each.alias))
            except Invalid:
                continue
        return found

    def _source(self, dataset: DatasetId) -> str:
        """Returns where the newest data of a root came from."""
        chain = self._chains.chain(dataset)
        last = chain.last_of(("AddData",))
        if last is None:
            return ""
        try:
            origin = origin_of(chain, last)
        except NotFound:
            return ""
        return origin.address or f"push source {origin.name}".rstrip()


def _among(known: Collection[DatasetId]) -> MayRead:
    return lambda datasets: [dataset for dataset in datasets if dataset in known]
