"""The door of the API over TCP, without a node behind it: who is let in, how many at a time, and what is counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import trio

from chain.errors import Refused
from chain.instant import Instant
from odfd.access.relations import Role
from odfd.access.tokens import TokenGrant
from odfd.control import remote
from odfd.control.remote import RemoteApplication
from odfd.control.wire import PushReceipt
from odfd.runtime.http import Message
from worlds.eventually import PATIENCE, became

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
