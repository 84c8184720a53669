"""Fetches ``Url`` sources of ``ftp://``: one file, again only when its size or time changed.

A process of its own asks the server, at addresses that were judged here. What goes by FTP can be read on the way, the
password too.
"""

from __future__ import annotations

import datetime as dt
import re
import urllib.parse
from typing import Final, NamedTuple

from chain.errors import Invalid, Remote
from chain.instant import SECOND, Instant
from chain.model.events import SourceState
from chain.model.source import FetchUrl, FromSystemTime
from odfd.ingest.fetch.apart import TimeLimit, ask
from odfd.ingest.fetch.base import DEFAULT_SOURCE, ETAG, Fetched, FetchJob, FetchOutcome, Unchanged
from odfd.ingest.fetch.sql import filled_url
from odfd.ingest.servers.ftp import main
from odfd.ingest.servers.job import FTP, FtpJob, FtpResult
from odfd.ingest.templates import TEMPLATE, tells
from p2p.dial import resolve
from p2p.ip import anywhere

PORT: Final = 21
_NO_COMMAND: Final = re.compile(r"[\x00-\x1f\x7f]")
_ANYTHING: Final = "1"
"""Stands for the value of a variable, as a host, port, path or text may be."""


class _Place(NamedTuple):
    host: str
    port: int
    user: str
    password: str
    path: str


async def fetch_ftp(step: FetchUrl, job: FetchJob) -> FetchOutcome:
    """Raises NotFound, Remote, Refused, Invalid, Environment."""
    url = filled_url(step.url, job.settings)
    place = _place(url.reveal(), str(url))
    try:
        found = await resolve(place.host, place.port, job.settings.may_dial or anywhere)
    except OSError as error:
        raise Remote(f"{url}: there is no host of this name", rule=FTP, hint="is the URL right?") from error
    target, patience = job.folder / "download", job.settings.patience
    request = FtpJob(
        addresses=tuple(map(str, found)),
        port=place.port,
        user=place.user,
        password=place.password,
        path=place.path,
        known=job.known(ETAG),
        connect=patience.connect,
        silence=patience.silence,
        reserve=job.settings.disk_reserve,
        target=str(target),
        limit=job.settings.max_source_bytes,
    )
    done = await ask(main, request, FtpResult, str(url), TimeLimit(patience.total, "have it served in smaller files"))
    if done.unchanged:
        return Unchanged()
    state = None
    if done.version is not None and not tells(done.version, job.settings.variables):
        state = SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value=done.version)
    return Fetched(
        path=target,
        name=urllib.parse.unquote(urllib.parse.urlsplit(url.written).path.rsplit("/", 1)[-1]),
        identity=f"sha3-256:{done.digest}",
        event_time=job.now if isinstance(step.event_time, FromSystemTime) else _time(done.modified),
        state=state,
    )


def check_ftp(step: FetchUrl) -> None:
    """Checks a step before a fetch. Raises Invalid."""
    _place(TEMPLATE.sub(_ANYTHING, step.url), step.url)
    if step.headers:
        raise Invalid("headers have no meaning for ftp", rule=FTP, hint="leave them out")


def _place(url: str, shown: str) -> _Place:
    """Raises Invalid."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", PORT if parts.port is None else parts.port
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
    if any(map(_NO_COMMAND.search, (path, *said))):
        raise _bad(shown, "user, password or path hold what no command of FTP may")
    return _Place(host, port, said[0] or "anonymous", said[1], path)


def _bad(shown: str, why: str) -> Invalid:
    return Invalid(
        f"cannot fetch {shown}: {why}",
        rule="url-host",
        hint="write ftp://HOST/PATH, or ftp://USER:${{ env.NAME }}@HOST/PATH",
    )


def _time(text: str | None) -> Instant | None:
    if text is None:
        return None
    try:
        found = dt.datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return Instant(int(found.timestamp()) * SECOND)
