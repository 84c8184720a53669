"""Fetches from a source of any kind; refuses kinds that are not supported by name, before anything is fetched."""

from __future__ import annotations

import trio

from chain.errors import Refused
from chain.model.source import FetchFilesGlob, FetchStep, FetchUrl
from odfd.ingest.fetch.base import FetchJob, FetchOutcome
from odfd.ingest.fetch.files import check_files, fetch_files
from odfd.ingest.fetch.url import check_url, fetch_url
from odfd.ingest.settings import IngestSettings


async def fetch(step: FetchStep, job: FetchJob) -> FetchOutcome:
    """Fetches by the kind of step. Raises Refused for unsupported kinds; else as the fetcher does."""
    match step:
        case FetchFilesGlob():
            return await trio.to_thread.run_sync(fetch_files, step, job)
        case FetchUrl():
            return await fetch_url(step, job)
    raise _not_built(step)


def check_fetch(step: FetchStep, settings: IngestSettings) -> None:
    """Checks a step before a fetch. Raises Refused for unsupported kinds, Invalid. Blocking."""
    match step:
        case FetchFilesGlob():
            check_files(step, settings)
        case FetchUrl():
            check_url(step, settings)
        case _:
            raise _not_built(step)


def _not_built(step: FetchStep) -> Refused:
    kind = step.__struct_config__.tag
    return Refused(
        f"sources of kind {kind} cannot be fetched yet",
        rule="fetch-kind",
        hint="fetch with a tool of your own and use FilesGlob, or push with `odfctl ingest`",
    )
