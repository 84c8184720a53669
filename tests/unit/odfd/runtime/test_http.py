"""The bridge of HTTP: however bytes are cut, whoever says nothing."""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from typing import Any

import h11
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.errors import Remote
from odfd.runtime import http_server, websocket
from odfd.runtime.http import UPGRADE, Connection, Limits, Message, Receive, Send
from odfd.runtime.http_server import ConnectionHandler, HttpServer
from odfd.runtime.supervision import Life
from odfd.runtime.websocket import NORMAL, TOO_BIG, SocketClosed, StreamBytes, WebSocket, accept_key
from worlds.eventually import PATIENCE

# The bridge does not care how bytes are cut, and gives back what the application says.

REQUESTS = (
    b"POST /echo?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\nhello world"
    b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n"
    b"HEAD /none HTTP/1.1\r\nHost: x\r\n\r\n"
    b"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nwaste"
    b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
)


async def application(scope: Message, receive: Receive, send: Send) -> None:
    body = b""
    if scope["path"] != "/unread":
        more = True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
    told = f"{scope['method']} {scope['path']} ".encode() + body
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": told[:3], "more_body": True})
    await send({"type": "http.response.body", "body": told[3:]})


def bodies(answer: bytes) -> list[bytes]:
    """Bodies of the answers, as an independent client reads them."""
    client = h11.Connection(h11.CLIENT)
    client.receive_data(answer)
    client.receive_data(b"")
    found = []
    for target, method in (("/", "POST"), ("/", "POST"), ("/", "GET"), ("/", "HEAD"), ("/", "POST"), ("/", "GET")):
        headers = [("Host", "x"), *([("Content-Length", "0")] if method == "POST" else [])]
        client.send(h11.Request(method=method, target=target, headers=headers))
        client.send(h11.EndOfMessage())
        body = b""
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            body += event.data if isinstance(event, h11.Data) else b""
        found.append(body)
        if client.their_state is h11.DONE:
            client.start_next_cycle()
    return found


async def converse(pieces: list[bytes]) -> bytes:
    ours, theirs = trio.testing.memory_stream_pair()
    answer = b""

    async def talk() -> None:
        for piece in pieces:
            await theirs.send_all(piece)

    async def listen() -> None:
        nonlocal answer
        while chunk := await theirs.receive_some():
            answer += chunk

    async def serve(stream: Any) -> None:
        await Connection(stream, application, Limits(), {}).serve()
        await stream.aclose()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for task in (talk, listen):
                nursery.start_soon(task)
            nursery.start_soon(serve, ours)
    return answer


EXPECTED = [b"POST /echo hello world", b"POST /echo hello world", b"GET /none ", b"", b"POST /unread ", b"GET /last "]


@pytest.mark.slow
@given(st.lists(st.integers(1, len(REQUESTS) - 1), max_size=12).map(sorted))
@settings(max_examples=60)
def test_answers_do_not_depend_on_how_requests_are_cut(cuts: list[int]) -> None:
    edges = [0, *cuts, len(REQUESTS)]
    pieces = [REQUESTS[start:end] for start, end in itertools.pairwise(edges) if start < end]
    assert bodies(trio.run(converse, pieces)) == EXPECTED


def test_byte_by_byte() -> None:
    assert bodies(trio.run(converse, [bytes([byte]) for byte in REQUESTS])) == EXPECTED


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nHost: x\r\nCookie: ", b"GET /", b"\r\n" * 7])
async def test_a_head_of_more_than_its_limit_is_refused_before_its_end(start: bytes) -> None:
    """Attack T-HTTP-01: a request whose head never ends.

    Defence: 16 KiB of it at most, whichever part continues; then it is answered and closed.

    It never ends; what was read of it is bounded, whatever part of it goes on.
    """
    ours, theirs = trio.testing.memory_stream_pair()
    limits, sent = Limits(), 0

    async def drip() -> None:
        nonlocal sent
        await theirs.send_all(start)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while sent < 20 * limits.head_bytes:
                await theirs.send_all(bytes([ord("x")]) * 1024)
                sent += 1024
                await trio.testing.wait_all_tasks_blocked()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            await Connection(ours, application, limits, {}).serve()  # type: ignore[arg-type]
            await ours.aclose()
    assert sent <= limits.head_bytes + 2048
    said = await theirs.receive_some()
    assert said.startswith(b"HTTP/1.1 4")


@pytest.mark.slow
@given(st.binary(max_size=400))
def test_any_bytes_end_in_an_answer_or_a_close(data: bytes) -> None:
    async def attempt() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(data)
        await theirs.send_eof()
        with trio.fail_after(PATIENCE):
            await Connection(ours, application, Limits(), {}).serve()  # type: ignore[arg-type]
        await ours.aclose()
        said = await theirs.receive_some()
        assert not said or said.startswith(b"HTTP/1.1 ")

    trio.run(attempt)


async def test_the_application_is_cancelled_when_its_client_leaves(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    outcome: list[str] = []

    async def endless(scope: Message, receive: Receive, send: Send) -> None:
        try:
            await trio.sleep_forever()
        finally:
            outcome.append("ended")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(ours, endless, Limits(), {}).serve)  # type: ignore[arg-type]
        await theirs.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        assert outcome == []
        await theirs.aclose()
    assert outcome == ["ended"]


async def test_slow_heads_idle_connections_and_stalled_bodies_have_an_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limits = Limits(head_seconds=3, idle_seconds=50, stall_seconds=7)
    half = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n1"
    for sent, seconds in ((b"", 50), (b"GET / HT", 3), (half, 7)):
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(sent)
        before = trio.current_time()
        await Connection(ours, application, limits, {}).serve()  # type: ignore[arg-type]
        assert trio.current_time() - before == seconds


async def test_who_takes_no_answer_is_gone_and_who_takes_it_slowly_is_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each write has its own time; a stream that is silent between two has none."""
    took = {}
    for pause, writes in ((None, 3), (5, 3), (50, 1)):
        ours, theirs = trio.testing.lockstep_stream_pair()

        async def endless(scope: Message, receive: Receive, send: Send, writes: int = writes) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for number in range(writes):
                await send({"type": "http.response.body", "body": b"x", "more_body": number + 1 < writes})
            await trio.sleep(100)

        async def read(theirs: trio.abc.Stream = theirs, pause: float | None = pause) -> None:
            await theirs.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            while pause is not None:
                await theirs.receive_some(1000)
                await trio.sleep(min(pause, 5))

        before = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            with trio.move_on_after(90):
                await Connection(ours, endless, Limits(stall_seconds=7), {}).serve()  # type: ignore[arg-type]
            nursery.cancel_scope.cancel()
        took[pause] = trio.current_time() - before
    assert took == {None: 7, 5: 90, 50: 90}


async def test_a_body_that_drips_has_an_end(autojump_clock: trio.testing.MockClock) -> None:
    """Attack T-HTTP-01: a client that sends its request to the site slowly.

    Defence: bodies have a minimum rate.

    A byte before each silence is over held a connection for ever; one at the least rate may.
    """
    for least, ended in ((5, 8.0), (4, 50.0)):
        limits = Limits(stall_seconds=7, least_bytes=least)
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drip, theirs)
            with trio.move_on_after(50):
                await Connection(ours, application, limits, {}).serve()  # type: ignore[arg-type]
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began == ended


async def test_a_body_of_chunks_of_one_byte_lets_others_run() -> None:
    """Attack T-HTTP-01: a body of ten thousand chunks of a byte, received at once.

    Defence: other tasks run between any two of them.

    Ten thousand of them fit into what is read at once.
    """
    chunks, turns = 2000, 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    ours, theirs = trio.testing.memory_stream_pair()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    await theirs.send_all(head + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n")
    await theirs.send_eof()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await Connection(ours, application, Limits(), {}).serve()  # type: ignore[arg-type]
        nursery.cancel_scope.cancel()
    assert turns >= chunks


async def _drip(stream: trio.abc.SendStream) -> None:
    while True:
        await trio.sleep(2)
        await stream.send_all(b"x")


# A server over HTTP on real sockets: who says nothing keeps nobody out.

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
    """Attack T-HTTP-01: silent connections, by the hundred and from any address, to the site, `metrics.listen` or the
    control socket.

    Defence: half of the 256 connections may be without a request: for a newcomer the oldest one is closed, of the
    address with most of them in the block with most of them; connections being answered stay.

    Also not one of the same address: what says nothing leaves, the oldest first.
    """
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


# Web sockets over streams: messages however they are cut, limits, ends, and silence.


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
