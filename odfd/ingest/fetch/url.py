"""Fetches ``Url`` sources: one document at ``file://``, ``http(s)://`` or ``ftp(s)://``, again only when it changed.

Whether it changed is decided by the server's ETag, else its Last-Modified, or by the file's modification time. A server
that sends neither makes the source uncacheable: it is read once, and again only on request (spec: FetchStep.Url).

No content coding is requested (RFC 9110, 8.4), but some servers apply one nevertheless: it is decoded in pieces of
bounded size. The output of each coding is limited by a ratio to the bytes received, even if a later coding discards it.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import re
import urllib.parse
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import trio

from chain.digits import read_whole
from chain.errors import Environment, Invalid, NotFound, Refused, Remote
from chain.instant import MILLISECOND, SECOND, Instant, parse, render
from chain.model.events import SourceState
from chain.model.source import FetchUrl, FromPath, FromSystemTime
from chain.wording import plural
from engines.spark.ingest.unpack import FREE
from odfd.ingest.fetch.ftp import check_ftp, fetch_ftp
from odfd.ingest.fetch.page import TOO_MANY, PageResponse, asked_too_often, http_date, patient_page
from odfd.ingest.fetch.source import (
    CREDENTIALS,
    DEFAULT_SOURCE,
    ETAG,
    LAST_MODIFIED,
    NOT_OPEN,
    Fetched,
    FetchJob,
    FetchOutcome,
    Local,
    Source,
    Unchanged,
    file_identity,
)
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.settings import CHUNK, Check, IngestSettings, unstoppable
from odfd.ingest.templates import (
    TEMPLATE,
    FilledTemplate,
    check_allowed,
    check_template,
    check_url_password,
    fill,
    tells,
)
from odfd.runtime.buckets import store_of
from odfd.runtime.hanging_calls import end_if_unwanted

_GZIP: Final = frozenset({"gzip", "x-gzip"})
_DEFLATE: Final = "deflate"
_ANY_HEADER: Final = 32 + zlib.MAX_WBITS
"""zlib's window bits for "gzip or zlib, detect the header"."""
_CODINGS: Final = 3
"""Codings of one document that are decoded; a longer list is refused."""


_WINDOW: Final = 16 << 10
"""Bytes given to zlib at once: those after the end of a member are copied for the next one."""


class ContentDecoder:
    """Decodes the content codings of one document."""

    def __init__(self, header: str, shown: str, ratio: int, check: Check = unstoppable) -> None:
        """``header``: a ``Content-Encoding``. ``ratio``: how many times the received bytes any coding may output.

        ``check`` is called again and again, and may raise to stop the work. Raises Remote for an unknown coding.
        """
        self._codings = _codings(header, shown, check)
        self._shown = shown
        self._ratio = ratio
        self._received = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the decoded bytes, in pieces. Raises Remote for broken data, Refused beyond the ratio."""
        self._received += len(data)
        return self._through(data, self._codings)

    def _through(self, data: bytes, undoing: list[_Inflating]) -> Iterator[bytes]:
        if not undoing:
            yield data
            return
        first, *others = undoing
        for part in first.feed(data):
            if first.given > max(FREE, self._received * self._ratio):
                most = plural(self._ratio, "time")
                raise Refused(
                    f"{self._shown} unpacks to more than {most} the {self._received:,} bytes that came",
                    rule="unpack-ratio",
                    hint="is it a decompression bomb? Raise ingest.unpack-ratio of the settings if you know it is not",
                )
            yield from self._through(part, others)

    def finish(self) -> None:
        """Raises Remote if the data ended too early."""
        for coding in self._codings:
            coding.finish()


class _Inflating:
    """Decodes gzip of any number of members, zlib, and deflate without a header, which some call ``deflate``."""

    def __init__(self, shown: str, coding: str, check: Check) -> None:
        self._shown = shown
        self._coding = coding
        self._check = check
        self._inflate = zlib.decompressobj(_ANY_HEADER)
        self._begun = False
        self.given = 0
        """Bytes that were output so far."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _WINDOW):
            self._check()
            for part in self._inflate_parts(data[start : start + _WINDOW]):
                self.given += len(part)
                yield part

    def _inflate_parts(self, data: bytes) -> Iterator[bytes]:
        more = bool(data)
        while more:
            if self._inflate.eof:
                # The next member: a gzip file may be several (RFC 1952, section 2.2).
                self._inflate = zlib.decompressobj(_ANY_HEADER)
            try:
                part = self._inflate.decompress(data, CHUNK)
            except zlib.error as error:
                if self._begun or self._coding != _DEFLATE:
                    raise self._fault(str(error)) from error
                # Some servers call deflate what has no zlib header (RFC 9110, section 8.4.1.2).
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
                self._begun = True
                continue
            self._begun = True
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
            # zlib gives at most CHUNK bytes at once, and may hold more though it has no input left.
            held = len(part) == CHUNK and not self._inflate.eof
            more = bool(data) or held
            if part:
                yield part

    def finish(self) -> None:
        if self._begun and not self._inflate.eof:
            raise self._fault("it ends too early")

    def _fault(self, what: str) -> Remote:
        return Remote(
            f"{self._shown}: what came is not whole {self._coding}, as its Content-Encoding says: {what}",
            rule="content-encoding",
            hint="try again later",
        )


