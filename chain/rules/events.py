"""Checks that events change something, fit the kind of dataset, and carry checkpoints on. Spec: Metadata."""

from __future__ import annotations

from collections.abc import Iterator

from chain.libraries import np
from chain.model.block import Block, UnknownEvent
from chain.model.defaults import same
from chain.model.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    ExecuteTransform,
    MetadataEvent,
    SetAttachments,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
)
from chain.multihash import ARROW0_SHA3_256, SHA3_256
from chain.rules.columns import Mask, Run
from chain.rules.rule import Binds, Rule, Violation
from chain.state import ChainState


class DataEventIsNotEmpty(Rule):
    """A data event holds data, a checkpoint, a watermark or (AddData) a source state."""

    name = "event-empty"
    clause = "AddData, ExecuteTransform; NoOpEvent: event is empty"
    concerns = (AddData, ExecuteTransform)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform) or block.unknown_fields:
            return
        source_state = event.new_source_state if isinstance(event, AddData) else None
        parts = (event.new_data, event.new_checkpoint, event.new_watermark, source_state)
        if all(part is None for part in parts):
            yield self.broken("the event is empty", hint="write no block when nothing happened")

    def doubts(self, run: Run) -> Mask:
        return ~(run.has("event.new_data") | run.has("event.new_checkpoint") | run.has("event.new_watermark"))


class AddDataAdvances(Rule):
    """AddData without rows moves the checkpoint, the watermark or the source's state."""

    name = "add-data-no-op"
    clause = "AddData; NoOpEvent"
    concerns = (AddData,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if not isinstance(event, AddData) or event.new_data is not None or block.unknown_fields:
            return
        checkpoint = event.new_checkpoint.physical_hash if event.new_checkpoint else None
        moved = (
            checkpoint != event.prev_checkpoint
            or event.new_watermark != state.watermark
            or event.new_source_state != state.source_state
        )
        if not moved:
            yield self.broken("the event has no data and advances nothing", hint="write no block when nothing happened")

    def doubts(self, run: Run) -> Mask:
        data = run.has("event.new_data")
        return ~data if data.all() else ~(data | advances(run))


class PrevCheckpointIsLast(Rule):
    """``prevCheckpoint`` is the checkpoint of the previous data event, not an older one."""

    name = "prev-checkpoint"
    clause = "AddData.prevCheckpoint, ExecuteTransform.prevCheckpoint"
    concerns = (AddData, ExecuteTransform)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform):
            return
        last = state.checkpoint.physical_hash if state.checkpoint else None
        if event.prev_checkpoint != last:
            yield self.broken(
                "prevCheckpoint is not the last checkpoint of the chain",
                expected=last or "none",
                actual=event.prev_checkpoint or "none",
            )

    def doubts(self, run: Run) -> Mask:
        last = run.state.checkpoint.physical_hash if run.state.checkpoint else None
        left = run.before(run.digests("event.new_checkpoint.physical_hash"), last)
        return ~run.digests("event.prev_checkpoint").same(left)


class CheckpointIsCarried(Rule):
    """A data event of a dataset with a checkpoint has one too; otherwise the engine's state is lost."""

    name = "checkpoint-carried"
    clause = "ExecuteTransform.newCheckpoint; the reference forgets it"
    binds = Binds.AUTHORS
    concerns = (AddData, ExecuteTransform)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if isinstance(event, AddData | ExecuteTransform) and state.checkpoint and event.new_checkpoint is None:
            yield self.broken(
                "the event drops the checkpoint",
                expected=state.checkpoint.physical_hash,
                actual="none",
                hint="name the last checkpoint again when it did not change",
            )


class KindFits(Rule):
    """Roots add data from sources, derivatives execute transforms. The reference checks this in snapshots only."""

    name = "event-of-kind"
    clause = "Root and Derivative datasets"
    concerns = (AddData, SetPollingSource, AddPushSource, ExecuteTransform, SetTransform)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        fitting = _fitting_kind(block.event)
        if state.kind not in (None, fitting):
            name = type(block.event).__name__
            yield self.broken(
                f"{name} belongs in a {fitting.value} dataset", expected=fitting.value, actual="the other"
            )

    def doubts(self, run: Run) -> Mask:
        return np.full(run.size, run.state.kind not in (None, _fitting_kind(run.event)))


class DescriptionChanges(Rule):
    """An event that describes the dataset differs from the one in force."""

    name = "description-no-op"
    clause = "SetVocab, SetInfo, SetLicense, SetAttachments; the reference lets doubles pass"
    binds = Binds.AUTHORS
    concerns = (SetVocab, SetInfo, SetLicense, SetAttachments)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        held = (state.set_vocab, state.set_info, state.set_license, state.set_attachments)
        if any(same(each, block.event) for each in held):
            yield self.broken(f"this {type(block.event).__name__} is already in force", hint="write no block")


class HashesFitTheirObjects(Rule):
    """Objects are named by sha3-256 of their bytes, rows by arrow0-sha3-256."""

    name = "hash-algorithm"
    clause = "DataSlice, Checkpoint; Hash Function"
    binds = Binds.AUTHORS
    concerns = (AddData, ExecuteTransform)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform):
            return
        hashes = []
        if event.new_data is not None:
            hashes.append(("logicalHash", event.new_data.logical_hash, ARROW0_SHA3_256))
            hashes.append(("physicalHash", event.new_data.physical_hash, SHA3_256))
        if event.new_checkpoint is not None:
            hashes.append(("physicalHash of the checkpoint", event.new_checkpoint.physical_hash, SHA3_256))
        for name, value, code in hashes:
            if value.code != code:
                yield self.broken(f"{name} is a {value.algorithm}", actual=value)


def advances(run: Run) -> Mask:
    """Marks the blocks of a run that change the checkpoint or the watermark."""
    checkpoint, carried = run.digests("event.new_checkpoint.physical_hash"), run.digests("event.prev_checkpoint")
    watermark = run.times("event.new_watermark")
    return ~(checkpoint.same(carried) & watermark.same(run.before(watermark, run.state.watermark)))


def _fitting_kind(event: MetadataEvent | UnknownEvent) -> DatasetKind:
    return DatasetKind.DERIVATIVE if isinstance(event, ExecuteTransform | SetTransform) else DatasetKind.ROOT
