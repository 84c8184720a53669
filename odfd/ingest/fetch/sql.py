"""Fetches ``Sql`` sources: the rows of a query to a database.

With a cursor, a fetch returns the rows after the position of the source state, in batches; the position of the last row
is the next source state, so each row is taken once, whatever stops a pull. Without a cursor, it returns all rows,
unless they are the same as last time. A separate process queries the database and decodes its answers.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path
from typing import Final

import trio

from chain.data.arrow_schema import to_arrow
from chain.errors import Invalid
from chain.libraries import pa
from chain.model.events import SourceState
from chain.model.fetch_options import SqlQuery
from chain.model.schema import DataSchema
from chain.model.source import FetchUrl, ReadStep
from odfd.ingest.clients.databases import (
    KINDS,
    RULE,
    QueryJob,
    QueryResult,
    decode_position,
    encode_position,
    main,
)
from odfd.ingest.fetch.fetch_process import TimeLimit, ask
from odfd.ingest.fetch.source import (
    DEFAULT_SOURCE,
    ETAG,
    Fetched,
    FetchJob,
    FetchOutcome,
    Source,
    Unchanged,
    check_rows,
)
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import FilledTemplate, check_secret, check_text, check_url_password, filled_url
from odfd.runtime.extensions import check_client

CURSOR: Final = "w3id.org/odfd/cursor"
"""Kind of a source state: the position of the last row by the cursor."""
_SCHEME: Final = re.compile(r"([a-z]+)://")
_PASSWORD: Final = re.compile(r"[?&]password=([^&#]*)")
_CLIENTS: Final = {"postgresql": "adbc_driver_postgresql", "postgres": "adbc_driver_postgresql", "mysql": "pymysql"}
_NAME: Final = "the rows of its query"


class SqlSource(Source[FetchUrl, SqlQuery]):
    """A query of a database."""

    options_type = SqlQuery

    @property
    def is_asked_anew(self) -> bool:
        return not self.options.cursor

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Fetches the next rows. Raises Remote (the database does not answer), Invalid, Refused, Environment."""
        self.check(job.settings)
        url = filled_url(self.step.url, job.settings.variables)
        known = job.value_of(CURSOR)
        target = job.folder / "rows.parquet"
        request = QueryJob(
            url=await trio.to_thread.run_sync(_local, url, job.settings),
            query=self.options.query,
            cursor=self.options.cursor,
            after=decode_position(known, self.options.cursor) if self.options.cursor and known is not None else None,
            batch_rows=self.options.batch_rows,
            target=str(target),
            limit=job.settings.max_source_bytes,
            columns=_columns(job.columns),
        )
        time = TimeLimit(job.settings.patience.total, "ask for fewer rows (batchRows)")
        done = await ask(main.__module__, request, QueryResult, str(url), time)
        digest = f"sha3-256:{done.digest}"
        if self.options.cursor and not done.rows and job.state is not None:
            return Unchanged()
        if not self.options.cursor and job.value_of(ETAG) == digest:
            return Unchanged()
        state = SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value=digest)
        if self.options.cursor:
            state = SourceState(source_name=DEFAULT_SOURCE, kind=CURSOR, value=encode_position(done.last or {}))
        if self.options.cursor and done.last is None:
            return Fetched(path=target, name=_NAME, identity=digest, event_time=job.now)
        return Fetched(path=target, name=_NAME, identity=digest, event_time=job.now, state=state, has_more=done.more)

    def check(self, settings: IngestSettings) -> None:
        """Checks a step before a fetch. Raises Invalid, Refused. Blocking."""
        scheme = _SCHEME.match(self.step.url)
        if scheme is None or scheme[1] not in KINDS:
            raise Invalid(
                f"kind: Sql asks no {scheme[1] if scheme else 'database'}: {self.step.url}",
                rule="url-scheme",
                hint="write sqlite:///path, or postgresql:// or mysql://user:${{ env.NAME }}@host/database",
            )
        if scheme[1] in _CLIENTS:
            check_client(_CLIENTS[scheme[1]], f"sources of kind Sql that ask {scheme[1]} need", "sql")
        check_url_password(self.step.url)
        for found in _PASSWORD.findall(self.step.url):
            check_secret(found, "a password")
        settings.check_variables(self.step.url)
        check_text(self.options.query, "the query of a source")
        if self.step.headers or self.step.cache or self.step.event_time:
            raise Invalid(
                "headers, cache and eventTime have no meaning for kind: Sql", rule=RULE, hint="leave them out"
            )
        if scheme[1] == "sqlite" and "${{" not in self.step.url:
            settings.readable.check_file(_path(self.step.url, self.step.url), self.step.url)

    def check_read(self, read: ReadStep) -> None:
        check_rows(read, "kind: Sql")


def _local(url: FilledTemplate, settings: IngestSettings) -> str:
    """Returns the URL, for SQLite with the real path of the file.

    Raises Invalid, NotFound, Environment for a file that may not be read. Blocking.
    """
    text = url.reveal()
    if not text.startswith("sqlite:"):
        return text
    real = settings.readable.file(_path(text, str(url)), str(url))
    return f"sqlite://{urllib.parse.quote(str(real))}"


def _path(url: str, shown: str) -> Path:
    parts = urllib.parse.urlsplit(url)
    if parts.netloc or not parts.path.startswith("/") or parts.query:
        raise Invalid(f"no file of this machine: {shown}", rule="url-file", hint="write sqlite:///path, three slashes")
    return Path(urllib.parse.unquote(parts.path))


def _columns(declared: DataSchema | None) -> bytes:
    if declared is None or not declared.fields:
        return b""
    plain = [pa.field(each.name, each.type) for each in to_arrow(declared)]
    return bytes(pa.schema(plain).serialize())
