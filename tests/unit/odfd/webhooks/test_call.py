"""Calls to receivers that do not answer, and what is asked before a call."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from chain.errors import Remote
from odfd.services.webhooks import call
from p2p.ip import anywhere
from worlds.eventually import PATIENCE


async def silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def endless(stream: trio.SocketStream) -> None:
    """Headers that never end."""
    await stream.send_all(b"HTTP/1.1 200 OK\r\n")
    while True:
        await stream.send_all(b"X: y\r\n")
        await trio.sleep(0.01)


async def hasty(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.aclose()


async def stubborn(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 405 Method Not Allowed\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    ("serve", "said"),
    [(silent, "no answer in 1 seconds"), (hasty, "Server disconnected without sending a response."), (stubborn, "")],
)
async def test_a_server_that_takes_the_connection_is_there_whatever_it_says(
    serve: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "CALL_SECONDS", 2.0 if serve is silent else PATIENCE)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        assert await call.reach(f"http://127.0.0.1:{port}/", anywhere) == said
        nursery.cancel_scope.cancel()
    with pytest.raises(Remote) as none:
        await call.reach(f"http://127.0.0.1:{port}/", anywhere)
    assert none.value.rule == "webhook-unreachable"


@pytest.mark.parametrize("serve", [silent, endless])
async def test_a_receiver_that_does_not_answer_is_left(serve: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "CALL_SECONDS", 0.1)
    async with trio.open_nursery() as nursery:
        listen = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(listen)
        port = listener.socket.getsockname()[1]
        with pytest.raises(Remote, match="no answer in"):
            await call.call(f"http://127.0.0.1:{port}/", {}, b"{}", anywhere)
        nursery.cancel_scope.cancel()
