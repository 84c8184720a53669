"""Counts datasets, mirrors and flows by state at intervals, so that a scrape of metrics reads only a few numbers.

The count reads each dataset's name in memory, in the background and only while metrics are exposed; a scrape costs the
same however many datasets there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from chain.instant import SECOND, Instant
from odfd.flows.plan import BAD
from odfd.flows.scheduler import Entry, Scheduler
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.runtime.reconcile_loop import ReconcileLoop

EVERY_SECONDS: Final = 15.0
"""Seconds between two counts: Prometheus's default interval of scrapes."""
SOME: Final = 1000
"""Mirrors or flows that are counted before other tasks get their turn."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The counts, and their time (trio's clock)."""

    at: float
    standings: Mapping[str, int] = field(default_factory=dict)
    published: int = 0
    withdrawn: int = 0
    blocked: int = 0
    mirrors: Mapping[str, int] = field(default_factory=dict)
    lacking_blocks: int = 0
    lacking_bytes: int = 0
    flows: Mapping[str, int] = field(default_factory=dict)
    overdue_seconds: float = 0.0


class Surveyor:
    """Counts the inventory; ``newest`` is ``None`` until ``loop`` has counted once."""

    def __init__(
        self,
        standings: Callable[[], tuple[Mapping[str, int], int, int, int]],
        mirrors: MirrorScheduler,
        flows: Scheduler,
        now: Callable[[], Instant],
    ) -> None:
        """``standings`` counts datasets by state, those published, copies of withdrawn ones, and those that wait for
        their engine; called in a worker thread."""
        self._standings = standings
        self._mirrors = mirrors
        self._flows = flows
        self._now = now
        self.newest: Survey | None = None
        self.loop = ReconcileLoop(self._round)

    async def _round(self) -> float:
        standings, published, withdrawn, blocked = await trio.to_thread.run_sync(self._standings)
        mirrors, blocks, lacking = await self._count_mirrors()
        flows, overdue = await self._count_flows()
        self.newest = Survey(
            at=trio.current_time(),
            standings=standings,
            published=published,
            withdrawn=withdrawn,
            blocked=blocked,
            mirrors=mirrors,
            lacking_blocks=blocks,
            lacking_bytes=lacking,
            flows=flows,
            overdue_seconds=overdue / SECOND,
        )
        return EVERY_SECONDS

    async def _count_mirrors(self) -> tuple[Counter[str], int, int]:
        states, blocks, lacking = Counter[str](), 0, 0
        for number, mirror in enumerate(self._mirrors.all(), 1):
            states[mirror.state.value] += 1
            blocks += max(0, mirror.tally.blocks_wanted - mirror.tally.blocks)
            lacking += max(0, mirror.tally.bytes_wanted - mirror.tally.bytes)
            if number % SOME == 0:
                await trio.lowlevel.checkpoint()
        return states, blocks, lacking

    async def _count_flows(self) -> tuple[Counter[str], int]:
        states, most, now = Counter[str](), 0, self._now()
        for number, (_, entry) in enumerate(list(self._flows.entries()), 1):
            if not entry.plan.is_inside:
                states[_state(entry)] += 1
            if entry.due is not None and not entry.running and not entry.is_paused:
                most = max(most, now - entry.due)
            if number % SOME == 0:
                await trio.lowlevel.checkpoint()
        return states, most


def _state(entry: Entry) -> str:
    if entry.is_paused:
        return "paused"
    if entry.running:
        return "running"
    return "failing" if entry.record.outcome in BAD else "waiting"
