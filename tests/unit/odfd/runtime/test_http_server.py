"""A server over HTTP on real sockets: who says nothing keeps nobody out."""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio

from odfd.runtime import http_server
from odfd.runtime.http import Limits, Message, Receive, Send
from odfd.runtime.http_server import ConnectionHandler, HttpServer
from odfd.runtime.supervision import Life
from worlds.eventually import PATIENCE

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PATIENT = Limits(idle_seconds=math.inf, head_seconds=math.inf, stall_seconds=math.inf)


async def hello(_scope: Message, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def server(application: Any = hello) -> AsyncIterator[HttpServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = HttpServer("test", [listener], lambda _: nullcontext(ConnectionHandler(application)), None, PATIENT)  # type: ignore[arg-type]
        life = Life()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run, life)
            with trio.fail_after(PATIENCE):
                yield made
            life.stopping.set()


async def dialled(server: HttpServer, stack: AsyncExitStack, address: str = "127.0.0.1") -> trio.SocketStream:
    port = server.listeners[0].getsockname()[1]
    stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=address)
    stack.push_async_callback(stream.aclose)
    return stream


async def answered(stream: trio.SocketStream) -> bool:
    await stream.send_all(REQUEST)
    return await answer(stream)


async def answer(stream: trio.SocketStream) -> bool:
    """Whether one comes, whole."""
    said = b""
    while not said.endswith(b"hello") and (more := await stream.receive_some()):
        said += more
    return said.startswith(b"HTTP/1.1 200") and said.endswith(b"hello")


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.2"])
async def test_silent_connections_keep_nobody_out_of_a_server(address: str) -> None:
    """Also not one of the same address: what says nothing leaves, the oldest first."""
    async with server() as made, AsyncExitStack() as stack:
        for _ in range(http_server.CONNECTIONS + 10):
            await dialled(made, stack)
        assert await answered(await dialled(made, stack, address))
        assert made.connections <= http_server.SILENT + 1
        assert made.turned_away > 0


async def test_who_is_being_answered_is_never_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SILENT", 2)
    asked, go_on = trio.Event(), trio.Event()

    async def slow(scope: Message, receive: Receive, send: Send) -> None:
        asked.set()
        await go_on.wait()
        await hello(scope, receive, send)

    async with server(slow) as made, AsyncExitStack() as stack:
        first = await dialled(made, stack)
        await first.send_all(REQUEST)
        await asked.wait()
        silent = [await dialled(made, stack) for _ in range(5)]
        assert await silent[0].receive_some() == b"", "closed for a newcomer"
        go_on.set()
        assert await answer(first)
        assert await answered(first), "and is asked again"
