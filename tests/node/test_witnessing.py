"""Witnesses among nodes: what is mirrored is cosigned, told, kept, and never contradicted."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from chain import instant
from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import cosignature, envelope, statement
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.keys import SigningKey
from chain.statements.statement import Authority, Roots, Writer
from chain.statements.tree import Frontier
from chain.store.base import leaves_of
from config import model
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.cosignatures import MAX_WITNESSES, Cosignatures
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.proofs import is_disputed
from odfd.store.ledger.resolutions import Resolutions
from odfd.store.mirror_specs import MirrorSpec
from odfd.trust.witness.witness import RENEW, Witness
from p2p.ports import Judgement, PeerId, Tip, Topic
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Node, World

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
PEER = PeerId("12D3KooWPeer")
COSIGNS = model.Policy(publish=model.Publish(cosign=True))


def cosigned(node: Node, dataset: DatasetId) -> list[cosignature.Cosignature]:
    with node.home.database.read() as connection:
        return Cosignatures(connection).of(dataset)


async def test_what_is_mirrored_is_cosigned_and_told(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", COSIGNS) as bob:
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT)
        await alice.pull()
        cities = alice.dataset("cities")
        await world.spread(alice, "cities")
        await bob.mirror(cities, "theirs")
        await bob.heard("cosignature.signed")
        await alice.member.pull_statements(bob.member.peer_id, [cities])
        (made,) = told = cosigned(alice, cities)
        assert (str(made.witness), made.checkpoint.size) == (bob.key, alice.size("cities"))
        assert cosigned(bob, cities) == told
        assert made.checkpoint.root_hash == bob.parts.evaluator.known(cities).head.root_hash
        refs = {ref.sid for ref in alice.parts.board.refs([cities])}
        assert made.id in refs
        assert alice.parts.board.envelope(made.id) == (Topic.HEADS, made.encode())


async def test_of_many_mirrors_only_what_moved_is_looked_at(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", COSIGNS) as bob:
        world.write("alice", "a.csv", *ROWS)
        names = ("cities", "towns")
        await alice.apply(*(ROOT.replace("cities", name) for name in names))
        await alice.pull()
        await world.spread(alice, *names)
        for name in names:
            await bob.mirror(alice.dataset(name), name)
        await bob.heard("cosignature.signed", 2)
        looked: set[DatasetId] = set()
        witnessing = bob.parts.witnessing
        consider = witnessing._consider

        def noted(dataset: DatasetId, how: Any) -> None:
            looked.add(dataset)
            consider(dataset, how)

        witnessing._consider = noted
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        await alice.pull("cities")
        await bob.heard("cosignature.signed", 3)
        assert looked == {alice.dataset("cities")}


async def mirrored(world: World) -> tuple[Any, DatasetId]:
    """A mirror that is not running any more, and its dataset."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT)
        await alice.pull()
        cities = alice.dataset("cities")
        await world.spread(alice, "cities")
        await bob.mirror(cities, "theirs")
    return world.node("bob"), cities


def witness_of(node: Node, now: list[Instant]) -> Witness:
    return Witness(node.home.database, node.home.keys, partial(leaves_of, node.home.chains), lambda: now[0])


async def test_a_tree_is_cosigned_once_and_renewed(world: World) -> None:
    bob, cities = await mirrored(world)
    now = [world.clock.now()]
    witness = witness_of(bob, now)
    first = witness.consider(cities)
    assert first is not None
    assert witness.consider(cities) is None
    now[0] = Instant(now[0] + RENEW + instant.SECOND)
    again = witness_of(bob, now).consider(cities)
    assert again is not None
    assert (again.checkpoint, again.at > first.at) == (first.checkpoint, True)
    assert cosigned(bob, cities) == [again]


