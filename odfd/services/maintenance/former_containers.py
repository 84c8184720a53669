"""Removes containers of sources that a killed life of the node left, when the node starts."""

from __future__ import annotations

from chain.errors import Environment
from odfd.ingest.settings import IngestSettings
from odfd.runtime.supervision import Life, Logger


async def remove_former_containers(settings: IngestSettings, logger: Logger, life: Life) -> None:
    """Removes them in the background, then waits for the end: podman may take its time, and nobody waits for it."""
    life.ready()
    try:
        if count := await settings.former.remove(settings.staging):
            logger.info("containers of a former life removed", count=count)
    except Environment as fault:
        logger.error("containers of a former life stay", fault=str(fault), hint=fault.hint)
    await life.stopping.wait()
