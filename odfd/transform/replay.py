"""Executes a recorded transaction again and reports the result, which validators compare with the recorded one.

A replay plans with the chain as it was before the block, cuts its inputs as the block says, and starts from the
checkpoint that the replay of the step before made itself; a stranger's checkpoint is never an input. It commits
nothing. Spec: docs/spec/engine-semantics.md#law, #state.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import trio

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block
from chain.model.changelog import differ_in_this_alone, says_changelog, with_changelog
from chain.model.defaults import same
from chain.model.events import DataSlice, ExecuteTransform, OffsetInterval, SetDataSchema
from chain.model.schema import DataSchema
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.store.base import ChainReader, ChainStore, ObjectReader
from engines.contract import RowCounts
from odfd.datasets.engine_pins import EngineInUse, Engines
from odfd.transform.checkpoint_info import read_past
from odfd.transform.driver import fresh_folder, plan_at, recorded_cuts
from odfd.transform.execute import Executed, execute
from odfd.transform.inputs import ChainPrefix
from odfd.transform.pacing import up_to
from odfd.transform.plan import Blocked, Rejected, TransformPlan, UpToDate
from odfd.transform.progress import Report, count_repeats, quiet
from odfd.transform.requests import Files
from odfd.transform.succession import is_redeclared


class ReplayDependencies(Protocol):
    """The dependencies of a replay on the node; ``driver.TransformDependencies`` has all of them."""

    @property
    def chains(self) -> ChainStore: ...

    @property
    def objects(self) -> ObjectReader: ...

    @property
    def engines(self) -> Engines: ...

    @property
    def staging(self) -> Path: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayParts:
    """An implementation of ``ReplayDependencies``."""

    chains: ChainStore
    objects: ObjectReader
    engines: Engines
    staging: Path


class FieldMismatch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One field with different values in the recorded event and ours."""

    field: str
    recorded: str
    computed: str


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the block's transaction on this node."""

    block: Block
    by: EngineInUse
    """The engine that ran it, which need not be the one that the block was made under."""
    event: ExecuteTransform
    """The event as this node would have written it."""
    schema: DataSchema | None
    """The schema that the engine found for a first transaction."""
    data: DataSlice | None
    rows: Path | None
    """File of our slice, to find the row that differs; deleted before the next step."""
    checkpoint: bytes | None
    """Our checkpoint, from which the next step starts; ``None`` without one."""
    counts: RowCounts
    mismatches: tuple[FieldMismatch, ...]
    """Differences from the recorded event."""

    @property
    def is_reproduced(self) -> bool:
        """Whether the results are equal. By another engine than the pinned one (``by``) that proves nothing of it."""
        return not self.mismatches


ReplayOutcome = Replayed | Rejected | Blocked


async def replay_step(
    deps: ReplayDependencies,
    dataset: DatasetId,
    sequence_number: int,
    checkpoint: bytes | None,
    folder: Path,
    report: Report = quiet,
) -> ReplayOutcome:
    """Executes the ExecuteTransform of one block again.

    ``checkpoint`` is the result of replaying the transaction before (``None`` for the first); ``folder`` is fresh and
    the caller's. Raises Invalid if the block is no transaction or contradicts its chain, and what engines raise.
    """
    recorded, plan = await trio.to_thread.run_sync(plan_recorded, deps.chains, dataset, sequence_number, checkpoint)
    if not isinstance(plan, TransformPlan):
        return plan
    previous = None
    if checkpoint is not None:
        previous = folder / "previous-checkpoint"
        await trio.to_thread.run_sync(previous.write_bytes, checkpoint)
    files = Files(folder=folder, previous=previous)
    done = await execute(plan, deps.engines, deps.objects, files, report, repeats=True)
    if not isinstance(done, Executed):
        return done
    made = await trio.to_thread.run_sync(files.checkpoint.read_bytes) if done.checkpoint else checkpoint
    declared = await trio.to_thread.run_sync(_declared_schema, deps.chains.chain(dataset), sequence_number)
    return Replayed(
        block=recorded,
        by=done.by,
        event=done.event,
        schema=done.schema,
        data=done.data,
        rows=files.data if done.data is not None else None,
        checkpoint=made,
        counts=done.counts,
        mismatches=tuple(_compare(recorded.event, done.event, declared, done.schema)),
    )


async def replay(
    deps: ReplayDependencies, dataset: DatasetId, stop: int | None = None, report: Report = quiet
) -> AsyncGenerator[ReplayOutcome, None]:
    """Replays every transaction of a chain from genesis to block ``stop`` (excluded; to the head if ``None``).

    Ends after the first with another result, as later ones build on it.
    """
    reader = deps.chains.chain(dataset)
    checkpoint: bytes | None = None
    numbers = await trio.to_thread.run_sync(_transactions, reader, stop)
    for at, number in enumerate(numbers, 1):
        async with fresh_folder(deps.staging) as folder:
            told = count_repeats(at, len(numbers), report)
            outcome = await replay_step(deps, dataset, number, checkpoint, folder, told)
            yield outcome
        if not isinstance(outcome, Replayed) or not outcome.is_reproduced:
            return
        checkpoint = outcome.checkpoint


