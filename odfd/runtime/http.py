"""Serves one HTTP/1.1 connection to an ASGI application, with h11 and trio.

Bodies are not buffered: the application pulls request chunks and pushes answer chunks, and a slow peer slows the
application down. When a client disconnects, its request is cancelled; tasks that it started go on. Bounds on time and
sizes are ``Limits``. Lives from accept to close. RFC 9112; ASGI 3.0 (HTTP only, no lifespan). An application that finds
``UPGRADE`` in its scope may take the connection over instead of answering.
"""

from __future__ import annotations

import json
import math
import socket
from array import array
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias
from urllib.parse import unquote

import h11
import trio

from chain.errors import Invalid
from odfd.errors import PROBLEM_JSON, to_problem

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

HttpStream: TypeAlias = trio.SocketStream | trio.SSLStream
UPGRADE: Final = "odfd.upgrade"
"""Key in the scope of a request that asks for another protocol (``Upgrade``); its value is an ``Upgrade``."""
CHUNKS: Final = "odfd.chunks"
"""Key in the scope of a request whose answer may come in chunks: writes one that ``chunk`` framed, after the head."""
_CHUNK: Final = 65536


@dataclass(frozen=True, slots=True)
class Limits:
    head_bytes: int = 16_384
    """Most bytes of request line and headers."""
    head_seconds: float = 10.0
    """Most seconds from the first byte of a request to the end of its headers."""
    idle_seconds: float = 75.0
    """Most seconds between requests."""
    stall_seconds: float = 30.0
    """Seconds without progress in reading a body or sending an answer, after which the peer counts as gone."""
    least_bytes: int = 0
    """Fewest bytes of a body in each ``stall_seconds`` of waiting; a slower peer counts as gone. 0: no minimum."""
    drain_bytes: int = 1_048_576
    """Most bytes read of a body that the application did not want; if more are left the connection is closed."""
    drain_seconds: float = math.inf
    """Most seconds of reading such a body."""


