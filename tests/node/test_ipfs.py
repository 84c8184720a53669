"""Datasets on IPFS: what is added, what a name points to, who can mirror it from there, and what a liar achieves."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Invalid, NotFound, Refused, Remote
from chain.ids import DatasetId
from odfd.control import wire
from odfd.ipfs.delegation import delegate
from odfd.ipfs.publishing import folder_of
from odfd.ipfs.transport import IpfsTransport, place_of
from odfd.mirrors import sync
from odfd.published import source
from odfd.resources.store import ResourceStore
from odfd.store.keys.keystore import KeyStore
from p2p.ipfs import record
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.memory_ipfs import MemoryIpfs, Swarm
from worlds.node_world import Node, World

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")


@pytest.fixture
def daemons() -> tuple[MemoryIpfs, MemoryIpfs]:
    swarm = Swarm()
    return MemoryIpfs(swarm), MemoryIpfs(swarm)


async def made(world: World, alice: Node, files: int = 1) -> Any:
    for number in range(files):
        world.write("alice", f"{number}.csv", *(f"2024-01-{number + 1:02}T00:00:00Z,c{row},{row}" for row in range(3)))
    await alice.apply(ROOT)
    await alice.pull("cities")
    return alice.dataset("cities")


async def published(node: Node, **more: Any) -> Any:
    return await node.done(node.api.publications.publish(wire.PublishRequest(ref="cities", **more)))


async def test_following_a_dataset_grows_no_log(world: World, daemons: Any) -> None:
    """Each publication was an intent of its own, and all of them were read whenever a name was looked up."""
    async with world.running("alice", ipfs=daemons[0]) as alice:
        await made(world, alice)
        with alice.home.database.read() as connection:
            before = ResourceStore(connection).newest()
        for _ in range(5):
            await published(alice)
        with alice.home.database.read() as connection:
            assert connection.execute("SELECT count(*) FROM records WHERE kind = 'publication'").fetchone() == (1,)
            assert ResourceStore(connection).newest() == before
        (shown,) = await alice.api.publications.list()
        assert (shown.blocks, shown.standing) == (alice.size("cities"), True)
        await alice.api.publications.withdraw("cities")
        assert await alice.api.publications.list() == []


def apart(*nodes: Any) -> None:
    """They hear nothing of one another but through IPFS."""
    for node in nodes:
        node.member.wires.cut(node.member.peer_id)


def blocks_of(node: Node, dataset: Any) -> list[bytes]:
    return list(node.home.chains.chain(dataset).raw_blocks(0, 10**6))


async def mirrored_from(world: World, daemons: Any, files: int = 1) -> Any:
    """Blocks of a publisher who is gone by the time that a mirror asks."""
    async with world.running("alice", ipfs=daemons[0]) as alice:
        cities = await made(world, alice, files)
        await published(alice)
        blocks = blocks_of(alice, cities)
    async with world.running("bob", ipfs=daemons[1]) as bob:
        view = await bob.mirror(cities, "theirs", via="ipfs")
        assert (view.state, view.serving) == ("current", True), view
        assert blocks_of(bob, cities) == blocks
        report = await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest(level="data")))
        assert report.ok
        assert bob.parts.evaluator.known(cities).extent.fresh
    return cities


async def test_a_publisher_who_is_away_is_mirrored(world: World, daemons: Any) -> None:
    await mirrored_from(world, daemons)


def streams_of(monkeypatch: Any) -> list[str]:
    """The folders that are asked for as a stream from now on."""
    asked: list[str] = []
    bring = IpfsTransport.bring_blocks

    async def counted(self: Any, root: str, *more: Any) -> None:
        asked.append(root)
        await bring(self, root, *more)

    monkeypatch.setattr(IpfsTransport, "bring_blocks", counted)
    return asked


async def test_long_chains_come_as_one_stream(world: World, daemons: Any, monkeypatch: Any) -> None:
    """In several steps, each shown to be the beginning of what was signed."""
    monkeypatch.setattr(IpfsTransport, "few", 2)
    monkeypatch.setattr(sync, "STEP", 3)
    streams = streams_of(monkeypatch)
    await mirrored_from(world, daemons, files=6)
    assert len(set(streams)) == 1


async def test_large_blocks_come_as_one_stream(world: World, daemons: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(source, "FEW_BYTES", 100)
    streams = streams_of(monkeypatch)
    await mirrored_from(world, daemons)
    assert len(set(streams)) == 1


async def test_only_what_is_new_is_added(world: World, daemons: Any) -> None:
    kubo = daemons[0]
    async with world.running("alice", ipfs=kubo) as alice:
        cities = await made(world, alice, files=3)
        first = await published(alice)
        assert (first.added_blocks, first.added_objects, first.blocks) == (
            alice.size("cities"),
            3,
            alice.size("cities"),
        )
        assert first.name == first.home == record.name_of(cities)
        again = await published(alice)
        assert (again.added_blocks, again.added_objects, again.root) == (0, 0, first.root)
        kubo.added.clear()
        world.write("alice", "9.csv", *ROWS)
        await alice.pull("cities")
        await alice.heard("publication.published", 3)
        assert len([path for path in kubo.added if "/blocks/" in path]) == 1
        assert len([path for path in kubo.added if "/data/" in path]) == 1
        pointer = record.unseal(kubo.swarm.records[first.name], cities)
        (listed,) = await alice.api.publications.list()
        assert pointer.value == listed.root != first.root
        assert listed.blocks == alice.size("cities")


async def test_what_was_cut_off_is_gone_on_with(world: World, daemons: Any, monkeypatch: Any) -> None:
    kubo = daemons[0]
    monkeypatch.setattr("odfd.ipfs.publishing.FILES", 2)
    async with world.running("alice", ipfs=kubo) as alice:
        cities = await made(world, alice, files=4)
        add, left = kubo.add, 3

        async def cut_off(folder: str, files: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Remote("gone", rule="ipfs-api")
            await add(folder, files)

        kubo.add = cut_off
        with pytest.raises(Remote, match="gone"):
            await published(alice)
        assert await kubo.read(f"{folder_of(cities)}/refs/head", 100) is None
        kubo.add = add
        await published(alice)
        names_of_blocks = {path.rpartition("/")[2] for path in kubo.files if "/blocks/" in path}
        assert len(names_of_blocks) == alice.size("cities")


async def test_a_kubo_that_lost_everything_gets_everything(world: World, daemons: Any) -> None:
    kubo = daemons[0]
    async with world.running("alice", ipfs=kubo) as alice:
        await made(world, alice)
        first = await published(alice)
        kubo.files.clear()
        alice.parts.publications.loop.touch_all()
        await alice.heard("publication.published", 2)
        (listed,) = await alice.api.publications.list()
        assert listed.root == first.root


async def test_a_kubo_that_is_away_is_told_and_tried_again(world: World, daemons: Any) -> None:
    kubo = daemons[0]
    async with world.running("alice", ipfs=kubo) as alice:
        await made(world, alice)
        await published(alice)
        kubo.away = True
        world.write("alice", "9.csv", *ROWS)
        await alice.pull("cities")
        await alice.heard("publication.stalled")
        (listed,) = await alice.api.publications.list()
        assert "cannot be reached" in listed.message
        kubo.away = False
        alice.parts.publications.loop.touch_all()
        await alice.heard("publication.published", 2)
        assert (await alice.api.publications.list())[0].message == ""


async def test_another_history_replaces_the_folder(world: World, daemons: Any) -> None:
    kubo = daemons[0]
    async with world.running("alice", ipfs=kubo) as alice:
        cities = await made(world, alice, files=3)
        await published(alice)
        before = alice.size("cities")
        request = wire.RewriteRequest(action="reset", to=f"#{before - 3}")
        await alice.done(alice.api.rewriting.rewrite("cities", request))
        view = await published(alice)
        assert view.blocks == before - 2
        there = {path.rpartition("/")[2] for path in kubo.files if "/blocks/" in path}
        assert len(there) == before - 2
    async with world.running("bob", ipfs=daemons[1]) as bob:
        view = await bob.mirror(cities, "theirs", via="ipfs")
        assert (view.state, view.blocks.have) == ("current", before - 2)


async def test_withdrawn_it_is_gone_and_not_published_again(world: World, daemons: Any) -> None:
    kubo = daemons[0]
    async with world.running("alice", ipfs=kubo) as alice:
        await made(world, alice)
        await published(alice)
        assert (await alice.api.publications.withdraw("cities")).standing is False
        assert not kubo.files
        with pytest.raises(NotFound):
            await alice.api.publications.withdraw("cities")
        assert await alice.api.publications.list() == []


async def test_a_withdrawal_that_the_kubo_refuses_can_be_repeated(world: World, daemons: Any) -> None:
    kubo = daemons[0]
    async with world.running("alice", ipfs=kubo) as alice:
        await made(world, alice)
        await published(alice)
        kubo.away = True
        with pytest.raises(Remote, match="cannot be reached"):
            await alice.api.publications.withdraw("cities")
        assert len(await alice.api.publications.list()) == 1, "what is there is known"
        kubo.away = False
        await alice.api.publications.withdraw("cities")
        assert not kubo.files


async def test_what_is_there_and_cannot_be_kept_is_told(world: World, daemons: Any) -> None:
    """The settings named a Kubo once: what it holds stays there, also of a dataset that is deleted meanwhile."""
    kubo = daemons[0]
    async with world.running("alice", ipfs=kubo) as alice:
        await made(world, alice)
        await published(alice)
    async with world.running("alice") as alice:
        await alice.api.declarations.delete("Dataset", "cities")
        (view,) = await alice.api.publications.list()
        assert "names no Kubo" in view.message
    async with world.running("alice", ipfs=kubo) as alice:
        await alice.heard("publication.withdrawn")
        assert not kubo.files
        assert await alice.api.publications.list() == []


@pytest.mark.parametrize("part", ["blocks/", "data/", "refs/head", "trust/head"])
@pytest.mark.parametrize("few", [256, 1])
async def test_a_kubo_that_lies_achieves_nothing(
    world: World, daemons: Any, monkeypatch: Any, part: str, few: int
) -> None:
    """Attack T-REPO-01: an IPFS daemon or gateway that returns false data.

    Defence: its bytes are hashed, checked and proven by the signed tree like bytes from a peer; an IPNS record counts
    only with the dataset's signature.
    """
    monkeypatch.setattr(IpfsTransport, "few", few)
    async with world.running("alice", ipfs=daemons[0]) as alice:
        cities = await made(world, alice, files=2)
        await published(alice)
        blocks = blocks_of(alice, cities)
    liar = daemons[1]
    liar.lie = lambda path, raw: raw[:-1] + bytes([raw[-1] ^ 1]) if path.startswith(part) else raw
    async with world.running("bob", ipfs=liar) as bob:
        await bob.api.mirrors.add(wire.MirrorRequest(source=str(cities), as_name="theirs", via="ipfs"))
        mirror = bob.parts.scheduler.get(cities)
        if part != "refs/head":  # which only says where to begin; the signed head says the same
            with trio.fail_after(PATIENCE):
                while not mirror.passes:
                    await mirror.turned.wait()
            assert bob.home.chains.chain(cities).head() is None
            assert mirror.state.value in ("stalled", "refused")
        liar.lie = lambda _path, raw: raw
        bob.parts.scheduler.poke(cities)
        with trio.fail_after(PATIENCE):
            while mirror.state.value != "current":
                bob.parts.scheduler.poke(cities)
                await mirror.turned.wait()
        assert blocks_of(bob, cities) == blocks


async def test_the_key_is_offline_and_the_name_stays(world: World, daemons: Any, tmp_path: Any) -> None:
    kubo = daemons[0]
    async with world.running("alice", ipfs=kubo) as alice:
        cities = await made(world, alice)
        keys: KeyStore = alice.home.keys
        key = keys.dataset_key(cities)
        draft = await alice.api.authority.draft_authority(
            "cities", wire.AuthorityDraftRequest(action="add-writer", key=alice.key)
        )
        change = wire.AuthorityRequest(payload=draft.payload, drop_key=True)
        await alice.api.authority.change_authority("cities", change)
        assert keys.is_offline(cities)
        view = await published(alice)
        node_name = record.name_of(keys.node_key().dataset_id)
        assert (view.name, view.home) == (node_name, record.name_of(cities))
        elsewhere = base64.b64encode(delegate(key, record.name_of(cities), alice.clock.now())).decode()
        with pytest.raises(Invalid, match="not to this node's name"):
            await published(alice, delegation=elsewhere)
        right = base64.b64encode(delegate(key, node_name, alice.clock.now())).decode()
        await published(alice, delegation=right)
    async with world.running("bob", ipfs=daemons[1]) as bob:
        assert (await bob.mirror(cities, "theirs", via="ipfs")).state == "current"


async def test_what_nobody_signed_is_taken_once(world: World, daemons: Any, tmp_path: Any) -> None:
    golden = Path(__file__).parents[1] / "golden" / "kamu" / "flights"
    kubo = daemons[0]
    for file in (path for path in golden.rglob("*") if path.is_file()):
        await kubo.replace(f"/theirs/{file.relative_to(golden)}", file.read_bytes())
    place = f"ipfs://{await kubo.root_of('/theirs')}"
    async with world.running("bob", ipfs=kubo) as bob:
        with pytest.raises(Remote, match="has no signature") as told:
            await bob.added(wire.MirrorRequest(source=place, as_name="f"))
        assert f"odfctl import {place}" in told.value.hint
        taken = await bob.done(bob.api.flow.import_(wire.ImportRequest(source=place, as_name="flights")))
        assert taken.blocks == bob.size("flights")
        with pytest.raises(Refused, match="may be passed on"):
            await bob.done(bob.api.publications.publish(wire.PublishRequest(ref="flights")))


async def test_without_a_kubo_it_says_how(world: World) -> None:
    async with world.running("alice") as alice:
        await made(world, alice)
        for asked in (
            alice.api.publications.publish(wire.PublishRequest(ref="cities")),
            alice.api.mirrors.add(wire.MirrorRequest(source="ipfs://bafkqaaa")),
            alice.api.flow.import_(wire.ImportRequest(source=f"ipns://{KEY}")),
        ):
            with pytest.raises(Refused, match="has no IPFS") as told:
                await asked
            assert "[ipfs] api" in told.value.hint


CID_1, CID_0 = (
    "bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi",
    "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKPbdG",
)
KEY, PEER = record.name_of(DatasetId.from_public_key(bytes(32))), "12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5"


@pytest.mark.parametrize(
    ("place", "rule"),
    [
        *(
            (f"ipfs://{each}", "cid")
            for each in ("", "a/b", "a" * 200, CID_1[:-1], CID_1 + "a", "bafk-x", "hello", "z" * 46)
        ),
        *((f"ipns://{each}", "ipns-name") for each in ("", "k51-x", "k51abc", CID_1, PEER[:-1], "Qm", "é", KEY[:-1])),
    ],
)
def test_places_that_are_none(place: str, rule: str) -> None:
    with pytest.raises(Invalid) as told:
        place_of(place)
    assert told.value.rule == rule


def test_places_of_every_spelling() -> None:
    for name in (CID_1, CID_0):
        assert place_of(f"ipfs://{name}") == place_of(f"/ipfs/{name}/") == f"/ipfs/{name}"
    for name in (KEY, PEER, CID_0):
        assert place_of(f"ipns://{name}/") == place_of(f"/ipns/{name}") == f"/ipns/{name}"
    assert place_of("https://example.org/cities") is None
