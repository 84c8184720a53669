"""Defines the progress report of an engine about a request, and the callback that receives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from chain.model.wire import U64
from engines.tables import Variant

STARTING: Final = "starting"
"""Stage reported by whoever starts engine processes, while the engine does not run yet."""
STAGES: Final = (STARTING, "planning", "reading", "computing", "writing")
"""Stages of a request, in this order; not every request has all of them."""


class EngineProgress(Variant, frozen=True, kw_only=True, tag="Progress"):
    """A progress report, sent at least every few seconds. Unknown values are absent."""

    bytes_read: U64 | None = None
    """Extension: bytes parsed so far of an ingest's files."""
    bytes_total: U64 | None = None
    """Extension: bytes of all of an ingest's files."""
    stage: str | None = None
    """Extension: the current stage, one of ``STAGES``; a reader takes unknown ones for ``computing``."""
    tasks_done: U64 | None = None
    """Extension: tasks finished for this request, of a cluster or of threads."""
    tasks_total: U64 | None = None
    """Extension: tasks known so far; each step of a query adds its own when it begins."""
    rows_read: U64 | None = None
    """Extension: rows that these tasks read from slices; rows read twice count twice."""


OnProgress: TypeAlias = Callable[[EngineProgress], None]


def ignore_progress(_: EngineProgress) -> None:
    """Drops a report of progress."""
