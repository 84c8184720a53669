"""Computes the views of datasets in the background, so that no listing waits for a look at many chains.

After a start each dataset is looked at once, whatever was saved of it; later, those that a write or the time changed.
What was looked at is saved for the next start. Works while its ``loop`` runs. A list that comes before a round, or
while one is under way, shows what was saved and looks at the rest itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import trio

from odfd.datasets.catalog import DatasetEntry
from odfd.runtime.reconcile_loop import ReconcileLoop

ROUND_SECONDS: Final = 3600.0
"""Between rounds when nothing is written: signed heads age within days."""
QUIET_SECONDS: Final = 5.0
"""Before each round: what is written meanwhile is looked at once, and a start has other work."""


class Views(Protocol):
    """What keeps views. Called in worker threads."""

    def load(self) -> None:
        """Read what an earlier run saved, so that the first list does not have to."""

    def outdated(self) -> Sequence[DatasetEntry]:
        """Of datasets whose view does not hold any more, or was saved by an earlier run and not looked at since."""

    def look(self, entry: DatasetEntry) -> object:
        """Look at the dataset anew, and keep what is found."""

    def save(self) -> None:
        """Save what was looked at."""


class ViewRefresher:
    """A background refresh of the views of one node."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self.loop = ReconcileLoop(self._round)

    async def refresh(self) -> None:
        """Look at what is outdated. A thread is taken for one dataset at a time: others come in between."""
        for entry in await trio.to_thread.run_sync(self._views.outdated):
            await trio.to_thread.run_sync(self._views.look, entry)
        await trio.to_thread.run_sync(self._views.save)

    async def _round(self) -> float:
        await trio.to_thread.run_sync(self._views.load)
        await trio.sleep(QUIET_SECONDS)
        await self.refresh()
        return ROUND_SECONDS
