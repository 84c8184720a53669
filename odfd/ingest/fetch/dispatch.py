"""One door for all kinds of sources; kinds that are not built yet are refused by name, before anything is fetched."""

from __future__ import annotations

import trio

from chain.errors import Refused
from chain.model.source import FetchFilesGlob, FetchStep, FetchUrl
from odfd.ingest.fetch.base import FetchJob, FetchOutcome
from odfd.ingest.fetch.files import fetch_files
from odfd.ingest.fetch.url import fetch_url


async def fetch(step: FetchStep, job: FetchJob) -> FetchOutcome:
    """Raises Refused for kinds not built; else as the fetcher says."""
    match step:
        case FetchFilesGlob():
            return await trio.to_thread.run_sync(fetch_files, step, job)
        case FetchUrl():
            return await fetch_url(step, job)
    kind = step.__struct_config__.tag
    raise Refused(
        f"sources of kind {kind} cannot be fetched yet",
        rule="fetch-kind",
        hint="fetch with a tool of your own and use FilesGlob, or push with `odfctl ingest`",
    )