def is_gzip(header: str) -> bool:
    """Whether a ``Content-Encoding`` names gzip."""
    return any(each in _GZIP for each in _parse_list(header))


def _codings(header: str, shown: str, check: Check) -> list[_Inflating]:
    """Returns decoders in the order in which the codings are undone. Raises Remote for an unknown coding."""
    listed = _parse_list(header)
    unknown = [each for each in listed if each not in _GZIP and each != _DEFLATE]
    if unknown or len(listed) > _CODINGS:
        raise Remote(
            f"{shown}: the server sends it as {header!r}, which was not requested",
            rule="content-encoding",
            hint="only gzip and deflate are supported; ask the server's operator, or download the file yourself",
        )
    return [_Inflating(shown, each, check) for each in reversed(listed)]


def _parse_list(header: str) -> list[str]:
    named = (each.strip().casefold() for each in header.split(","))
    return [each for each in named if each not in ("", "identity")]


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SCHEMES: Final = frozenset({"file", "ftp", "ftps", "http", "https"})
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""The characters of a field value in RFC 9110; none of them ends a line."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The characters of a token in RFC 9110."""
_NO_HOST: Final = re.compile(r"[\s\\<>\"^`{|}]")
_ANYTHING: Final = "1"
"""Replaces variables in a check: a text that is valid as a host, port, path or other part of a URL."""
_URL_SAFE: Final = "%/:=&?~+!$,;'@()*[]"
_AGENT: Final = "odfd"
_NOT_MODIFIED, _NOT_FOUND, _GONE = 304, 404, 410
_NOT_ALLOWED: Final = frozenset({401, 403, 407})
_PASSING: Final = frozenset({408, 425, 429})
"""Statuses of the family 4xx that do not mean that the request is wrong."""
_FIRST_CLIENT_ERROR, _FIRST_SERVER_ERROR = 400, 500
_WRONG_URL: Final = "check the URL in a browser; a new one takes effect by odfctl apply"
WITH_FILE: Final = frozenset({200, 203})
"""Statuses whose body is the whole file; 202, 204 or 206 have no body, or a part of it."""


