"""Plans one transform transaction as a value: the input blocks it consumes, and the request to the engine.

Pure. A plan is a function of the output's state, the inputs up to a cut, the block's time and the previous checkpoint.
The live coordinator cuts at the inputs' heads, a validator at the recorded cut: one code path for both, so that a
replay does the same as the original. ODF specification, ExecuteTransform; docs/spec/engine-semantics.md#definitions,
#law, #state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.changelog import differ_in_this_alone, says_changelog
from chain.model.events import (
    Checkpoint,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataEvent,
    SetDataSchema,
    Vocab,
)
from chain.model.schema import DataSchema
from chain.model.source import Transform
from chain.multihash import Multihash
from chain.state import ChainState, InputPosition
from chain.store.base import UpperMove
from engines.contract import InvalidQuery, Success
from odfd.transform.checkpoint_info import NOTHING, TransformProgress

APPEND_ONLY: Final = "append-only"
"""Rule of engines: output from append-only input cannot be retracted when that input is corrected later."""
INPUT_DIVERGED: Final = "input-diverged"
TRANSFORM_EVOLUTION: Final = "transform-evolution"


class DataBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block of an input that added data or moved the watermark."""

    hash: Multihash
    sequence_number: int
    system_time: Instant
    new_data: DataSlice | None
    stated_watermark: Instant | None
    """The watermark that the block itself states."""
    watermark_before: Instant | None
    """The greatest watermark stated before it."""

    @property
    def watermark_after(self) -> Instant | None:
        stated, before = self.stated_watermark, self.watermark_before
        return before if stated is None else stated if before is None else max(stated, before)


class InputView(msgspec.Struct, frozen=True, kw_only=True):
    """One input between the consumed position and a cut, from its chain."""

    dataset: DatasetId
    name: str
    """Name for people; the engine uses it in messages only."""
    alias: str
    """Name in the query."""
    position: InputPosition
    """Its position after the last transaction."""
    cut: Multihash
    """The block up to which it is consumed: its head, or the cut of a recorded transaction."""
    last_offset: int | None
    """The last offset at the cut; ``None`` without rows."""
    new: tuple[DataBlock, ...]
    """Data blocks after the position, up to the cut, oldest first."""
    reopened: tuple[DataBlock, ...]
    """Data blocks up to the position that the previous checkpoint names, oldest first."""
    schema: DataSchema | None
    """Schema at the cut; ``None``: it never had data."""
    vocab: Vocab
    changelog: bool | None = None
    """Whether its rows can be retracted and corrected; ``None``: its chain does not say."""
    by_time: bool = False
    """Whether event time ranks the rows of a key although they can be retracted."""

    @property
    def consumed(self) -> ExecuteTransformInput:
        """The input as recorded in the event, without unchanged parts."""
        moved = self.cut != self.position.block_hash
        return ExecuteTransformInput(
            dataset_id=self.dataset,
            prev_block_hash=self.position.block_hash,
            new_block_hash=self.cut if moved else None,
            prev_offset=self.position.offset,
            new_offset=self.last_offset if moved and self.last_offset != self.position.offset else None,
        )


class Diverged(msgspec.Struct, frozen=True):
    """An input's chain lacks the block of the last transaction, or the recorded cut."""

    name: str
    missing: Multihash


class UpToDate(msgspec.Struct, frozen=True):
    """Says that there is nothing to do; ``reason`` is for people."""

    reason: str


class Blocked(msgspec.Struct, frozen=True):
    """Says that a precondition is not met; ``reason`` and ``hint`` describe it."""

    reason: str
    hint: str = ""
    rule: str = ""
    """The rule that forbids it permanently; empty if waiting helps."""

    def __str__(self) -> str:
        return f"{self.reason}; {self.hint}" if self.hint else self.reason


