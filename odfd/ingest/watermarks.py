"""Sets the watermark of a root dataset on its owner's word, when its source has no more data."""

from __future__ import annotations

from typing import Final

import msgspec
import trio

from chain import instant
from chain.errors import Conflict, Refused
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.events import AddData
from chain.state import ChainState
from chain.store.base import Head, UpperMove
from odfd.datasets.commit import TOLERANCE, Commit, CommitPart, block_time
from odfd.ingest.driver import IngestDependencies, load
from odfd.ingest.plan import require_root
from odfd.ingest.settlement import watermark_only

ATTEMPTS: Final = 5
"""Times that a commit is attempted if other commits interfere."""


class WatermarkSet(msgspec.Struct, frozen=True, kw_only=True):
    """The result; ``head`` is ``None`` if the watermark was set already."""

    head: Head | None
    watermark: Instant


async def set_watermark(
    deps: IngestDependencies, dataset: DatasetId, to: Instant, *, ahead: bool = False
) -> WatermarkSet:
    """Commits a block with a watermark and no rows. ``ahead``: it may be later than the clock.

    Raises Refused (no root; a watermark that would go back, or far ahead), and the faults of a commit.
    """
    for attempt in range(ATTEMPTS):
        upper = await trio.to_thread.run_sync(deps.store.upper, dataset)
        state = await trio.to_thread.run_sync(load, deps, dataset)
        time = block_time(state, deps.now(), upper)
        event = marking(state, to, time, ahead=ahead)
        if event is None:
            return WatermarkSet(head=None, watermark=to)
        try:
            part = CommitPart.after(state, time, (event,), upper=UpperMove(upper))
            (head,) = await deps.committer.commit(Commit(parts=(part,)))
        except Conflict:
            if attempt + 1 == ATTEMPTS:
                raise
            continue
        return WatermarkSet(head=head, watermark=to)
    raise AssertionError("the last attempt returns or raises")


def marking(state: ChainState, to: Instant, now: Instant, *, ahead: bool = False) -> AddData | None:
    """Builds the event that moves the watermark; ``None`` if it is there. The source is unchanged. Raises Refused."""
    require_root(state)
    if to % MILLISECOND:
        raise Refused("a watermark is in whole milliseconds", rule="watermark-millis", hint="cut the other digits")
    if state.watermark is not None and to < state.watermark:
        raise Refused(
            f"the watermark is {instant.render(state.watermark)} and does not go back",
            rule="watermark-monotonic",
            hint="name a later time; odfctl reset drops blocks together with their watermark",
        )
    if to > now + TOLERANCE and not ahead:
        raise Refused(
            f"{instant.render(to)} is more than a day ahead of the clock: all that comes until then would be late",
            rule="event-time-ahead",
            hint="is it mistyped? if it is meant: --ahead",
        )
    if to == state.watermark:
        return None
    return watermark_only(state, to)