async def test_a_witness_never_signs_another_history(world: World) -> None:
    """What was cosigned stands in the database and, for a restored backup, in the journal; both are asked."""
    bob, cities = await mirrored(world)
    now = [world.clock.now()]
    assert witness_of(bob, now).consider(cities) is not None
    with bob.home.database.write() as connection:
        connection.execute("UPDATE trust_witnessed SET root = ?, seal = NULL", (bytes(32),))
    with pytest.raises(Refused, match="not the beginning"):
        witness_of(bob, now).consider(cities)
    with bob.home.database.write() as connection:
        connection.execute("DELETE FROM trust_witnessed")
        connection.execute("DELETE FROM trust_cosignatures")
    origin = f"cosign/{cities}/0"
    last = bob.home.keys.last_signed(bob.home.keys.node_key().did, origin)
    bob.home.keys.note(bob.home.keys.node_key().did, origin, (last.order[0] + 1,), "00")
    with pytest.raises(Refused) as caught:
        witness_of(bob, now).consider(cities)
    assert caught.value.rule == "trust.behind"
    assert cosigned(bob, cities) == []


async def test_a_witness_from_a_backup_goes_on_only_from_what_it_cosigned(world: World) -> None:
    """The journal remembers a tree that the database does not: a larger one must begin with it."""
    bob, cities = await mirrored(world)
    now, key = [world.clock.now()], bob.home.keys.node_key().did
    size = bob.size("theirs")
    bob.home.keys.note(key, f"cosign/{cities}/0", (size - 1,), "00" * 32)
    with pytest.raises(Refused, match="not the beginning") as caught:
        witness_of(bob, now).consider(cities)
    assert caught.value.rule == "trust.behind"
    assert cosigned(bob, cities) == []


async def test_a_witness_believes_its_own_signature_that_others_show(world: World) -> None:
    """Restored with its journal, as a copy of a whole disk is, it hears of what it cosigned since from who was told."""
    bob, cities = await mirrored(world)
    now, size = [world.clock.now()], bob.size("theirs")
    later = TreeCheckpoint(cities, 0, size + 2, b"?" * 32)
    raw = cosignature.cosign(bob.home.keys.node_key(), later, now[0]).encode()
    assert bob.parts.board.judge(Topic.HEADS, raw, PEER) is Judgement.ACCEPT
    with pytest.raises(Refused, match="not the beginning"):
        witness_of(bob, now).consider(cities)
    (kept,) = cosigned(bob, cities)
    assert kept.checkpoint == later


async def test_own_datasets_are_for_others_to_witness(world: World) -> None:
    async with world.running("alice", COSIGNS) as alice:
        await alice.apply(ROOT)
        assert witness_of(alice, [world.clock.now()]).consider(alice.dataset("cities")) is None


async def test_only_sound_cosignatures_of_known_datasets_are_kept(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        board, key, now = alice.parts.board, SigningKey(b"w" * 32), world.clock.now()
        dataset = alice.dataset("cities")

        def hear(size: int, at: Instant = now, of: DatasetId = dataset) -> Judgement:
            made = cosignature.cosign(key, TreeCheckpoint(of, 0, size, b"r" * 32), at)
            return board.judge(Topic.HEADS, made.encode(), PEER)

        assert [hear(5), hear(5), hear(4), hear(6)] == [
            Judgement.ACCEPT, Judgement.IGNORE, Judgement.IGNORE, Judgement.ACCEPT,
        ]  # fmt: skip
        assert hear(9, of=SigningKey(b"o" * 32).dataset_id) is Judgement.IGNORE
        assert hear(9, at=Instant(now + 3600 * instant.SECOND)) is Judgement.IGNORE
        sound = cosignature.cosign(key, TreeCheckpoint(dataset, 0, 7, b"r" * 32), now).encode()
        assert board.judge(Topic.HEADS, sound.replace(b'"size":7', b'"size":8'), PEER) is Judgement.REJECT
        assert board.judge(Topic.ATTEST, sound, PEER) is Judgement.REJECT
        assert [each.checkpoint.size for each in cosigned(alice, dataset)] == [6]


def asks(*keys: str, quorum: int = 0, **more: Any) -> model.Policy:
    groups = tuple(model.Group(name=f"w{number}", keys=(key,)) for number, key in enumerate(keys))
    return model.Policy(witness=model.Witness(quorum=quorum, groups=groups), **more)


async def published(world: World, node: Node) -> DatasetId:
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT)
    await node.pull()
    await world.spread(node, "cities")
    return node.dataset("cities")


