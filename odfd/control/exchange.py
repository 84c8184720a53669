"""One HTTP/1.1 request and its answer over a connected socket, with h11 and blocking calls.

``http.client`` would bring ``ssl`` and ``email``, whose import takes longer than most requests; and it takes an answer
that was cut off for one that ended. Lives as long as its connection.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

import h11

from chain.errors import Invalid

_CHUNK: Final = 1 << 18


class CutOff(Exception):
    """The other side went away before its answer was whole, or sent what is no HTTP."""


class Exchange:
    """Call ``send``, then ``begin``, then one of ``chunks``, ``lines``, ``whole``.

    All raise CutOff, TimeoutError and ConnectionError.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._machine = h11.Connection(h11.CLIENT)

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | BinaryIO | None = None) -> None:
        """A file is sent in chunks, for its size is not known when it is a pipe.

        A daemon that answers before it has all, and closes, ends this early: its answer says why.
        """
        size = {"content-length": str(len(body or b""))} if body is None or isinstance(body, bytes) else _CHUNKED
        said = [*({"host": "localhost"} | size | dict(headers)).items()]
        try:
            self._write(h11.Request(method=method, target=target, headers=said))
            for data in _pieces(body):
                self._write(h11.Data(data=data))
            self._write(h11.EndOfMessage())
        except BrokenPipeError:
            return

    def begin(self) -> h11.Response:
        """The head of the answer."""
        while True:
            event = self._next()
            if isinstance(event, h11.Response):
                return event

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes."""
        while not isinstance(event := self._next(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    def lines(self, most: int) -> Iterator[bytes]:
        """Lines of the body as they come. Raises Invalid for one of more than ``most`` bytes."""
        rest = bytearray()
        for data in self.chunks():
            rest += data
            *lines, rest = rest.split(b"\n")
            yield from map(bytes, lines)
            if len(rest) > most:
                raise _too_large("a line of the answer", most)
        if rest:
            yield bytes(rest)

    def whole(self, most: int) -> bytes:
        """The body. Raises Invalid if it has more than ``most`` bytes."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if len(data) > most:
                raise _too_large("the answer", most)
        return bytes(data)

    def _write(self, event: h11.Event) -> None:
        self._connection.sendall(self._machine.send(event) or b"")

    def _next(self) -> h11.Event:
        try:
            while (event := self._machine.next_event()) is h11.NEED_DATA:
                self._machine.receive_data(self._connection.recv(_CHUNK))
        except h11.RemoteProtocolError as error:
            raise CutOff(str(error)) from error
        if isinstance(event, h11.Event):
            return event
        raise CutOff("the connection is closed")


_CHUNKED: Final = {"transfer-encoding": "chunked"}


def _pieces(body: bytes | BinaryIO | None) -> Iterator[bytes]:
    if isinstance(body, bytes):
        yield body
    elif body is not None:
        while data := body.read(_CHUNK):
            yield data


def _too_large(what: str, most: int) -> Invalid:
    return Invalid(f"{what} is larger than {most} bytes", rule="answer-size", hint="ask for less")
