"""Fetches one web page: follows redirects, bounds every wait, and can be cancelled at any moment.

The server is not trusted: every wait for it to connect, answer, continue or end is bounded. A source of the node's own
user is dialled as this machine is set up, through any proxy. A source that a stranger named is dialled only at allowed
addresses, and so is a place to which a server of the Internet redirects. Headers meant for one origin (scheme, host and
port) are sent to no other. RFC 9110.
"""

from __future__ import annotations

import email.utils
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Final, NamedTuple

import httpx
import trio

from chain.errors import Refused, Remote
from chain.instant import SECOND, Instant
from odfd.ingest.fetch.source import FetchJob
from odfd.ingest.settings import IngestSettings
from p2p.ip import Allows, anywhere, is_global
from p2p.web.client import body_of, is_from_inside, keeps_scheme, lively, machine_authorities, new_client

REDIRECTS: Final = 10
TRIES: Final = 5
"""Requests for one page while its server answers that it is asked too often."""
LONGEST_WAIT: Final = 300.0
"""Seconds of a ``Retry-After`` that are waited; if a server asks for more, the next pull requests the page."""
_FIRST_WAIT: Final = 1.0
TOO_MANY: Final = 429
_TOO_OFTEN: Final = frozenset({TOO_MANY, 503})
_AGAIN: Final = "try again later"
_SLOW: Final = "try again later, or wait longer: ingest.silence-seconds, ingest.least-rate and ingest.fetch-seconds"


class PageResponse(NamedTuple):
    """A response with any status but a redirect's."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]
    """The body as it is sent, with its content codings; raises the faults of ``page``."""


@asynccontextmanager
async def page(
    url: str,
    shown: str,
    headers: Mapping[str, str],
    confidential: Collection[str],
    settings: IngestSettings,
    body: bytes | None = None,
) -> AsyncIterator[PageResponse]:
    """Requests a page; messages show ``shown`` for ``url``; ``confidential`` names headers for its origin only.

    A ``body`` is sent by POST, and never to the target of a redirect. Raises Remote: not reachable, too slow, redirects
    without end. Raises Refused: an address that may not be dialled, a redirect to something that is no web page.
    """
    patience = settings.patience
    deadline = trio.current_time() + patience.total
    try:
        async with AsyncExitStack() as stack:
            response = await _follow(stack, _Question(httpx.URL(url), headers, confidential, body), shown, settings)
            raw = await stack.enter_async_context(body_of(response, response.aiter_raw()))
            parts = await stack.enter_async_context(aclosing(lively(shown, raw, patience, deadline, _SLOW)))
            yield PageResponse(response.status_code, response.reason_phrase, response.headers, parts)
    except httpx.TimeoutException as error:
        raise Remote(f"{shown}: the server sent nothing in time", rule="web-slow", hint=_SLOW) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise Remote(f"cannot reach {shown}: {_error_text(error)}", rule="url-http", hint=_AGAIN) from error


def asked_too_often(shown: str) -> Remote:
    """Returns the fault for a server that still answers that it is asked too often."""
    return Remote(
        f"{shown}: the server says that it is asked too often",
        rule="url-http",
        hint="pull again later, or less often; larger pages need fewer requests",
    )


@asynccontextmanager
async def patient_page(
    url: str,
    shown: str,
    headers: Mapping[str, str],
    confidential: Collection[str],
    job: FetchJob,
    body: bytes | None = None,
) -> AsyncIterator[PageResponse]:
    """Requests a page as ``page`` does; if the server answers that it is asked too often, waits as it says and repeats.

    Yields the last response, which may be the same answer: after ``TRIES``, or if the wait exceeds ``LONGEST_WAIT``.
    """
    for number in range(1, TRIES + 1):
        async with page(url, shown, headers, confidential, job.settings, body) as found:
            wait = _wait(found, number, job.now)
            if wait is None or wait > LONGEST_WAIT or number == TRIES:
                yield found
                return
        await trio.sleep(wait)


def _wait(found: PageResponse, number: int, now: Instant) -> float | None:
    """Returns seconds until a page may be requested again (RFC 9110, 10.2.3); ``None``: the response is final."""
    if found.status not in _TOO_OFTEN:
        return None
    said = found.headers.get("Retry-After", "")
    if said.isdecimal() and len(said) < len("1000000"):
        return float(said)
    if (moment := http_date(said)) is not None:
        return max(0.0, (moment - now) / SECOND)
    return _FIRST_WAIT * 2 ** (number - 1) if found.status == TOO_MANY else None


def http_date(text: str | None) -> Instant | None:
    """Parses a date of a header (RFC 9110, 5.6.7); returns ``None`` for an invalid one, which a server may send."""
    try:
        return Instant(int(email.utils.parsedate_to_datetime(text or "").timestamp()) * SECOND)
    except (ValueError, OverflowError, OSError):
        return None


class _Question(NamedTuple):
    url: httpx.URL
    headers: Mapping[str, str]
    confidential: Collection[str]
    body: bytes | None = None

    def sent_on(self, location: str, shown: str) -> _Question:
        """Returns the request for the target of a redirect. Raises Refused."""
        there = self.url.join(location)
        if self.body is not None:
            raise Refused(
                f"{shown}: {self.url.host} redirects a POST to another URL",
                rule="source-redirect",
                hint="name that URL itself as the source, if you trust it",
            )
        if not keeps_scheme(self.url, there):
            raise Refused(
                f"{shown}: {self.url.host} sends us on to {there.scheme}://{there.host}",
                rule="source-redirect",
                hint="name that URL itself as the source, if you trust it",
            )
        if _origin(there) == _origin(self.url):
            return self._replace(url=there)
        own = {name.casefold() for name in self.confidential}
        return _Question(there, {name: value for name, value in self.headers.items() if name.casefold() not in own}, ())


def _client(settings: IngestSettings, allows: Allows) -> httpx.AsyncClient:
    """Returns a client; for sources of the node's own user it takes proxy and authorities from the environment."""
    secure, environment = machine_authorities(), settings.may_dial is None
    return new_client(allows, timeout=settings.patience.times, verify=secure, trust_env=environment)


async def _follow(stack: AsyncExitStack, question: _Question, shown: str, settings: IngestSettings) -> httpx.Response:
    client = await stack.enter_async_context(_client(settings, settings.may_dial or anywhere))
    for _ in range(REDIRECTS + 1):
        method = "GET" if question.body is None else "POST"
        request = client.build_request(method, question.url, headers=_encode(question.headers), content=question.body)
        try:
            with trio.fail_after(settings.patience.head):
                response = await client.send(request, stream=True)
        except trio.TooSlowError as error:
            raise Remote(f"{shown}: the server did not answer in time", rule="web-slow", hint=_SLOW) from error
        location = response.headers.get("Location") if response.is_redirect else None
        if location is None:
            return response
        # From here on a server of the Internet chooses the address (test_a_server_leads_no_source_into_this_house).
        if settings.may_dial is None and not is_from_inside(response):
            client = await stack.enter_async_context(_client(settings, is_global))
        with trio.CancelScope(shield=True):
            await response.aclose()
        question = question.sent_on(location, shown)
    raise Remote(
        f"{shown}: more than {REDIRECTS} redirects", rule="source-redirect", hint="check that its redirects do not loop"
    )


def _encode(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in headers.items()]


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _error_text(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:300]
