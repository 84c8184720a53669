"""Says what sources let go of before it was taken, and goes on without it where a person accepts that, for the API.

Spec: docs/spec/collections.md#gaps.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from chain.ids import DatasetId
from chain.instant import from_millis, render
from chain.model.fetch_options import fetch_options
from chain.state import ChainState, load_state
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.control.operations import DATASET_PATH, Owner, operation
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.gaps import AcceptedGap, SourceGap, accept_gap, gap_of
from odfd.ingest.templates import redact
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report
from odfd.services.ingest.own_roots import own_root
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory


class GapService:
    """The API service for gaps of sources."""

    def __init__(
        self,
        home: StateDirectory,
        dependencies: Callable[[DatasetId], IngestDependencies],
        context: Context,
    ) -> None:
        """``dependencies``: what an ingest of a dataset uses, with the variables that its source may name. Blocking."""
        self._home, self._dependencies = home, dependencies
        self._board, self._events, self._meter = context.board, context.events, context.meter

    @operation("POST", DATASET_PATH + "/gap", needs=Owner.SOURCES)
    def run(self, ref: str, request: wire.GapRequest) -> wire.TaskRef:
        """Asks a dataset's source for a gap, or accepts one by its name. Result: GapView.

        Raises NotFound; Refused if this node does not ingest it, and for a gap that is none or another one.
        """
        entry = own_root(self._home, ref, "its owner reads the source")

        async def work(report: Report) -> wire.GapView:
            report.begin(f"asking the source of {entry.name}", None, "partitions")
            async with self._home.turns.of(entry.id):
                deps, state = await trio.to_thread.run_sync(self._look, entry.id)
                with redact(deps.settings.variables):
                    if request.accept is None:
                        return _view(entry, state, await gap_of(deps, entry.id, state))
                    done = await accept_gap(deps, entry.id, request.accept)
                now = await trio.to_thread.run_sync(load_state, deps.store.chain(entry.id))
            return self._tell(entry, state, done, is_new=now.head != state.head)

        return task_ref(self._board.submit("gap", entry.name, work, about(entry.id)))

    def _look(self, dataset: DatasetId) -> tuple[IngestDependencies, ChainState]:
        deps = self._dependencies(dataset)
        return deps, load_state(deps.store.chain(dataset))

    def _tell(self, entry: DatasetEntry, state: ChainState, done: AcceptedGap, *, is_new: bool) -> wire.GapView:
        if is_new:
            text = f"it continues without {done.gap.count:,} offsets of its source (gap {done.gap.name})"
            self._events.emit("gap.accepted", entry.name, text, about=about(entry.id), gap=done.gap.name)
            self._meter.count("odfd_source_lost_total", done.gap.count)
        time = render(from_millis(done.time))
        return _view(entry, state, done.gap, accepted=True, time=time, block=str(done.block))


def _view(
    entry: DatasetEntry, state: ChainState, gap: SourceGap | None, *, accepted: bool = False,
    time: str | None = None, block: str | None = None,
) -> wire.GapView:  # fmt: skip
    if gap is None:
        return wire.GapView(dataset=entry.name)
    parts = [(range_.place, range_) for range_ in gap.ranges]
    lost = tuple(
        wire.LostRange(
            topic_id=topic, partition=number, first=each.start, last=each.end - 1, count=each.end - each.start
        )
        for (topic, number), each in parts
    )
    return wire.GapView(
        dataset=entry.name, name=gap.name, topic=_topic(state), lost=lost, count=gap.count, accepted=accepted,
        time=time, block=block,
    )  # fmt: skip


def _topic(state: ChainState) -> str:
    """Returns the name of the topic as the source declares it, in its URL."""
    polled = state.polling_source
    url = getattr(polled.fetch, "url", "") if polled is not None and fetch_options(polled.read.schema) else ""
    return str(url).rsplit("/", 1)[-1]
