"""Turns a plan into a request to an engine, with files that it can read, and paths where it writes.

Slices are linked, never copied; the columns of each input are passed as a file without rows. Synchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.data.parquet import write_slice
from chain.model.events import OffsetInterval
from chain.multihash import Multihash
from chain.store.base import ObjectReader
from chain.store.objects import sound_path
from engines.contract import (
    InputBlock,
    MigrateRequest,
    TransformRequest,
    TransformRequestInput,
    ValidateInput,
    Watermark,
)
from odfd.transform.plan import DataBlock, Handover, InputView, TransformPlan


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of one execution's files. The caller makes it, empty, and removes it."""

    folder: Path
    previous: Path | None
    """File of the previous checkpoint; ``None`` without one."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def changes(self) -> Path:
        """The path of a handover's changes to the table."""
        return self.folder / "changes"

    @property
    def taken_over(self) -> Path:
        """The path of the checkpoint that a handover writes."""
        return self.folder / "taken-over"


def migrate_request(plan: TransformPlan, handover: Handover, objects: ObjectReader, files: Files) -> MigrateRequest:
    """Builds the request to migrate state. Raises as ``transform_request`` does."""
    history = (block.new_data for view in handover.inputs for block in view.new)
    paths = {each.physical_hash: str(sound_path(objects, each.physical_hash)) for each in history if each is not None}
    assert plan.state.schema is not None
    return MigrateRequest(
        dataset_id=plan.dataset,
        system_time=plan.system_time,
        vocab=plan.state.vocab,
        old_transform=handover.transform,
        old_inputs=named_inputs(handover.former, files.folder, "former"),
        transform=plan.transform,
        query_inputs=named_inputs(handover.inputs, files.folder, "history", paths.__getitem__),
        output_schema=schema_of(plan.state.schema),
        next_offset=plan.state.next_offset,
        prev_checkpoint_path=str(files.previous) if files.previous is not None else "",
        new_checkpoint_path=str(files.taken_over),
        new_data_path=str(files.changes),
    )


def named_inputs(
    views: Sequence[InputView], folder: Path, name: str, path_of: Callable[[Multihash], str] = str
) -> tuple[TransformRequestInput, ...]:
    """Returns the inputs of a request, with their columns in files called ``name`` in ``folder``."""
    return tuple(engine_input(view, path_of, folder / f"{name}-{number}.parquet") for number, view in enumerate(views))


def bare_input(given: ValidateInput, path: Path) -> TransformRequestInput:
    """Builds an input with columns only; they are written to ``path``."""
    write_slice(to_arrow(given.schema).empty_table(), path)
    return TransformRequestInput(
        dataset_id=given.dataset_id,
        dataset_alias=given.query_alias,
        query_alias=given.query_alias,
        vocab=given.vocab,
        schema_file=str(path),
        blocks=(),
        changelog=given.changes,
    )


def transform_request(
    plan: TransformPlan, transaction: str, objects: ObjectReader, files: Files, changes: OffsetInterval | None
) -> TransformRequest:
    """Builds the request. Raises NotFound for an absent slice, ObjectDamaged for one whose rows would be wrong."""
    paths = {slice_.physical_hash: str(sound_path(objects, slice_.physical_hash)) for slice_ in plan.input_slices}
    return TransformRequest(
        dataset_id=plan.dataset,
        dataset_alias=plan.dataset.short,
        system_time=plan.system_time,
        vocab=plan.state.vocab,
        transform=plan.transform,
        emission_limit=plan.emission_limit,
        query_inputs=named_inputs(plan.inputs, files.folder, "schema", paths.__getitem__),
        next_offset=plan.state.next_offset if changes is None else changes.end + 1,
        prev_checkpoint_path=str(files.previous) if files.previous is not None else None,
        new_checkpoint_path=str(files.checkpoint),
        new_data_path=str(files.data),
        transaction_id=transaction,
        output_schema=plan.output_schema,
    )


def engine_input(view: InputView, path_of: Callable[[Multihash], str], schema_file: Path) -> TransformRequestInput:
    """Builds the engine's input; its columns are written to ``schema_file``, an empty slice."""
    assert view.schema is not None
    write_slice(to_arrow(view.schema).empty_table(), schema_file)

    def block(each: DataBlock, reopened: bool) -> InputBlock:
        return InputBlock(
            data_path=path_of(each.new_data.physical_hash) if each.new_data is not None else None,
            watermark_before=each.watermark_before,
            watermark_after=each.watermark_after,
            block_hash=each.hash,
            reopened=reopened,
        )

    slices = [each.new_data for each in view.new if each.new_data is not None]
    return TransformRequestInput(
        dataset_id=view.dataset,
        dataset_alias=view.name,
        query_alias=view.alias,
        vocab=view.vocab,
        offset_interval=OffsetInterval(start=slices[0].offset_interval.start, end=slices[-1].offset_interval.end)
        if slices
        else None,
        data_paths=tuple(path_of(slice_.physical_hash) for slice_ in slices),
        schema_file=str(schema_file),
        explicit_watermarks=tuple(
            Watermark(system_time=each.system_time, event_time=each.stated_watermark)
            for each in view.new
            if each.stated_watermark is not None
        ),
        blocks=(*(block(each, True) for each in view.reopened), *(block(each, False) for each in view.new)),
        changelog=view.changelog,
        by_time=view.by_time or None,
    )
