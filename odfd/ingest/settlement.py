"""Turns an engine's answer to an ingest plan into events to commit, and checks it against the file it wrote. Pure."""

from __future__ import annotations

import msgspec

from chain.data.operations import NO_RECORDS, Operations
from chain.data.quarantine import SCHEMA
from chain.errors import Invalid, Refused
from chain.instant import Instant
from chain.model.defaults import same
from chain.model.events import (
    AddData,
    DataSlice,
    MetadataEvent,
    OffsetInterval,
    SetDataSchema,
)
from chain.model.source import traits
from chain.multihash import Multihash
from chain.state import ChainState
from chain.wording import plural
from engines.contract import IngestBatchRequest, RowCounts, Success
from odfd.datasets.commit import CommitPart
from odfd.ingest.plan import IngestPlan, schema_in_force
from odfd.store.pushes import Push, PushOutcome
from odfd.store.row_counts import NOTHING_READ, all_remarks, together, with_written


class IngestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The events to commit, in this order, with the objects that they name.

    There are none if the batch brought neither data nor a change of watermark, schema or source state.
    """

    events: tuple[MetadataEvent, ...]
    objects: tuple[Multihash, ...]
    counts: RowCounts

    @property
    def rows(self) -> int:
        """Number of records in the new slice."""
        return sum(
            event.new_data.offset_interval.end - event.new_data.offset_interval.start + 1
            for event in self.events
            if isinstance(event, AddData) and event.new_data is not None
        )


def settle(
    plan: IngestPlan, answer: Success, slice_: DataSlice | None, written: Operations = NO_RECORDS
) -> IngestOutcome:
    """Builds the events of the engine's answer. Raises Invalid.

    ``slice_``: the slice as measured from its file; ``written``: the operations in it.
    """
    state = plan.state
    _check_answer(plan, answer, slice_)
    counts = _count(plan, answer, written)
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
    return IngestOutcome(events=tuple(events), objects=(slice_.physical_hash,) if slice_ else (), counts=counts)


def with_answer(push: Push, done: IngestOutcome) -> Push:
    """Returns the push with its answer, for now and for each repetition."""
    answer = PushOutcome(blocks=len(done.events), records=done.rows, counts=done.counts)
    return msgspec.structs.replace(push, answer=answer)


def watermark_only(state: ChainState, to: Instant) -> AddData:
    """Builds a block without rows that moves the watermark; the source state stays."""
    return AddData(
        prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
        prev_offset=state.last_offset,
        new_watermark=to,
        new_source_state=state.source_state,
    )


def _count(plan: IngestPlan, answer: Success, written: Operations) -> RowCounts:
    """Returns the counts of rows by outcome: the engine's, checked against its slice and the source. Raises Invalid."""
    counts = answer.rows or RowCounts()
    _check_counts(plan.request, counts, written)
    counts = msgspec.structs.replace(
        counts, skipped=together(plan.skipped, counts.skipped), remarks=all_remarks(plan.remarks, counts.remarks)
    )
    return with_written(counts, written)


def _check_counts(request: IngestBatchRequest, counts: RowCounts, written: Operations) -> None:
    """Raises Invalid if a row that was read is neither in a slice nor counted by the engine as left out."""
    known = counts.read, counts.shaped, counts.quarantined
    if request.preprocess is None and None not in known:
        read, *others = (each or 0 for each in known)
        if read != sum(others):
            raise Invalid(
                f"of {plural(counts.read or 0, 'record')} that the engine read, {counts.shaped} are rows and"
                f" {counts.quarantined} set aside",
                rule="engine-answer",
            )
    how = traits(request.merge)
    written_of_no_row = how.newest_of_key * written.correct_from + how.whole_state * written.retract
    taken = sum(written) - written_of_no_row
    parts = (counts.unchanged, counts.conflicting, counts.superseded)
    if counts.shaped is None or None in parts:
        return
    lost = counts.shaped - taken - sum(part for part in parts if part is not None)
    if lost:
        raise Invalid(
            f"of {plural(counts.shaped, 'row')} the engine wrote {taken}, and its counts do not say what "
            f"became of {lost} of them",
            rule="engine-answer",
        )


def beside(plan: IngestPlan, counts: RowCounts, slice_: DataSlice | None) -> CommitPart | None:
    """Builds the quarantine's commit of unreadable records. ``slice_`` is measured from their file.

    Raises Invalid if the file and the counts disagree, Refused for a dataset that has other columns.
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
        raise Invalid("the engine wrote other offsets of quarantined records than requested", rule="engine-answer")
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
    rows = msgspec.structs.replace(NOTHING_READ, read=found, shaped=found, appended=found)
    events = (data,) if held is not None else (SetDataSchema(schema=SCHEMA), data)
    return CommitPart.after(into.state, time, events, (slice_.physical_hash,), records=(rows,))


def _check_answer(plan: IngestPlan, answer: Success, slice_: DataSlice | None) -> None:
    """Checks the engine's answer as far as that is cheap. Raises Invalid."""
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
        if answer.schema is None or (plan.request.schema is not None and not same(answer.schema, plan.request.schema)):
            raise Invalid("the engine wrote data of another schema than the one in force", rule="engine-answer")
    before = plan.request.prev_watermark
    if before is not None and (answer.new_watermark is None or answer.new_watermark < before):
        raise Invalid("the engine moved the watermark back", rule="engine-answer")
