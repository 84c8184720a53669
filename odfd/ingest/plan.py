"""Plans one ingest transaction as a value: the request to the engine, and the events that follow from its answer.

Pure. A plan is a function of the chain's state, the source, the files fetched and the block's time; planned again after
a crash on the same head and files it is the same plan, with the same transaction id, so nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from chain.data.operations import NO_RECORDS, Operations
from chain.data.quarantine import SCHEMA
from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    DataSlice,
    MetadataEvent,
    OffsetInterval,
    SetDataSchema,
    SetPollingSource,
    SourceState,
)
from chain.model.on_error import quarantine_of
from chain.model.schema import DataSchema
from chain.model.source import MergeAppend, MergeStrategy, ReadStep, Transform, traits
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import Head
from chain.wording import plural
from engines.contract import IngestRequest, QuarantineTarget, RowCounts, SkippedFile, Success, Vocabulary
from odfd.datasets.commit import SideCommit
from odfd.datasets.counting import NOTHING_READ, all_remarks, together, with_written
from odfd.ingest.fetch.base import Local

LINK_TYPE: Final = "opendatafabric.org/type"
"""Attribute by which a column says that its values name objects."""


class SourceInForce(msgspec.Struct, frozen=True, kw_only=True):
    """How files become rows: the part that polling and push sources share."""

    name: str
    read: ReadStep
    preprocess: Transform | None
    merge: MergeStrategy


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Files that make one transaction."""

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    identity: str
    """Changes whenever the bytes do."""
    event_time: Instant | None = None
    state: SourceState | None = None
    fills_event_time: bool = False
    """Somebody asked that rows without event time take ``event_time``."""
    skipped: tuple[SkippedFile, ...] = ()
    """Files that the source has beside, and of which nothing is taken."""
    remarks: tuple[str, ...] = ()
    """What was taken for granted in getting at them, for people."""
    local: Local | None = None
    """The file at its source, where others may still write to it."""


class EarlierSlices(NamedTuple):
    """Files with earlier rows, for one ingest."""

    files: list[tuple[Multihash, Path]]
    """To be given, oldest first."""
    bounds: tuple[Multihash, Path] | None = None
    """A file with the bounds of older ones, which are given when they are asked for; ``None``: there are no others."""
    older: Callable[[Collection[str] | None], list[tuple[Multihash, Path]]] = lambda _: []
    """Of the older ones those of these names, or all of them, oldest first."""


NO_HISTORY: Final = EarlierSlices([])


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """The dataset that takes records of another that cannot be read, as it is; ``None``: not made yet."""

    dataset: DatasetId | None = None
    state: ChainState | None = None

    @property
    def next_offset(self) -> int:
        return 0 if self.state is None else self.state.next_offset


class IngestPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``request`` goes to the engine; the rest is needed to turn its answer into events on ``expected``."""

    expected: Head
    state: ChainState
    request: IngestRequest
    source_state: SourceState | None
    skipped: tuple[SkippedFile, ...] = ()
    remarks: tuple[str, ...] = ()
    founding: tuple[MetadataEvent, ...] = ()
    """Events to commit before the data: a push source that is made by its first use."""
    quarantine: Quarantine | None = None
    """Where records go that cannot be read; ``None``: the files are refused."""


class IngestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What to commit, in this order."""

    events: tuple[MetadataEvent, ...]
    objects: tuple[Multihash, ...]
    counts: RowCounts

    @property
    def rows(self) -> int:
        """Records of the new slice."""
        return sum(
            each.new_data.offset_interval.end - each.new_data.offset_interval.start + 1
            for each in self.events
            if isinstance(each, AddData) and each.new_data is not None
        )


class Nothing(msgspec.Struct, frozen=True):
    """The batch brought neither data nor a change of watermark, schema or source state."""

    counts: RowCounts


Settled: TypeAlias = IngestOutcome | Nothing


def polling(state: ChainState) -> tuple[SetPollingSource, SourceInForce]:
    """The polling source in force. Raises Refused for datasets that have none."""
    require_root(state)
    found = state.polling_source
    if found is None:
        hint = "push data with `odfctl ingest`" if state.active_push_sources else "add one with SetPollingSource"
        raise Refused("the dataset has no polling source", rule="polling-source", hint=hint)
    return found, SourceInForce(name="default", read=found.read, preprocess=found.preprocess, merge=found.merge)


