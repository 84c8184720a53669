"""The socket of the API: its file, who is admitted, and one request with its answer."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment, Invalid
from odfd.control import endpoint
from odfd.control.endpoint import Caller, Gate, caller_of, group_id
from odfd.control.exchange import CutOff, Exchange
from worlds.eventually import PATIENCE

# The socket file: modes, stale and live ones, paths; and who is admitted.


def test_only_the_owner_unless_there_is_a_group(tmp_path: Path) -> None:
    for gid, mode in ((None, 0o600), (os.getegid(), 0o660)):
        path = tmp_path / f"s{gid}"
        with endpoint.bind(path, gid):
            assert path.stat().st_mode & 0o777 == mode


def test_a_dead_socket_is_replaced_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    endpoint.bind(path).close()
    assert path.exists()
    with endpoint.bind(path), pytest.raises(Environment, match="another daemon listens"):
        endpoint.bind(path)


def test_a_full_backlog_is_somebody(tmp_path: Path) -> None:
    path = tmp_path / "s"
    waiting = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(0)
        for _ in range(3):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            one.setblocking(False)
            one.connect_ex(str(path))
            waiting.append(one)
        try:
            with pytest.raises(Environment, match="another daemon listens"):
                endpoint.bind(path)
        finally:
            for one in waiting:
                one.close()


def test_what_is_not_a_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(Environment, match="is not a socket"):
        endpoint.bind(path)
    assert path.read_text() == "data"
    with pytest.raises(Environment, match="cannot listen on"):
        endpoint.bind(path / "below")


def test_the_limit_of_the_path_is_exact(tmp_path: Path) -> None:
    folder = str(tmp_path) + "/"
    fitting = Path(folder + "x" * (endpoint.MAX_PATH - len(folder)))
    endpoint.release(endpoint.bind(fitting), fitting)
    assert not fitting.exists()
    with pytest.raises(Invalid, match="108 bytes, and the kernel takes at most 107"):
        endpoint.bind(Path(str(fitting) + "x"))


def test_release_leaves_a_successor_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    old = endpoint.bind(path)
    path.unlink()
    with endpoint.bind(path):
        endpoint.release(old, path)
        assert path.exists()


def test_the_kernel_knows_the_caller() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        caller = caller_of(ours)
    assert (caller.pid, caller.uid, caller.gid) == (os.getpid(), os.geteuid(), os.getegid())
    assert caller.groups == frozenset(os.getgroups())


def test_who_is_admitted() -> None:
    def caller(uid: int, gid: int = 500, *groups: int) -> Caller:
        return Caller(1, uid, gid, frozenset(groups))

    gate = Gate(own_uid=1000, gid=44)
    assert gate.admits(caller(0))
    assert gate.admits(caller(1000))
    assert gate.admits(caller(7, 44))
    assert gate.admits(caller(7, 500, 43, 44))
    assert not gate.admits(caller(7, 500, 43))
    assert not Gate(own_uid=1000).admits(caller(7, 44))
    assert group_id("") is None
    with pytest.raises(Environment, match="no group 'nobody-has-this'"):
        group_id("nobody-has-this")


# One request and its answer over a socket: whole, in lines, cut off, given before all was sent.

LINES = b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n3\r\na\nb\r\n3\r\nb\nc\r\n"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(PATIENCE)
        there.settimeout(PATIENCE)
        yield here, there


def asked(ends: tuple[socket.socket, socket.socket], answer: bytes) -> Exchange:
    """A request of which ``answer`` comes, and then the end."""
    here, there = ends
    exchange = Exchange(here)
    exchange.send("GET", "/node/v1alpha1/status", {})
    assert there.recv(65536).endswith(b"\r\n\r\n")
    there.sendall(answer)
    there.close()
    assert exchange.begin() == 200
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


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/2 200\r\ncontent-length: 0",
        b"HTTP/1.1 200 \r\n",
        b"HTTP/1.1 200 \r\ncontent-length: -1",
        b"HTTP/1.1 200 \r\ncontent-length: 1\r\ncontent-length: 1",
        b"HTTP/1.1 200 \r\ntransfer-encoding: gzip",
        b"HTTP/1.1 200 \r\nno header",
        b"HTTP/1.1 200 \r\n folded: line",
        b"HTTP/1.1 200 \r\nx: " + bytes(1 << 17),
        b"HTTP/1.1 200 \r\n" + b"x: y\r\n" * (1 << 14),
    ],
)
def test_what_is_no_answer_is_none(ends: tuple[socket.socket, socket.socket], head: bytes) -> None:
    here, there = ends
    there.settimeout(None)
    threading.Thread(target=lambda: (there.sendall(head + b"\r\n\r\n"), there.close()), daemon=True).start()
    with pytest.raises(CutOff):
        Exchange(here).begin()


@pytest.mark.parametrize("chunk", [b"x\r\n", b"-1\r\n", b"1\r\nabc\r\n0\r\n\r\n", b"2\r\nab", b"2\r\nab\r\n0\r\n"])
def test_what_is_no_chunk_is_none(ends: tuple[socket.socket, socket.socket], chunk: bytes) -> None:
    exchange = asked(ends, b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n" + chunk)
    with pytest.raises(CutOff):
        exchange.whole(10)


def test_what_the_protocol_allows_is_read(ends: tuple[socket.socket, socket.socket]) -> None:
    """An interim answer, no reason, spaces about a value, an extension of a chunk, and headers after the last."""
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\nTransfer-Encoding:\tChunked \r\n\r\n"
    assert asked(ends, head + b"2;a=b\r\nab\r\n0\r\nx: y\r\n\r\n").whole(10) == b"ab"


def test_an_answer_without_content_has_none(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    there.sendall(b"HTTP/1.1 204 \r\n\r\n")
    exchange = Exchange(here)
    assert (exchange.begin(), exchange.whole(10)) == (204, b"")


@given(body=st.binary(max_size=200), cuts=st.lists(st.integers(1, 40), max_size=20), chunks=st.booleans())
def test_how_an_answer_is_cut_does_not_matter(body: bytes, cuts: list[int], chunks: bool) -> None:
    """A whole answer as our server's library writes it."""
    machine = h11.Connection(h11.SERVER)
    machine.receive_data(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    machine.next_event()
    machine.next_event()
    headers = [] if chunks else [("content-length", str(len(body)))]
    events = [h11.Response(status_code=200, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
    data = b"".join(machine.send(event) or b"" for event in events)
    exchange = Exchange(cast(socket.socket, InPieces(data, cuts)))
    assert exchange.begin() == 200
    assert exchange.whole(1000) == body


class InPieces:
    """A connection of which each ``recv`` gives one piece."""

    def __init__(self, data: bytes, cuts: list[int]) -> None:
        stream = io.BytesIO(data)
        self._pieces = [*(piece for cut in cuts if (piece := stream.read(cut))), stream.read()]

    def recv(self, _most: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@pytest.mark.parametrize(("target", "header"), [("/v1/a b", "x"), ("/v1/\r\nx: y", "x"), ("/v1/x", "a\r\nx: y")])
def test_nothing_slips_into_a_request(ends: tuple[socket.socket, socket.socket], target: str, header: str) -> None:
    with pytest.raises(ValueError, match="no request"):
        Exchange(ends[0]).send("GET", target, {"x": header})


@pytest.mark.parametrize("take", [lambda each: each.whole(4), lambda each: list(each.lines(4))])
def test_no_more_is_held_than_was_said(ends: tuple[socket.socket, socket.socket], take: object) -> None:
    assert callable(take)
    exchange = asked(ends, b"HTTP/1.1 200 \r\ncontent-length: 5\r\n\r\nfives")
    with pytest.raises(Invalid, match="4 bytes"):
        take(exchange)


def test_a_file_is_sent_in_chunks(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    Exchange(here).send("POST", "/node/v1alpha1/uploads", {"x": "y"}, io.BytesIO(b"content"))
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
    exchange.send("POST", "/node/v1alpha1/uploads", {}, io.BytesIO(bytes(64 << 20)))
    reader.join()
    assert exchange.begin() == 413
    assert exchange.whole(100) == b"too much"


def test_little_is_imported_to_ask() -> None:
    """Of two hundred modules that a command once imported, those of e-mail and TLS were most of the time."""
    heavy = {"ssl", "email", "http.client", "asyncio", "h11", "msgspec"}
    script = f"import sys, odfd.control.client; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
