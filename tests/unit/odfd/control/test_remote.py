"""The API over TCP: who is let in, with which tokens, and how values are streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import h11
import msgspec
import pytest
import trio
from starlette.requests import Request

from chain.errors import Environment, Invalid, Refused
from chain.instant import Instant
from odfd.access.relations import Role
from odfd.access.tokens import TokenGrant
from odfd.cli import kinds
from odfd.control import remote, wire
from odfd.control.board import finding, task_state
from odfd.control.remote import RemoteApplication
from odfd.control.responses import EventStream, LineStream, SharedValue, lines, since_of, stream_of
from odfd.control.tokens import LEAST, Tokens
from odfd.control.wire import PushReceipt
from odfd.runtime.http import CHUNKS, Message
from odfd.runtime.tasks import Task, TaskPhase
from odfd.services.tasks.declared_tasks import _status
from worlds.eventually import PATIENCE, became

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
    """Else a page that a name of its own leads to this address would ask with the token of its visitor's tools."""
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
    with pytest.raises(Environment, match="others may read") as caught:
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
