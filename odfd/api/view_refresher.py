"""Computes the views of all datasets in the background after the start, so that the first listing does not wait.

``DatasetViews`` keeps what a view shows until something changes; this asks for each once, and again after what time
alone changes. Works while its ``loop`` runs. A list that comes while a round is under way looks at the rest itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import trio

from odfd.datasets.catalog import DatasetEntry
from odfd.runtime.reconcile_loop import ReconcileLoop

ROUND_SECONDS: Final = 3600.0
"""Between rounds: signed heads age within days. Views that still hold cost microseconds."""


class Views(Protocol):
    """What keeps views. Called in worker threads."""

    def entries(self) -> Sequence[DatasetEntry]:
        """Of all datasets."""

    def dataset(self, entry: DatasetEntry) -> object:
        """As it is now, and kept."""


class ViewRefresher:
    """A background refresh of the views of one node."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self.loop = ReconcileLoop(self.refresh)

    async def refresh(self) -> float:
        """One round; seconds until the next. A thread is taken for one dataset at a time: others come in between."""
        for entry in await trio.to_thread.run_sync(self._views.entries):
            await trio.to_thread.run_sync(self._views.dataset, entry)
        return ROUND_SECONDS
