"""What watchers of resources get, and what that costs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.instant import Instant
from odfd.control import responses
from odfd.control.assembly import Context
from odfd.errors import Usage
from odfd.obs.events import EventLog
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore
from odfd.runtime.tasks import TaskBoard
from odfd.services.resources.declarations import DeclarationService
from odfd.services.resources.planning import PartsKeeper
from odfd.store.directory import StateDirectory, open_state_directory
from worlds.clock import FixedClock
from worlds.eventually import PATIENCE

CROWD = 50
NOW = Instant(0)


class Node:
    """Resources, and nobody who acts on them."""

    def __init__(self, home: StateDirectory) -> None:
        clock, logger = FixedClock(NOW), structlog.get_logger()
        self.home, self.events = home, EventLog(clock)
        board = TaskBoard(clock, lambda: "task", logger)
        context = Context(clock, logger, self.events, board, "test")
        self.declarations = DeclarationService(home, context, PartsKeeper(home, clock, lambda: ""))

    def put(self, kind: str, name: str, number: int) -> None:
        one = Resource(
            id=f"{kind}-{name}", type=kind, name=name, labels={"n": number}, spec={}, created_at=NOW, updated_at=NOW
        )  # fmt: skip
        with self.home.database.write() as connection:
            ResourceStore(connection).put(one, NOW)
        self.events.nudge()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with open_state_directory(tmp_path / "state") as home:
        yield Node(home)


async def test_a_change_is_read_and_encoded_once_for_fifty_watchers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, encoded = [], []
    events, encoder = ResourceStore.events, responses._encoder

    def counted(store: ResourceStore, since: int, *limits: int) -> Any:
        read.append(since)
        return events(store, since, *limits)

    class Encoder:
        def encode(self, value: Any) -> bytes:
            if getattr(value, "op", "Bookmark") != "Bookmark":
                encoded.append(value.op)
            return encoder.encode(value)

    monkeypatch.setattr(ResourceStore, "events", counted)
    monkeypatch.setattr(responses, "_encoder", Encoder())
    kinds = [responses.LineStream, responses.EventStream]
    sent: list[list[bytes]] = [[] for _ in range(CROWD)]
    async with trio.open_nursery() as nursery:
        for number, each in enumerate(sent):
            stream = kinds[number % 2](node.declarations.news(None, "repository"))
            nursery.start_soon(serve, stream, each)
        await lines(sent, 1)
        await reads(read, [0])
        node.put("Repository", "r", 1)
        await lines(sent, 2)
        await reads(read, [0, 0, 1])
        nursery.cancel_scope.cancel()
    assert encoded == ["Added"] * len(kinds), "once for each form"
    assert {each[1] for each in sent[::2]} == {sent[0][1]}
    assert {each[1] for each in sent[1::2]} == {sent[1][1]}
    assert b'"op":"Added"' in sent[0][1]
    assert b"event: Added" in sent[1][1]


async def test_watchers_who_share_a_read_are_told_of_their_own_types_alone(node: Node) -> None:
    """Elements of sets are told only to who names their type."""
    kinds = {"repository": ["Repository"], "variable": ["Variable"], None: ["Repository", "VariableSet"]}
    told: dict[str | None, list[str]] = {kind: [] for kind in kinds}

    async def watch(kind: str | None) -> None:
        async with aclosing(node.declarations.watch(None, kind)) as news:
            async for each in news:
                told[kind] += [] if each.resource is None else [each.resource.type]
                if told[kind] == kinds[kind]:
                    return

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for kind in kinds:
                nursery.start_soon(watch, kind)
            await trio.testing.wait_all_tasks_blocked()
            node.put("Repository", "r", 1)
            node.put("Variable", "v", 1)
            node.put("VariableSet", "s", 1)
    assert told == kinds


async def test_many_large_changes_are_read_by_and_by(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfd.services.resources.watches.PAGE_BYTES", 1)
    async with aclosing(node.declarations.watch(None, "repository")) as news:
        start = await anext(news)
    for number in range(5):
        node.put("Repository", "r", number)
    async with aclosing(node.declarations.watch(start.version, "repository")) as news:
        assert (await anext(news)).op == "Bookmark"
        found = [(await anext(news)).resource for _ in range(5)]
    assert [each.labels["n"] for each in found if each is not None] == list(range(5))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 40), unique=True, max_size=20), st.integers(1, 7), st.booleans(), st.integers(0, 40))
def test_r57_pages_of_any_size_are_the_whole_list_in_order(
    tmp_path: Path, numbers: list[int], limit: int, selects: bool, late: int
) -> None:
    """What comes between two pages is on a later one or told by a watch since the version of all of them."""

    async def run(home: StateDirectory) -> None:
        node = Node(home)
        for number in numbers:
            node.put("Repository", f"r{number:02}", number % 3)
        seen, rest, versions, labels = [], None, set(), "n=1" if selects else None
        while True:
            page = await node.declarations.page("repository", labels, limit, rest)
            seen += [each.name for each in page.views]
            versions.add(page.version)
            assert len(page.views) == limit or page.rest is None
            if len(versions) == 1 and not rest:
                node.put("Repository", f"r{late:02}", late % 3)
            if page.rest is None:
                break
            rest = page.rest
            with pytest.raises(Usage, match="does not belong to this list"):
                await node.declarations.page("repository", "n=2", limit, rest)
        wanted = [f"r{each:02}" for each in sorted(numbers) if not selects or each % 3 == 1]
        assert [each for each in seen if each != f"r{late:02}" or late in numbers] == wanted
        (version,) = versions
        async with aclosing(node.declarations.watch(version, "repository")) as news:
            assert (await anext(news)).op == "Bookmark"
            with trio.fail_after(PATIENCE):
                change = await anext(news)
        assert change.resource is not None
        assert change.resource.name == f"r{late:02}"

    with open_state_directory(tmp_path / secrets.token_hex(8)) as home:
        trio.run(run, home)


@pytest.mark.parametrize("rest", ["", "x", "bm8", "W10", "\u00e9", "WyJhLTEiLCJhIiwieCJd"])
async def test_r57_what_asks_for_no_page_is_refused(node: Node, rest: str) -> None:
    with pytest.raises(Usage) as told:
        await node.declarations.page("repository", None, 1, rest)
    assert told.value.rule == "continue"


async def serve(stream: responses.LineStream, sent: list[bytes]) -> None:
    async def send(message: Any) -> None:
        sent.extend(filter(None, [message.get("body")]))

    await stream({}, trio.sleep_forever, send)


async def lines(sent: list[list[bytes]], count: int) -> None:
    with trio.fail_after(PATIENCE):
        while any(len(each) < count for each in sent):
            await trio.lowlevel.checkpoint()


async def reads(found: list[int], expected: list[int]) -> None:
    with trio.fail_after(PATIENCE):
        while len(found) < len(expected):
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert found == expected