def chunk(data: bytes) -> bytes:
    """Frames a chunk of a body, so that many connections can write the same bytes (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Upgraded(NamedTuple):
    """A connection that now speaks another protocol. It is closed when the application returns."""

    stream: HttpStream
    came: bytes
    """Bytes that were already read from it."""


Upgrade: TypeAlias = Callable[[Sequence[tuple[bytes, bytes]]], Awaitable[Upgraded]]
"""Accepts the requested protocol, with these headers (status 101)."""


class _ClientLeft(Exception):
    """Raised when the client left, or stalled for too long."""


class Connection:
    """Serves requests one after another on ``stream`` until either side ends it."""

    def __init__(self, stream: HttpStream, application: Application, limits: Limits, extra: Mapping[str, Any]) -> None:
        self._stream, self._application, self._limits, self._extra = stream, application, limits, extra
        self._machine = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)

    async def serve(self) -> None:
        try:
            while (request := await self._next_request()) is not None:
                await _Exchange(self._machine, self._stream, self._limits, request).run(self._application, self._extra)
                if self._machine.our_state is not h11.DONE or self._machine.their_state is not h11.DONE:
                    return
                self._machine.start_next_cycle()
        except (_ClientLeft, trio.BrokenResourceError, trio.ClosedResourceError):
            return
        except h11.RemoteProtocolError as error:
            await self._reject(error)

    async def _next_request(self) -> h11.Request | None:
        with trio.move_on_after(self._limits.idle_seconds) as patience:
            while True:
                event = self._machine.next_event()
                if event is h11.NEED_DATA:
                    data = await self._stream.receive_some(_CHUNK)
                    # With the first byte alone: if each byte extended the time, a head of a byte a second would have no
                    # end.
                    if self._machine.trailing_data[0] == b"" and data:
                        patience.deadline = trio.current_time() + self._limits.head_seconds
                    self._machine.receive_data(data)
                elif isinstance(event, h11.Request):
                    return event
                else:
                    return None
        return None

    async def _reject(self, error: h11.RemoteProtocolError) -> None:
        """Tells the client what is wrong with its bytes, if an answer is still possible, and closes."""
        if self._machine.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        status = error.error_status_hint
        fault = Invalid(f"not a request that can be understood: {error}", rule="http", hint="odfctl speaks it right")
        body = json.dumps(to_problem(fault) | {"status": status}).encode()
        headers = [("content-type", PROBLEM_JSON), ("content-length", str(len(body))), ("connection", "close")]
        events = (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        with trio.move_on_after(self._limits.stall_seconds):
            try:
                await self._stream.send_all(b"".join(self._machine.send(event) or b"" for event in events))
            except trio.BrokenResourceError:
                return


class _Exchange:
    """One request and its answer."""

    def __init__(self, machine: h11.Connection, stream: HttpStream, limits: Limits, request: h11.Request) -> None:
        self._machine, self._stream, self._limits, self._request = machine, stream, limits, request
        self._body_over = trio.Event()
        self._start: Message | None = None
        self._head = request.method == b"HEAD"
        self._leaving = trio.CancelScope()
        self._watching = trio.CancelScope()
        self._is_upgraded = False
        self._told_end = False
        self._waited = 0.0
        """Seconds waited for the body since the last check of how much had arrived."""
        self._came = 0

    async def run(self, application: Application, extra: Mapping[str, Any]) -> None:
        """Serves until the connection ends. Raises _ClientLeft when the peer is gone: the application was cancelled."""
        if not any(name in (b"content-length", b"transfer-encoding") for name, _ in self._request.headers):
            # Without a body its end is known now; so a disconnect is noticed even if the application never asks for a
            # body.
            self._machine.next_event()
            self._body_over.set()
        with self._leaving:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                await application(self._scope(extra), self._receive, self._send)
                if not self._is_upgraded:
                    with trio.move_on_after(self._limits.drain_seconds):
                        await self._drain()
                nursery.cancel_scope.cancel()
        if self._leaving.cancelled_caught:
            raise _ClientLeft

    async def _leave(self) -> NoReturn:
        """Ends the exchange: the application is cancelled, instead of seeing an error."""
        self._leaving.cancel()
        await trio.sleep_forever()

    async def _watch(self) -> None:
        """Ends the exchange when the client has closed, which is visible only after its body has been read."""
        with self._watching:
            await self._body_over.wait()
            data = await self._read()
        if self._watching.cancelled_caught:
            return
        if not data:
            await self._leave()
        # The next request, sent early, is kept for its turn. From here on only a write reveals a close.
        self._machine.receive_data(data)

    def _scope(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        raw_path, _, query = self._request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": self._request.http_version.decode(),
            "method": self._request.method.decode("ascii"),
            "scheme": "http",
            "path": unquote(raw_path.decode("latin-1")),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": list(self._request.headers),
            "client": None,
            "server": None,
            **({CHUNKS: self._put} if self._request.http_version == b"1.1" and not self._head else {}),
            **({UPGRADE: self._upgrade} if any(name == b"upgrade" for name, _ in self._request.headers) else {}),
            **extra,
        }

    async def _upgrade(self, headers: Sequence[tuple[bytes, bytes]]) -> Upgraded:
        """Implements ``Upgrade``. Raises h11.LocalProtocolError where the request asks for no other protocol."""
        self._watching.cancel()
        await self._write(h11.InformationalResponse(status_code=101, headers=list(headers)))
        self._is_upgraded = True
        came, _ = self._machine.trailing_data
        return Upgraded(self._stream, came)

    async def _read(self) -> bytes:
        """Returns received bytes, empty at the end."""
        try:
            return bytes(await self._stream.receive_some(_CHUNK))
        except trio.BrokenResourceError:
            return b""

    async def _event(self) -> object:
        while True:
            if self._machine.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[]))
            event = self._machine.next_event()
            if event is not h11.NEED_DATA:
                # One read may hold ten thousand chunks: other tasks have their turn between any two.
                await trio.lowlevel.checkpoint()
                return event
            began = trio.current_time()
            with trio.move_on_after(self._limits.stall_seconds):
                data = await self._read()
                self._machine.receive_data(data)
                self._waited += trio.current_time() - began
                self._came += len(data)
                if self._keeps_up():
                    continue
            await self._leave()

    def _keeps_up(self) -> bool:
        if self._waited < self._limits.stall_seconds:
            return True
        enough = self._came >= self._limits.least_bytes
        self._waited, self._came = 0.0, 0
        return enough

    async def _receive(self) -> Message:
        # ASGI: now the application waits for http.disconnect, and here a client that leaves cancels it instead.
        if self._told_end:
            await trio.sleep_forever()
        if self._body_over.is_set():
            self._told_end = True
            return {"type": "http.request", "body": b"", "more_body": False}
        event = await self._event()
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        if isinstance(event, h11.EndOfMessage):
            self._body_over.set()
            self._told_end = True
            return {"type": "http.request", "body": b"", "more_body": False}
        return await self._leave()

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        events: list[h11.Event] = []
        if self._start is not None:
            start, self._start = self._start, None
            events.append(h11.Response(status_code=start["status"], headers=start["headers"]))
        body = message.get("body", b"")
        if body and not self._head:
            events.append(h11.Data(data=body))
        if not message.get("more_body", False):
            events.append(h11.EndOfMessage())
        await self._write(*events, descriptors=message.get("descriptors", ()))

    async def _write(self, *events: h11.Event, descriptors: Sequence[int] = ()) -> None:
        """Writes, a short answer as a whole; ``descriptors`` go with the bytes over a unix socket."""
        pieces = [piece for event in events for piece in self._machine.send_with_data_passthrough(event) or []]
        if sum(map(len, pieces)) < _CHUNK:
            pieces = [b"".join(pieces)]
        await self._put(*pieces, descriptors=descriptors)

    async def _put(self, *pieces: bytes, descriptors: Sequence[int] = ()) -> None:
        # A peer that stalls counts as gone: during this write the deadline holds for the whole exchange.
        self._leaving.deadline = trio.current_time() + self._limits.stall_seconds
        try:
            if descriptors:
                assert isinstance(self._stream, trio.SocketStream)
                text = b"".join(pieces)
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors).tobytes())]
                # The kernel may take a part of the text; the descriptors went with its first byte.
                pieces = (text[await self._stream.socket.sendmsg([text], rights) :],)
            for piece in filter(None, pieces):
                await self._stream.send_all(piece)
        except (trio.BrokenResourceError, OSError):
            await self._leave()
        finally:
            self._leaving.deadline = math.inf

    async def _drain(self) -> None:
        """Reads the rest of the body, lest a reset destroys the answer; a long rest ends the connection."""
        rest = self._limits.drain_bytes
        while not self._body_over.is_set():
            message = await self._receive()
            rest -= len(message["body"])
            if rest < 0:
                await self._leave()