def pushed(
    state: ChainState, name: str | None, read: ReadStep | None
) -> tuple[SourceInForce, tuple[MetadataEvent, ...]]:
    """The push source to use, and the event that makes it if this is its first use.

    ``read`` is how to read files when the dataset has no push source yet. Raises Refused, Invalid.
    """
    require_root(state)
    if state.polling_source is not None:
        raise Refused("the dataset polls its source", rule="push-source", hint="bring it up to date with `odfctl pull`")
    sources = state.active_push_sources
    if name is None and len(sources) == 1:
        name = next(iter(sources))
    if name is None and sources:
        known = ", ".join(sorted(sources))
        raise Invalid("the dataset has several push sources", rule="push-source", hint=f"name one of {known}")
    if name is not None and name not in sources:
        known = ", ".join(sorted(sources)) or "none"
        raise Invalid(f"no push source {name!r}", rule="push-source", hint=f"there are: {known}")
    if name is not None:
        found = sources[name]
        if read is not None and type(read) is not type(found.read):
            raise Refused(
                f"the push source {name!r} reads {_format(found.read)}, not {_format(read)}",
                rule="push-format",
                hint="leave out the format, or name a source that reads it",
            )
        return SourceInForce(name=name, read=found.read, preprocess=found.preprocess, merge=found.merge), ()
    if read is None:
        raise Invalid("the dataset has no push source yet", rule="push-source", hint="say --format csv or another")
    made = AddPushSource(source_name="auto", read=read, merge=MergeAppend())
    return SourceInForce(name="auto", read=read, preprocess=None, merge=made.merge), (made,)


def _format(read: ReadStep) -> str:
    return str(type(read).__struct_config__.tag)


def guesses_columns(source: SourceInForce) -> bool:
    """Whether what columns there are is for the files to say."""
    read = source.read
    declared = bool(read.schema and read.schema.fields) or bool(getattr(read, "ddl_schema", None))
    return source.preprocess is None and not declared


def require_root(state: ChainState) -> None:
    """Raises Refused unless data can be ingested into this chain."""
    if state.kind is not DatasetKind.ROOT:
        raise Refused(
            "data is ingested into root datasets only", rule="root-only", hint="a derived dataset runs its transform"
        )


def refuse_quarantine(read: ReadStep, merge: MergeStrategy) -> None:
    """Raises Refused where a record that is set aside would change what others mean, Invalid for what is not meant."""
    if traits(merge).whole_state and quarantine_of(read.schema) is not None:
        raise Refused(
            "onError: quarantine, and the source is merged by Snapshot: what is set aside would count as gone",
            rule="on-error",
            hint="leave out onError, or read the column at fault as String and convert it in preprocess",
        )


def schema_in_force(state: ChainState) -> DataSchema | None:
    """What rows of the dataset look like, system columns included. Raises Refused for the legacy form."""
    if state.schema is None:
        return None
    if state.schema.schema is None:
        raise Refused(
            "the dataset's schema is in the legacy form (rawArrowSchema), which is kept but not written by",
            rule="legacy-schema",
            hint="append a SetDataSchema with the same columns first",
        )
    return state.schema.schema