async def test_a_newcomer_waits_for_a_quorum_of_witnesses(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", COSIGNS) as bob:
        cities = await published(world, alice)
        async with world.running("carol", asks(bob.key, quorum=1)) as carol:
            await carol.parts.scheduler.add(MirrorSpec(dataset=str(cities), name="theirs"))
            mirror = await carol.parts.scheduler.pass_now(cities)
            assert (carol.size("theirs"), mirror.state.value) == (0, "waiting")
            assert mirror.message == "1 witness must have cosigned a head of it, and 0 did"
            await bob.mirror(cities, "theirs")
            await bob.heard("cosignature.signed")
            (event,) = await carol.heard("cosignature.heard")
            assert (event.message, event.data["size"]) == (f"w0: {alice.size('cities')}", alice.size("cities"))
            with trio.fail_after(PATIENCE):
                while carol.size("theirs") < alice.size("cities"):
                    await carol.parts.scheduler.get(cities).turned.wait()
            assert (await carol.api.trust.show("theirs")).facts.witnessed is True
            assert [each.contact.by for each in await carol.mirrors()] == ["witnesses"]
            assert (await bob.api.trust.show("theirs")).facts.witnessed is False, "bob took what he saw first"
            assert (await alice.api.trust.show("cities")).facts.witnessed is None


async def test_what_is_relied_on_ends_where_witnesses_end(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", COSIGNS) as bob:
        cities = await published(world, alice)
        async with world.running("carol", asks(bob.key, use="data & witnessed:1")) as carol:
            assert carol.parts.policy.notes == ()
            await carol.mirror(cities, "theirs")
            shown = await carol.api.trust.show("theirs")
            assert (shown.reach.use, shown.why.rule, shown.facts.witnessed) == (0, "witnessed", False)
            await bob.mirror(cities, "theirs")
            await bob.heard("cosignature.signed")
            await carol.member.pull_statements(bob.member.peer_id, [cities])
            size = alice.size("cities")
            assert (await carol.api.trust.show("theirs")).reach.use == size
            world.wires.cut.add(bob.member.peer_id)
            world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
            await alice.pull("cities")
            await carol.heard_head(size + 1)
            await carol.parts.scheduler.pass_now(cities)
            shown = await carol.api.trust.show("theirs")
            assert (shown.blocks, shown.reach.use, shown.why.rule, shown.why.block) == (
                size + 1,
                size,
                "witnessed",
                size,
            )
            world.clock.instant += 8 * 86400 * instant.SECOND
            assert (await carol.api.trust.show("theirs")).reach.use == 0, "a cosignature ages"


def another_history(node: Node, dataset: DatasetId) -> bytes:
    """A head by the dataset's stolen key, of other blocks, larger and younger than all."""
    with node.home.database.read() as connection:
        newest = Ledger(connection).newest_head(dataset)
    later = statement.when(Instant(node.clock.now() + 60 * instant.SECOND))
    said = msgspec.structs.replace(newest[0], size=newest[0].size + 1, root_hash=b"?" * 32, issued_at=later)
    return envelope.seal(statement.encode(said), node.home.keys.dataset_key(dataset))


@pytest.mark.parametrize("rung", ["witnessed", "expected"])
async def test_eclipse_never_deceives(world: World, rung: str) -> None:
    """A newcomer is shown only what the eclipser likes: nothing false is taken, and honest contact ends it."""
    async with world.running("alice") as alice, world.running("bob", COSIGNS) as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")
        await bob.heard("cosignature.signed")
        false, honest = another_history(alice, cities), {alice.member.peer_id, bob.member.peer_id}
        world.wires.cut.update(honest)
        expect = str(alice.home.chains.chain(cities).block_at(1).hash) if rung == "expected" else None
        async with world.running("carol", asks(bob.key, quorum=1)) as carol:
            assert carol.parts.board.judge(Topic.HEADS, false, PEER) is Judgement.ACCEPT
            await carol.parts.scheduler.add(MirrorSpec(dataset=str(cities), name="theirs", expect=expect))
            await carol.parts.scheduler.pass_now(cities)
            assert carol.size("theirs") == 0
            world.wires.cut.clear()
            for peer in sorted(honest):
                await carol.member.pull_statements(peer, [cities])
            await carol.parts.scheduler.pass_now(cities)
            if rung == "witnessed":
                assert carol.size("theirs") == alice.size("cities")
                assert (await carol.api.trust.show("theirs")).facts.witnessed is True
            else:
                assert carol.size("theirs") == 0, "what the thief signed last is the newest: it delays"


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "met"), [((1, 2, 3), "networks"), ((1, 2, 2), "first-sight")])
async def test_three_networks_that_show_the_same_are_told(world: World, blocks: tuple[int, ...], met: str) -> None:
    """A newcomer who knows no hash and no witness; peers of one network stand for one."""
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("dora") as dora:
        cities = await published(world, alice)
        for node, block in zip((alice, bob, dora), blocks, strict=True):
            node.member.block = f"10.{block}.0.0/16"
        for node in (bob, dora):
            await node.mirror(cities, "theirs")
        async with world.running("carol") as carol:
            await carol.mirror(cities, "theirs")
            facts = (await carol.api.trust.show("theirs")).facts
            assert (facts.met, facts.witnessed) == (met, None if met == "networks" else False)
            by = {"networks": "networks", "first-sight": "first-use"}[met]
            (mirror,) = await carol.mirrors()
            assert (mirror.contact.by, bool(mirror.contact.advice)) == (by, by == "first-use")
            network = await carol.api.networks.state("wires")
            assert [each.contact.by for each in network.datasets] == [by]
            assert (network.contact.by, network.contact.met) == ("addresses", {by: 1})
            assert network.contact.address_blocks == len(set(blocks))
            assert len(network.contact.advice) == (0 if by == "networks" else 2)
        assert (await alice.api.trust.show("cities")).facts.met is None