def _transactions(reader: ChainReader, stop: int | None) -> list[int]:
    numbers = []
    block = reader.last_of(("ExecuteTransform",), stop)
    while block is not None:
        numbers.append(block.sequence_number)
        block = reader.last_of(("ExecuteTransform",), block.sequence_number)
    return numbers[::-1]


def plan_recorded(
    chains: ChainStore, dataset: DatasetId, number: int, checkpoint: bytes | None
) -> tuple[Block, TransformPlan | Blocked]:
    """Returns the block, and the plan that its writer had. Synchronous. Raises Invalid as ``replay_step`` does."""
    reader = chains.chain(dataset)
    block = reader.block_at(number)
    if not isinstance(block.event, ExecuteTransform):
        raise Invalid(
            f"block #{number} is no transaction of a transform", rule="replay", hint="name an ExecuteTransform"
        )
    before = ChainPrefix(reader, number)
    state = load_state(before)
    former = without_its_schema(state, block, reader)
    if state.last_transform is None or is_redeclared(before, state) or _became_changelog(former, state):
        state = former
    if state.last_transform is not None and checkpoint is None and state.checkpoint is not None:
        raise Invalid("a replay needs the checkpoint of the step before", rule="replay", hint="begin at the first one")
    for input_ in block.event.query_inputs:
        if chains.chain(input_.dataset_id).head() is None:
            return block, Blocked(
                f"input {input_.dataset_id.short} is not held here", f"odfctl mirror add {input_.dataset_id}"
            )
    cuts = recorded_cuts(block.event.query_inputs)
    pace = up_to(block.event.new_watermark)
    plan = plan_at(chains, before, state, cuts, read_past(checkpoint), block.system_time, pace)
    if isinstance(plan, UpToDate):
        raise Invalid(f"block #{number} records a transaction with nothing to do: {plan.reason}", rule="replay")
    return block, plan


def without_its_schema(state: ChainState, block: Block, reader: ChainReader) -> ChainState:
    """Drops a query's schema in the block before its first transaction, as it was computed and not given."""
    declared = reader.last_of(("SetDataSchema",), block.sequence_number)
    if declared is None or declared.sequence_number != block.sequence_number - 1:
        return state
    if declared.system_time != block.system_time:
        return state
    former = reader.last_of(("SetDataSchema",), declared.sequence_number)
    event = former.event if former is not None else None
    assert event is None or isinstance(event, SetDataSchema)
    return msgspec.structs.replace(state, schema=event)


def _became_changelog(former: ChainState, state: ChainState) -> bool:
    """Whether the schema that came with a transaction differs only in that rows can be retracted from now on."""
    if former.schema is None or state.schema is None or None in (former.schema.schema, state.schema.schema):
        return False
    before, after = former.schema.schema, state.schema.schema
    assert before is not None
    assert after is not None
    return says_changelog(before) is False and differ_in_this_alone(before, after)


def _declared_schema(reader: ChainReader, number: int) -> DataSchema | None:
    block = reader.last_of(("SetDataSchema",), number)
    return block.event.schema if block is not None and isinstance(block.event, SetDataSchema) else None


def _compare(
    recorded: object, computed: ExecuteTransform, declared: DataSchema | None, schema: DataSchema | None
) -> list[FieldMismatch]:
    """Lists differences but for physical hashes and sizes, which no rule makes equal, and for checkpoints."""
    assert isinstance(recorded, ExecuteTransform)
    theirs, ours = recorded.new_data, computed.new_data
    pairs: dict[str, tuple[object, object]] = {
        "queryInputs": (recorded.query_inputs, computed.query_inputs),
        "prevOffset": (recorded.prev_offset, computed.prev_offset),
        "newData.offsetInterval": (theirs and theirs.offset_interval, ours and ours.offset_interval),
        "newData.logicalHash": (theirs and theirs.logical_hash, ours and ours.logical_hash),
        "newWatermark": (recorded.new_watermark, computed.new_watermark),
    }
    if schema is not None:
        pairs["schema"] = (declared, _as_said(schema, declared))
    return [
        FieldMismatch(field=name, recorded=_text(one), computed=_text(other))
        for name, (one, other) in pairs.items()
        if not same(one, other)
    ]


def _as_said(schema: DataSchema, declared: DataSchema | None) -> DataSchema:
    """Drops the changelog flag if the declared schema lacks one: readers then treat it as unknown."""
    return with_changelog(schema, None) if says_changelog(declared) is None else schema


def _text(value: object) -> str:
    match value:
        case None:
            return "none"
        case OffsetInterval(start=start, end=end):
            return f"{start}..{end}"
        case bool() | str() | Multihash():
            return str(value)
        case int() if abs(value) > instant.SECOND:
            return instant.render(Instant(value))
        case _:
            return str(value)