def plan_ingest(
    state: ChainState,
    source: SourceInForce,
    batch: Batch,
    system_time: Instant,
    earlier: EarlierSlices = NO_HISTORY,
    founding: tuple[MetadataEvent, ...] = (),
    quarantine: Quarantine | None = None,
) -> IngestPlan:
    """``earlier``: slices, if the strategy needs them. The output paths are not decided yet."""
    assert state.dataset is not None
    assert state.head is not None
    refuse_links(source.read)
    refuse_quarantine(source.read, source.merge)
    said = state.vocab
    vocab = Vocabulary(
        offset_column=said.offset,
        operation_type_column=said.operation_type,
        system_time_column=said.system_time,
        event_time_column=said.event_time,
    )
    request = IngestRequest(
        dataset_id=state.dataset,
        system_time=system_time,
        vocab=vocab,
        read=source.read,
        preprocess=source.preprocess,
        merge=source.merge,
        source_paths=tuple(str(path) for path in batch.paths),
        source_names=batch.names,
        source_event_time=batch.event_time,
        schema=schema_in_force(state),
        prev_data_paths=tuple(str(path) for _, path in earlier.files),
        prev_data_hashes=tuple(str(name) for name, _ in earlier.files),
        prev_watermark=state.watermark,
        next_offset=state.next_offset,
        new_data_path="",
        transaction_id=transaction_id(state, source, batch, system_time),
        fills_event_time=batch.fills_event_time,
        quarantine=_target(state, quarantine),
        prev_data_bounds=None if earlier.bounds is None else str(earlier.bounds[1]),
        prev_data_bounds_hash=None if earlier.bounds is None else str(earlier.bounds[0]),
    )
    expected = Head(state.head, state.sequence_number)
    return IngestPlan(
        expected=expected,
        state=state,
        request=request,
        source_state=batch.state,
        skipped=batch.skipped,
        remarks=batch.remarks,
        founding=founding,
        quarantine=quarantine,
    )


def _target(state: ChainState, quarantine: Quarantine | None) -> QuarantineTarget | None:
    if quarantine is None:
        return None
    return QuarantineTarget(path="", next_offset=quarantine.next_offset, follows=str(state.head))


def transaction_id(state: ChainState, source: SourceInForce, batch: Batch, system_time: Instant) -> str:
    """The same for the same question: dataset, head, source, its state and files, and the time of the block."""
    parts = (
        bytes(state.dataset or b""),
        bytes(state.head or b""),
        source.name,
        source.read,
        source.preprocess,
        source.merge,
        state.source_state,
        batch.identity,
        batch.event_time,
        system_time,
    )
    return str(Multihash.sha3_256(msgspec.json.encode(parts, order="deterministic")))


def settle(plan: IngestPlan, answer: Success, slice_: DataSlice | None, written: Operations = NO_RECORDS) -> Settled:
    """Events for the engine's answer. ``slice_`` is what was found in the file it wrote, ``written`` what its records
    do. Raises Invalid.
    """
    state = plan.state
    _check_answer(plan, answer, slice_)
    counts = _counted(plan, answer, written)
    data = AddData(
        prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
        prev_offset=state.last_offset,
        new_data=slice_,
        new_watermark=answer.new_watermark,
        new_source_state=plan.source_state,
    )
    events = list(plan.founding)
    if state.schema is None and answer.schema is not None:
        events.append(SetDataSchema(schema=answer.schema))
    learnt = data.new_source_state is not None and data.new_source_state != state.source_state
    if slice_ is not None or learnt or data.new_watermark != state.watermark:
        events.append(data)
    if not events:
        return Nothing(counts)
    return IngestOutcome(events=tuple(events), objects=(slice_.physical_hash,) if slice_ else (), counts=counts)


def watermark_only(state: ChainState, to: Instant) -> AddData:
    """A block without rows; of the source nothing changes."""
    return AddData(
        prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
        prev_offset=state.last_offset,
        new_watermark=to,
        new_source_state=state.source_state,
    )


def _counted(plan: IngestPlan, answer: Success, written: Operations) -> RowCounts:
    """What became of the rows: as the engine says, but for what its slice and the source say. Raises Invalid."""
    told = answer.rows or RowCounts()
    _check_told(plan.request, told, written)
    told = msgspec.structs.replace(
        told, skipped=together(plan.skipped, told.skipped), remarks=all_remarks(plan.remarks, told.remarks)
    )
    return with_written(told, written)


