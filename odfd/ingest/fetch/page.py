"""Fetches one web page: follows redirects, bounds every wait, and can be cancelled at any moment.

The server is not trusted: every wait for it to connect, answer, continue or end is bounded. A source of one's own is
dialled as this machine is set up, by way of any proxy; one that a stranger named only at addresses that may be. What
was meant for one origin (scheme, host and port) is shown to no other. RFC 9110.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Final, NamedTuple

import httpx
import trio

from chain.errors import Refused, Remote
from odfd.ingest.settings import IngestSettings, MayDial
from p2p.web.body import body_of
from p2p.web.client import new_client
from p2p.web.patience import lively
from p2p.web.place import SCHEMES

REDIRECTS: Final = 10
_AGAIN: Final = "try again later"
_SLOW: Final = "try again later, or wait longer: ingest.silence-seconds, ingest.least-rate and ingest.fetch-seconds"


class Page(NamedTuple):
    """An answer of any status but a redirect's."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]
    """As it is sent, encodings of its content and all; raises what ``page`` does."""


@asynccontextmanager
async def page(
    url: str, shown: str, headers: Mapping[str, str], confidential: Collection[str], settings: IngestSettings
) -> AsyncIterator[Page]:
    """``shown`` stands for ``url`` in messages; ``confidential`` names headers that are for its origin alone.

    Raises Remote: not reachable, too slow, redirects without end. Raises Refused: an address that may not be dialled,
    a redirect to what is no page of the web.
    """
    patience = settings.patience
    deadline = trio.current_time() + patience.total
    try:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(_client(settings))
            response = await _follow(client, _Question(httpx.URL(url), headers, confidential), shown, settings)
            body = await stack.enter_async_context(body_of(response, response.aiter_raw()))
            parts = await stack.enter_async_context(aclosing(lively(shown, body, patience, deadline, _SLOW)))
            yield Page(response.status_code, response.reason_phrase, response.headers, parts)
    except httpx.TimeoutException as error:
        raise Remote(f"{shown}: the server gave nothing in time", rule="web-slow", hint=_SLOW) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise Remote(f"cannot reach {shown}: {_told(error)}", rule="url-http", hint=_AGAIN) from error


class _Question(NamedTuple):
    url: httpx.URL
    headers: Mapping[str, str]
    confidential: Collection[str]

    def sent_on(self, location: str, shown: str) -> _Question:
        """Where a redirect leads. Raises Refused."""
        there = self.url.join(location)
        if there.scheme not in SCHEMES or (self.url.scheme == "https" and there.scheme != "https"):
            raise Refused(
                f"{shown}: {self.url.host} sends us on to {there.scheme}://{there.host}",
                rule="source-redirect",
                hint="name the place itself as the source, if you trust it",
            )
        if _origin(there) == _origin(self.url):
            return self._replace(url=there)
        own = {name.casefold() for name in self.confidential}
        return _Question(there, {name: value for name, value in self.headers.items() if name.casefold() not in own}, ())


def _client(settings: IngestSettings) -> httpx.AsyncClient:
    """The environment says which proxy to ask, and which authorities to trust, for sources of one's own."""
    secure = ssl.create_default_context()
    return new_client(timeout=settings.patience.times, verify=secure, trust_env=settings.may_dial is None)


async def _follow(
    client: httpx.AsyncClient, question: _Question, shown: str, settings: IngestSettings
) -> httpx.Response:
    for _ in range(REDIRECTS + 1):
        try:
            with trio.fail_after(settings.patience.head):
                response = await client.send(await _request(client, question, settings.may_dial), stream=True)
        except trio.TooSlowError as error:
            raise Remote(f"{shown}: the server gave no answer in time", rule="web-slow", hint=_SLOW) from error
        location = response.headers.get("Location") if response.is_redirect else None
        if location is None:
            return response
        with trio.CancelScope(shield=True):
            await response.aclose()
        question = question.sent_on(location, shown)
    raise Remote(f"{shown}: more than {REDIRECTS} redirects", rule="source-redirect", hint="is it a loop?")


async def _request(client: httpx.AsyncClient, question: _Question, may_dial: MayDial | None) -> httpx.Request:
    """Where a stranger said whom to ask, to the address that was looked at: its name could lead elsewhere next time."""
    url = question.url
    if may_dial is None:
        return client.build_request("GET", url, headers=_encoded(question.headers))
    address = await _looked_up(url, may_dial)
    headers = {**question.headers, "Host": url.netloc.decode("ascii")}
    extensions = {"sni_hostname": url.raw_host.decode("ascii")}
    return client.build_request("GET", url.copy_with(host=address), headers=_encoded(headers), extensions=extensions)


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in headers.items()]


async def _looked_up(url: httpx.URL, may_dial: MayDial) -> str:
    """Raises Refused, OSError."""
    found = await trio.socket.getaddrinfo(url.host, url.port or 0, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    allowed = [each for each in addresses if may_dial(each)]
    if not allowed:
        raise Refused(
            f"{url.host} is at {', '.join(addresses)}, where a stranger does not send this node",
            rule="source-address",
            hint="a source that others are to observe has an address of the Internet",
        )
    return allowed[0]


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _told(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:300]
