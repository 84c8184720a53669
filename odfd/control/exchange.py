"""Sends one HTTP/1.1 request over a connected socket and reads its answer, with blocking calls.

Written by hand, as ``odfctl`` starts often and sends one request: ``http.client`` would import ``ssl`` and ``email``,
h11 half as much as Python itself, which takes longer than most answers. ``http.client`` also takes an answer that was
cut off for a complete one. Lives as long as its connection to our own daemon: an answer has a length or comes in
chunks, and any other is invalid.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

from chain.errors import Invalid

_CHUNK: Final = 1 << 18
_MOST_HEAD: Final = 1 << 16
"""Most bytes of status and headers, and of the trailer after the last chunk."""
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n\0]*)?\Z")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*\Z")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]*)?\Z")
_LENGTH: Final = re.compile(rb"\d{1,18}\Z")
_TOKEN: Final = re.compile(r"[\x21-\x7e]+\Z")
_VALUE: Final = re.compile(r"[\x20-\x7e]*\Z")
_WITHOUT_BODY: Final = (204, 304)


class CutOff(Exception):
    """The peer closed the connection within its response, or sent invalid HTTP."""


class Exchange:
    """One request and its response. Call ``send``, then ``begin``, then one of ``chunks``, ``lines``, ``whole``.

    All raise CutOff, TimeoutError and ConnectionError.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._read = bytearray()
        """Bytes received and not yet processed."""
        self._length: int | None = 0
        """Bytes of the body; ``None``: it comes in chunks."""

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | BinaryIO | None = None) -> None:
        """Sends a request; a file in chunks, as the size of a pipe is unknown.

        Stops early if the daemon answers before it has read all, and closes: its answer has the reason.
        """
        whole = body or b"" if body is None or isinstance(body, bytes) else None
        size = {"transfer-encoding": "chunked"} if whole is None else {"content-length": str(len(whole))}
        head = _head(method, target, {"host": "localhost"} | size | dict(headers))
        try:
            self._connection.sendall(head + (whole or b""))
            for piece in () if body is None or isinstance(body, bytes) else _pieces(body):
                self._connection.sendall(piece)
        except BrokenPipeError:
            return

    def begin(self) -> int:
        """Reads the head of the response; returns its status."""
        while True:
            status, headers = self._head()
            if status >= 200:
                self._length = _body_length(status, headers)
                return status

    def chunks(self) -> Iterator[bytes]:
        """Yields the body as it arrives."""
        if self._length is not None:
            yield from self._bytes(self._length)
            return
        while size := self._chunk_size():
            yield from self._bytes(size)
            if self._line(2):
                raise CutOff("a chunk of the answer is longer than it says")
        left = _MOST_HEAD
        while line := self._line(left):
            left -= len(line)

    def lines(self, most: int) -> Iterator[bytes]:
        """Yields lines of the body as they arrive. Raises Invalid for one of more than ``most`` bytes."""
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
        """Returns the body. Raises Invalid if it has more than ``most`` bytes."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if len(data) > most:
                raise _too_large("the answer", most)
        return bytes(data)

    def _head(self) -> tuple[int, dict[bytes, bytes]]:
        status = _STATUS.match(self._line(_MOST_HEAD))
        if status is None:
            raise CutOff("the answer is not HTTP")
        headers: dict[bytes, bytes] = {}
        left = _MOST_HEAD
        while line := self._line(left):
            left -= len(line)
            header = _HEADER.match(line)
            # Of two lengths nobody knows which ends the answer (RFC 9112, section 6.3).
            if header is None or header[1].lower() in headers.keys() & _ONCE:
                raise CutOff("the answer has an invalid HTTP header")
            headers[header[1].lower()] = header[2]
        return int(status[1]), headers

    def _chunk_size(self) -> int:
        size = _CHUNK_SIZE.match(self._line(_MOST_HEAD))
        if size is None:
            raise CutOff("the answer has an invalid HTTP chunk")
        return int(size[1], 16)

    def _line(self, most: int) -> bytes:
        """Returns the next line without its end. Raises CutOff for one of more than ``most`` bytes."""
        looked = 0
        while (end := self._read.find(b"\n", looked)) < 0 and (looked := len(self._read)) <= most:
            self._receive()
        if not 0 <= end <= most:
            raise CutOff("a line of HTTP is too long")
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return line.removesuffix(b"\r")

    def _bytes(self, number: int) -> Iterator[bytes]:
        while number:
            if not self._read:
                self._receive()
            data = bytes(self._read[:number])
            del self._read[:number]
            number -= len(data)
            yield data

    def _receive(self) -> None:
        data = self._connection.recv(_CHUNK)
        if not data:
            raise CutOff("the connection is closed")
        self._read += data


_ONCE: Final = {b"content-length", b"transfer-encoding"}


def _head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    is_valid = all(_TOKEN.match(word) for word in (method, target, *headers)) and all(
        map(_VALUE.match, headers.values())
    )
    if not is_valid:
        raise ValueError(f"no request of HTTP: {method} {target!r} {headers}")
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def _pieces(body: BinaryIO) -> Iterator[bytes]:
    while data := body.read(_CHUNK):
        yield b"%x\r\n%b\r\n" % (len(data), data)
    yield b"0\r\n\r\n"


def _body_length(status: int, headers: Mapping[bytes, bytes]) -> int | None:
    if status in _WITHOUT_BODY:
        return 0
    if b"transfer-encoding" in headers:
        if headers[b"transfer-encoding"].lower() != b"chunked":
            raise CutOff("the answer has an encoding that was not requested")
        return None
    length = headers.get(b"content-length", b"")
    if not _LENGTH.match(length):
        raise CutOff("the answer does not say how long it is")
    return int(length)


def _too_large(what: str, most: int) -> Invalid:
    return Invalid(f"{what} is larger than {most} bytes", rule="answer-size", hint="ask for less")
