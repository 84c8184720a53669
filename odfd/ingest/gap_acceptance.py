"""Finds what the source of a dataset let go of, and commits that the dataset goes on without it.

Spec: docs/spec/collections.md#gaps.
"""

from __future__ import annotations

import trio

from chain.errors import Conflict
from chain.ids import DatasetId
from chain.instant import to_millis
from chain.state import ChainState
from chain.store.base import Head, UpperMove
from odfd.datasets.commit import Commit, CommitPart, block_time
from odfd.ingest.driver import ATTEMPTS, IngestDependencies, fetch_job, load
from odfd.ingest.fetch.dispatch import polled_source
from odfd.ingest.file_writer import staged_folder
from odfd.ingest.gaps import AcceptedGap, SourceGap, accepted, accepted_before, check_name
from odfd.ingest.plan import polling
from odfd.runtime.tasks import outside
from odfd.store.captures import Capture
from odfd.store.row_counts import NOTHING_READ


async def gap_of(deps: IngestDependencies, dataset: DatasetId, state: ChainState) -> SourceGap | None:
    """Asks the source what it let go of after the position in ``state``; ``None``: nothing, or it has no positions.

    Raises Refused (no polling source), and what a fetch raises.
    """
    polled, _ = polling(state)
    source = await trio.to_thread.run_sync(polled_source, polled)
    async with staged_folder(deps.settings.staging) as folder, outside("its source"):
        job = await fetch_job(deps, dataset, polled, state, folder)
        found = await source.find_lost(job)
    return SourceGap(ranges=found) if found else None


async def accept_gap(deps: IngestDependencies, dataset: DatasetId, name: str) -> AcceptedGap:
    """Commits that the dataset, or all of its shards, go on after the gap of this name. Repeated, it is the same.

    Raises Refused if nothing is forgotten, or something else, and as ``gap_of``; Conflict.
    """
    for attempt in range(ATTEMPTS):
        upper = await trio.to_thread.run_sync(deps.store.upper, dataset)
        state = await trio.to_thread.run_sync(load, deps, dataset)
        before = await trio.to_thread.run_sync(accepted_before, deps.store.chain(dataset), name)
        if before is not None:
            return before
        gap = check_name(await gap_of(deps, dataset, state), name)
        assert state.source_state is not None, "a gap is after a position"
        label = polled_source(polling(state)[0]).skip(state.source_state, gap.ranges)
        is_captured = await trio.to_thread.run_sync(deps.is_captured, dataset)
        time = block_time(state, deps.now(), upper, alone=is_captured)
        assert state.head is not None
        part = CommitPart(
            dataset=dataset,
            expected=Head(state.head, state.sequence_number),
            events=accepted(state, gap, label).events,
            time=time,
            upper=UpperMove(upper),
            records=(NOTHING_READ, *((Capture(files=(), label=label),) if is_captured else ())),
        )
        try:
            (head,) = await deps.committer.commit(Commit(parts=(part,)))
        except Conflict:
            if attempt + 1 == ATTEMPTS:
                raise
            continue
        return AcceptedGap(gap, to_millis(time), head.hash)
    raise AssertionError("the last attempt returns or raises")
