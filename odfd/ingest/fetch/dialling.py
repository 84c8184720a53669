"""Which web servers are dialled: any for sources of one's own, those that may be for sources that a stranger named.

Where a server sends us is looked at too: only other pages of the web are fetched, and what was meant for one origin
(scheme, host and port) is not shown to another.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection
from functools import partial
from typing import IO, Any, Final

from chain.errors import Refused
from odfd.ingest.settings import MayDial

CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
"""Headers by which a server knows who asks, in lower case."""


def is_public(address: str) -> bool:
    """Not of this machine, its network, or any range that is not of the Internet."""
    return ipaddress.ip_address(address.partition("%")[0]).is_global


def opener(may_dial: MayDial | None, confidential: Collection[str] = ()) -> urllib.request.OpenerDirector:
    """``None``: as this machine is set up. Else each connection, also after a redirect, goes to an address that may be.

    Names are resolved once, and the address that was looked at is the one that is dialled. No proxy is asked.
    ``confidential``: names of headers that are for the origin that was asked first.
    """
    redirects = _Redirects(confidential)
    if may_dial is None:
        return urllib.request.build_opener(redirects)
    dial = partial(_dial, may_dial)
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _Plain(dial), _Secure(dial), redirects)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, confidential: Collection[str]) -> None:
        self._confidential = [name.capitalize() for name in confidential]  # as the library spells them

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            fp.close()
            raise Refused(
                f"{req.host} sends us on to what is no page of the web: {newurl[:200]}",
                rule="source-redirect",
                hint="name the place itself as the source, if you trust it",
            )
        sent_on = super().redirect_request(req, fp, code, msg, headers, newurl)
        if sent_on is not None and _origin(newurl) != _origin(req.full_url):
            for name in self._confidential:
                sent_on.remove_header(name)
        return sent_on


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urllib.parse.urlsplit(url)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", parts.port or usual


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, dial: Callable[..., socket.socket]) -> None:
        super().__init__()
        self._dial = dial

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_connection, http.client.HTTPConnection, self._dial), req)


class _Secure(urllib.request.HTTPSHandler):
    def __init__(self, dial: Callable[..., socket.socket]) -> None:
        super().__init__()
        self._dial = dial

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_connection, http.client.HTTPSConnection, self._dial), req)


def _connection(
    kind: type[http.client.HTTPConnection], dial: Callable[..., socket.socket], host: str, **options: Any
) -> Any:
    made: Any = kind(host, **options)
    made._create_connection = dial  # the library's own place for it; TLS is still spoken with the name
    return made


def _dial(may_dial: MayDial, address: tuple[str, int], timeout: Any, source_address: Any = None) -> socket.socket:
    host, port = address
    found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    allowed = [each for each in found if may_dial(each)]
    if not allowed:
        raise Refused(
            f"{host} is at {', '.join(dict.fromkeys(found))}, where a stranger does not send this node",
            rule="source-address",
            hint="a source that others are to observe has an address of the Internet",
        )
    return socket.create_connection((allowed[0], port), timeout, source_address)
