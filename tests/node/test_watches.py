"""What watchers of resources get and what that costs, and what is undone of a resource that is deleted."""

from __future__ import annotations

import hashlib
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
from node.test_webhooks import INSIDE, SECRET, Receiver, serving, target

from chain.errors import Environment, NotFound
from chain.ids import DatasetId
from chain.instant import Instant
from odfd.control import responses, wire
from odfd.control.assembly import Context
from odfd.errors import Usage
from odfd.ingest.segments import folder_of
from odfd.obs.events import EventLog
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore
from odfd.runtime.hanging_calls import invoke
from odfd.runtime.tasks import TaskBoard
from odfd.services.datasets.controller import DatasetController
from odfd.services.ingest.push_endpoints import EndpointService
from odfd.services.network.controllers import MirrorController
from odfd.services.resources.declarations import DeclarationService
from odfd.services.resources.planning import PartsKeeper
from odfd.services.resources.reconciler import Reconciler
from odfd.services.volumes.volume_paths import MARK
from odfd.store import mirror_specs
from odfd.store import webhook_calls as webhooks
from odfd.store.catalog import Catalog
from odfd.store.directory import PROJECTIONS, SEGMENTS, StateDirectory, open_state_directory
from odfd.store.ledger.log import Ledger
from p2p.driver.fetch_jobs import ChainFetch
from p2p.identity import did_of_seed, peer_of_seed
from worlds.clock import FixedClock
from worlds.eventually import PATIENCE, became
from worlds.manifests import ROOT
from worlds.node_world import Node, World

# What watchers of resources get, and what that costs.


CROWD = 50
NOW = Instant(0)


class Watched:
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
def node(tmp_path: Path) -> Iterator[Watched]:
    with open_state_directory(tmp_path / "state") as home:
        yield Watched(home)


