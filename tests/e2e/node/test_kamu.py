"""A real kamu-cli and a node speak kamu's smart transfer protocol, in both roles, cut off, at length, as recorded."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from chain.multihash import Multihash
from chain.store.layout import HEAD
from worlds.between import Between, between
from worlds.eventually import PATIENCE
from worlds.kamu_program import NEEDS_KAMU, Node, Workspace, started
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
from worlds.s3_server import new_bucket, s3_server
from worlds.transcripts import Mask, Step, comparable, read, steps_of, write

# A real kamu-cli and a node speak kamu's smart transfer protocol with each other, in both roles of it. ``ODF_KAMU``
# names the program of kamu-cli. It is in no registry of packages, so most machines do not have it.


pytestmark = [pytest.mark.e2e, pytest.mark.slow, NEEDS_KAMU]


@pytest.fixture
def node(make_daemon: Callable[..., Any]) -> Node:
    return started(make_daemon)


@pytest.fixture
def kamu(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "kamu")


def test_kamu_pulls_from_a_node_and_goes_on(node: Node, kamu: Workspace) -> None:
    node.begin("cities")
    node.add("cities", 1, "Graz")
    kamu.did("pull", f"{node.url}/cities", "--as", "cities")
    assert kamu.head("cities") == node.head("cities")
    node.add("cities", 2, "Linz")
    kamu.did("pull", "cities")
    assert kamu.head("cities") == node.head("cities")
    kamu.did("verify", "cities")
    found = json.loads(kamu.did("sql", "-c", "select city from cities order by offset", "-o", "json"))
    assert found == [{"city": "Graz"}, {"city": "Linz"}]


def test_kamu_pushes_to_a_node_and_who_comes_second_is_told(node: Node, kamu: Workspace, tmp_path: Path) -> None:
    place = f"{node.url}/cities"
    kamu.begin("cities")
    kamu.add("cities", 1, "Graz")
    assert "nauthorized" in kamu.refused("push", "cities", "--to", place)
    kamu.log_in(node)
    kamu.did("push", "cities", "--to", place)
    assert kamu.head("cities") == node.head("cities")
    other = kamu.copy(tmp_path / "other")
    kamu.add("cities", 2, "Linz")
    other.add("cities", 2, "Wels")
    kamu.did("push", "cities", "--to", place)
    assert kamu.head("cities") == node.head("cities")
    assert "Failed to push cities" in other.refused("push", "cities", "--to", place)
    assert "smart-force: no history is overwritten here" in other.refused("push", "cities", "--to", place, "--force")
    assert kamu.head("cities") == node.head("cities")
    assert node.holds("cities")
    kamu.did("verify", "cities")


def test_what_kamu_pulled_from_a_node_is_pushed_to_it_further(node: Node, kamu: Workspace) -> None:
    node.begin("towns")
    node.add("towns", 1, "Enns")
    kamu.did("pull", f"{node.url}/towns", "--as", "towns")
    node.add("towns", 2, "Melk")
    with node.repository(kamu):
        node.push("towns", "kamu")
    assert node.head("towns") == kamu.head("towns")


def test_a_node_pulls_from_kamu_and_pushes_to_it(node: Node, kamu: Workspace) -> None:
    kamu.begin("cities")
    node.begin("towns")
    for day, name in enumerate(("first", "second"), 1):
        kamu.add("cities", day, "Graz")
        node.add("towns", day, "Enns")
        with node.repository(kamu, name):
            node.daemon.ask("pull", f"{name}/cities")
            node.push("towns", name)
        assert node.head("cities") == kamu.head("cities")
        assert node.head("towns") == kamu.head("towns")
    assert node.holds("cities")
    kamu.did("verify", "towns")


def parted(node: Node, kamu: Workspace) -> tuple[str, str]:
    """One dataset at both, to which each added something else. Returns the two heads."""
    kamu.begin("cities")
    kamu.add("cities", 1, "Graz")
    kamu.log_in(node)
    kamu.did("push", "cities", "--to", f"{node.url}/cities")
    other = kamu.copy(kamu.folder.with_name("other"))
    other.add("cities", 2, "Wels")
    other.did("push", "cities", "--to", f"{node.url}/cities")
    kamu.add("cities", 2, "Linz")
    heads = node.head("cities"), kamu.head("cities")
    assert heads[0] != heads[1]
    return heads


def test_each_is_told_when_histories_parted_and_keeps_its_own(node: Node, kamu: Workspace) -> None:
    heads = parted(node, kamu)
    place = f"{node.url}/cities"
    node.daemon.ask("publish", "cities")
    assert "interval" in kamu.refused("push", "cities", "--to", place).lower()
    assert "diverged" in kamu.refused("pull", place, "--as", "cities")
    with node.repository(kamu):
        pulled = node.daemon.said("pull", "kamu/cities")
        assert (pulled.code != 0, "diverged" in pulled.err) == (True, True), pulled
        pushed = node.daemon.said("push", "cities", "--to", "kamu/cities", "--private")
        assert (pushed.code != 0, "push-diverged" in pushed.err) == (True, True), pushed
    assert (node.head("cities"), kamu.head("cities")) == heads
    assert node.holds("cities")
    kamu.did("verify", "cities")


KEYS: Final = {"AWS_ACCESS_KEY_ID": "AKIAnobody", "AWS_SECRET_ACCESS_KEY": "of-nobody", "AWS_REGION": "us-east-1"}
BUCKET: Final = """$schema: SecretSet
headers: {name: house-key}
spec: {secrets: {accessKeyId: AKIAnobody, secretAccessKey: of-nobody}}
"""


def test_a_bucket_is_a_repository_of_both(node: Node, kamu: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as server:
        bucket = new_bucket(server, "house")
        node.apply("bucket.yaml", BUCKET)
        node.daemon.ask("repo", "add", "house", bucket, "--credentials", "house-key")
        kamu.begin("cities")
        node.begin("towns")
        for day in (1, 2):
            kamu.add("cities", day, "Graz")
            kamu.did("push", "cities", "--to", f"{bucket}/cities")
            node.daemon.ask("pull", "house/cities")
            assert node.head("cities") == kamu.head("cities")
            node.add("towns", day, "Enns")
            node.push("towns", "house")
            kamu.did("pull", f"{bucket}/towns", "--as", "towns")
            assert kamu.head("towns") == node.head("towns")
        assert node.holds("cities")
        kamu.did("verify", "towns")


# What a real kamu-cli and a node transfer is cut off in the middle: nothing is half there, and the next try ends it.
# Lines are cut by a proxy between the two, or one of them is killed. ``ODF_KAMU`` names the program of kamu-cli.


FILES: Final = 40
"""Slices of the dataset, each an object that is transferred by itself."""
LARGE: Final = 80 << 10
"""Bytes of each at least. Smaller ones than 64 KiB are not on the disk before a block names them."""
CUT_AT: Final = 25
"""The object whose request is not passed on. Those before it are under way, or came."""
ASKED: Final = r"GET /cities/data/(\w+)"
SENT: Final = r"PUT /cities/data/(\w+)"


def filled(node: Node) -> Node:
    node.begin_files("cities")
    node.add_files("cities", range(FILES), LARGE)
    return node


def whole(kamu: Workspace) -> set[str]:
    """The slices that kamu has; each is what its name says. What it was writing when it was cut off has no name yet."""
    files = kamu.folder.glob(".kamu/datasets/*/data/[!.]*")
    found = {file.name: file.read_bytes() for file in files}
    for name, raw in found.items():
        assert str(Multihash.sha3_256(raw)) == name
    return set(found)


def pulled_to_the_end(node: Node, kamu: Workspace, lines: Between, url: str) -> None:
    """Kamu asks for what it lacks alone, and has all in the end.

    Of the dataset it has the first block. Its next command puts that into its database; a pull that is that command is
    refused by kamu itself, as its database and its folder have different heads.
    """
    had, since = whole(kamu), lines.mark()
    assert had, "some came before"
    kamu.did("list")
    kamu.did("pull", f"{url}/cities", "--as", "cities")
    asked = lines.seen(ASKED, since)
    assert len(asked) == FILES - len(had)
    assert not had & set(asked)
    assert len(whole(kamu)) == FILES
    assert kamu.head("cities") == node.head("cities")
    kamu.did("verify", "cities")


def test_the_line_is_cut_while_kamu_pulls(node: Node, kamu: Workspace) -> None:
    filled(node)
    with node.behind_proxy() as (url, lines):
        lines.when(b"GET /cities/data/", CUT_AT, lines.cut)
        kamu.refused("pull", f"{url}/cities", "--as", "cities")
        pulled_to_the_end(node, kamu, lines, url)


def test_the_line_is_cut_while_kamu_reads_blocks(node: Node, kamu: Workspace) -> None:
    filled(node)
    with node.behind_proxy() as (url, lines):
        lines.when(b'"payload":[', 1, lines.cut)
        kamu.refused("pull", f"{url}/cities", "--as", "cities")
        assert not whole(kamu)
        assert "cities" not in kamu.did("list", "-o", "csv"), "nothing of it is there"
        kamu.did("pull", f"{url}/cities", "--as", "cities")
        assert kamu.head("cities") == node.head("cities")


def test_kamu_is_killed_while_it_pulls(node: Node, kamu: Workspace) -> None:
    filled(node)
    with node.behind_proxy() as (url, lines):
        begun = []
        lines.when(b"GET /cities/data/", CUT_AT, lambda: begun[0].kill())
        begun.append(kamu.begun("pull", f"{url}/cities", "--as", "cities"))
        begun[0].communicate(timeout=PATIENCE)
        assert begun[0].returncode == -signal.SIGKILL
        pulled_to_the_end(node, kamu, lines, url)


def pushed_to_the_end(node: Node, kamu: Workspace, lines: Between, url: str, sent: set[str]) -> None:
    since = lines.mark()
    kamu.did("push", "cities", "--to", f"{url}/cities")
    again = lines.seen(SENT, since)
    assert len(again) == len(set(again)) < FILES, "what was there was not sent again"
    assert sent | set(again) == whole(kamu)
    assert kamu.head("cities") == node.head("cities")
    assert node.holds("cities")


@pytest.fixture
def full(make_daemon: Callable[..., Any], kamu: Workspace) -> Workspace:
    """A workspace with a dataset of many slices."""
    source = filled(started(make_daemon, "source"))
    kamu.did("pull", f"{source.url}/cities", "--as", "cities")
    source.daemon.kill()
    return kamu


def test_the_line_is_cut_while_kamu_pushes(node: Node, full: Workspace) -> None:
    with node.behind_proxy() as (url, lines):
        full.log_in(node, url)
        lines.when(b"PUT /cities/data/", CUT_AT, lines.cut)
        full.refused("push", "cities", "--to", f"{url}/cities")
        sent = set(lines.seen(SENT))
        assert not node.has("cities")
        pushed_to_the_end(node, full, lines, url, sent)


def test_a_node_is_killed_while_kamu_pushes_to_it(node: Node, full: Workspace) -> None:
    with node.behind_proxy() as (url, lines):
        full.log_in(node, url)
        lines.when(b"PUT /cities/data/", CUT_AT, node.daemon.kill)
        full.refused("push", "cities", "--to", f"{url}/cities")
        sent = set(lines.seen(SENT))
        lines.sprung()
        node.daemon.start()
        assert not node.has("cities")
        pushed_to_the_end(node, full, lines, url, sent)


def test_the_line_is_cut_while_a_node_pulls_from_kamu(node: Node, full: Workspace) -> None:
    """The node asks again by itself for an object of which some came. Where nothing came of one, it says what to do."""
    with node.repository(full, through_proxy=True) as served:
        assert served.lines is not None
        served.lines.when(b"GET /cities/data/", CUT_AT, served.lines.cut)
        first = node.daemon.said("pull", "kamu/cities")
        if first.code:
            assert "the received bytes are kept" in first.err
            node.daemon.ask("pull", "kamu/cities")
        asked = served.lines.seen(ASKED)
        assert set(asked) == whole(full)
        assert FILES < len(asked) < FILES + CUT_AT
    assert node.head("cities") == full.head("cities")
    assert node.holds("cities")


def test_kamu_is_killed_while_a_node_pulls_from_it(node: Node, full: Workspace) -> None:
    with node.repository(full, through_proxy=True) as served:
        assert served.lines is not None
        served.lines.when(b"GET /cities/data/", CUT_AT, served.kill)
        assert node.daemon.said("pull", "kamu/cities").code != 0
        assert not node.has("cities")
    with node.repository(full, "again", through_proxy=True) as served:
        assert served.lines is not None
        node.daemon.ask("pull", "again/cities")
        assert 0 < len(served.lines.seen(ASKED)) < FILES, "what came is not asked for again"
    assert node.head("cities") == full.head("cities")
    assert node.holds("cities")


def test_the_line_is_cut_while_a_node_pushes_to_kamu(node: Node, kamu: Workspace) -> None:
    filled(node)
    with node.repository(kamu, through_proxy=True) as served:
        assert served.lines is not None
        served.lines.when(b"PUT /cities/data/", CUT_AT, served.lines.cut)
        assert node.daemon.said("push", "cities", "--to", "kamu/cities", "--private").code != 0
        first, had, since = served.lines.seen(SENT), whole(kamu), served.lines.mark()
        node.push("cities", "kamu")
        again = served.lines.seen(SENT, since)
        assert not had & set(again), "what is there is not sent again"
        assert {*first, *again} == whole(kamu)
    assert kamu.head("cities") == node.head("cities")
    kamu.did("verify", "cities")


def test_kamu_is_killed_while_a_node_pushes_to_it(node: Node, kamu: Workspace) -> None:
    filled(node)
    with node.repository(kamu, through_proxy=True) as served:
        assert served.lines is not None
        served.lines.when(b"PUT /cities/data/", CUT_AT, served.kill)
        assert node.daemon.said("push", "cities", "--to", "kamu/cities", "--private").code != 0
    had = whole(kamu)
    with node.repository(kamu, "again", through_proxy=True) as served:
        assert served.lines is not None
        node.push("cities", "again")
        assert not had & set(served.lines.seen(SENT)), "what is there is not sent again"
    assert kamu.head("cities") == node.head("cities")
    kamu.did("verify", "cities")


# Chains of more than a thousand blocks go between a real kamu-cli and nodes. ``ODF_KAMU`` names the program of
# kamu-cli.


MANY_FILES: Final = 1003
"""Slices, each in a block of its own: more than a node negotiates at once."""
LONG: Final = 800.0
"""Seconds for a command of kamu."""


def test_a_chain_of_over_a_thousand_blocks_goes_around(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    """From a node to kamu, from it to other nodes as they pull and it pushes, and from there to another kamu."""
    first, second, third = (started(make_daemon, name) for name in ("first", "second", "third"))
    kamu, other = (Workspace(tmp_path / name, LONG) for name in ("kamu", "other"))
    first.begin_files("cities")
    first.add_files("cities", range(MANY_FILES))
    head = first.head("cities")
    kamu.did("pull", f"{first.url}/cities", "--as", "cities")
    assert kamu.head("cities") == head
    with third.repository(kamu):
        third.daemon.ask("pull", "kamu/cities")
        assert third.head("cities") == head
    assert "one by one" not in third.daemon.told(), "they came in one message"
    assert third.holds("cities")
    kamu.log_in(second)
    kamu.did("push", "cities", "--to", f"{second.url}/cities")
    assert second.head("cities") == head
    assert second.holds("cities")
    with second.repository(other):
        second.push("cities", "kamu")
    assert other.head("cities") == head
    other.did("verify", "cities")


# What a real kamu-cli and a node say to each other is what the transcripts in ``tests/golden/kamu-smart`` have. With
# ``ODF_KAMU_RECORD`` set, they are written anew instead: ``ODF_KAMU=/path/to/kamu ODF_KAMU_RECORD=1 python -m pytest
# -n 0 tests/e2e/node/test_kamu.py``. They are replayed, without kamu, by
# ``tests/node/test_smart.py``. The node runs in this process.


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
def recorded_kamu(tmp_path: Path) -> Kamu:
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


async def test_kamu_pulls(world: World, recorded_kamu: Kamu, tmp_path: Path) -> None:
    async with world.running("alice", http=TAKES) as node:
        with in_front_of(node) as (url, lines):
            recorder = await logged_in(node, recorded_kamu, url, lines)
            await bring(node, half(tmp_path / "half"))
            await recorder.session("first", lambda: recorded_kamu.did("pull", url, "--as", "events"))
            await bring(node, EVENTS)
            await recorder.session("later", lambda: recorded_kamu.did("pull", "events"))
            await recorder.session("same", lambda: recorded_kamu.did("pull", "events"))
        assert await trio.to_thread.run_sync(recorded_kamu.workspace.head, "events") == head_of(node)
    await recorder.agree("kamu-pulls", recorded_kamu)


async def test_kamu_pushes(world: World, recorded_kamu: Kamu, tmp_path: Path) -> None:
    async with world.running("alice", http=TAKES) as node:
        with in_front_of(node) as (url, lines):
            recorder = await logged_in(node, recorded_kamu, url, lines)
            await recorded_kamu.did("pull", half(tmp_path / "half").as_uri(), "--as", "events")
            await recorder.session("first", lambda: recorded_kamu.did("push", "events", "--to", url))
            await recorded_kamu.did("pull", EVENTS.as_uri(), "--as", "events")
            await recorder.session("later", lambda: recorded_kamu.did("push", "events", "--to", url))
            await recorder.session("same", lambda: recorded_kamu.did("push", "events", "--to", url))
        assert await trio.to_thread.run_sync(recorded_kamu.workspace.head, "events") == head_of(node)
    await recorder.agree("kamu-pushes", recorded_kamu)


async def test_kamu_is_pulled_from(world: World, recorded_kamu: Kamu, tmp_path: Path) -> None:
    await recorded_kamu.did("pull", half(tmp_path / "half").as_uri(), "--as", "events")
    async with world.running("alice") as node:
        with recorded_kamu.workspace.serving(through_proxy=True) as (url, token, lines, _):
            assert lines is not None
            await know(node, url.removeprefix("odf+http://"), token)
            recorder = Recorder(lines, token)
            await recorder.session("first", lambda: pull(node))
            await recorded_kamu.did("pull", EVENTS.as_uri(), "--as", "events")
            await recorder.session("later", lambda: pull(node))
            await recorder.session("same", lambda: pull(node))
        assert await trio.to_thread.run_sync(recorded_kamu.workspace.head, "events") == head_of(node)
    async with world.running("bob") as other:
        await bring(other, ORDERS)
        with recorded_kamu.workspace.serving(through_proxy=True) as (url, token, lines, _):
            assert lines is not None
            await know(other, url.removeprefix("odf+http://"), token)
            at = Recorder(lines, token)
            await at.session("another by that name", lambda: pull(other, as_name="more"))
        assert head_of(other, "more") == (EVENTS / HEAD).read_text().strip()
    recorder.sessions |= at.sessions
    await recorder.agree("kamu-is-pulled-from", recorded_kamu)


async def test_kamu_is_pushed_to(world: World, recorded_kamu: Kamu, tmp_path: Path) -> None:
    async with world.running("alice") as node:
        await bring(node, half(tmp_path / "half"))
        with recorded_kamu.workspace.serving(through_proxy=True) as (url, token, lines, _):
            assert lines is not None
            await know(node, url.removeprefix("odf+http://"), token)
            recorder = Recorder(lines, token)
            await recorder.session("first", lambda: push(node))
            await bring(node, EVENTS)
            await recorder.session("later", lambda: push(node))
            await recorder.session("same", lambda: push(node))
        assert await trio.to_thread.run_sync(recorded_kamu.workspace.head, "events") == head_of(node)
    await recorder.agree("kamu-is-pushed-to", recorded_kamu)
