"""Fetches ``Http`` sources: one request to a web service, and all pages of its answer, as one batch.

All pages of one fetch are one transaction, so a pull that is stopped between two of them takes none, and a snapshot is
whole. The next page that a page names is requested only at the same origin, since headers and tokens are sent along.
"""

from __future__ import annotations

import hashlib
import urllib.parse
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import msgspec
import trio

from chain.errors import Invalid, NotFound, Refused, Remote
from chain.model.events import SourceState
from chain.model.fetch_options import OWN_SCHEME, ClientCredentials, HttpRequest, Paging
from chain.model.source import FetchUrl, FromSystemTime
from chain.wording import plural
from odfd.ingest.fetch.page import TOO_MANY, PageResponse, asked_too_often, page, patient_page
from odfd.ingest.fetch.source import DEFAULT_SOURCE, Fetched, FetchJob, FetchOutcome, Source, Unchanged, web_step
from odfd.ingest.fetch.url import WITH_FILE, UrlSource, address_of, headers_of, remedy, save
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import FilledTemplate, check_secret, fill

PAGES_STATE: Final = "w3id.org/odfd/pages"
"""Kind of the source states: a digest of all pages."""
MAX_JSON: Final = 64 << 20
"""Bytes of a page that is parsed to find the next one."""
MAX_TOKEN: Final = 64 << 10
NOT_FOUND: Final = 404
_RULE: Final = "source-pages"


class _Service(NamedTuple):
    """The service that pages are requested from; ``shown`` is its URL in messages."""

    shown: str
    headers: dict[str, str]
    confidential: frozenset[str]
    body: bytes | None
    job: FetchJob


class _Saved(NamedTuple):
    path: Path
    digest: str
    link: str | None
    """URL of the next page, from the header ``Link``."""