class Rejected(msgspec.Struct, frozen=True):
    """Says that the query cannot run on this data; a retry gives the same result."""

    message: str
    rule: str = ""
    """Rule of the engine that it breaks; empty if unknown."""
    hint: str = ""
    """Advice for people."""
    place: str = ""
    """Place in the query."""

    @classmethod
    def by(cls, answer: InvalidQuery) -> Rejected:
        """Converts an engine's rejection."""
        return cls(answer.message, answer.rule or "", answer.hint or "", answer.place or "")

    @property
    def reason(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message

    def __str__(self) -> str:
        return f"{self.reason}; {self.hint}" if self.hint else self.reason


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """The migration of state that is needed as the transform was declared again since the last transaction."""

    transform: Transform
    """The former transform."""
    former: tuple[InputView, ...]
    """Inputs of the former transform, with the columns it knew and without blocks."""
    inputs: tuple[InputView, ...]
    """Inputs of the new transform, with all blocks up to their positions as new ones."""
    same_query: bool = False
    """Whether only the engine changed: the state is kept, and no blocks are needed."""


class TransformPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction: the request to the engine, and what to record after it."""

    state: ChainState
    transform: Transform
    inputs: tuple[InputView, ...]
    query_inputs: tuple[ExecuteTransformInput, ...]
    system_time: Instant
    transaction_id: str
    output_schema: DataSchema | None
    emission_limit: Instant | None = None
    """Output from this event time on waits; ``None``: all settled output is emitted."""
    handover: Handover | None = None
    grown: DataSchema | None = None
    """The new schema, if a handover added columns."""
    upper: UpperMove | None = None
    """The output's upper at planning."""

    @property
    def dataset(self) -> DatasetId:
        assert self.state.dataset is not None
        return self.state.dataset

    @property
    def input_slices(self) -> tuple[DataSlice, ...]:
        """All slices that the engine needs, reopened ones included."""
        history = self.handover.inputs if self.handover is not None else ()
        blocks = (block for view in (*history, *self.inputs) for block in (*view.reopened, *view.new))
        found = {block.hash: block.new_data for block in blocks if block.new_data is not None}
        return tuple(found.values())


Pace: TypeAlias = Callable[[TransformProgress, Sequence[InputView]], Instant | None]
"""Returns how much a transaction may settle: a limit on the event time of its output."""
Planned: TypeAlias = TransformPlan | UpToDate | Blocked


def plan_transform(
    state: ChainState,
    set_transform: Multihash,
    inputs: Sequence[InputView | Diverged],
    system_time: Instant,
    past: TransformProgress = NOTHING,
    pace: Pace | None = None,
    handover: Handover | None = None,
) -> Planned:
    """Plans the next transaction on ``state``; ``set_transform`` is the hash of the block that declares the transform.

    ``inputs`` are those of SetTransform, in its order; ``past`` is read from the current checkpoint.
    """
    if state.set_transform is None:
        return Blocked("the dataset has no transform", "add one with SetTransform")
    if state.unknown is not None:
        return Blocked("the chain has an event that this version does not know", "use a newer odfd")
    views = []
    for input_ in inputs:
        if isinstance(input_, Diverged):
            return refuse_diverged(input_)
        if input_.schema is None:
            return UpToDate(f"input {input_.name} has no data yet")
        views.append(input_)
    idle = not past.waits and handover is None and not any(view.new for view in views)
    if state.schema is not None and idle:
        return UpToDate("no input has new data or a new watermark")
    consumed = tuple(view.consumed for view in views)
    limit = pace(past, views) if pace is not None else None
    return TransformPlan(
        state=state,
        transform=state.set_transform.transform,
        inputs=tuple(views),
        query_inputs=consumed,
        system_time=system_time,
        transaction_id=transaction_id(state, set_transform, consumed, system_time, limit),
        output_schema=state.schema.schema if state.schema is not None else None,
        emission_limit=limit,
        handover=handover,
    )


def refuse_diverged(each: Diverged) -> Blocked:
    """Makes the result for an input whose history was rewritten."""
    return Blocked(
        f"input {each.name} was rewritten: block {each.missing.short}, which was consumed, is not in it",
        "drop what was derived from it and derive again",
        rule=INPUT_DIVERGED,
    )


def transaction_id(
    state: ChainState,
    set_transform: Multihash,
    consumed: Sequence[ExecuteTransformInput],
    system_time: Instant,
    limit: Instant | None = None,
) -> str:
    """Derives the id, sha3-256 of output, head, transform's block, cut, time and limit: same id, same bytes."""
    assert state.dataset is not None
    assert state.head is not None
    cut = [each.new_block_hash or each.prev_block_hash or b"" for each in consumed]
    times = (b"" if time is None else time.to_bytes(12, "big", signed=True) for time in (system_time, limit))
    parts = (state.dataset, state.head, set_transform, *cut, *times)
    return str(Multihash.sha3_256(b"".join(len(part).to_bytes(2, "big") + part for part in parts)))


def settle(
    plan: TransformPlan, answer: Success, data: DataSlice | None, checkpoint: Checkpoint | None
) -> ExecuteTransform:
    """Makes the event of the engine's output, with ``data`` and ``checkpoint`` measured from its files.

    A watermark or a checkpoint that did not change is repeated. Raises Invalid when answer and files disagree.
    """
    state = plan.state
    _check_answer(plan, answer, data)
    return ExecuteTransform(
        query_inputs=plan.query_inputs,
        prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
        prev_offset=state.last_offset,
        new_data=data,
        new_checkpoint=checkpoint or state.checkpoint,
        new_watermark=answer.new_watermark if answer.new_watermark is not None else state.watermark,
    )


def events_of(plan: TransformPlan, event: ExecuteTransform, schema: DataSchema | None) -> tuple[MetadataEvent, ...]:
    """Lists the events to commit: a new schema, and the event unless it is empty.

    Without rows, watermark and checkpoint there is nothing to record; the input blocks wait for the next transaction.
    The same holds if nothing changed, as after a new transform was declared and withdrawn.
    """
    schema = schema if schema not in (None, plan.output_schema) else plan.grown
    declared = () if schema is None else (SetDataSchema(schema=schema),)
    leaves_a_trace = (event.new_data, event.new_checkpoint, event.new_watermark) != (None, None, None)
    checkpoint = event.new_checkpoint.physical_hash if event.new_checkpoint is not None else None
    moved = (
        event.new_data is not None
        or checkpoint != event.prev_checkpoint
        or event.new_watermark != plan.state.watermark
        or any(input_.new_block_hash is not None for input_ in event.query_inputs)
    )
    return (*declared, event) if leaves_a_trace and moved else declared


def _check_answer(plan: TransformPlan, answer: Success, data: DataSlice | None) -> None:
    """Checks an engine's answer where that is cheap."""
    wrote = answer.new_offset_interval
    found = data.offset_interval if data is not None else None
    if wrote != found:
        raise Invalid(
            f"the engine says it wrote {_render(wrote)}, its file holds {_render(found)}", rule="engine-answer"
        )
    if found is not None and found.start != plan.state.next_offset:
        raise Invalid(
            f"the engine's slice begins at offset {found.start}, it should at {plan.state.next_offset}",
            rule="engine-answer",
        )
    if plan.output_schema is None and answer.schema is None:
        raise Invalid("the engine gave no schema for the first transaction", rule="engine-answer")
    if plan.output_schema is not None and not _is_of(answer.schema, plan.output_schema):
        raise Invalid(
            "the engine's result has another schema than the dataset",
            rule="engine-answer",
            hint="a transform that changes its columns is a new dataset",
        )
    before, after = plan.state.watermark, answer.new_watermark
    if before is not None and after is not None and after < before:
        raise Invalid("the engine moved the watermark back", rule="engine-answer")


def _is_of(reported: DataSchema | None, output: DataSchema) -> bool:
    """Whether rows have the output's schema; it may newly say that they can be retracted, as an input was corrected."""
    if reported is None or reported == output:
        return True
    return says_changelog(output) is False and differ_in_this_alone(reported, output)


def _render(interval: object) -> str:
    return "no rows" if interval is None else f"offsets {interval.start}..{interval.end}"  # type: ignore[attr-defined]
