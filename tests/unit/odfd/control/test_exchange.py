"""One request and its answer over a socket: whole, in lines, cut off, given before all was sent."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from chain.errors import Invalid
from odfd.control.exchange import CutOff, Exchange

LINES = b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n3\r\na\nb\r\n3\r\nb\nc\r\n"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(10)
        there.settimeout(10)
        yield here, there


def asked(ends: tuple[socket.socket, socket.socket], answer: bytes) -> Exchange:
    """A request of which ``answer`` comes, and then the end."""
    here, there = ends
    exchange = Exchange(here)
    exchange.send("GET", "/v1/status", {})
    assert there.recv(65536).endswith(b"\r\n\r\n")
    there.sendall(answer)
    there.close()
    assert exchange.begin().status_code == 200
    return exchange


def test_lines_come_as_they_end(ends: tuple[socket.socket, socket.socket]) -> None:
    assert list(asked(ends, LINES + b"0\r\n\r\n").lines(10)) == [b"a", b"bb", b"c"]


def test_an_answer_that_is_cut_off_is_not_one_that_ended(ends: tuple[socket.socket, socket.socket]) -> None:
    lines = asked(ends, LINES).lines(10)
    assert [next(lines), next(lines)] == [b"a", b"bb"]
    with pytest.raises(CutOff):
        next(lines)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 \r\ncontent-length: 5\r\n\r\nfive", b"five\r\n\r\n", b""])
def test_no_whole_answer_is_none(ends: tuple[socket.socket, socket.socket], answer: bytes) -> None:
    with pytest.raises(CutOff):
        asked(ends, answer).whole(10)


@pytest.mark.parametrize("take", [lambda each: each.whole(4), lambda each: list(each.lines(4))])
def test_no_more_is_held_than_was_said(ends: tuple[socket.socket, socket.socket], take: object) -> None:
    assert callable(take)
    exchange = asked(ends, b"HTTP/1.1 200 \r\ncontent-length: 5\r\n\r\nfives")
    with pytest.raises(Invalid, match="4 bytes"):
        take(exchange)


def test_a_file_is_sent_in_chunks(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    Exchange(here).send("POST", "/v1/uploads", {"x": "y"}, io.BytesIO(b"content"))
    sent = there.recv(65536)
    assert b"transfer-encoding: chunked" in sent.lower()
    assert sent.endswith(b"7\r\ncontent\r\n0\r\n\r\n")


def test_an_answer_before_all_was_sent_is_read(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    answer = b"HTTP/1.1 413 \r\ncontent-length: 8\r\n\r\ntoo much"
    there.sendall(answer)
    reader = threading.Thread(target=lambda: (there.recv(65536), there.close()))
    reader.start()
    exchange = Exchange(here)
    exchange.send("POST", "/v1/uploads", {}, io.BytesIO(bytes(64 << 20)))
    reader.join()
    assert exchange.begin().status_code == 413
    assert exchange.whole(100) == b"too much"


def test_little_is_imported_to_ask() -> None:
    """Of two hundred modules that a command once imported, those of e-mail and TLS were most of the time."""
    script = (
        "import sys, odfd.control.client; print(*sorted({'ssl', 'email', 'http.client', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
