"""Traces one record through datasets back to the first ingested records that it is made from.

Goes breadth first and looks at each record once; records of one transaction are one question to the engine. Something
that cannot be followed (an input or its data that is not held, a query that does not give the record) is reported at
its place, and the rest goes on; only for the record that was asked about it is an error. Made for one task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import trio

from chain import instant
from chain.errors import Fault, Invalid, NotFound
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.events import AddData
from chain.state import load_state
from chain.store.base import ChainReader
from chain.store.objects import sound_path
from engines.contract import (
    MAX_QUESTIONS,
    EngineInternalError,
    InvalidQuery,
    ProvenanceRequest,
    ProvenanceSuccess,
    RecordProvenance,
)
from engines.errors import EngineFault, engine_failed
from odfd.control import wire
from odfd.datasets.local_data import need_data
from odfd.runtime.tasks import Report
from odfd.services.lineage.question import LineageQuestion, block_of_record, data_of, origin_of, question, rows_at
from odfd.services.lineage.restricted_reader import MayRead, RestrictedChains
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.transform.driver import TransformDependencies, fresh_folder
from odfd.transform.inputs import input_ids, only_appends

MAX_FOLLOWED: Final = 2000
"""Most records in one answer; those beyond are named and not followed."""
MAX_TOLD: Final = 20_000
"""Rows in one answer after which no more records are followed."""
Told: TypeAlias = Mapping[int, tuple[object, dict[str, object] | None]]
"""The op and the data of records, by offset; ``None`` where the data is not here."""


class Trace:
    """Answers one question about a record; in a dataset of several shards about that of each shard with its offset."""

    def __init__(
        self,
        home: StateDirectory,
        deps: TransformDependencies,
        entries: Sequence[DatasetEntry],
        request: wire.LineageRequest,
        fresh_id: Callable[[], str],
        may_read: MayRead | None = None,
    ) -> None:
        """``entries``: the chains that have the record. ``may_read``: the rights of an account, to which other datasets
        appear not to be here."""
        self._home, self._chains = home, RestrictedChains(home, may_read)
        self._deps = deps
        self._entry = entries[0]
        self._roots = [(entry.id, request.record) for entry in entries]
        self._request = request
        self._fresh_id = fresh_id
        self._known: dict[tuple[DatasetId, int], wire.LineageRecord] = {}
        self._names: dict[DatasetId, str] = {}
        self._told = 0
        self._cut = False

    async def run(self, report: Report) -> wire.Lineage:
        report.begin(f"tracing record {self._request.record} of {self._entry.name}", None, "records")
        frontier = list(self._roots)
        while frontier:
            groups = await trio.to_thread.run_sync(self._group, frontier)
            for dataset, block, offsets in groups:
                if self._told >= MAX_TOLD:
                    self._cut = True
                    break
                await self._follow(dataset, block, offsets)
                report.advance(len(offsets))
            frontier = self._next([place for group in groups for place in _places(group)])
        records = tuple(self._known.values())
        return wire.Lineage(
            ref=self._entry.name,
            id=str(self._entry.id),
            record=self._request.record,
            column=self._request.column,
            records=records,
            roots=tuple(str(dataset) for dataset, _ in self._roots) if len(self._roots) > 1 else (),
            complete=not self._cut and all(record.state != "unknown" and not record.truncated for record in records),
        )

    def _next(self, traced: Sequence[tuple[DatasetId, int]]) -> list[tuple[DatasetId, int]]:
        """Returns the records that the traced ones are made from and that were not met before."""
        found: dict[tuple[DatasetId, int], None] = {}
        for row in (row for place in traced if place in self._known for row in self._known[place].rows):
            key = DatasetId.parse(row.id), row.offset
            if key in self._known or key in found:
                continue
            if len(self._known) + len(found) >= MAX_FOLLOWED:
                self._cut = True
                break
            found[key] = None
        return list(found)

    def _group(self, places: Sequence[tuple[DatasetId, int]]) -> list[tuple[DatasetId, Block, list[int]]]:
        """Groups records by the block that holds them, in batches.

        Records that no block holds are marked as unknown, with the reason.
        """
        groups: dict[tuple[DatasetId, int, int], tuple[DatasetId, Block, list[int]]] = {}
        counts: dict[tuple[DatasetId, int], int] = {}
        for dataset, offset in places:
            try:
                block = self._block(dataset, offset)
            except NotFound as fault:
                self._known[dataset, offset] = self._unknown(dataset, offset, fault)
                continue
            place = dataset, block.sequence_number
            part = counts[place] = counts.get(place, -1) + 1
            groups.setdefault((*place, part // MAX_QUESTIONS), (dataset, block, []))[2].append(offset)
        return list(groups.values())

    def _block(self, dataset: DatasetId, offset: int) -> Block:
        chain = self._chains.chain(dataset)
        if chain.head() is None:
            raise absent(self._name(dataset), dataset)
        return find_block(self._name(dataset), chain, offset)

    async def _follow(self, dataset: DatasetId, block: Block, offsets: list[int]) -> None:
        is_root = (dataset, offsets[0]) in self._roots
        try:
            if isinstance(block.event, AddData):
                await trio.to_thread.run_sync(self._note_ingested, dataset, block, offsets)
            else:
                column = self._request.column if is_root else None
                rows, answer = await self._ask(dataset, block, offsets, column)
                await trio.to_thread.run_sync(self._note_derived, dataset, block, rows, answer)
        except (NotFound, Invalid) as fault:
            if is_root and len(self._roots) == 1:
                raise
            for offset in offsets:
                self._known[dataset, offset] = self._unknown(dataset, offset, fault, block)

    def _rows(self, dataset: DatasetId, block: Block, offsets: list[int]) -> Told:
        """Returns the records themselves; for an ingested one nothing if its data is not here.

        The origin of an ingested record is in its chain, whether or not its data is here.
        """
        data = data_of(block).new_data
        assert data is not None
        try:
            need_data(self._home, dataset, self._name(dataset))
            path = sound_path(self._deps.objects, data.physical_hash)
        except NotFound:
            if isinstance(block.event, AddData):
                return dict.fromkeys(offsets, (None, None))
            raise
        vocab = load_state(self._chains.chain(dataset), block.sequence_number + 1).vocab
        system = (vocab.operation_type, vocab.system_time)
        return {
            offset: (row[vocab.operation_type], {name: value for name, value in row.items() if name not in system})
            for offset, row in rows_at(path, vocab.offset, offsets).items()
        }

    async def _ask(
        self, dataset: DatasetId, block: Block, offsets: list[int], column: str | None
    ) -> tuple[Told, ProvenanceSuccess]:
        asked = LineageQuestion(
            dataset=dataset, block=block, offsets=tuple(offsets), column=column, limit=self._request.limit,
            own=self._home.keys.has_dataset_key(dataset), id=self._fresh_id(),
        )  # fmt: skip
        async with fresh_folder(self._deps.staging) as folder:
            rows, request = await trio.to_thread.run_sync(
                lambda: (self._rows(dataset, block, offsets), question(self._chains, self._deps.objects, asked, folder))
            )
            answer = await self._deps.engines.engine(request.transform.engine).derive_provenance(request)
        match answer:
            case ProvenanceSuccess():
                check_answer(answer, request)
                return rows, answer
            case InvalidQuery(message=message, rule=rule, hint=hint, place=place):
                here = ", ".join(filter(None, (self._name(dataset), place)))
                raise Invalid(message, rule=rule or "lineage-derive", hint=hint or "", place=here)
            case EngineInternalError(message=message):
                raise engine_failed(message)

    def _note_ingested(self, dataset: DatasetId, block: Block, offsets: list[int]) -> None:
        rows, chain = self._rows(dataset, block, offsets), self._chains.chain(dataset)
        origin, problem = None, None
        try:
            found = origin_of(chain, block)
            state = found.state
            origin = wire.LineageOrigin(
                kind="polling" if found.kind == "polling" else "push", name=found.name, address=found.address,
                state_kind=state.kind if state else "", state=state.value if state else "",
            )  # fmt: skip
        except NotFound as fault:
            problem = wire.Problem.of(fault)
        appends = only_appends(load_state(chain, block.sequence_number + 1))
        for offset, row in rows.items():
            record = self._record(dataset, offset, "ingested", block, row)
            named = origin
            if origin is not None and appends and row[0] != 0:
                named = msgspec.structs.replace(origin, by_hand=True)
            self._known[dataset, offset] = msgspec.structs.replace(record, origin=named, problem=problem)

    def _note_derived(self, dataset: DatasetId, block: Block, rows: Told, answer: ProvenanceSuccess) -> None:
        chain = self._chains.chain(dataset)
        inputs = [each for each, _ in input_ids(load_state(chain, block.sequence_number))]
        paths = tuple(
            wire.LineagePath(
                ref=self._name(inputs[path.input]),
                id=str(inputs[path.input]),
                steps=tuple(
                    wire.LineageStep(
                        operator=step.operator,
                        detail=step.detail,
                        query=step.query,
                        line=step.line,
                        column=step.column,
                        hides=step.hides,
                    )
                    for step in path.steps
                ),
            )
            for path in answer.paths
        )
        for each in answer.records:
            record = self._record(dataset, each.offset, "derived", block, rows.get(each.offset, (None, None)))
            self._told += len(each.rows)
            self._known[dataset, each.offset] = msgspec.structs.replace(
                record, mode=answer.mode, paths=paths, rows=tuple(self._row_views(each, inputs)), count=each.count,
                truncated=each.truncated, absent=each.absent,
            )  # fmt: skip

    def _row_views(self, record: RecordProvenance, inputs: Sequence[DatasetId]) -> Iterator[wire.LineageRow]:
        for row in record.rows:
            dataset = inputs[row.input]
            yield wire.LineageRow(
                ref=self._name(dataset), id=str(dataset), offset=row.offset, path=row.path, cause=row.cause,
                role="decides" if row.role == "decides" else "change" if row.role == "change" else "value",
            )  # fmt: skip

    def _record(
        self, dataset: DatasetId, offset: int, state: str, block: Block | None = None,
        row: tuple[object, dict[str, object] | None] = (None, None),
    ) -> wire.LineageRecord:  # fmt: skip
        return msgspec.convert(
            {
                "ref": self._name(dataset),
                "id": str(dataset),
                "offset": offset,
                "state": state,
                "op": row[0],
                "block": None if block is None else str(block.hash),
                "sequenceNumber": None if block is None else block.sequence_number,
                "systemTime": None if block is None else instant.render(block.system_time),
                "row": row[1],
            },
            wire.LineageRecord,
        )

    def _unknown(self, dataset: DatasetId, offset: int, fault: Fault, block: Block | None = None) -> wire.LineageRecord:
        record = self._record(dataset, offset, "unknown", block)
        return msgspec.structs.replace(record, problem=wire.Problem.of(fault))

    def _name(self, dataset: DatasetId) -> str:
        if dataset not in self._names:
            self._names[dataset] = self._chains.name_of(dataset)
        return self._names[dataset]


def _places(group: tuple[DatasetId, Block, list[int]]) -> Iterator[tuple[DatasetId, int]]:
    return ((group[0], offset) for offset in group[2])


def check_answer(answer: ProvenanceSuccess, request: ProvenanceRequest) -> None:
    """Checks in an engine's answer what is cheap to check, instead of trusting it. Raises EngineFault."""
    inputs, paths = len(request.query_inputs), len(answer.paths)
    rows = [row for record in answer.records for row in record.rows]
    wrong = ""
    if tuple(record.offset for record in answer.records) != request.offsets:
        wrong = "of other records than it was asked about"
    elif any(number >= inputs for number in (*(path.input for path in answer.paths), *(row.input for row in rows))):
        wrong = "of an input that the query does not have"
    elif any(row.path is not None and row.path >= paths for row in rows) or any(
        path >= paths for record in answer.records for path in record.absent
    ):
        wrong = "of a path that it did not describe"
    elif any(len(record.rows) > min(request.limit, record.count) for record in answer.records):
        wrong = "of more rows than it was asked for, or than it counted"
    if wrong:
        raise EngineFault(
            f"the engine reported {wrong}", rule="engine-answer", hint="check that this is an engine of odfd"
        )


def absent(name: str, dataset: DatasetId) -> NotFound:
    return NotFound(f"{name} is not held here", rule="lineage-input", hint=f"odfctl mirror add {dataset}")


def find_block(name: str, chain: ChainReader, offset: int) -> Block:
    """Returns the block that holds a record. Raises NotFound with the name of the dataset."""
    try:
        return block_of_record(chain, offset)
    except NotFound as missing:
        raise NotFound(f"{name} has no record {offset}", rule=missing.rule, hint=missing.hint) from None
