"""Speaks web sockets over a stream that was upgraded: text messages in pieces, pings, and the end with its reason.

wsproto parses the frames; a message is passed on in parts as it arrives, so that a long one takes no memory. Every wait
is bounded: the connection to a peer that sends nothing for ``SILENCE_SECONDS``, or takes nothing for ``STALL_SECONDS``,
is given up. RFC 6455.
"""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from typing import Final, Protocol

import trio
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

from chain.errors import Fault, Remote

SILENCE_SECONDS: Final = 60.0
"""Most seconds without a byte of the other side, while a message is awaited."""
STALL_SECONDS: Final = 30.0
"""Most seconds until the other side has taken one frame."""
CLOSE_SECONDS: Final = 5.0
"""Most seconds until the other side confirms the end."""
FRAME: Final = 64 << 10
"""Most characters of one frame."""
MAX_REASON: Final = 123
"""Most bytes of the reason in a closing frame."""
NORMAL: Final = 1000
PROTOCOL: Final = 1002
UNSUPPORTED: Final = 1003
TOO_BIG: Final = 1009
BROKEN: Final = 1011
_ABNORMAL: Final = 1006
_CHUNK: Final = 65_536
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Bytes(Protocol):
    """A stream below a socket. Both methods raise trio.BrokenResourceError or the transport's error, if broken."""

    async def receive(self) -> bytes:
        """Returns received bytes, empty at the end."""

    async def send(self, data: bytes) -> None: ...


class SocketClosed(Remote):
    """Raised when the other side closed. ``code`` and ``reason`` are those it gave; 1006: it gave none."""

    def __init__(self, code: int, reason: str) -> None:
        told = f": {reason[:MAX_REASON]}" if reason else ""
        super().__init__(f"the other side ended the web socket ({code}{told})", rule="websocket-closed")
        self.code, self.reason = code, reason


class WebSocket:
    """One side of an open web socket. At most one task reads and one writes at a time."""

    def __init__(self, stream: Bytes, *, is_client: bool, came: bytes = b"") -> None:
        """Opens a socket. ``came``: bytes of the other side that were read with the handshake."""
        kind = ConnectionType.CLIENT if is_client else ConnectionType.SERVER
        self._machine = Connection(kind, trailing_data=came)
        self._stream = stream
        self._writing = trio.Lock()
        self._waiting: deque[Event] = deque(self._machine.events())

    async def send(self, text: str) -> None:
        """Sends a message. Raises Remote."""
        await self.send_pieces([text[at : at + FRAME] for at in range(0, len(text), FRAME)] or [""])

    async def send_pieces(self, pieces: Iterable[str] | AsyncIterator[str]) -> None:
        """Sends one message while it is made, a frame for each piece. Raises Remote."""
        before: str | None = None
        async with aclosing(_each(pieces)) as each:
            async for piece in each:
                if before is not None:
                    await self._say(TextMessage(data=before, message_finished=False))
                before = piece
        await self._say(TextMessage(data=before or ""))

    async def receive(self, limit: int, silence: float = SILENCE_SECONDS) -> str:
        """Returns the next message. Raises SocketClosed, Remote; also for more than ``limit`` characters.

        ``silence``: most seconds without a byte of it.
        """
        found: list[str] = []
        async with aclosing(self.receive_pieces(limit, silence)) as pieces:
            async for piece in pieces:
                found.append(piece)
        return "".join(found)

    async def receive_pieces(self, limit: int, silence: float = SILENCE_SECONDS) -> AsyncGenerator[str, None]:
        """Yields the next message in parts, as they arrive. Raises as ``receive``."""
        size = 0
        while True:
            event = await self._next(silence)
            size += len(event.data)
            if size > limit:
                await self.close(TOO_BIG, f"a message has at most {limit} characters")
                raise Remote(f"a message of the web socket has more than {limit:,} characters", rule="websocket-size")
            yield event.data
            if event.message_finished:
                return

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Closes the socket, and waits a moment until the other side confirms that. Never raises."""
        with trio.move_on_after(CLOSE_SECONDS):
            try:
                if self._machine.state is not ConnectionState.CLOSED:
                    await self._say(CloseConnection(code=code, reason=fitting(reason)))
                while self._machine.state is not ConnectionState.CLOSED and (data := await self._stream.receive()):
                    self._machine.receive_data(data)
                    for _ in self._machine.events():
                        pass
            except (Fault, trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def _next(self, silence: float) -> TextMessage:
        while True:
            while not self._waiting:
                await self._read(silence)
            event = self._waiting.popleft()
            if isinstance(event, TextMessage):
                return event
            if isinstance(event, Ping):
                await self._say(event.response())
            elif isinstance(event, CloseConnection):
                await self._end(event)
                raise SocketClosed(int(event.code), event.reason or "")
            elif isinstance(event, BytesMessage):
                await self.close(UNSUPPORTED, "text is spoken here")
                raise Remote("the other side sent bytes, where text is spoken", rule="websocket-bytes")

    async def _end(self, event: CloseConnection) -> None:
        """Answers a closing frame. If wsproto made it itself, for malformed frames, closes with that reason."""
        said = self._machine.state
        if said is ConnectionState.REMOTE_CLOSING:
            await self._say(event.response())
        elif said is ConnectionState.OPEN:
            await self.close(PROTOCOL, "frames are not understood")

    async def _read(self, silence: float) -> None:
        with trio.move_on_after(silence) as patience:
            try:
                data = await self._stream.receive()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
        if patience.cancelled_caught:
            raise Remote(f"nothing came over the web socket in {silence:g} s", rule="websocket-slow")
        if self._machine.state is ConnectionState.CLOSED or not data:
            self._waiting.append(CloseConnection(code=_ABNORMAL))
            self._machine.receive_data(None)
            return
        self._machine.receive_data(data)
        self._waiting.extend(self._machine.events())
        await trio.lowlevel.checkpoint()

    async def _say(self, event: Event) -> None:
        # The task that reads answers pings while another one sends a message.
        async with self._writing:
            try:
                data = self._machine.send(event)
            except LocalProtocolError:
                raise SocketClosed(_ABNORMAL, "") from None
            with trio.move_on_after(STALL_SECONDS) as patience:
                try:
                    await self._stream.send(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    raise SocketClosed(_ABNORMAL, "") from None
            if patience.cancelled_caught:
                raise Remote(
                    f"the other side of the web socket took nothing in {STALL_SECONDS:g} s", rule="websocket-slow"
                )


class StreamBytes:
    """Makes a trio stream usable as ``Bytes``."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self) -> bytes:
        return bytes(await self._stream.receive_some(_CHUNK))

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(data)


def accept_key(key: bytes) -> bytes:
    """Returns ``Sec-WebSocket-Accept`` for a ``Sec-WebSocket-Key``."""
    return base64.b64encode(hashlib.sha1(key + _GUID).digest())  # noqa: S324  RFC 6455 names it


def fitting(reason: str) -> str:
    """Cuts a reason to the room in a closing frame."""
    return reason.encode()[:MAX_REASON].decode(errors="ignore")


async def _each(pieces: Iterable[str] | AsyncIterator[str]) -> AsyncGenerator[str, None]:
    if isinstance(pieces, AsyncIterator):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece
