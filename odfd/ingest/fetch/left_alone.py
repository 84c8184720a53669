"""Waits until a file of this machine may be taken: until nobody writes to it, as far as that can be told."""

from __future__ import annotations

from collections.abc import Callable

import trio

from chain.instant import SECOND, Instant
from odfd.ingest.fetch.base import Local
from odfd.ingest.fetch.writers import no_writer
from odfd.ingest.settings import IngestSettings


async def left_alone(local: Local | None, settings: IngestSettings, now: Callable[[], Instant]) -> bool:
    """Whether nobody has written to a file for ``settle`` seconds, or ``settle_closed`` where the system says that no
    program can write to it. ``None``: a copy of our own.
    """
    if local is None or settings.settle <= 0:
        return True

    def alone() -> float:
        return (now() - local.changed) / SECOND

    age = alone()
    if age >= settings.settle:
        return True
    wait = min(settings.settle_closed, settings.settle)
    if age < wait:
        await trio.sleep(min(wait, wait - age))
    if await trio.to_thread.run_sync(_is_closed, local):
        return True
    await trio.sleep(max(0.0, min(settings.settle, settings.settle - alone())))
    return await trio.to_thread.run_sync(local.is_unchanged)


def _is_closed(local: Local) -> bool:
    """Whether nobody can write to a file at this moment, and nobody has. Blocking."""
    return no_writer(local.path) and local.is_unchanged()
