"""Checks the clock for the doctor: whether it jumped, and which of our datasets hold times from a wrong clock.

Of each dataset one or two blocks are read; more, by halves, of those that are marked. Synchronous.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Final

from chain import instant
from chain.errors import Fault
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import AddData, ExecuteTransform
from chain.state import ChainState, load_state
from chain.store.base import ChainReader
from engines.spark.analysis.source_declarations import AHEAD, read_source
from odfd.control import wire
from odfd.datasets.reading import way_to_data
from odfd.datasets.times import TOLERANCE, check_jump
from odfd.state.directory import StateDirectory

SHOWN: Final = 3
"""Datasets told of those that are marked."""
_DATA: Final = ("AddData", "ExecuteTransform")


class ClockProbe:
    """The doctor's probe of the clock and of the times that our datasets hold.

    ``ahead``: how far the clock was set ahead since the node began, as ``JumpWatch`` tells it.
    """

    def __init__(
        self, home: StateDirectory, now: Callable[[], Instant], ahead: Callable[[Instant | None], int]
    ) -> None:
        self._home = home
        self._now = now
        self._ahead = ahead

    def __call__(self) -> wire.Probe:
        now = self._now()
        try:
            check_jump(self._ahead(None), now)
        except Fault as fault:
            return wire.Probe(name="clock", result="failed", message=fault.message, hint=fault.hint)
        limit = Instant(now + TOLERANCE)
        marked = [found for found in (self._marked(each, limit) for each in self._own()) if found is not None]
        if not marked:
            return wire.Probe(name="clock", result="ok", message="no block and no watermark of ours is ahead of it")
        more = f"; and {len(marked) - SHOWN} more" if len(marked) > SHOWN else ""
        name, _, keep, refill = marked[0]
        return wire.Probe(
            name="clock",
            result="failed",
            message="; ".join(said for _, said, *_ in marked[:SHOWN]) + more,
            hint=_way_out(name, keep, refill),
        )

    def _own(self) -> list[DatasetId]:
        return [each for each in self._home.chains.datasets() if self._home.keys.has_dataset_key(each)]

    def _marked(self, dataset: DatasetId, limit: Instant) -> tuple[str, str, int, str] | None:
        """Name, what is wrong, the last block before it (-1 where it is the first), and what brings rows again."""
        chain = self._home.chains.chain(dataset)
        state = load_state(chain)
        if state.system_time is None or state.kind is None:
            return None
        with self._home.catalog() as catalog:
            name = catalog.name_of(dataset)
        refill = way_to_data(name, state, own=True)
        if state.system_time > limit:
            first = bisect.bisect_right(range(state.size), limit, key=lambda number: chain.block_at(number).system_time)
            time = instant.render(chain.block_at(first).system_time)
            return name, f"{name}: blocks from #{first} on are of {time} and later", first - 1, refill
        if state.watermark is not None and state.watermark > limit and not _is_meant(state):
            first = _first_marked(chain, state.size, limit)
            mark = instant.render(state.watermark)
            return (
                name,
                f"{name}: since block #{first} its watermark is {mark}, and all rows are late",
                first - 1,
                refill,
            )
        return None


def _way_out(name: str, keep: int, refill: str) -> str:
    """What to type so that the blocks behind ``keep`` are given up; a source that they declared is applied again.

    ``refill``: brings their rows again.
    """
    give_up, after = f"odfctl reset {name} '#{keep}'", "mirrors follow the epoch as their policy says"
    if keep < 0:
        give_up, after = f"odfctl delete dataset {name}", "it has another id then: those who follow it have to be told"
    file = f"{name}.yaml"
    return (
        f"if the clock is right: odfctl get dataset {name} -o manifest > {file}; {give_up}; odfctl apply -f {file}; "
        f"{refill}; {after}"
    )


def _is_meant(state: ChainState) -> bool:
    """Whether a source says that its event times are ahead of the clock; a derived dataset follows its inputs."""
    sources = [state.polling_source, *state.active_push_sources.values()]
    return any(each is not None and read_source(each.preprocess)[1].ahead != AHEAD for each in sources)


def _first_marked(chain: ChainReader, size: int, limit: Instant) -> int:
    """The first block with a watermark later than ``limit``: watermarks never go back."""

    def mark(number: int) -> Instant:
        block = chain.last_of(_DATA, number + 1)
        event = block.event if block is not None else None
        said = event.new_watermark if isinstance(event, AddData | ExecuteTransform) else None
        return Instant(-(1 << 80)) if said is None else said

    return bisect.bisect_right(range(size), limit, key=mark)
