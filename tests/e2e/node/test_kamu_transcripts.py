"""What a real kamu-cli and a node say to each other is what the transcripts in ``tests/golden/kamu-smart`` have.

With ``ODF_KAMU_RECORD`` set, they are written anew instead:
``ODF_KAMU=/path/to/kamu ODF_KAMU_RECORD=1 python -m pytest -n 0 tests/e2e/node/test_kamu_transcripts.py``. They are
replayed, without kamu, by ``tests/node/test_kamu_transcripts.py``. The node runs in this process.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.store.layout import HEAD
from worlds.between import Between, between
from worlds.kamu_program import NEEDS_KAMU, Workspace
from worlds.kamu_sessions import (
    EVENTS,
    ORDERS,
    TAKES,
    TRANSCRIPTS,
    bring,
    half,
    head_of,
    host_of,
    know,
    pull,
    push,
    token_of,
)
from worlds.node_world import World
from worlds.transcripts import Mask, Step, comparable, read, steps_of, write

pytestmark = [pytest.mark.e2e, pytest.mark.slow, NEEDS_KAMU]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


class Kamu:
    """A workspace, asked beside the event loop of the node."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace(folder)

    async def did(self, *words: str) -> str:
        return await trio.to_thread.run_sync(lambda: self.workspace.did(*words))


@pytest.fixture
def kamu(tmp_path: Path) -> Kamu:
    return Kamu(tmp_path / "kamu")


class Recorder:
    """Sessions between two, by what passed on the lines between them."""

    def __init__(self, lines: Between, token: str = "") -> None:
        self._lines = lines
        self._mask = Mask("{}:{}".format(*lines.address), token)
        self.sessions: dict[str, list[Step]] = {}

    async def session(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        since = self._lines.mark()
        await act()
        self.sessions[name] = steps_of(self._lines.lines, since, self._mask, EVENTS)

    async def agree(self, name: str, kamu: Kamu) -> None:
        """Compares the sessions with the file ``name``, or writes it."""
        path = TRANSCRIPTS / f"{name}.json"
        if os.environ.get("ODF_KAMU_RECORD"):
            path.parent.mkdir(exist_ok=True)
            write(path, (await kamu.did("--version")).strip(), self.sessions)
        recorded = read(path)
        assert list(recorded) == list(self.sessions)
        for session, steps in recorded.items():
            assert comparable(self.sessions[session]) == comparable(steps), session


@contextmanager
def in_front_of(node: Any) -> Iterator[tuple[str, Between]]:
    """Yields where the node is behind a proxy, and the proxy."""
    host, _, port = host_of(node).partition(":")
    with between((host, int(port))) as lines:
        yield "odf+http://{}:{}/events".format(*lines.address), lines


async def logged_in(node: Any, kamu: Kamu, url: str, lines: Between) -> Recorder:
    """Kamu has a token: with it, it pushes, and reads also what is private."""
    token = await token_of(node)
    await kamu.did("login", "--access-token", token, url.removeprefix("odf+").removesuffix("/events"))
    return Recorder(lines, token)


async def test_kamu_pulls(world: World, kamu: Kamu, tmp_path: Path) -> None:
    async with world.running("alice", http=TAKES) as node:
        with in_front_of(node) as (url, lines):
            recorder = await logged_in(node, kamu, url, lines)
            await bring(node, half(tmp_path / "half"))
            await recorder.session("first", lambda: kamu.did("pull", url, "--as", "events"))
            await bring(node, EVENTS)
            await recorder.session("later", lambda: kamu.did("pull", "events"))
            await recorder.session("same", lambda: kamu.did("pull", "events"))
        assert await trio.to_thread.run_sync(kamu.workspace.head, "events") == head_of(node)
    await recorder.agree("kamu-pulls", kamu)


async def test_kamu_pushes(world: World, kamu: Kamu, tmp_path: Path) -> None:
    async with world.running("alice", http=TAKES) as node:
        with in_front_of(node) as (url, lines):
            recorder = await logged_in(node, kamu, url, lines)
            await kamu.did("pull", half(tmp_path / "half").as_uri(), "--as", "events")
            await recorder.session("first", lambda: kamu.did("push", "events", "--to", url))
            await kamu.did("pull", EVENTS.as_uri(), "--as", "events")
            await recorder.session("later", lambda: kamu.did("push", "events", "--to", url))
            await recorder.session("same", lambda: kamu.did("push", "events", "--to", url))
        assert await trio.to_thread.run_sync(kamu.workspace.head, "events") == head_of(node)
    await recorder.agree("kamu-pushes", kamu)


async def test_kamu_is_pulled_from(world: World, kamu: Kamu, tmp_path: Path) -> None:
    await kamu.did("pull", half(tmp_path / "half").as_uri(), "--as", "events")
    async with world.running("alice") as node:
        with kamu.workspace.serving(through_proxy=True) as (url, token, lines, _):
            assert lines is not None
            await know(node, url.removeprefix("odf+http://"), token)
            recorder = Recorder(lines, token)
            await recorder.session("first", lambda: pull(node))
            await kamu.did("pull", EVENTS.as_uri(), "--as", "events")
            await recorder.session("later", lambda: pull(node))
            await recorder.session("same", lambda: pull(node))
        assert await trio.to_thread.run_sync(kamu.workspace.head, "events") == head_of(node)
    async with world.running("bob") as other:
        await bring(other, ORDERS)
        with kamu.workspace.serving(through_proxy=True) as (url, token, lines, _):
            assert lines is not None
            await know(other, url.removeprefix("odf+http://"), token)
            at = Recorder(lines, token)
            await at.session("another by that name", lambda: pull(other, as_name="more"))
        assert head_of(other, "more") == (EVENTS / HEAD).read_text().strip()
    recorder.sessions |= at.sessions
    await recorder.agree("kamu-is-pulled-from", kamu)


async def test_kamu_is_pushed_to(world: World, kamu: Kamu, tmp_path: Path) -> None:
    async with world.running("alice") as node:
        await bring(node, half(tmp_path / "half"))
        with kamu.workspace.serving(through_proxy=True) as (url, token, lines, _):
            assert lines is not None
            await know(node, url.removeprefix("odf+http://"), token)
            recorder = Recorder(lines, token)
            await recorder.session("first", lambda: push(node))
            await bring(node, EVENTS)
            await recorder.session("later", lambda: push(node))
            await recorder.session("same", lambda: push(node))
        assert await trio.to_thread.run_sync(kamu.workspace.head, "events") == head_of(node)
    await recorder.agree("kamu-is-pushed-to", kamu)
