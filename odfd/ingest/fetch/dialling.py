"""Which web servers are dialled: any for sources of one's own, those that may be for sources that a stranger named."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

from chain.errors import Refused
from odfd.ingest.settings import MayDial


def is_public(address: str) -> bool:
    """Not of this machine, its network, or any range that is not of the Internet."""
    return ipaddress.ip_address(address.partition("%")[0]).is_global


def opener(may_dial: MayDial | None) -> urllib.request.OpenerDirector:
    """``None``: as this machine is set up. Else each connection, also after a redirect, goes to an address that may be.

    Names are resolved once, and the address that was looked at is the one that is dialled. No proxy is asked.
    """
    if may_dial is None:
        return urllib.request.build_opener()
    dial = partial(_dial, may_dial)
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _Plain(dial), _Secure(dial))


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
