"""Plays one side of a transcript: kamu's client in front of a node, or kamu's server behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import h11
import httpx
import pytest
import trio

from odfd.runtime.websocket import NORMAL, SocketClosed, StreamBytes, WebSocket, accept_key
from odfd.smart.batches import MAX_TEXT
from odfd.smart.transport import conversation
from p2p.web.transfer import WebTransfers
from worlds.eventually import PATIENCE
from worlds.kamu_sessions import EVENTS
from worlds.transcripts import KEPT, Mask, Step, body_of, message_of, same, text_of


async def as_client(steps: Sequence[Step], mask: Mask) -> None:
    """Does and says what kamu's client did and said, and expects the answers that it had."""
    async with httpx.AsyncClient() as client, WebTransfers() as web, AsyncExitStack() as opened:
        socket: Any = None
        with trio.fail_after(PATIENCE):
            for step in steps:
                if "ask" in step:
                    await _ask(client, step, mask)
                elif "open" in step:
                    found = conversation(web, f"http://{mask.host}{step['open']}", _headers(step, mask))
                    socket, _ = await opened.enter_async_context(found)
                elif "client" in step:
                    await socket.send(text_of(step["client"], mask))
                elif "server" in step:
                    said = message_of(await socket.receive(MAX_TEXT), mask)
                    assert same(said) == same(step["server"])
                elif "client ends" in step:
                    await socket.close(*step["client ends"])
                else:
                    with pytest.raises(SocketClosed) as caught:
                        await socket.receive(MAX_TEXT)
                    assert [caught.value.code, caught.value.reason] == step["server ends"]


async def _ask(client: httpx.AsyncClient, step: Step, mask: Mask) -> None:
    method, target = step["ask"].split(" ")
    content = body_of(step["body"], EVENTS) if "body" in step else None
    url = f"http://{mask.host}{target}"
    answer = await client.request(method, url, headers=_headers(step, mask), content=content)
    assert answer.status_code == step["status"], step
    if answer.is_success:
        hidden = mask.hide(answer.text).encode() if isinstance(step.get("answer"), str) else answer.content
        assert hidden == body_of(step.get("answer", ""), EVENTS), step


def _headers(step: Step, mask: Mask) -> dict[str, str]:
    return {name: mask.show(value) for name, value in step.get("headers", {}).items()}


class KamuServer:
    """Answers as kamu's server did, and notes what was asked otherwise. ``steps``: those of the present session."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._left: list[Step] = []
        self.faults: list[str] = []
        self.host = ""

    @asynccontextmanager
    async def session(self, steps: Sequence[Step]) -> AsyncIterator[None]:
        """Expects that all of a session was asked for and said when the block ends."""
        self._left = list(steps)
        try:
            yield
        except AssertionError as fault:
            raise AssertionError(f"{fault}; {self.faults}") from None
        assert not self.faults, self.faults
        assert not self._left, f"was not asked for: {self._left}"

    @property
    def _mask(self) -> Mask:
        return Mask(self.host, self._token)

    async def serve(self, stream: trio.SocketStream) -> None:
        machine = h11.Connection(h11.SERVER)
        async with stream:
            try:
                while (request := await _event(machine, stream)) and isinstance(request, h11.Request):
                    body = b""
                    while isinstance(event := await _event(machine, stream), h11.Data):
                        body += event.data
                    if not await self._answered(machine, stream, request, body):
                        return
                    machine.start_next_cycle()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            except AssertionError as fault:
                self.faults.append(str(fault))

    async def _answered(
        self, machine: h11.Connection, stream: trio.SocketStream, request: h11.Request, body: bytes
    ) -> bool:
        headers = {name.decode(): value.decode() for name, value in request.headers}
        target = request.target.decode()
        is_socket = headers.get("upgrade", "").lower() == "websocket"
        key, value = ("open", target) if is_socket else ("ask", f"{request.method.decode()} {target}")
        step = next((each for each in self._left if each.get(key) == value), None)
        assert step is not None, f"{value} was asked for, and is not in the transcript"
        self._left.remove(step)
        kept = {name: self._mask.hide(headers[name]) for name in KEPT if name in headers}
        assert kept == step.get("headers", {}), (value, kept)
        if "body" in step:
            assert body == body_of(step["body"], EVENTS), value
        if is_socket and step["status"] == httpx.codes.SWITCHING_PROTOCOLS:
            await self._switched(machine, stream, headers["sec-websocket-key"])
            return False
        given = body_of(step["answer"], EVENTS) if "answer" in step else b""
        told = h11.Response(status_code=step["status"], headers=[("content-length", str(len(given)))])
        for event in (told, h11.Data(data=given), h11.EndOfMessage()):
            await stream.send_all(machine.send(event) or b"")
        return True

    async def _switched(self, machine: h11.Connection, stream: trio.SocketStream, key: str) -> None:
        answer = [
            ("upgrade", "websocket"),
            ("connection", "upgrade"),
            ("sec-websocket-accept", accept_key(key.encode()).decode()),
        ]
        await stream.send_all(machine.send(h11.InformationalResponse(status_code=101, headers=answer)) or b"")
        socket = WebSocket(StreamBytes(stream), is_client=False, came=machine.trailing_data[0])
        for step in list(self._spoken()):
            self._left.remove(step)
            if "client" in step:
                said = message_of(await socket.receive(MAX_TEXT), self._mask)
                assert same(said) == same(step["client"]), said
            elif "server" in step:
                await socket.send(text_of(step["server"], self._mask))
            elif "client ends" in step:
                with pytest.raises(SocketClosed) as caught:
                    await socket.receive(MAX_TEXT)
                assert caught.value.code == NORMAL
            else:
                await socket.close(*step["server ends"])

    def _spoken(self) -> Iterator[Step]:
        """What is said on the web socket that was opened now."""
        for step in self._left:
            if "open" in step:
                return
            if "ask" not in step:
                yield step


async def _event(machine: h11.Connection, stream: trio.SocketStream) -> Any:
    while (event := machine.next_event()) is h11.NEED_DATA:
        machine.receive_data(await stream.receive_some(65_536))
    return None if event is h11.PAUSED else event


@asynccontextmanager
async def kamu_server(token: str = "of-kamu") -> AsyncIterator[KamuServer]:
    server = KamuServer(token)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.host = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        yield server
        nursery.cancel_scope.cancel()
