"""The control API over its socket and from afar."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import h11
import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from chain.errors import Environment, Invalid, Refused
from chain.instant import Instant
from odfd.access.relations import Role
from odfd.access.tokens import TokenGrant
from odfd.cli import kinds
from odfd.control import endpoint, remote, wire
from odfd.control.board import finding, task_state
from odfd.control.endpoint import Caller, Gate, caller_of, group_id
from odfd.control.exchange import CutOff, Exchange
from odfd.control.remote import RemoteApplication
from odfd.control.responses import EventStream, LineStream, SharedValue, lines, since_of, stream_of
from odfd.control.tokens import LEAST, Tokens
from odfd.control.wire import PushReceipt
from odfd.runtime.http import CHUNKS, Message
from odfd.runtime.tasks import Task, TaskPhase
from odfd.services.tasks.declared_tasks import _status
from worlds.eventually import PATIENCE, became

# The API over TCP: who is let in, with which tokens, and how values are streamed.


# The door of the API over TCP, without a node behind it: who is let in, how many at a time, and what is counted.

PLACE = "node.example:4160"
GOOD = {"host": PLACE, "authorization": "Bearer good"}


class Silent:
    def info(self, _event: str, **_facts: Any) -> None:
        """Nobody reads it."""


class Door:
    def __init__(self) -> None:
        self.now = 0.0
        self.let_in: list[str] = []
        self.held = trio.Event()
        self.held.set()
        self.calls = 0
        self.pushed: list[tuple[str, bytes]] = []
        logger: Any = Silent()
        self.application = RemoteApplication(
            self._api, self._admit, frozenset({PLACE}), logger, lambda: self.now, self._push
        )

    def _admit(self, token: str) -> TokenGrant:
        if token != "good":
            raise Refused("the token is not known", rule="access-token")
        return TokenGrant(
            id="1", account="ann", most=Role.READER, note="", created_at=Instant(0), expires_at=Instant(1), digest=b""
        )

    async def _api(self, scope: Any, _receive: Any, send: Any) -> None:
        self.let_in.append(scope["path"])
        await self.held.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def _push(self, name: str, _headers: Mapping[str, str], body: bytes) -> PushReceipt:
        self.calls += 1
        await self.held.wait()
        if body.startswith(b"wrong"):
            raise Refused("the call is not signed for a Source here", rule=remote.HOOK_RULE)
        self.pushed.append((name, body))
        return PushReceipt(source=name, number=1, records=1, bytes=len(body))

    async def asks(
        self, headers: Mapping[str, str], path: str = "/x", body: Callable[[], bytes | None] = lambda: None, **more: Any
    ) -> tuple[int, str]:
        """The status, and the rule of a refusal."""
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"method": more.get("method", "GET"), "path": path, "headers": raw}
        said: list[Message] = []

        async def receive() -> Message:
            part = body()
            return {"type": "http.request", "body": part or b"", "more_body": part is not None}

        async def send(message: Message) -> None:
            said.append(message)

        await self.application.of(more.get("address", "192.0.2.1"))(scope, receive, send)
        problem = json.loads(said[1]["body"])
        return said[0]["status"], problem.get("rule", "")


@pytest.fixture
def door() -> Door:
    return Door()


async def test_only_who_asks_by_a_name_of_the_node_and_from_no_page_is_let_in(door: Door) -> None:
    """Attack T-HTTP-03: a page of the web that asks the API over TCP under a name that leads to this address, and many
    accounts' requests at a time.

    Defence: the request must name the node by a name of its own and come from no page; wrong ones are counted by
    address, of whichever kind; an account has 64 answers at a time.

    Else a page that a name of its own leads to this address would ask with the token of its visitor's tools.
    """
    assert await door.asks(GOOD) == (200, "")
    for host in ("evil.example:4160", "node.example", "node.example:4161", ""):
        assert (await door.asks({**GOOD, "host": host}))[1] == "api-host"
    assert (await door.asks({"authorization": "Bearer good"}))[1] == "api-host"
    assert (await door.asks({**GOOD, "origin": f"https://{PLACE}"}))[1] == "api-origin"
    for wrong in ("", "Bearer ", "Bearer wrong", "Basic good", "good"):
        assert (await door.asks({**GOOD, "authorization": wrong}))[1] == "access-token"
    assert door.let_in == ["/x"]


async def test_one_address_that_asks_wrong_is_refused_and_others_are_not(door: Door) -> None:
    """By token, by name, by page and by signature of a call: all are counted together."""
    ways: list[dict[str, Any]] = [
        {"headers": {**GOOD, "authorization": "Bearer wrong"}},
        {"headers": {**GOOD, "host": "evil.example"}},
        {"headers": {"host": PLACE}, "path": "/hooks/a", "method": "POST", "body": iter([b"wrong", None]).__next__},
    ]
    rules = [(await door.asks(**ways[number % 2])) for number in range(int(remote.WRONG.burst) - 1)]
    assert {rule for _, rule in rules} == {"access-token", "api-host"}
    assert (await door.asks(**ways[2]))[1] == remote.HOOK_RULE
    status, rule = await door.asks(**ways[0])
    assert (status, rule) == (429, "access-token-limit")
    assert (await door.asks(**ways[0], address="192.0.2.2"))[1] == "access-token"
    door.now += 1 / remote.WRONG.per_second
    assert (await door.asks(**ways[0]))[1] == "access-token"
    assert await door.asks(GOOD) == (200, ""), "whoever asks right is never refused for it"


async def test_one_account_has_so_many_answers_at_a_time(door: Door) -> None:
    door.held = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(remote.AT_ONCE):
            nursery.start_soon(door.asks, GOOD)
        await became(lambda: len(door.let_in) == remote.AT_ONCE)
        assert (await door.asks(GOOD))[1] == "access-token-limit"
        door.held.set()
    assert len(door.let_in) == remote.AT_ONCE
    assert await door.asks(GOOD) == (200, "")


async def test_bodies_of_calls_are_few_at_a_time_and_none_is_large(door: Door) -> None:
    call: dict[str, Any] = {"headers": {"host": PLACE}, "path": "/hooks/a", "method": "POST"}
    parts = 0

    def endless() -> bytes:
        nonlocal parts
        parts += 1
        assert parts < 100, "it is read for ever"
        return bytes(1 << 16)

    with trio.fail_after(PATIENCE):
        assert (await door.asks(**call, body=endless))[1] == "push-size"
    assert parts == remote.MAX_HOOK_BODY // (1 << 16) + 1, "it is left at once"
    door.held = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(remote.HOOKS_AT_ONCE):
            nursery.start_soon(lambda: door.asks(**call))
        await became(lambda: door.calls == remote.HOOKS_AT_ONCE)
        assert (await door.asks(**call))[1] == "access-token-limit"
        door.held.set()
    assert len(door.pushed) == remote.HOOKS_AT_ONCE


# Tokens in a file: read by its owner alone, none that can be guessed, each known as soon as it is written.

TOKEN = "a" * LEAST


def written(tmp_path: Path, text: str, mode: int = 0o600) -> Tokens:
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return Tokens(path, "http.tokens", required=True)


def test_a_token_of_the_file_is_admitted_and_others_are_not(tmp_path: Path) -> None:
    tokens = written(tmp_path, f"# of the house\n\nann {TOKEN}\n")
    assert tokens.admits(TOKEN)
    for wrong in ("", TOKEN + "a", TOKEN[1:], f"ann {TOKEN}", "\ud800" * LEAST):
        with pytest.raises(Refused) as caught:
            tokens.admits(wrong)
        assert caught.value.rule == "http-tokens"
    (tmp_path / "tokens").write_text(f"ben {TOKEN}b\n")
    assert tokens.admits(TOKEN + "b")
    with pytest.raises(Refused):
        tokens.admits(TOKEN)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_may_read_or_write_admits_nobody(tmp_path: Path, mode: int) -> None:
    with pytest.raises(Environment, match="other users may read") as caught:
        written(tmp_path, f"ann {TOKEN}\n", mode).admits(TOKEN)
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize("line", [f"ann {'a' * (LEAST - 1)}", "ann", f"ann {TOKEN} more", "ann "])
def test_a_line_without_a_token_that_is_long_enough_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(Environment, match="line 2"):
        written(tmp_path, f"ben {TOKEN}\n{line}\n").admits(TOKEN)


# Streams of values: lines of JSON, or server-sent events for who asks for them.


def request(query: str = "", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "query_string": query.encode()})


async def news(*, fails: bool = False) -> AsyncIterator[wire.ResourceNews]:
    yield wire.ResourceNews(version="f00-1", op="Bookmark")
    yield wire.ResourceNews(version="f00-2", op="Bookmark")
    if fails:
        raise Invalid("it ends\nhere", rule="end")


async def sent(response: Any) -> tuple[str, str]:
    """The media type, and all of the body."""
    parts: list[Any] = []

    async def send(part: Any) -> None:
        parts.append(part)

    await response({}, None, send)
    media = dict(parts[0]["headers"])[b"content-type"].decode()
    return media, b"".join(part.get("body", b"") for part in parts[1:]).decode()


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", LineStream),
        ("*/*", LineStream),
        ("application/x-ndjson", LineStream),
        ("text/event-stream", EventStream),
        ("text/html, Text/Event-Stream;q=0.9", EventStream),
    ],
)
def test_a_stream_is_what_is_accepted(accept: str, kind: type) -> None:
    assert stream_of(request(accept=accept)) is kind


def test_a_watch_goes_on_from_the_query_or_the_last_event() -> None:
    assert since_of(request()) is None
    assert since_of(request(last_event_id="f00-7")) == "f00-7"
    assert since_of(request("since=f00-8", last_event_id="f00-7")) == "f00-8"


async def test_server_sent_events_have_versions_and_operations() -> None:
    media, text = await sent(await lines(news(), EventStream))
    assert media.startswith("text/event-stream")
    first, second, rest = text.split("\n\n")
    assert rest == ""
    fields = dict(line.split(": ", 1) for line in second.split("\n"))
    assert first.startswith("id: f00-1\nevent: Bookmark\ndata: {")
    assert (fields["id"], fields["event"]) == ("f00-2", "Bookmark")
    assert msgspec.json.decode(fields["data"])["version"] == "f00-2"


@pytest.mark.parametrize("kind", [LineStream, EventStream])
async def test_chunks_that_are_framed_once_are_the_same_body(kind: type[LineStream]) -> None:
    """Over connections of our own server; the application's messages say nothing of them."""
    machine, chunks = h11.Connection(h11.CLIENT), []
    machine.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    machine.receive_data(b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n")

    async def put(data: bytes) -> None:
        chunks.append(data)

    async def shared() -> AsyncIterator[SharedValue[wire.ResourceNews]]:
        async for each in news():
            yield SharedValue(each)

    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    await kind(shared())({CHUNKS: put}, None, send)  # type: ignore[arg-type]
    assert b"".join(each.get("body", b"") for each in messages) == b""
    machine.receive_data(b"".join(chunks) + b"0\r\n\r\n")
    body = b""
    while not isinstance(event := machine.next_event(), h11.EndOfMessage):
        body += bytes(event.data) if isinstance(event, h11.Data) else b""
    assert body.decode() == (await sent(kind(shared())))[1]


async def test_a_fault_in_the_middle_is_the_last_event() -> None:
    _, text = await sent(EventStream(news(fails=True)))
    (*_, last, _) = text.split("\n\n")
    assert last.startswith("data: {")
    assert "\n" not in last, "one line, whatever a message has in it"
    assert msgspec.json.decode(last.removeprefix("data: "))["problem"]["rule"] == "end"


async def test_lines_are_as_they_were() -> None:
    media, text = await sent(await lines(news()))
    assert media.startswith("application/x-ndjson")
    assert [msgspec.json.decode(line)["version"] for line in text.splitlines()] == ["f00-1", "f00-2"]


# A task that is done and found something wrong says so where tasks are listed.

FAULT = wire.Problem(detail="the source is gone")
FAILURE = wire.Failure(
    block=wire.FailedBlock(hash=None, sequence_number=3), rule="data-physical-hash", message="the slice is not its hash"
)
TOLD = "block #3: the slice is not its hash  (rule data-physical-hash)"
AUDITED = wire.AuditDifference(block=1, why="no")


def report(*failures: wire.Failure) -> wire.VerifyReport:
    checked = wire.Checked(blocks=5, slices=1, bytes=10, transforms=0)
    return wire.VerifyReport(
        ref="a", dataset_id="did:odf:f", head=None, blocks=5, level="data", ok=not failures, checked=checked,
        failures=failures,
    )  # fmt: skip


def pulled(*faults: wire.Problem | None) -> wire.PullResult:
    return wire.PullResult(
        items=tuple(
            wire.PullItem(ref=f"d{number}", outcome="failed" if fault else "updated", fault=fault)
            for number, fault in enumerate(faults)
        )
    )


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (report(), ""),
        (report(FAILURE), TOLD),
        (report(FAILURE, FAILURE), f"2 failures; the first: {TOLD}"),
        (pulled(None), ""),
        (pulled(None, FAULT), "d1: the source is gone"),
        (pulled(FAULT, FAULT), "2 failures; the first: d0: the source is gone"),
        (wire.RawReplayResult(ref="a", ok=True, same=1, equivalent=0, differs=0, rewritten=0), ""),
        (
            wire.RawReplayResult(
                ref="a", ok=False, same=1, equivalent=0, differs=1, rewritten=0,
                differences=(wire.RawDifference(block="f", sequence_number=2, message="other rows"),),
            ),
            "block #2: other rows",
        ),
        (wire.ApplyResult(items=(wire.ApplyItem(kind="dataset", name="x", action="failed", fault=FAULT),)),
         "x: the source is gone"),
        (wire.AuditResult(ref="a", blocks=2, same=2, signed=0), ""),
        (wire.AuditResult(ref="a", blocks=2, same=1, signed=0, differences=(AUDITED,)), "block #1: no"),
        ("text", ""),
    ],
)  # fmt: skip
def test_what_was_found_is_one_line(result: object, expected: str) -> None:
    assert finding(result) == expected


@pytest.mark.parametrize(("failures", "word", "phase"), [((), "done", "Ready"), ((FAILURE,), "not ok", "Failed")])
def test_lists_and_the_resource_tell_it(failures: Any, word: str, phase: str) -> None:
    task = Task("t1", "verify", "a", state=TaskPhase.DONE, result=report(*failures))
    view = task_state(task)
    told = {"x/State": {"value": msgspec.to_builtins(view)}}
    row = wire.ResourceManifest(schema="Task", headers={"name": "t1"}, spec={}, status={"conditions": told})
    columns = {column.title: column.cell for column in kinds.TASK.columns(0)}
    assert columns["STATE"](row) == word
    assert view.state == "done", "it did what it was asked to do"
    assert ("slice" in columns[""](row)) == bool(failures)
    assert _status(task, 0).phase == phase


# The socket of the API: its file, who is admitted, and one request with its answer.


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
