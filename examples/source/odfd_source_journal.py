"""A kind of source: lines that programs append to a file. A pull takes those after the last one that the chain has."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Annotated, BinaryIO, Final
from urllib.parse import urlsplit

import msgspec
import trio

from chain.errors import Environment, Invalid, Refused
from chain.model.events import SourceState
from chain.model.source import FetchUrl
from odfd.ingest.fetch.source import DEFAULT_SOURCE, Fetched, FetchJob, FetchOutcome, Source, Unchanged
from odfd.ingest.settings import IngestSettings

POSITION: Final = "example.org/journal"
"""Kind of the source states: the number of bytes that were taken."""


class JournalOptions(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    batch_lines: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    """Most lines of one transaction."""


class JournalSource(Source[FetchUrl, JournalOptions]):
    """Lines of a file of this machine, ``journal:/PATH``."""

    options_type = JournalOptions

    def check(self, settings: IngestSettings) -> None:
        settings.readable.check_file(self._path(), self.step.url)

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        return await trio.to_thread.run_sync(self._next, job)

    def _path(self) -> Path:
        parts = urlsplit(self.step.url)
        if parts.scheme != "journal" or not parts.path.startswith("/"):
            raise Invalid(f"no journal: {self.step.url}", rule="journal-url", hint="write journal:/PATH")
        return Path(parts.path)

    def _next(self, job: FetchJob) -> FetchOutcome:
        begin = int(job.value_of(POSITION) or 0)
        path = job.settings.readable.file(self._path(), self.step.url)
        try:
            with path.open("rb") as file:
                lines, has_more = self._lines(file, begin)
        except OSError as error:
            raise Environment(f"cannot read {path}: {error.strerror}", rule="journal") from error
        if not lines:
            return Unchanged()
        target = job.folder / "lines"
        target.write_bytes(b"".join(lines))
        end = begin + sum(map(len, lines))
        digest = hashlib.sha3_256(b"".join(lines)).hexdigest()
        return Fetched(
            path=target,
            name=path.name,
            identity=f"{begin}-{end} sha3-256:{digest}",
            event_time=job.now,
            state=SourceState(source_name=DEFAULT_SOURCE, kind=POSITION, value=str(end)),
            has_more=has_more,
        )

    def _lines(self, file: BinaryIO, begin: int) -> tuple[list[bytes], bool]:
        """Returns whole lines after a position, and whether there may be more."""
        if file.seek(0, 2) < begin:
            raise Refused("the journal is shorter than what was taken of it", rule="journal", hint="was it replaced?")
        file.seek(begin)
        lines = [*itertools.islice(file, self.options.batch_lines)]
        has_more = len(lines) == self.options.batch_lines
        return [each for each in lines if each.endswith(b"\n")], has_more
