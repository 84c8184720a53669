"""When the background refresh of views works: with the clock of the test."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from trio.testing import MockClock

from chain.ids import DatasetId, DatasetName
from chain.instant import Instant
from odfd.runtime.supervision import Life
from odfd.services.views.cache import QUIET_SECONDS, ViewRefresher
from odfd.store.catalog import DatasetEntry


class Looks:
    """Views that are all outdated, and when each was looked at."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.is_loaded = False
        self.saved = trio.Event()

    def load(self) -> None:
        self.is_loaded = not self.at

    def list_outdated(self) -> Sequence[DatasetEntry]:
        return [DatasetEntry(name=DatasetName("d"), id=DatasetId.from_public_key(bytes(32)), created_at=Instant(0))]

    def look(self, entry: DatasetEntry) -> None:
        self.at.append(trio.from_thread.run_sync(trio.current_time))

    def save(self) -> None:
        trio.from_thread.run_sync(self.saved.set)


async def test_a_start_has_its_first_seconds_for_other_work(autojump_clock: MockClock) -> None:
    """Also writes that come in a burst are looked at once, after it."""
    views = Looks()
    refresher, life, begun = ViewRefresher(views), Life(), trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refresher.loop.run, life)
        for _ in range(3):
            await trio.sleep(QUIET_SECONDS / 4)
            refresher.loop.poke()
            assert not views.at
        await views.saved.wait()
        nursery.cancel_scope.cancel()
    assert views.is_loaded
    (at,) = views.at
    assert begun + QUIET_SECONDS <= at < begun + 2 * QUIET_SECONDS  # the clock goes on while a thread loads
