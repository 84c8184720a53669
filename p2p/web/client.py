"""Provides the HTTP client of the node: httpx, with connections that close when their task is cancelled.

httpcore 1.0 closes a connection whose TLS handshake fails by an error, but not one whose task is cancelled during the
handshake: the socket then stays open until the garbage collector finds it. A server that accepts and never answers
could so keep sockets of the node. The backend below closes the connection in both cases.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import httpcore
import httpx
import trio

_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables by which the environment says whom to trust."""


@cache
def _trusting(*named: str | None) -> ssl.SSLContext:
    """One for all clients: reading the authorities takes 20 ms, the most of making a client and a tenth of a node."""
    return httpx.create_ssl_context(trust_env=bool(named))


def new_client(**options: Any) -> httpx.AsyncClient:
    """An ``httpx.AsyncClient(**options)`` whose connections close on cancellation, those through proxies too.

    No redirect is followed: each caller decides where it lets itself be sent. Without ``verify`` the certificates are
    checked against those that httpx trusts.
    """
    if "verify" not in options:
        named = [os.environ.get(name) for name in _CERTIFICATES] if options.get("trust_env", True) else []
        options["verify"] = _trusting(*named)
    client = httpx.AsyncClient(follow_redirects=False, **options)
    # httpx takes a backend only together with a transport, and a transport of one's own drops the proxies of the
    # environment; so the pools that httpx made are given theirs afterwards.
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.AsyncHTTPTransport):
            transport._pool._network_backend = _Backend()
    return client


class _Backend(httpcore.TrioBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await super().connect_tcp(host, port, timeout, local_address, socket_options))


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that does not survive a handshake which was left."""

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        try:
            return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout))
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.aclose()
            raise