def _check_told(request: IngestRequest, told: RowCounts, written: Operations) -> None:
    """Each row that was read is in a slice, or the engine says why it is not."""
    known = told.read, told.shaped, told.quarantined
    if request.preprocess is None and None not in known:
        read, *others = (each or 0 for each in known)
        if read != sum(others):
            raise Invalid(
                f"of {plural(told.read or 0, 'record')} that the engine read, {told.shaped} are rows and"
                f" {told.quarantined} set aside",
                rule="engine-answer",
            )
    how = traits(request.merge)
    written_of_no_row = how.newest_of_key * written.correct_from + how.whole_state * written.retract
    taken = sum(written) - written_of_no_row
    parts = (told.unchanged, told.conflicting, told.superseded)
    if told.shaped is None or None in parts:
        return
    lost = told.shaped - taken - sum(part for part in parts if part is not None)
    if lost:
        raise Invalid(
            f"of {plural(told.shaped, 'row')} the engine wrote {taken}, and its counts do not say what "
            f"became of {lost} of them",
            rule="engine-answer",
        )


def beside(plan: IngestPlan, counts: RowCounts, slice_: DataSlice | None) -> SideCommit | None:
    """What the dataset gets that takes records that cannot be read. ``slice_``: what was found in the file of them.

    Raises Invalid when the file and the counts disagree, Refused for a dataset that has other columns.
    """
    found = 0 if slice_ is None else slice_.offset_interval.end - slice_.offset_interval.start + 1
    into = plan.quarantine
    if into is None or found != (counts.quarantined or 0):
        if not counts.quarantined and not found:
            return None
        raise Invalid(
            f"the engine set {plural(counts.quarantined or 0, 'record')} aside, and wrote {found} of them",
            rule="engine-answer",
        )
    if slice_ is None:
        return None
    assert into.dataset is not None
    assert into.state is not None
    if slice_.offset_interval.start != into.next_offset:
        raise Invalid("the engine wrote other offsets of records set aside than was asked", rule="engine-answer")
    held = schema_in_force(into.state)
    if held is not None and held != SCHEMA:
        raise Refused(
            f"{into.dataset.short}, which takes the records that cannot be read, has other columns",
            rule="quarantine-dataset",
            hint="rename or delete it: another one is made",
        )
    time = plan.request.system_time
    data = AddData(
        prev_offset=into.state.last_offset,
        new_data=slice_,
        new_watermark=time if into.state.watermark is None else max(time, into.state.watermark),
    )
    expected = None if into.state.head is None else Head(into.state.head, into.state.sequence_number)
    rows = msgspec.structs.replace(NOTHING_READ, read=found, shaped=found, appended=found)
    return SideCommit(
        dataset=into.dataset,
        expected=expected,
        events=(data,) if held is not None else (SetDataSchema(schema=SCHEMA), data),
        objects=(slice_.physical_hash,),
        rows=rows,
        time=time,
    )


def _check_answer(plan: IngestPlan, answer: Success, slice_: DataSlice | None) -> None:
    """An engine is not believed where looking is cheap."""
    interval = answer.new_offset_interval
    if (interval is None) != (slice_ is None):
        raise Invalid("the engine's answer and its file disagree on whether there is data", rule="engine-answer")
    if interval is not None and slice_ is not None:
        expected = OffsetInterval(start=plan.request.next_offset, end=interval.end)
        if interval != expected or slice_.offset_interval != interval or interval.end < interval.start:
            raise Invalid(
                f"the engine wrote offsets {slice_.offset_interval.start}..{slice_.offset_interval.end}, "
                f"says {interval.start}..{interval.end}, and was asked to begin at {expected.start}",
                rule="engine-answer",
            )
        if answer.schema is None or (plan.request.schema is not None and answer.schema != plan.request.schema):
            raise Invalid("the engine wrote data of another schema than the one in force", rule="engine-answer")
    before = plan.request.prev_watermark
    if before is not None and (answer.new_watermark is None or answer.new_watermark < before):
        raise Invalid("the engine moved the watermark back", rule="engine-answer")


def refuse_links(read: ReadStep) -> None:
    """Linked objects must exist before a row may name them; until that is checked such columns are refused.

    Raises Refused.
    """
    fields = read.schema.fields if read.schema is not None else ()
    for field in fields:
        if field.extra and LINK_TYPE in field.extra:
            raise Refused(
                f"column {field.name!r} names linked objects, which cannot be checked yet",
                rule="linked-objects",
                hint=f"leave out the attribute {LINK_TYPE}",
            )
