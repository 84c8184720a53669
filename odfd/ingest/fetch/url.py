"""Url: one document at ``file://``, ``http://`` or ``https://``, fetched again only when it changed.

What "changed" means comes from the server (ETag, else Last-Modified) or the file's modification time. A server that
tells neither makes the source uncacheable: it is read once, and again only when asked to (spec: FetchStep.Url).
"""

from __future__ import annotations

import email.utils
import hashlib
import http.client
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from chain.errors import Environment, Invalid, NotFound, Refused, Remote
from chain.instant import MILLISECOND, SECOND, Instant, parse, render
from chain.model.events import SourceState
from chain.model.source import FetchUrl, FromPath, FromSystemTime
from odfd.ingest.fetch.base import (
    DEFAULT_SOURCE,
    ETAG,
    LAST_MODIFIED,
    Fetched,
    FetchJob,
    FetchOutcome,
    Unchanged,
    file_identity,
)
from odfd.ingest.fetch.dialling import opener
from odfd.ingest.settings import CHUNK

_TEMPLATE: Final = re.compile(r"\$\{\{\s*env\.(\w+)\s*(?:\|\|\s*'([^']*)'\s*)?\}\}")
_AGENT: Final = "odfd"
_NOT_MODIFIED, _NOT_FOUND, _GONE = 304, 404, 410


def fetch_url(step: FetchUrl, job: FetchJob) -> FetchOutcome:
    """Raises NotFound, Remote (not reachable), Invalid (a step that cannot work), Environment."""
    if isinstance(step.event_time, FromPath):
        raise Invalid("eventTime FromPath has no meaning for a URL", rule="event-time-source", hint="use FromMetadata")
    url = filled(step.url, job.settings.variables)
    if step.cache is not None and job.state is not None:
        return Unchanged()
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme == "file":
        return _fetch_file(step, url, job)
    if scheme in ("http", "https"):
        return _fetch_http(step, url, job)
    raise Invalid(f"cannot fetch {scheme or 'a path'}: {url}", rule="url-scheme", hint="use file, http or https")


def filled(text: str, variables: Mapping[str, str]) -> str:
    """``${{ env.NAME || 'default' }}`` replaced. Raises Invalid for a name that has neither value nor default."""

    def value(match: re.Match[str]) -> str:
        found = variables.get(match[1], match[2])
        if found is None:
            raise Invalid(
                f"no variable {match[1]!r}",
                rule="source-variable",
                hint=f'name it in [ingest] variables = ["{match[1]}"]',
            )
        return found

    return _TEMPLATE.sub(value, text)


def _fetch_file(step: FetchUrl, url: str, job: FetchJob) -> FetchOutcome:
    parts = urllib.parse.urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise Invalid(f"not a file of this machine: {url}", rule="url-file", hint="write file:///path, three slashes")
    path = Path(urllib.parse.unquote(parts.path))
    try:
        stat = path.stat()
        identity = file_identity(path)
    except FileNotFoundError as error:
        raise NotFound(f"no file {path}", rule="url-file", hint="the daemon must be able to see it") from error
    except OSError as error:
        raise Environment(f"cannot read {path}: {error.strerror}", rule="url-file") from error
    changed = Instant(round(stat.st_mtime_ns / MILLISECOND) * MILLISECOND)
    if job.known(LAST_MODIFIED) == render(changed):
        return Unchanged()
    return Fetched(
        path=path,
        name=path.name,
        identity=identity,
        event_time=job.now if isinstance(step.event_time, FromSystemTime) else changed,
        state=SourceState(source_name=DEFAULT_SOURCE, kind=LAST_MODIFIED, value=render(changed)),
    )


def _fetch_http(step: FetchUrl, url: str, job: FetchJob) -> FetchOutcome:
    request = urllib.request.Request(url, headers=_headers(step, job))  # noqa: S310 - scheme checked by the caller
    try:
        with opener(job.settings.may_dial).open(request, timeout=job.settings.http_timeout) as response:
            path = job.folder / "download"
            digest = _save(response, path, url, job)
            _check_whole(response.headers, path, url)
            return _fetched(step, response.headers, path, digest, job)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _NOT_MODIFIED:
            return Unchanged()
        if error.code in (_NOT_FOUND, _GONE):
            raise NotFound(f"{url} answers {error.code}", rule="url-http") from error
        raise Remote(f"{url} answers {error.code} {error.reason}", rule="url-http", hint="try again later") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise Remote(f"cannot reach {url}: {error}", rule="url-http", hint="try again later") from error


def _headers(step: FetchUrl, job: FetchJob) -> dict[str, str]:
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    for header in step.headers or ():
        headers[header.name] = filled(header.value, job.settings.variables)
    if (etag := job.known(ETAG)) is not None:
        headers["If-None-Match"] = etag
    elif (modified := job.known(LAST_MODIFIED)) is not None:
        headers["If-Modified-Since"] = email.utils.formatdate(parse(modified) // SECOND, usegmt=True)
    return headers


def _save(response: IO[bytes], path: Path, url: str, job: FetchJob) -> str:
    """Stream the body to ``path`` under the limit; the sha3-256 of its bytes."""
    digest, size = hashlib.sha3_256(), 0
    try:
        with path.open("wb") as target:
            while block := response.read(CHUNK):
                job.check()
                size += len(block)
                if size > job.settings.max_source_bytes:
                    raise Refused(
                        f"{url} is larger than {job.settings.max_source_bytes} bytes",
                        rule="max-source-bytes",
                        hint="raise ingest.source-bytes of the settings",
                    )
                digest.update(block)
                target.write(block)
    except (TimeoutError, ConnectionError):
        raise
    except OSError as error:
        raise Environment(f"cannot write {path}: {error.strerror}", rule="disk", hint="is the disk full?") from error
    return digest.hexdigest()


def _check_whole(headers: Mapping[str, Any], path: Path, url: str) -> None:
    """A connection that broke reads like an end of file; only the promised length tells."""
    promised = headers.get("Content-Length", "")
    if promised.isdecimal() and int(promised) != path.stat().st_size:
        raise Remote(
            f"cannot reach the end of {url}: {path.stat().st_size} of {promised} bytes came",
            rule="url-http",
            hint="try again later",
        )


def _fetched(step: FetchUrl, headers: Mapping[str, Any], path: Path, digest: str, job: FetchJob) -> Fetched:
    etag, modified = headers.get("ETag"), _http_time(headers.get("Last-Modified"))
    state = None
    if etag:
        state = SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value=etag)
    elif modified is not None:
        state = SourceState(source_name=DEFAULT_SOURCE, kind=LAST_MODIFIED, value=render(modified))
    return Fetched(
        path=path,
        name=urllib.parse.urlsplit(step.url).path.rsplit("/", 1)[-1] or "download",
        identity=f"sha3-256:{digest}",
        event_time=job.now if isinstance(step.event_time, FromSystemTime) else modified,
        state=state,
    )


def _http_time(text: str | None) -> Instant | None:
    if not text:
        return None
    try:
        found = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return Instant(int(found.timestamp()) * SECOND)