class HttpSource(Source[FetchUrl, HttpRequest]):
    """A request to a web service."""

    options_type = HttpRequest

    @property
    def is_asked_anew(self) -> bool:
        return True

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Fetches all pages. Raises NotFound, Remote (out of reach, asked too often), Refused, Invalid, Environment."""
        self.check(job.settings)
        step = web_step(self.step)
        url = fill(step.url, job.settings.variables)
        address, credentials = address_of(url)
        sent = credentials | headers_of(step, job)
        if self.options.auth is not None:
            token = await _token(self.options.auth, job)
            sent["Authorization"] = FilledTemplate("Bearer, of tokenUrl", f"Bearer {token}")
        body = None
        if self.options.method == "POST":
            body = fill(self.options.body or "", job.settings.variables).reveal().encode()
        headers = {name: value.reveal() for name, value in sent.items()}
        service = _Service(str(url), headers, frozenset(headers), body, job)
        pages = await _all_pages(service, address, self.options.pages)
        digest = hashlib.sha3_256("".join(each.digest for each in pages).encode()).hexdigest()
        if job.value_of(PAGES_STATE) == digest:
            return Unchanged()
        first, *others = [each.path for each in pages]
        return Fetched(
            path=first,
            more=tuple(others),
            name=urllib.parse.urlsplit(step.url).path.rsplit("/", 1)[-1] or "answer",
            identity=f"sha3-256:{digest}",
            event_time=job.now if isinstance(step.event_time, FromSystemTime) else None,
            state=SourceState(source_name=DEFAULT_SOURCE, kind=PAGES_STATE, value=digest),
        )

    def check(self, settings: IngestSettings) -> None:
        """Checks a step before a fetch. Raises Invalid. Blocking."""
        plain = web_step(self.step)
        if plain.url == self.step.url:
            raise Invalid(
                f"a chain writes the URL of kind Http with {OWN_SCHEME} before it: {self.step.url}",
                rule="url-scheme",
                hint="say kind: Http in the manifest; as a plain Url other nodes would read the "
                "first page as the whole",
            )
        if not plain.url.lower().startswith(("http://", "https://")):
            raise Invalid(
                f"kind: Http asks web services: {plain.url}", rule="url-scheme", hint="write https://host/path"
            )
        if self.step.cache is not None:
            raise Invalid("cache has no meaning for kind: Http", rule=_RULE, hint="leave it out")
        UrlSource(plain, None).check(settings)
        auth = self.options.auth
        texts = [self.options.body or ""]
        if auth is not None:
            UrlSource(FetchUrl(url=auth.token_url), None).check(settings)
            if not auth.token_url.lower().startswith(("http://", "https://")):
                raise Invalid(f"tokenUrl is no web URL: {auth.token_url}", rule="url-scheme", hint="write https://…")
            check_secret(auth.client_secret, "a clientSecret")
            texts += [auth.client_id, auth.client_secret, auth.scope or ""]
        for text in texts:
            settings.check_variables(text)


async def _all_pages(service: _Service, address: str, pages: Paging | None) -> list[_Saved]:
    """Requests the pages one after the other. Returns at least one."""
    found: list[_Saved] = []
    asked: set[str] = set()
    following: str | None = address if pages is None or pages.number is None else _page_url(address, pages, 0)
    most = 1 if pages is None else pages.most
    while following is not None:
        if following in asked:
            raise Refused(
                f"{service.shown}: its pages lead in a circle", rule=_RULE, hint="look at pages of the source"
            )
        # Numbered pages end with an empty one, which is asked for beyond the last.
        if len(asked) == most + (pages is not None and pages.number is not None):
            raise Refused(
                f"{service.shown} has more than {plural(most, 'page')}",
                rule=_RULE,
                hint="ask for larger pages or fewer records, or raise pages.most",
            )
        asked.add(following)
        one = await _one_page(service, following, service.job.folder / f"page-{len(asked)}")
        following, is_empty = await trio.to_thread.run_sync(_next, service.shown, pages, one, following, len(asked))
        if not is_empty or not found:
            found.append(one)
        _check_size(service, found)
    return found


def _check_size(service: _Service, found: list[_Saved]) -> None:
    """Raises Refused if the pages together are larger than a source may be."""
    limit = service.job.settings.max_source_bytes
    if sum(each.path.stat().st_size for each in found) > limit:
        raise Refused(
            f"the pages of {service.shown} are larger than {limit:,} bytes",
            rule="max-source-bytes",
            hint="raise ingest.source-bytes of the settings",
        )


async def _one_page(service: _Service, address: str, path: Path) -> _Saved:
    """Requests one page and saves its body. Raises NotFound, Remote."""
    async with patient_page(
        address, service.shown, service.headers, service.confidential, service.job, service.body
    ) as found:
        if found.status == TOO_MANY:
            raise asked_too_often(service.shown)
        return await _keep(service, found, path)


async def _keep(service: _Service, found: PageResponse, path: Path) -> _Saved:
    if found.status == NOT_FOUND:
        raise NotFound(f"{service.shown} answers 404", rule="url-http", hint=remedy(NOT_FOUND))
    if found.status not in WITH_FILE:
        raise Remote(
            f"{service.shown} answers {found.status} {found.reason}, which brings no file",
            rule="url-http",
            hint=remedy(found.status),
        )
    digest = await save(found, path, FilledTemplate(service.shown, service.shown), service.job)
    links = httpx.Response(200, headers={"Link": found.headers.get("Link", "")}).links
    return _Saved(path, digest, links.get("next", {}).get("url"))


def _next(shown: str, pages: Paging | None, one: _Saved, address: str, number: int) -> tuple[str | None, bool]:
    """Returns the address of the next page, and whether this page has no records. Raises Invalid, Refused. Blocking."""
    if pages is None:
        return None, False
    if pages.link:
        return _same_origin(shown, address, one.link), False
    content = _json(shown, one.path)
    if pages.number is not None:
        records = content if pages.records is None else _member(content, pages.records)
        if not isinstance(records, list):
            raise Invalid(
                f"{shown}: page {number} has no list of records at {pages.records or 'its top'}",
                rule=_RULE,
                hint="say where it is: pages.records, like data.items",
            )
        return (_page_url(address, pages, number), False) if records else (None, True)
    value = _member(content, pages.next or "")
    if value is None or value in ("", False):
        return None, False
    if not isinstance(value, str | int):
        raise Invalid(f"{shown}: {pages.next} is no text", rule=_RULE, hint="look at pages.next of the source")
    if pages.parameter is not None:
        return _with_parameter(address, pages.parameter, str(value)), False
    return _same_origin(shown, address, str(value)), False


def _json(shown: str, path: Path) -> Any:
    if path.stat().st_size > MAX_JSON:
        raise Refused(f"{shown}: a page has more than {MAX_JSON:,} bytes", rule=_RULE, hint="ask for smaller pages")
    try:
        return msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(
            f"{shown}: a page is no JSON, so nothing says what comes next: {error}",
            rule=_RULE,
            hint="use pages: {link: true}?",
        ) from error


def _member(content: Any, path: str) -> Any:
    for name in path.split("."):
        content = content.get(name) if isinstance(content, dict) else None
    return content


def _page_url(address: str, pages: Paging, number: int) -> str:
    return _with_parameter(address, pages.number or "", str(pages.first + number))


def _with_parameter(address: str, name: str, value: str) -> str:
    parts = urllib.parse.urlsplit(address)
    others = [each for each in urllib.parse.parse_qsl(parts.query, keep_blank_values=True) if each[0] != name]
    return urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode([*others, (name, value)])))


def _same_origin(shown: str, address: str, named: str | None) -> str | None:
    """Returns the absolute address of the next page. Raises Refused at another origin: headers are for one alone."""
    if named is None:
        return None
    there, here = httpx.URL(address).join(named), httpx.URL(address)
    if (there.scheme, there.host, there.port) != (here.scheme, here.host, here.port):
        raise Refused(
            f"{shown}: its next page would be at {there.scheme}://{there.host}",
            rule="source-redirect",
            hint="pages are asked for at the origin that the source names, and at no other",
        )
    return str(there)


async def _token(auth: ClientCredentials, job: FetchJob) -> str:
    """Requests an OAuth token by client credentials. Raises Remote, Invalid."""
    url = fill(auth.token_url, job.settings.variables)
    address, _ = address_of(url)
    name, secret = (fill(text, job.settings.variables).reveal() for text in (auth.client_id, auth.client_secret))
    form = {"grant_type": "client_credentials"} | ({"scope": auth.scope} if auth.scope else {})
    # OAuth form-encodes both before they become a header (RFC 6749, section 2.3.1).
    basic = httpx.BasicAuth(urllib.parse.quote_plus(name), urllib.parse.quote_plus(secret))
    signed = next(basic.auth_flow(httpx.Request("POST", address)))
    headers = {
        "Authorization": signed.headers["Authorization"],
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    said = bytearray()
    body = urllib.parse.urlencode(form).encode()
    async with page(address, str(url), headers, frozenset(headers), job.settings, body) as found:
        async for part in found.body:
            said += part
            if len(said) > MAX_TOKEN:
                raise Remote(f"{url} answers more than {MAX_TOKEN:,} bytes, which is no token", rule="source-token")
    try:
        token = msgspec.json.decode(bytes(said))["access_token"] if found.status in WITH_FILE else None
    except (msgspec.DecodeError, LookupError, TypeError):
        token = None
    # It becomes a header, which a line end would end.
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise Remote(
            f"{url} answers {found.status}, and returns no token",
            rule="source-token",
            hint="look at clientId, clientSecret and scope of the source",
        )
    return token
