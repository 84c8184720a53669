"""Locates records, and builds the engine's request about those of one transaction, with its inputs at that time.

Inputs are given from their first block to the cut that the transaction recorded. If this node computes the dataset
itself, its own checkpoint says which earlier blocks can still matter, and only these are given; another node's
checkpoint is not trusted. Synchronous; reads a bounded amount. Spec: docs/spec/engine-semantics.md#state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from chain.data.json_values import plain_rows
from chain.data.parquet import open_slice
from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.libraries import pa, pc
from chain.model.block import Block
from chain.model.events import AddData, DataEvent, ExecuteTransform, ExecuteTransformInput, SourceState
from chain.multihash import Multihash
from chain.state import InputPosition, load_state
from chain.store.base import ChainReader, ObjectStore
from chain.store.objects import sound_path
from engines.contract import ProvenanceRecord, ProvenanceRequest, TransformRequestInput
from engines.spark.state.checkpoint import MAX_CHECKPOINT, decode_checkpoint, open_blocks
from odfd.datasets.previews import DATA_KINDS
from odfd.ingest.fetch.dispatch import address_of
from odfd.transform.checkpoint_info import Runs
from odfd.transform.driver import recorded_cuts
from odfd.transform.evolution import DeclaredTransform, declared_at
from odfd.transform.inputs import input_ids, view_input
from odfd.transform.plan import Diverged, InputView
from odfd.transform.requests import engine_input

NO_SOURCE = "lineage-source"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The source, declared in the chain, from which a block's records were ingested."""

    kind: str
    """``polling`` or ``push``."""
    name: str = ""
    """Name of a push source; empty for a polling source."""
    address: str = ""
    """URL, path or topic that is polled; empty for a push source."""
    state: SourceState | None = None
    """How far the source had been read with this block: an etag, a time, the name of the last file."""


def block_of_record(reader: ChainReader, offset: int) -> Block:
    """Returns the block whose slice holds a record, by bisection of the chain. Raises NotFound."""
    head = reader.head()
    low, high = 0, head.size if head else 0
    last = -1
    if head is not None and (newest := reader.last_of(DATA_KINDS, high)) is not None:
        last = _last_offset(newest)
    if not 0 <= offset <= last:
        hint = f"it has records 0 to {last}" if last >= 0 else "it has no records yet"
        raise NotFound(f"there is no record {offset}", rule="lineage-record", hint=hint)
    while low < high:
        middle = (low + high) // 2
        found = reader.last_of(DATA_KINDS, middle + 1)
        if found is not None and _last_offset(found) >= offset:
            high = middle
        else:
            low = middle + 1
    return reader.block_at(low)


def _last_offset(block: Block) -> int:
    """Returns the last offset of all records up to this block; -1 if there are none."""
    event = data_of(block)
    if event.new_data is not None:
        return event.new_data.offset_interval.end
    return -1 if event.prev_offset is None else event.prev_offset


def data_of(block: Block) -> DataEvent:
    assert isinstance(block.event, AddData | ExecuteTransform)
    return block.event


def origin_of(reader: ChainReader, block: Block) -> Origin:
    """Returns the source of a block. Raises NotFound for a chain that declares none."""
    state = load_state(reader, block.sequence_number + 1)
    event = block.event
    reached = event.new_source_state if isinstance(event, AddData) else None
    if state.polling_source is not None:
        return Origin(kind="polling", address=address_of(state.polling_source.fetch), state=reached)
    sources = state.active_push_sources
    if reached is not None and reached.source_name in sources:
        return Origin(kind="push", name=reached.source_name, state=reached)
    if sources:
        return Origin(kind="push", name=next(iter(sources)) if len(sources) == 1 else "", state=reached)
    raise NotFound(
        f"block #{block.sequence_number} was written without a source: its chain declares none",
        rule=NO_SOURCE,
        hint="only the signer of the block is known, not where its records came from",
    )


def rows_at(path: Path, column: str, offsets: list[int]) -> dict[int, dict[str, object]]:
    """Returns records of a slice by offset, as JSON values. Raises Invalid, Environment."""
    with open_slice(path) as source:
        wanted = pa.array(offsets, pa.int64())
        found = list(_keep(source.batches(), column, wanted))
        schema = source.schema.remove_metadata()
    table = pa.Table.from_batches(found, schema=schema) if found else schema.empty_table()
    names = [name for name in table.column_names if name != column]
    keys = table.column(column).to_pylist()
    return {
        int(key): dict(zip(names, row, strict=True))
        for key, row in zip(keys, plain_rows(table.select(names)), strict=True)
    }


def _keep(batches: Iterator[pa.RecordBatch], column: str, wanted: pa.Array) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = batch.filter(pc.is_in(batch.column(column).cast(pa.int64()), wanted))
        if rows.num_rows:
            yield rows.replace_schema_metadata(None)


class LineageQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The records asked about, and the limits of the answer."""

    dataset: DatasetId
    block: Block
    """Block of the transaction that wrote them."""
    offsets: tuple[int, ...]
    column: str | None
    limit: int
    own: bool
    """Whether this node computed the dataset, so that its checkpoints can be trusted."""
    id: str
    """Distinguishes this question from others in progress."""


class ReadableChains(Protocol):
    """Access to the chains that a question may read."""

    def chain(self, dataset: DatasetId) -> ChainReader:
        """Returns a reader, also for a chain without blocks (its head is ``None``)."""


def question(chains: ReadableChains, objects: ObjectStore, asked: LineageQuestion, folder: Path) -> ProvenanceRequest:
    """Builds the request in the empty ``folder``. Raises NotFound, Invalid for chains that contradict
    each other, ObjectDamaged."""
    event = asked.block.event
    if not isinstance(event, ExecuteTransform) or event.new_data is None:
        raise Invalid(f"block #{asked.block.sequence_number} holds no derived records", rule="lineage-block")
    reader = chains.chain(asked.dataset)
    state = load_state(reader, asked.block.sequence_number)
    assert state.set_transform is not None
    consumed = {input_.dataset_id: input_ for input_ in event.query_inputs}
    needed = _open(objects, event) if asked.own else None
    declared = declared_at(reader, asked.block.sequence_number)
    inputs = []
    for number, (each, said) in enumerate(input_ids(state)):
        alias = said.alias or said.dataset_ref
        known = None if needed is None else needed.get(each, ())
        if each not in consumed:
            raise Invalid(
                f"block #{asked.block.sequence_number} does not say what it consumed of input {alias}",
                rule="lineage-block", hint="the block's author left it out, so its records cannot be traced",
            )  # fmt: skip
        view = _view(chains, (each, alias, consumed[each]), known, declared)
        inputs.append(_input(objects, view, folder / f"schema-{number}.parquet"))
    return ProvenanceRequest(
        dataset_id=asked.dataset,
        vocab=state.vocab,
        transform=state.set_transform.transform,
        query_inputs=tuple(inputs),
        data_path=str(sound_path(objects, event.new_data.physical_hash)),
        records=tuple(ProvenanceRecord(offset=offset) for offset in asked.offsets),
        column=asked.column,
        limit=asked.limit,
        watermark_before=state.watermark,
        watermark_after=event.new_watermark,
        transaction_id=asked.id,
    )


def _view(
    chains: ReadableChains, said: tuple[DatasetId, str, ExecuteTransformInput], needed: Runs | None,
    declared: DeclaredTransform | None,
) -> InputView:  # fmt: skip
    """Returns an input as the transaction saw it, with the earlier blocks that are needed. Raises NotFound."""
    dataset, alias, consumed = said
    reader = chains.chain(dataset)
    if reader.head() is None:
        raise NotFound(
            f"input {alias} ({dataset.short}) is not held here", rule="lineage-input",
            hint=f"odfctl mirror add {dataset}",
        )  # fmt: skip
    cut = recorded_cuts((consumed,))[dataset]
    position = InputPosition(consumed.prev_block_hash, consumed.prev_offset)
    earlier = _earlier(reader, consumed.prev_block_hash, needed)
    view = view_input(reader, dataset, alias, position, cut, earlier, declared)
    if isinstance(view, Diverged):
        raise NotFound(
            f"input {alias} was rewritten: block {view.missing.short}, which was consumed, is not in it",
            rule="lineage-input", hint="what was derived from its old history cannot be traced in the new one",
        )  # fmt: skip
    return view


def _input(objects: ObjectStore, view: InputView, path: Path) -> TransformRequestInput:
    """Encodes an input for the engine. ``path``: of the file that states its columns. Raises NotFound, Invalid."""
    if view.schema is None:
        raise Invalid(f"input {view.alias} has no schema", rule="lineage-input")

    def path_of(name: Multihash) -> str:
        try:
            return str(sound_path(objects, name))
        except NotFound as missing:
            raise NotFound(
                f"data of input {view.alias} is not held here: {missing}", rule="lineage-data",
                hint=f"odfctl mirror add {view.dataset} --want data",
            ) from missing  # fmt: skip

    return engine_input(view, path_of, path)


def _earlier(reader: ChainReader, consumed: Multihash | None, needed: Runs | None) -> Runs:
    """Returns runs of blocks that earlier transactions consumed: all, or those that can still matter and the last one,
    whose watermark says how far the input had come."""
    if consumed is None:
        return ()
    if needed is None:
        return ((reader.block_at(0).hash, consumed),)
    last = reader.last_of(DATA_KINDS, reader.block_by_hash(consumed).sequence_number + 1)
    return (*needed, (last.hash, last.hash)) if last is not None else needed


def _open(objects: ObjectStore, event: ExecuteTransform) -> dict[DatasetId, Runs] | None:
    """Returns the blocks that our own checkpoint before the transaction kept open; ``None`` if it keeps
    more than blocks."""
    if event.prev_checkpoint is None:
        return None
    try:
        raw = objects.read(event.prev_checkpoint, 0, MAX_CHECKPOINT + 1)
    except NotFound:
        return None
    checkpoint = decode_checkpoint(raw)
    if checkpoint.mode == "table" or checkpoint.arranged is not msgspec.UNSET:
        return None
    return dict(open_blocks(raw))