class UrlSource(Source[FetchUrl, None]):
    """One document."""

    @property
    def is_asked_anew(self) -> bool:
        return True

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Fetches the document. Raises NotFound, Remote (not reachable), Invalid (it cannot work), Environment.

        Faults name the URL as the manifest writes it; their quotes of servers or libraries may still contain values of
        variables (``odfd.ingest.templates.redact``).
        """
        self.check(job.settings)
        url = fill(self.step.url, job.settings.variables)
        if self.step.cache is not None and job.state is not None:
            return Unchanged()
        scheme = _split(url.reveal(), str(url)).scheme
        if scheme == "file":
            return await trio.to_thread.run_sync(_fetch_file, self.step, url, job)
        if scheme in ("http", "https"):
            return await _fetch_http(self.step, url, job)
        if scheme in ("ftp", "ftps"):
            return await fetch_ftp(self.step, job)
        raise _no_scheme(scheme, str(url))

    def check(self, settings: IngestSettings) -> None:
        """Checks a step, and its file if it exists. Raises Invalid. Blocking."""
        if isinstance(self.step.event_time, FromPath):
            raise Invalid(
                "eventTime FromPath has no meaning for a URL", rule="event-time-source", hint="use FromMetadata"
            )
        check_url_password(self.step.url)
        _split(self.step.url, self.step.url)
        scheme = _SCHEME.match(self.step.url)
        # A variable at the start of the URL may provide the scheme.
        if (scheme is None and TEMPLATE.match(self.step.url) is None) or (scheme and scheme[1].lower() not in _SCHEMES):
            raise _no_scheme(scheme[1] if scheme else "", self.step.url)
        for text in (self.step.url, *(header.value for header in self.step.headers or ())):
            check_template(text)
        if scheme and scheme[1].lower() == "file" and TEMPLATE.search(self.step.url) is None:
            settings.readable.check_file(_path(self.step.url, self.step.url), self.step.url)
        elif scheme and scheme[1].lower() in ("ftp", "ftps"):
            check_ftp(self.step)
        elif scheme and scheme[1].lower() != "file":
            address_of(FilledTemplate(self.step.url, TEMPLATE.sub(_ANYTHING, self.step.url)))
        for header in self.step.headers or ():
            check_header(header.name, FilledTemplate(header.value, TEMPLATE.sub(_ANYTHING, header.value)))
        for text in (self.step.url, *(header.value for header in self.step.headers or ())):
            check_allowed(text, {*settings.allowed, *settings.variables})

    def check_open(self) -> None:
        if not self.step.url.startswith(("http://", "https://")):
            super().check_open()
        if any(header.name.casefold() in CREDENTIALS for header in self.step.headers or ()):
            raise Refused("its source asks for credentials", rule=NOT_OPEN, hint="other nodes cannot fetch it")


def _split(url: str, text: str) -> urllib.parse.SplitResult:
    """Splits a URL. ``text``: the URL in messages. Raises Invalid."""
    try:
        return urllib.parse.urlsplit(url)
    except ValueError as error:  # brackets that hold no address of IPv6
        raise Invalid(f"{text} is no URL", rule="url-host", hint="write an IPv6 address in [ ]") from error


def _no_scheme(scheme: str, url: str) -> Invalid:
    hint = "use file, http, https, ftp, ftps or sftp"
    if store_of(f"{scheme}://") is not None:
        hint = f"objects of a bucket are files: kind: FilesGlob, path: {scheme}://…/*.csv, or one key"
    return Invalid(f"cannot fetch {scheme or 'a path'}: {url}", rule="url-scheme", hint=hint)


def _fetch_file(step: FetchUrl, url: FilledTemplate, job: FetchJob) -> FetchOutcome:
    path = _path(url.reveal(), str(url))
    real = job.settings.readable.file(path, str(url))
    try:
        stat = real.stat()
        identity, local = file_identity(real), Local.of(real)
    except OSError as error:
        raise Environment(f"cannot read {url}: {error.strerror}", rule="url-file") from error
    changed = Instant(round(stat.st_mtime_ns / MILLISECOND) * MILLISECOND)
    if job.value_of(LAST_MODIFIED) == render(changed):
        return Unchanged()
    return Fetched(
        path=real,
        name=_name(url, path.name),
        identity=identity,
        event_time=job.now if isinstance(step.event_time, FromSystemTime) else changed,
        state=SourceState(source_name=DEFAULT_SOURCE, kind=LAST_MODIFIED, value=render(changed)),
        local=local,
    )


def _path(url: str, text: str) -> Path:
    """Returns the local path of a ``file`` URL. Raises Invalid."""
    parts = _split(url, text)
    if parts.netloc not in ("", "localhost"):
        raise Invalid(f"not a file of this machine: {text}", rule="url-file", hint="write file:///path, three slashes")
    return Path(urllib.parse.unquote(parts.path))


def remedy(status: int) -> str:
    """Returns the advice for a response without a file."""
    if status in _NOT_ALLOWED:
        return "send what the server asks for: headers of the source, with a secret from [ingest] variables"
    client_error = _FIRST_CLIENT_ERROR <= status < _FIRST_SERVER_ERROR
    return _WRONG_URL if client_error and status not in _PASSING else "try again later"


async def _fetch_http(step: FetchUrl, url: FilledTemplate, job: FetchJob) -> FetchOutcome:
    address, credentials = address_of(url)
    headers = credentials | headers_of(step, job)
    confidential = {name for name, value in headers.items() if value.is_template or name.casefold() in CREDENTIALS}
    sent = {name: value.reveal() for name, value in headers.items()}
    async with patient_page(address, str(url), sent, confidential, job) as found:
        if found.status == _NOT_MODIFIED:
            return Unchanged()
        if found.status in (_NOT_FOUND, _GONE):
            raise NotFound(f"{url} answers {found.status}", rule="url-http", hint=_WRONG_URL)
        if found.status == TOO_MANY:
            raise asked_too_often(str(url))
        if found.status not in WITH_FILE:
            raise Remote(
                f"{url} answers {found.status} {found.reason}, which brings no file",
                rule="url-http",
                hint=remedy(found.status),
            )
        path = job.folder / "download"
        digest = await save(found, path, url, job)
        return _outcome(url, step, found.headers, path, digest, job)


def address_of(url: FilledTemplate) -> tuple[str, dict[str, FilledTemplate]]:
    """Returns the URL to request, spelled by RFC 3986, and the header for user and password of the URL (RFC 7617)."""
    parts = _split(url.reveal(), str(url))
    user_info, at, host = parts.netloc.rpartition("@")
    try:
        parts.port  # noqa: B018  it is read to be checked
        host = host if host.isascii() else host.encode("idna").decode()
    except ValueError as error:
        raise _no_host(url) from error
    if not parts.hostname or _NO_HOST.search(host):
        raise _no_host(url)
    path, query = (urllib.parse.quote(part, safe=_URL_SAFE) for part in (parts.path, parts.query))
    address = urllib.parse.urlunsplit((parts.scheme, host, path, query, ""))
    if not at:
        return address, {}
    user, _, password = (urllib.parse.unquote(part) for part in user_info.partition(":"))
    credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
    return address, {"Authorization": FilledTemplate("Basic, of the URL", f"Basic {credentials}")}


def _no_host(url: FilledTemplate) -> Invalid:
    return Invalid(
        f"{url} names no host, or an invalid port",
        rule="url-host",
        hint="write https://host/path, or https://host:port/path",
    )


def headers_of(step: FetchUrl, job: FetchJob) -> dict[str, FilledTemplate]:
    """Returns the headers of a request, with the condition on the last state. Raises Invalid for a bad value."""
    headers = plain_headers({"User-Agent": _AGENT, "Accept-Encoding": "identity"})
    for header in step.headers or ():
        value = fill(header.value, job.settings.variables)
        check_header(header.name, value)
        headers[header.name] = value
    if (etag := job.value_of(ETAG)) is not None:
        headers |= plain_headers({"If-None-Match": etag})
    elif (modified := job.value_of(LAST_MODIFIED)) is not None:
        headers |= plain_headers({"If-Modified-Since": email.utils.formatdate(parse(modified) // SECOND, usegmt=True)})
    return headers


def check_header(name: str, value: FilledTemplate) -> None:
    """Raises Invalid for an impossible name or value of a header."""
    if not _HEADER_NAME.fullmatch(name):
        raise Invalid(f"no header is called {name!r}", rule="source-header", hint="letters, digits and - make its name")
    if not _HEADER_VALUE.fullmatch(value.reveal()):
        raise Invalid(
            f"header {name}: {value} holds what no header may, such as the end of a line",
            rule="source-header",
            hint="look at the variable, and at the manifest",
        )


def plain_headers(headers: Mapping[str, str]) -> dict[str, FilledTemplate]:
    return {name: FilledTemplate(value, value) for name, value in headers.items()}


async def save(found: PageResponse, path: Path, url: FilledTemplate, job: FetchJob) -> str:
    """Streams the body to ``path`` and returns its sha3-256. Raises Refused over the limit, Remote, Environment."""
    digest, waiting = hashlib.sha3_256(), bytearray()
    promised = read_whole(found.headers.get("Content-Length", ""))
    encoding, ratio = found.headers.get("Content-Encoding", ""), job.settings.max_unpack_ratio
    undoing = ContentDecoder(encoding, str(url), ratio, end_if_unwanted)
    with FileWriter(path, str(url), job.settings.max_source_bytes, job.settings.disk_reserve) as file:
        if promised is not None:
            file.expect(promised)

        def keep() -> None:
            for piece in undoing.feed(bytes(waiting)):
                digest.update(piece)
                file.write(piece)
            waiting.clear()

        async for part in found.body:
            waiting += part
            if len(waiting) >= CHUNK:
                await trio.to_thread.run_sync(keep)
        await trio.to_thread.run_sync(keep)
    undoing.finish()
    return digest.hexdigest()


def _outcome(
    url: FilledTemplate, step: FetchUrl, headers: Mapping[str, Any], path: Path, digest: str, job: FetchJob
) -> Fetched:
    etag, modified = headers.get("ETag"), http_date(headers.get("Last-Modified"))
    state = None
    if etag and not tells(etag, job.settings.variables):  # else the chain would publish the value
        state = SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value=etag)
    elif modified is not None:
        state = SourceState(source_name=DEFAULT_SOURCE, kind=LAST_MODIFIED, value=render(modified))
    return Fetched(
        path=path,
        name=_name(url, "download"),
        decoded=is_gzip(headers.get("Content-Encoding", "")),
        identity=f"sha3-256:{digest}",
        event_time=job.now if isinstance(step.event_time, FromSystemTime) else modified,
        state=state,
    )


def _name(url: FilledTemplate, otherwise: str) -> str:
    """Returns the document's name in messages: the last part of its path, as the manifest writes it."""
    return urllib.parse.unquote(urllib.parse.urlsplit(url.written).path.rsplit("/", 1)[-1]) or otherwise
