"""Fetches ``Url`` and ``FilesGlob`` sources of ``ftp(s)://``: one file when it changed, or files that appear.

A separate process reads from the server, at addresses that were checked here. FTP without TLS sends everything
unencrypted, the password too.
"""

from __future__ import annotations

import datetime as dt
import re
import urllib.parse
from typing import Final, NamedTuple

from chain.errors import Invalid
from chain.instant import SECOND, Instant
from chain.model.events import SourceState
from chain.model.source import FetchFilesGlob, FetchUrl, FromPath, FromSystemTime
from odfd.ingest.clients.ftp import FTP, FtpJob, FtpResult, Tls, main
from odfd.ingest.clients.remote_files import Pattern
from odfd.ingest.fetch.fetch_process import TimeLimit, ask
from odfd.ingest.fetch.files import DEFAULT_FORMAT, check_time
from odfd.ingest.fetch.remote_files import outcome_of, pattern_of, reach
from odfd.ingest.fetch.source import DEFAULT_SOURCE, ETAG, Fetched, FetchJob, FetchOutcome, Source, Unchanged, url_of
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import TEMPLATE, FilledTemplate, check_url_password, filled_url, tells

PORT: Final = 21
IMPLICIT_PORT: Final = 990
_PATTERN: Final = re.compile(
    r"(ftps?)://(?:([^@/]*)@)?([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?/([^\x00-\x1f\x7f]+)\Z"
)
_NO_COMMAND: Final = re.compile(r"[\x00-\x1f\x7f]")
_ANYTHING: Final = "1"
"""Replaces variables in a check: a text that is valid as a host, port, path or other part of a URL."""


class _Place(NamedTuple):
    tls: Tls
    host: str
    port: int
    user: str
    password: str
    path: str


async def fetch_ftp(step: FetchUrl | FetchFilesGlob, job: FetchJob) -> FetchOutcome:
    """Fetches a file, or the next one of a pattern. Raises NotFound, Remote, Refused, Invalid, Environment."""
    url = filled_url(url_of(step), job.settings.variables)
    pattern = pattern_of(step, job)
    place = _place(url.reveal(), str(url)) if pattern is None else _pattern_place(url.reveal(), str(url))
    time = TimeLimit(job.settings.patience.total, "have it served in smaller files")
    request = await _request(place, job, url, pattern)
    done = await ask(main.__module__, request, FtpResult, str(url), time)
    return _file(step, url, done, job) if pattern is None else outcome_of(step, done, job, str(url), pattern)


async def _request(place: _Place, job: FetchJob, url: FilledTemplate, pattern: Pattern | None) -> FtpJob:
    patience = job.settings.patience
    return FtpJob(
        addresses=await reach(place.host, place.port, job, str(url), FTP),
        port=place.port,
        host=place.host,
        tls=place.tls,
        user=place.user,
        password=place.password,
        path=place.path,
        known=job.value_of(ETAG),
        pattern=pattern,
        connect=patience.connect,
        silence=patience.silence,
        reserve=job.settings.disk_reserve,
        target=str(job.folder / "download"),
        limit=job.settings.max_source_bytes,
    )


def _file(step: FetchUrl | FetchFilesGlob, url: FilledTemplate, done: FtpResult, job: FetchJob) -> FetchOutcome:
    if done.unchanged:
        return Unchanged()
    state = None
    # A state is public in the chain, and a server may quote in it what was sent.
    if done.version is not None and not tells(done.version, job.settings.variables):
        state = SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value=done.version)
    return Fetched(
        path=job.folder / "download",
        name=urllib.parse.unquote(urllib.parse.urlsplit(url.written).path.rsplit("/", 1)[-1]),
        identity=f"sha3-256:{done.digest}",
        event_time=job.now if isinstance(step.event_time, FromSystemTime) else _time(done.modified),
        state=state,
    )


class FtpSource(Source[FetchFilesGlob, None]):
    """Files of an FTP server, by a pattern."""

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        return await fetch_ftp(self.step, job)

    def check(self, settings: IngestSettings) -> None:
        """Checks a pattern before a fetch. Raises Invalid."""
        check_url_password(self.step.path)
        _pattern_place(TEMPLATE.sub("x", self.step.path), self.step.path)
        settings.check_variables(self.step.path)
        if isinstance(self.step.event_time, FromPath):
            check_time(self.step.event_time.pattern, self.step.event_time.timestamp_format or DEFAULT_FORMAT)


def check_ftp(step: FetchUrl) -> None:
    """Checks a step before a fetch. Raises Invalid."""
    _place(TEMPLATE.sub(_ANYTHING, step.url), step.url)
    if step.headers:
        raise Invalid("headers have no meaning for ftp", rule=FTP, hint="leave them out")


def _place(url: str, shown: str) -> _Place:
    """Parses the URL of a file. Raises Invalid."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", PORT if parts.port is None else parts.port
        tls = _tls(parts.scheme, port)
        said = [urllib.parse.unquote(each, errors="strict") for each in (parts.username or "", parts.password or "")]
        path = urllib.parse.unquote(parts.path.removeprefix("/"), errors="strict")
    except ValueError as error:
        raise _bad(shown, "it cannot be read") from error
    if not host or not host.isascii() or _NO_COMMAND.search(url):
        raise _bad(shown, "it names no host")
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise _bad(shown, "? and # within a path are written %3F and %23")
    if not path or path.endswith("/"):
        raise _bad(shown, "it names no file")
    # A line end would begin another command (test_a_value_of_a_variable_ends_no_command).
    if any(map(_NO_COMMAND.search, (path, *said))):
        raise _bad(shown, "user, password or path hold what no command of FTP may")
    return _Place(tls, host, port, said[0] or "anonymous", said[1], path)


def _pattern_place(url: str, shown: str) -> _Place:
    """Parses a pattern of files, whose path has no escapes, since ``?`` and ``[…]`` are wildcards. Raises Invalid."""
    found = _PATTERN.match(url)
    if found is None or int(found[4] or PORT) >= 1 << 16:
        raise _bad(shown, "it names no host, or no path")
    user, _, password = (found[2] or "").partition(":")
    said = [urllib.parse.unquote(each) for each in (user, password)]
    if any(part in ("", ".", "..") for part in found[5].removeprefix("/").split("/")):
        raise _bad(shown, "a path has names between single slashes")
    if any(map(_NO_COMMAND.search, said)):
        raise _bad(shown, "user or password hold what no command of FTP may")
    port = int(found[4] or PORT)
    return _Place(_tls(found[1], port), found[3].strip("[]"), port, said[0] or "anonymous", said[1], found[5])


def _tls(scheme: str, port: int) -> Tls:
    """Returns the mode of TLS; at port 990 a connection of ``ftps`` is encrypted from the first byte."""
    if scheme != "ftps":
        return "never"
    return "implicit" if port == IMPLICIT_PORT else "explicit"


def _bad(shown: str, why: str) -> Invalid:
    return Invalid(
        f"cannot fetch {shown}: {why}",
        rule="url-host",
        hint="write ftp(s)://HOST/PATH, or ftp(s)://USER:${{ env.NAME }}@HOST/PATH",
    )


def _time(text: str | None) -> Instant | None:
    if text is None:
        return None
    try:
        found = dt.datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return Instant(int(found.timestamp()) * SECOND)
