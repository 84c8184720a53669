"""Decodes captured bytes into another rendition, at their times, as the sources of that rendition read them.

A transaction is a function of the rendition before it, its time and the bytes, as in a replay (``raw_replay``), but it
is committed here, with the same bytes bound to it. The captures that remain are found from those bound already, so a
crash neither loses nor repeats any. Spec: docs/spec/collections.md#from-raw.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from chain.errors import Conflict, Refused
from chain.ids import DatasetId
from chain.instant import from_millis, to_millis
from chain.model.read_options import quarantine_of
from chain.state import ChainState
from chain.store.base import Head, UpperMove
from odfd.datasets.commit import Commit, CommitPart
from odfd.ingest.driver import IngestDependencies, compute, load, shards_with
from odfd.ingest.file_writer import staged_folder
from odfd.ingest.gaps import gap_between, gap_transaction
from odfd.ingest.plan import Batch, IngestPlan, PlanTerms, find_push_source, plan_ingest, polling
from odfd.ingest.raw_replay import captured_batch
from odfd.ingest.settlement import IngestOutcome
from odfd.ingest.snapshots import needs_event_time
from odfd.store.captures import BoundCapture, Capture
from odfd.store.row_counts import NOTHING_READ


def remaining(source: Sequence[BoundCapture], own: Sequence[BoundCapture]) -> Sequence[BoundCapture]:
    """Returns the captures after the last one that became blocks. Both lists are in order; a capture may give no block.

    Raises Conflict if ``own`` has a capture that ``source`` lacks: it is then no rendition of the same collection.
    """
    place = 0
    for each in own:
        while place < len(source) and not _is_same(source[place], each):
            place += 1
        if place == len(source):
            raise Conflict("a captured transaction is not of the collection", rule="rendition-captures")
        place += 1
    return source[place:]


def _is_same(one: BoundCapture, other: BoundCapture) -> bool:
    return (one.time, one.capture) == (other.time, other.capture)


async def decode(deps: IngestDependencies, dataset: DatasetId, bound: BoundCapture) -> Head | None:
    """Commits the transaction of a capture at its time; returns ``None`` if the capture gives nothing to commit.

    Raises Invalid (the bytes cannot be read so), Conflict, Refused, NotFound, Environment and the engine's faults.
    """
    if not bound.capture.files:
        return await _gone_on(deps, dataset, bound)
    plan, settled = await compute_captured(deps, dataset, bound.capture, bound.time)
    if not settled.events:
        return None
    time, records = plan.request.system_time, (settled.counts, bound.capture)
    part = CommitPart.after(plan.state, time, settled.events, settled.objects, plan.upper, records)
    (head,) = await deps.committer.commit(Commit(parts=(part,)))
    return head


async def _gone_on(deps: IngestDependencies, dataset: DatasetId, bound: BoundCapture) -> Head:
    """Commits that the source went on over a gap that was accepted. Raises Conflict, Refused."""
    upper = await trio.to_thread.run_sync(deps.store.upper, dataset)
    state = await trio.to_thread.run_sync(load, deps, dataset)
    label = bound.capture.label
    events, records = gap_transaction(state, gap_between(state, label), label).events, (NOTHING_READ, bound.capture)
    part = CommitPart.after(state, from_millis(bound.time), events, upper=UpperMove(upper), records=records)
    (head,) = await deps.committer.commit(Commit(parts=(part,)))
    return head


async def compute_captured(
    deps: IngestDependencies, dataset: DatasetId, capture: Capture, time: int
) -> tuple[IngestPlan, IngestOutcome]:
    """Computes the transaction of captured bytes at a time, after what the dataset, or all of its shards, have now.

    Raises as ``decode``. The slices of the result are stored as objects.
    """
    state = await trio.to_thread.run_sync(load, deps, dataset)
    if state.system_time is not None and time < to_millis(state.system_time):
        raise Conflict("a capture of an earlier time than the rendition's last block", rule="rendition-captures")
    async with staged_folder(deps.settings.staging) as folder:
        batch = await captured_batch(deps, state, capture, folder)
        plan = await trio.to_thread.run_sync(_plan, deps, state, batch, (capture.source, time))
        settled, _ = await compute(deps, plan)
    return plan, settled


def _plan(deps: IngestDependencies, state: ChainState, batch: Batch, origin: tuple[str, int]) -> IngestPlan:
    """Plans as the driver does. ``origin``: the push source or an empty text, and the time (ms). Raises Refused."""
    name, time = origin
    source = find_push_source(state, name, None)[0] if name else polling(state)[1]
    if quarantine_of(source.read.schema) is not None:
        raise Refused(
            "a source with onError: quarantine cannot be decoded anew: what is set aside would come twice",
            rule="rendition-quarantine",
            hint="leave out onError in the manifest, and apply it first",
        )
    assert state.dataset is not None
    shards = shards_with(deps, state)
    terms = PlanTerms(
        output=deps.objects.stage(),
        settings=deps.settings,
        upper=UpperMove(deps.store.upper(state.dataset)),
        earlier=deps.index.earlier_of_all(shards, deps.objects, source.merge),
        needs_event_time=needs_event_time(batch, source, shards),
    )
    return plan_ingest(state, source, batch, from_millis(time), terms)
