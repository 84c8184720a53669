"""Makes the request that asks an engine about records of one transaction: its inputs as it saw them.

Inputs are given from their first block to the cut that the transaction recorded. For a dataset that this node computes
itself its own checkpoint says which earlier blocks can still matter, and only these are given; a stranger's checkpoint
says nothing that is believed. Spec: docs/spec/engine-semantics.md#state.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.events import ExecuteTransform, ExecuteTransformInput
from chain.multihash import Multihash
from chain.state import InputPosition, load_state
from chain.store.base import ChainReader, ChainStore, ObjectStore
from chain.store.objects import sound_path
from engines.contract import ProvenanceRecord, ProvenanceRequest, TransformInput
from engines.spark.state.checkpoint import MAX_CHECKPOINT, decode_checkpoint, open_blocks
from odfd.datasets.reading import DATA_KINDS
from odfd.transform.checkpoint_info import Runs
from odfd.transform.driver import recorded_cuts
from odfd.transform.evolution import DeclaredTransform, declared_at
from odfd.transform.inputs import input_ids, view_input
from odfd.transform.plan import Diverged, InputView, vocabulary
from odfd.transform.requests import engine_input


class LineageQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Which records, and how much of the answer is wanted."""

    dataset: DatasetId
    block: Block
    """The transaction that wrote them."""
    offsets: tuple[int, ...]
    column: str | None
    limit: int
    own: bool
    """This node computed the dataset: its checkpoints are our own word."""
    id: str
    """Tells this question apart from others under way."""


def question(chains: ChainStore, objects: ObjectStore, asked: LineageQuestion, folder: Path) -> ProvenanceRequest:
    """``folder``: fresh, and the caller's. Synchronous. Raises NotFound for what is not held here, Invalid for chains
    that contradict each other, ObjectDamaged.
    """
    event = asked.block.event
    if not isinstance(event, ExecuteTransform) or event.new_data is None:
        raise Invalid(f"block #{asked.block.sequence_number} holds no derived records", rule="lineage-block")
    reader = chains.chain(asked.dataset)
    state = load_state(reader, asked.block.sequence_number)
    assert state.set_transform is not None
    consumed = {each.dataset_id: each for each in event.query_inputs}
    needed = _open(objects, event) if asked.own else None
    declared = declared_at(reader, asked.block.sequence_number)
    inputs = []
    for number, (each, said) in enumerate(input_ids(state)):
        alias = said.alias or said.dataset_ref
        known = None if needed is None else needed.get(each, ())
        if each not in consumed:
            raise Invalid(
                f"block #{asked.block.sequence_number} does not say what it consumed of input {alias}",
                rule="lineage-block", hint="whoever made it left that out, so its records cannot be traced",
            )  # fmt: skip
        view = _view(chains, (each, alias, consumed[each]), known, declared)
        inputs.append(_input(objects, view, folder / f"schema-{number}.parquet"))
    return ProvenanceRequest(
        dataset_id=asked.dataset,
        vocab=vocabulary(state.vocab),
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
    chains: ChainStore, said: tuple[DatasetId, str, ExecuteTransformInput], needed: Runs | None,
    declared: DeclaredTransform | None,
) -> InputView:  # fmt: skip
    """An input as the transaction saw it, and what of earlier blocks is needed."""
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


def _input(objects: ObjectStore, view: InputView, path: Path) -> TransformInput:
    """``path``: where its columns are stated."""
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
    """Stretches of blocks that earlier transactions consumed: all of them, or those that can still matter and the
    last, whose watermark says how far the input had come.
    """
    if consumed is None:
        return ()
    if needed is None:
        return ((reader.block_at(0).hash, consumed),)
    last = reader.last_of(DATA_KINDS, reader.block_by_hash(consumed).sequence_number + 1)
    return (*needed, (last.hash, last.hash)) if last is not None else needed


def _open(objects: ObjectStore, event: ExecuteTransform) -> dict[DatasetId, Runs] | None:
    """What our own checkpoint before the transaction kept open; ``None`` where it keeps more than blocks."""
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