async def test_a_change_is_read_and_encoded_once_for_fifty_watchers(
    node: Watched, monkeypatch: pytest.MonkeyPatch
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


async def test_watchers_who_share_a_read_are_told_of_their_own_types_alone(node: Watched) -> None:
    """Attack T-ACCOUNT-01: a watcher of resources that is shown another watcher's resources, because both share a read.

    Defence: a shared read has no filter: each watcher filters by itself.

    Elements of sets are told only to who names their type.
    """
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


async def test_many_large_changes_are_read_by_and_by(node: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_pages_of_any_size_are_the_whole_list_in_order(
    tmp_path: Path, numbers: list[int], limit: int, selects: bool, late: int
) -> None:
    """What comes between two pages is on a later one or told by a watch since the version of all of them."""

    async def run(home: StateDirectory) -> None:
        node = Watched(home)
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
async def test_what_asks_for_no_page_is_refused(node: Watched, rest: str) -> None:
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


# What a deleted resource made is undone, also if the node is killed before, while, or after that is done.


FLOW = """$schema: Flow
headers: {name: made}
spec: {target: cities, triggers: [{kind: Schedule, every: 1min}]}
"""
SOURCE = "$schema: Source\nheaders: {name: made}\nspec: {read: {kind: NdJson}}\n"
PROJECTION = """$schema: Projection
headers: {name: made}
spec: {inputs: [{datasetRef: cities}], project: {kind: Sql, query: select city from cities}}
"""
VOLUME = """$schema: PersistentVolume
headers: {{name: made}}
spec: {{kind: HostPath, path: {path}, capacity: {{storage: 1Gi}}}}
"""
DATASET = """$schema: Dataset
headers: {name: made}
spec: {kind: Root, metadata: []}
"""
THEIRS = DatasetId.from_public_key(hashlib.sha256(b"theirs").digest())
MIRROR = f"$schema: Mirror\nheaders: {{name: made}}\nspec: {{source: '{THEIRS}'}}\n"
NETWORK = "$schema: Network\nheaders: {name: made}\nspec: {bootstrap: []}\n"
STRANGER = peer_of_seed(b"s" * 32)
PEER = f"$schema: Peer\nheaders: {{name: made}}\nspec: {{peerId: {STRANGER}, blocked: true}}\n"
KEY = did_of_seed(b"s" * 32)
VALIDATOR = f"$schema: Validator\nheaders: {{name: made}}\nspec: {{did: '{KEY}', group: others}}\n"
WORDS = (
    "Flow", "Source", "Projection", "PersistentVolume", "WebhookTarget", "Dataset", "Mirror", "Network", "Peer",
    "Validator",
)  # fmt: skip
"""Types of which more than the declaration is stored, or acts."""


def segments_of(node: Node, id_: str) -> Path:
    """Where files are made of the dataset that a resource stands for."""
    with node.home.database.read() as connection:
        (made,) = [each for each in ResourceStore(connection).history((id_,), 1) if each.resource.did is not None]
    return folder_of(node.home.folder(SEGMENTS), DatasetId.parse(str(made.resource.did)))


def left(node: Node, word: str, id_: str, folder: Path) -> bool:
    """Whether something is there of what a resource of a type made."""
    match word:
        case "Dataset":
            return segments_of(node, id_).exists()
        case "Mirror":
            return node.parts.scheduler.find(THEIRS) is not None
        case "Network":
            return node.parts.membership.find("made") is not None
        case "Peer":
            return any(view.peer == STRANGER and view.blocked for view in node.parts.membership.peers())
        case "Validator":
            return node.parts.policy.group_of(KEY) is not None
    with node.home.database.read() as connection:
        match word:
            case "Flow":
                return bool(
                    connection.execute("SELECT 1 FROM flow_runs WHERE key GLOB ?", (f"flow {id_}*",)).fetchone()
                )
            case "Source":
                rows = connection.execute("SELECT 1 FROM spool_numbers WHERE source = ?", (id_,)).fetchone()
                return bool(rows) or (node.home.spool._folder / id_).exists()
            case "Projection":
                return any(node.home.folder(PROJECTIONS).iterdir())
            case "PersistentVolume":
                return (folder / MARK).exists()
            case _:
                return webhooks.calls(connection, id_) is not None


@pytest.mark.parametrize("killed", ["before", "after", "never"])
@pytest.mark.parametrize("word", WORDS)
async def test_what_a_deleted_resource_made_is_undone_over_a_kill(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, killed: str
) -> None:
    folder, done, finalize = tmp_path / "volume", list[str](), Reconciler._finalize

    async def cut(self: Any, gone: Any) -> None:
        if killed == "after":  # and before anything notes that it is done
            await invoke(self._controllers.of(gone.type).finalize, gone)
        done.append(gone.id)
        await trio.sleep_forever()

    with serving(Receiver()) as receiver:
        hook = target(receiver).replace("name: hook,", "name: made,")
        others = hook, DATASET, MIRROR, NETWORK, PEER, VALIDATOR
        texts = dict(zip(WORDS, (FLOW, SOURCE, PROJECTION, VOLUME.format(path=folder), *others), strict=True))
        async with world.running("node", **INSIDE) as node:
            world.write("node", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
            await node.apply(ROOT, SECRET)
            await node.pull("cities")
            await node.apply(texts[word])
            id_ = (await node.api.declarations.get(word, "made")).id
            if word == "Source":
                await node.api.endpoints.push("made", b'{"a": 1}')
                await node.api.endpoints.drop("made", None)
            if word == "Dataset":
                segments_of(node, id_).mkdir(parents=True)
            with trio.fail_after(PATIENCE):
                await node.parts.reconciler.wait_settled()
            await became(lambda: left(node, word, id_, folder))
            if killed != "never":
                monkeypatch.setattr(Reconciler, "_finalize", cut)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.api.declarations.delete, word, id_)  # which waits for what is cut off here
                await became(lambda: done if killed != "never" else not left(node, word, id_, folder))
                if done:
                    nursery.cancel_scope.cancel()
        monkeypatch.setattr(Reconciler, "_finalize", finalize)
        async with world.running("node", **INSIDE) as node:
            with trio.fail_after(PATIENCE):
                await node.parts.reconciler.wait_settled()
            assert not left(node, word, id_, folder)
            with node.home.database.read() as connection:
                assert [each.status for each in ResourceStore(connection).deleting()] == []
            with pytest.raises(NotFound):
                await node.api.declarations.get(word, id_)
            (made,) = (await node.apply(texts[word])).items
            assert made.action == "created"
            with trio.fail_after(PATIENCE):
                await node.parts.reconciler.wait_settled()
            status = (await node.api.declarations.get(word, "made")).status
            assert status["phase"] == "Ready", status


@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_is_pushed_while_its_source_is_deleted_does_not_stay(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    async with world.running("node") as node:
        await node.apply(SOURCE)
        id_ = (await node.api.declarations.get("Source", "made")).id
        add_all = node.home.spool.add_all

        async def deleted() -> None:
            await node.api.declarations.delete("source", "made")
            with trio.fail_after(PATIENCE):
                await node.parts.reconciler.wait_settled()

        def late(*said: Any) -> Any:
            trio.from_thread.run(deleted)
            return add_all(*said)

        monkeypatch.setattr(node.home.spool, "add_all", late)
        if is_killed:
            monkeypatch.setattr(EndpointService, "_find_gone", lambda *_: {})
            await node.api.endpoints.push("made", b'{"a": 1}')
            assert left(node, "Source", id_, tmp_path)
        else:
            with pytest.raises(NotFound, match="deleted meanwhile"):
                await node.api.endpoints.push("made", b'{"a": 1}')
            assert not left(node, "Source", id_, tmp_path)
    async with world.running("node") as node:
        assert not left(node, "Source", id_, tmp_path)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("word", ["Mirror", "Dataset"])
async def test_blocks_that_come_while_a_mirror_is_deleted_bring_nothing_back(
    world: World, monkeypatch: pytest.MonkeyPatch, word: str, is_first: bool, is_restarted: bool
) -> None:
    """What undoes the deletion is cut off, the blocks come, and then it is tried again."""
    cut_off, asked, come = [True], trio.Event(), trio.Event()

    def cut(controller: Any) -> None:
        finalize = controller.finalize

        async def finalized(self: Any, gone: Any) -> None:
            if cut_off[0]:
                raise Environment("cut off", rule="test")
            await finalize(self, gone)

        monkeypatch.setattr(controller, "finalize", finalized)

    cut(MirrorController)
    cut(DatasetController)
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
        await alice.apply(ROOT)
        await alice.pull("cities")
        await world.spread(alice, "cities")
        cities = alice.dataset("cities")
        async with world.running("bob") as bob, trio.open_nursery() as nursery:
            if not is_first:
                await bob.mirror(cities, "theirs")
            ask = ChainFetch.ask

            async def late(*of: Any) -> Any:
                blocks = await ask(*of)
                asked.set()
                await come.wait()
                return blocks

            monkeypatch.setattr(ChainFetch, "ask", late)
            if is_first:
                nursery.start_soon(bob.mirror_in_vain, cities, "theirs", lambda mirror: mirror.passes > 0)
            else:
                world.write("alice", "b.csv", "2024-01-02T00:00:00Z,Wels,60000")
                await alice.pull("cities")
                await bob.heard_head(alice.size("cities"))
                bob.parts.scheduler.poke(cities)
            with trio.fail_after(PATIENCE):
                await asked.wait()
            mirror, turned = bob.parts.scheduler.get(cities), bob.parts.scheduler.get(cities).turned
            gone = [(await bob.api.declarations.get(each, "theirs")).id for each in ("Mirror", "Dataset")]
            await bob.api.declarations.delete(word, "theirs")
            with pytest.raises(NotFound):
                await bob.api.mirrors.pause(str(cities))
            come.set()
            with trio.fail_after(PATIENCE):
                await turned.wait()
            assert bob.parts.scheduler.find(cities) is mirror
            cut_off[0] = False
            if not is_restarted:
                for each in gone:
                    bob.parts.reconciler.queue.touch(each)
                with trio.fail_after(PATIENCE):
                    await bob.parts.reconciler.wait_settled()
                assert mirror.ended.is_set()
        async with world.running("bob") as bob:
            with trio.fail_after(PATIENCE):
                await bob.parts.reconciler.wait_settled()
            assert bob.parts.scheduler.find(cities) is None
            with bob.home.database.read() as connection:
                assert ResourceStore(connection).deleting() == []
                assert mirror_specs.all_of(connection) == []
                is_known = Catalog(connection).find(cities) is not None
                checked = Ledger(connection).chain(cities).frontier.size
            named = [each.name for each in await bob.api.declarations.list("Dataset", None)]
            size = bob.parts.library.size(cities) or 0
            is_here = word == "Mirror"  # the dataset stays
            assert (is_known, named) == (is_here, ["theirs"] * is_here)
            assert checked == size if is_here else (checked, size) == (0, 0)
            if size:
                assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest(level="chain")))).ok


async def test_a_mirror_that_is_deleted_before_it_begins_does_not_begin(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("bob") as bob:
        scheduler, told = bob.parts.scheduler, list[str]()

        def deleted(_: DatasetId) -> None:
            told.append(trio.from_thread.run(bob.api.declarations.delete, "Mirror", "made").name)

        monkeypatch.setattr(scheduler, "_on_stored", deleted)
        await bob.apply(MIRROR)
        assert told == ["made"]
        assert scheduler.find(THEIRS) is None