@pytest.mark.slow
async def test_a_newcomer_among_peers_of_one_network_looks_for_others(world: World) -> None:
    """It is connected with one alone, and was told of two elsewhere: it meets them before it says how it was met."""
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("dora") as dora:
        cities = await published(world, alice)
        for node, block in zip((alice, bob, dora), (1, 2, 3), strict=True):
            node.member.block = f"10.{block}.0.0/16"
        for node in (bob, dora):
            await node.mirror(cities, "theirs")
        async with world.running("carol") as carol:
            carol.member.strangers = {bob.member.peer_id, dora.member.peer_id}
            await carol.mirror(cities, "theirs")
            assert (await carol.api.trust.show("theirs")).facts.met == "networks"
            assert not carol.member.strangers
        async with world.running("erna") as erna:
            erna.member.strangers = {bob.member.peer_id, dora.member.peer_id}
            expect = str(alice.home.chains.chain(cities).block_at(0).hash)
            await erna.heard_head(alice.size("cities"))
            await erna.mirror(cities, "theirs", expect=expect)
            assert [each.contact.by for each in await erna.mirrors()] == ["hash"]
            assert len(erna.member.strangers) == 2, "who learned a hash elsewhere asks nobody"


@pytest.mark.slow
async def test_who_shows_another_chain_is_no_network(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("dora") as dora:
        cities = await published(world, alice)
        for node, block in zip((alice, bob, dora), (1, 2, 3), strict=True):
            node.member.block = f"10.{block}.0.0/16"
        for node in (bob, dora):
            await node.mirror(cities, "theirs")
        async with world.running("carol") as carol:
            last = carol.member._other(alice.member.peer_id).library.blocks(cities, alice.size("cities") - 1, 1)[0]
            tip = Tip(alice.size("cities"), Multihash.sha3_256(last).digest)
            peers = [node.member.peer_id for node in (alice, bob, dora)]
            holders = carol.parts.scheduler._sync._holders
            assert await holders.networks(peers, cities, tip, 3) == 3
            other = msgspec.structs.replace(tip, last=bytes(32))
            assert await holders.networks(peers, cities, other, 0) == 0


@pytest.mark.slow
async def test_strangers_leave_room_for_witnesses_that_count(world: World) -> None:
    key = SigningKey(b"w" * 32)
    async with world.running("alice", asks(str(key.did))) as alice:
        await alice.apply(ROOT)
        tree = TreeCheckpoint(alice.dataset("cities"), 0, 1, b"r" * 32)
        strangers = [SigningKey(number.to_bytes(32, "big")) for number in range(1, MAX_WITNESSES + 2)]
        judged = [
            alice.parts.board.judge(Topic.HEADS, cosignature.cosign(each, tree, world.clock.now()).encode(), PEER)
            for each in [*strangers, key]
        ]
        assert judged[-2:] == [Judgement.IGNORE, Judgement.ACCEPT]
        assert len(cosigned(alice, tree.dataset)) == MAX_WITNESSES + 1


def version_of(node: Node, dataset: DatasetId, writer: bytes) -> bytes:
    """A first version of the authority, signed by the dataset's key; two of them contradict each other."""
    key, until = node.home.keys.dataset_key(dataset), "2026-06-01T00:00:00Z"
    said = Authority(
        dataset=dataset,
        version=1,
        issued_at=statement.when(node.clock.now()),
        roots=Roots(threshold=1, keys=(key.did,)),
        writers=tuple(Writer(key=each, expires_at=until) for each in (key.did, SigningKey(writer).did)),
        head=node.home.chains.chain(dataset).block_at(0).hash,
    )
    return envelope.seal(statement.encode(said), key)


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1)])
async def test_witnesses_decide_between_two_versions_for_a_newcomer(world: World, order: tuple[int, ...]) -> None:
    """Bob saw the other version first and cosigned it; Carol holds nothing yet, Dave holds blocks and asks."""
    async with world.running("alice") as alice, world.running("bob", COSIGNS) as bob:
        cities = await published(world, alice)
        one, other = (version_of(alice, cities, bytes([number]) * 32) for number in (1, 2))
        await bob.mirror(cities, "theirs")
        assert bob.parts.board.judge(Topic.HEADS, other, PEER) is Judgement.ACCEPT
        await bob.heard("cosignature.signed", 2)
        (made,) = [each for each in cosigned(bob, cities) if each.checkpoint.epoch is None]
        assert (made.checkpoint.size, made.checkpoint.origin) == (1, f"{cities}/authority")
        bob.parts.board.judge(Topic.HEADS, one, PEER)
        assert witness_of(bob, [world.clock.now()]).consider_authority(cities) is None, "while it is disputed"
        head = alice.parts.board.envelope(alice.parts.board.refs([cities])[0].sid)
        for name, policy, settled in (
            ("carol", asks(bob.key, quorum=1), True),
            ("dave", asks(bob.key, quorum=1), False),
            ("erin", asks(bob.key), False),
        ):
            node = world.node(name, policy)
            node.parts.board.judge(*head, PEER)
            if name == "dave":
                with node.home.database.write() as connection:
                    Ledger(connection).keep_chain(cities, CheckedChain(Frontier().extend([b"x" * 32]), 1))
            for each in order:
                node.parts.board.judge(Topic.HEADS, (one, other, made.encode())[each], PEER)
            with node.parts.board.attend(cities), node.home.database.read() as connection:
                rights = Authorities(connection).rights(cities)
                disputed = is_disputed(connection, cities, rights)
                decided = Resolutions(connection).of(cities).version(1)
            chosen = envelope.unseal(other, statement.MAX_ANY).sid
            assert (disputed, decided) == (not settled, chosen if settled else None), name
            if settled:
                assert rights.sid == chosen
