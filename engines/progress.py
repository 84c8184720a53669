"""Says how far an engine is with a request: the message of the contract, and who hears it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from chain.model.wire import U64
from engines.tables import Variant

STARTING: Final = "starting"
"""Told by who starts engine processes, for one that is not there yet."""
STAGES: Final = (STARTING, "planning", "reading", "computing", "writing")
"""Of a request, in this order; not each request has all of them."""


class Progress(Variant, frozen=True, kw_only=True, tag="Progress"):
    """A sign of life, at least every few seconds. What is not known is not said."""

    bytes_read: U64 | None = None
    """Extension: bytes of the files of an ingest that are parsed."""
    bytes_total: U64 | None = None
    """Extension: bytes of all of them."""
    stage: str | None = None
    """Extension: what is done now, one of ``STAGES``; a reader takes others for ``computing``."""
    tasks_done: U64 | None = None
    """Extension: tasks of a cluster, or of threads, that ended for this request."""
    tasks_total: U64 | None = None
    """Extension: of those that are known by now; each step of a query adds its own when it begins."""
    rows_read: U64 | None = None
    """Extension: rows that these tasks read of slices; those that are read twice count twice."""


OnProgress: TypeAlias = Callable[[Progress], None]


def ignored(_: Progress) -> None:
    """Drops a report of progress."""
