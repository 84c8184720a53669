"""What a deleted resource made is undone, also if the node is killed before, while, or after that is done."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import trio
from node.test_webhooks import INSIDE, SECRET, Receiver, serving, target

from chain.errors import Environment, NotFound
from chain.ids import DatasetId
from odfd.control import wire
from odfd.ingest.segments import folder_of
from odfd.resources.store import ResourceStore
from odfd.runtime.hanging_calls import invoke
from odfd.services.datasets.controller import DatasetController
from odfd.services.ingest.push_endpoints import EndpointService
from odfd.services.network.controllers import MirrorController
from odfd.services.resources.reconciler import Reconciler
from odfd.services.volumes.volume_paths import MARK
from odfd.store import mirror_specs
from odfd.store import webhook_calls as webhooks
from odfd.store.catalog import Catalog
from odfd.store.directory import PROJECTIONS, SEGMENTS
from odfd.store.ledger.log import Ledger
from p2p.identity import did_of_seed, peer_of_seed
from worlds.eventually import PATIENCE, became
from worlds.manifests import ROOT
from worlds.node_world import Node, World

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
async def test_r54_what_a_deleted_resource_made_is_undone_over_a_kill(
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
            fetch = bob.member.fetch_blocks

            async def late(*of: Any) -> Any:
                blocks = await fetch(*of)
                asked.set()
                await come.wait()
                return blocks

            monkeypatch.setattr(bob.member, "fetch_blocks", late)
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
