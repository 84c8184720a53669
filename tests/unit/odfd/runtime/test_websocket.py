"""Web sockets over streams: messages however they are cut, limits, ends, and silence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.errors import Remote
from odfd.runtime import websocket
from odfd.runtime.http import UPGRADE, Connection, Limits, Message, Receive, Send
from odfd.runtime.websocket import NORMAL, TOO_BIG, SocketClosed, StreamBytes, WebSocket, accept_key


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[WebSocket, WebSocket, Any]]:
    """A client, a server, and the client's stream."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with ours, theirs:
        yield WebSocket(StreamBytes(ours), is_client=True), WebSocket(StreamBytes(theirs), is_client=False), ours


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.lists(st.text(max_size=50), min_size=1, max_size=4), max_size=4))
def test_messages_arrive_whole(messages: list[list[str]]) -> None:
    async def talk() -> None:
        async with pair() as (client, server, _):
            for pieces in messages:
                await client.send_pieces(pieces)
                assert await server.receive(1000) == "".join(pieces)
                await server.send("".join(pieces))
                assert await client.receive(1000) == "".join(pieces)

    trio.run(talk)


async def test_an_end_is_told_with_its_reason(autojump_clock: Any) -> None:
    async with pair() as (client, server, _), trio.open_nursery() as nursery:
        nursery.start_soon(server.close, 1011, "ü" * 100)
        with pytest.raises(SocketClosed) as caught:
            await client.receive(10)
        assert (caught.value.code, caught.value.reason) == (1011, "ü" * 61)
        with pytest.raises(SocketClosed):
            await client.send("more")
        await client.close()


async def test_too_long_a_message_ends_the_conversation(autojump_clock: Any) -> None:
    async with pair() as (client, server, _), trio.open_nursery() as nursery:
        nursery.start_soon(client.send, "x" * 100_000)
        with pytest.raises(Remote, match="more than 10"):
            await server.receive(10)
        with pytest.raises(SocketClosed) as caught:
            await client.receive(10)
        assert caught.value.code == TOO_BIG


@pytest.mark.parametrize("noise", [b"\xff" * 40, b"\x82\x80\0\0\0\0", b"\x81\xfe\x00\x01", b"GET / HTTP/1.1\r\n\r\n"])
async def test_frames_that_are_none_end_it(autojump_clock: Any, noise: bytes) -> None:
    async with pair() as (_, server, stream):
        await stream.send_all(noise)
        await stream.send_eof() if hasattr(stream, "send_eof") else None
        with pytest.raises(Remote):
            await server.receive(10)


async def test_silence_is_left(autojump_clock: Any) -> None:
    async with pair() as (_, server, _):
        began = trio.current_time()
        with pytest.raises(Remote, match="nothing came") as caught:
            await server.receive(10)
        assert caught.value.rule == "websocket-slow"
        assert trio.current_time() - began == websocket.SILENCE_SECONDS


async def test_who_leaves_is_noticed(autojump_clock: Any) -> None:
    async with pair() as (client, server, stream):
        await stream.aclose()
        with pytest.raises(SocketClosed):
            await server.receive(10)
        with pytest.raises(Remote):
            await client.send("x")


async def test_a_connection_is_taken_over(autojump_clock: Any) -> None:
    """What came with the request is not lost, and the connection ends with the application."""
    ours, theirs = trio.testing.memory_stream_pair()

    async def application(scope: Message, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/no":
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            return await send({"type": "http.response.body", "body": b""})
        taken = await scope[UPGRADE]([(b"Upgrade", b"echo"), (b"Connection", b"Upgrade")])
        data = taken.came
        while len(data) < 10:
            data += await taken.stream.receive_some()
        await taken.stream.send_all(data[::-1])
        return None

    async def serve() -> None:
        await Connection(theirs, application, Limits(), {}).serve()  # type: ignore[arg-type]
        await theirs.aclose()

    machine, answer = h11.Connection(h11.CLIENT), b""
    headers = [("Host", "x"), ("Upgrade", "echo"), ("Connection", "Upgrade")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        asked = machine.send(h11.Request(method="GET", target="/no", headers=headers)) or b""
        await ours.send_all(asked + (machine.send(h11.EndOfMessage()) or b""))
        while (event := machine.next_event()) is h11.NEED_DATA:
            machine.receive_data(await ours.receive_some())
        assert isinstance(event, h11.Response)
        assert event.status_code == 404
        machine.next_event()
        machine.start_next_cycle()
        asked = machine.send(h11.Request(method="GET", target="/yes", headers=headers)) or b""
        await ours.send_all(asked + (machine.send(h11.EndOfMessage()) or b"") + b"01234")
        await ours.send_all(b"56789")
        while part := await ours.receive_some():
            answer += part
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert answer.endswith(b"\r\n\r\n9876543210")
    assert NORMAL == 1000
    assert accept_key(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "the example of RFC 6455"
