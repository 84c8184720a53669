"""Witnesses among nodes, of what they mirror and of what they do not, and public ones that are asked."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import msgspec
import pytest
import trio
from trio.testing import MockClock

from chain import instant
from chain.errors import Invalid, Refused, Remote
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.multihash import Multihash
from chain.statements import checkpoint, cosignature, envelope, statement, submission
from chain.statements.checkpoint import COSIGNATURE_KEY, TreeCheckpoint
from chain.statements.keys import SigningKey
from chain.statements.statement import Authority, HeadStatement, Roots, Writer
from chain.statements.submission import MAX_SUBMISSION
from chain.statements.tree import Frontier
from chain.store.base import leaves_of
from config import model
from config.load import cross
from odfd.control import wire
from odfd.policy.policy import policy_of
from odfd.policy.witness_quorum import read_witness
from odfd.services.trust.witness_submission import PAUSE, ROUND_SECONDS, WitnessSubmission
from odfd.services.trust.witnessing import RETRY_SECONDS, WitnessEvents, Witnessing, WitnessRequest
from odfd.site.application import SUBMIT
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.cosignatures import MAX_WITNESSES, Cosignatures
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.proofs import is_disputed
from odfd.store.ledger.resolutions import Resolutions
from odfd.store.mirror_specs import MirrorSpec
from odfd.trust.witness.submission import LONGEST, SOON
from odfd.trust.witness.witness import RENEW, ConsistencyResult, CosignRequest, KnownTree, Witness, rule, shown_by
from p2p.driver import mesh
from p2p.ports import Judgement, PeerId, Tip, Topic, TreeRoot
from p2p.web.client import HttpAnswer, Posts
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Lines, Node, World, until

# Witnesses among nodes: what is mirrored is cosigned, told, kept, and never contradicted.


ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
PEER = PeerId("12D3KooWPeer")
COSIGNS = model.Policy(publish=model.Publish(cosign=True))


def cosigned(node: Node, dataset: DatasetId) -> list[cosignature.Cosignature]:
    with node.home.database.read() as connection:
        return Cosignatures(connection).of(dataset)


async def test_what_is_mirrored_is_cosigned_and_told(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", COSIGNS) as bob:
        await alice.take_in(ROOT, files={"a.csv": ROWS})
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
        await alice.take_in(files={"b.csv": ["2024-01-03T00:00:00Z,Wels,60000"]}, pulls=["cities"])
        await bob.heard("cosignature.signed", 3)
        assert looked == {alice.dataset("cities")}


async def mirrored(world: World) -> tuple[Any, DatasetId]:
    """A mirror that is not running any more, and its dataset."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.take_in(ROOT, files={"a.csv": ROWS})
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
    """Attack T-HEAD-06: a witness that signs two histories.

    Defence: a cosignature is compared with earlier ones, stored and journalled before it is sent.

    What was cosigned stands in the database and, for a restored backup, in the journal; both are asked.
    """
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
    """Attack T-KEY-01: a witness that restores an old database.

    Defence: a new tree must extend the last one in the journal, whatever the database contains.

    The journal remembers a tree that the database does not: a larger one must begin with it.
    """
    bob, cities = await mirrored(world)
    now, key = [world.clock.now()], bob.home.keys.node_key().did
    size = bob.size("theirs")
    bob.home.keys.note(key, f"cosign/{cities}/0", (size - 1,), "00" * 32)
    with pytest.raises(Refused, match="not the beginning") as caught:
        witness_of(bob, now).consider(cities)
    assert caught.value.rule == "trust.behind"
    assert cosigned(bob, cities) == []


async def test_a_witness_believes_its_own_signature_that_others_show(world: World) -> None:
    """Attack T-KEY-01: a witness whose whole disk was restored from an older copy.

    Defence: its own cosignatures come back from other nodes, and bind it.

    Restored with its journal, as a copy of a whole disk is, it hears of what it cosigned since from who was told.
    """
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
            world.wires.cut(bob.member.peer_id)
            await alice.take_in(files={"b.csv": ["2024-01-03T00:00:00Z,Wels,60000"]}, pulls=["cities"])
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
    """Attack T-HEAD-07: eclipse of a newcomer.

    Defence: `mirror add --expect HASH`, or a head cosigned by a quorum of witnesses, turns an eclipse into a delay;
    without either the dataset is shown as unwitnessed.

    A newcomer is shown only what the eclipser likes: nothing false is taken, and honest contact ends it.
    """
    async with world.running("alice") as alice, world.running("bob", COSIGNS) as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")
        await bob.heard("cosignature.signed")
        false, honest = another_history(alice, cities), {alice.member.peer_id, bob.member.peer_id}
        world.wires.cut(*honest)
        expect = str(alice.home.chains.chain(cities).block_at(1).hash) if rung == "expected" else None
        async with world.running("carol", asks(bob.key, quorum=1)) as carol:
            assert carol.parts.board.judge(Topic.HEADS, false, PEER) is Judgement.ACCEPT
            await carol.parts.scheduler.add(MirrorSpec(dataset=str(cities), name="theirs", expect=expect))
            await carol.parts.scheduler.pass_now(cities)
            assert carol.size("theirs") == 0
            world.wires.heal()
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
    """Attack T-HEAD-07: eclipse of a newcomer without a hash or witnesses.

    Defence: the first chain seen is taken; it is shown as unwitnessed until peers in three networks (a /16 or /32 each,
    by the addresses of their connections) show the same chain.

    A newcomer who knows no hash and no witness; peers of one network stand for one.
    """
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("dora") as dora:
        cities = await published(world, alice)
        for node, block in zip((alice, bob, dora), blocks, strict=True):
            node.member.move(f"10.{block}.0.1")
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
async def test_a_newcomer_among_peers_of_one_network_looks_for_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-HEAD-07: a newcomer whose first peers are all in one network.

    Defence: peers of the dataset in other networks are looked for, one of each, before first contact is reported.

    It is connected with one alone, and was told of two elsewhere: it meets them before it says how it was met.
    """
    monkeypatch.setattr(mesh, "GROW", 3600.0)  # nobody dials but for a dataset
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("dora") as dora:
        cities = await published(world, alice)
        for node, block in zip((alice, bob, dora), (1, 2, 3), strict=True):
            node.member.move(f"10.{block}.0.1")
        for node in (bob, dora):
            await node.mirror(cities, "theirs")
            node.member.driver.look_again()  # as it does by itself before long
        others = [bob.member.peer_id, dora.member.peer_id]
        await until(lambda: alice.member.serving([cities]).get(cities) == set(others))
        world.wires.hide(*others)
        async with world.running("carol") as carol:
            await carol.mirror(cities, "theirs")
            assert (await carol.api.trust.show("theirs")).facts.met == "networks"
            assert all(world.wires.are_linked(carol.member.peer_id, each) for each in others)
        async with world.running("erna") as erna:
            expect = str(alice.home.chains.chain(cities).block_at(0).hash)
            await erna.heard_head(alice.size("cities"))
            await erna.mirror(cities, "theirs", expect=expect)
            assert [each.contact.by for each in await erna.mirrors()] == ["hash"]
            linked = [each for each in others if world.wires.are_linked(erna.member.peer_id, each)]
            assert linked == [], "who learned a hash elsewhere asks nobody"


@pytest.mark.slow
async def test_who_shows_another_chain_is_no_network(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("dora") as dora:
        cities = await published(world, alice)
        for node, block in zip((alice, bob, dora), (1, 2, 3), strict=True):
            node.member.move(f"10.{block}.0.1")
        for node in (bob, dora):
            await node.mirror(cities, "theirs")
        async with world.running("carol") as carol:
            last = alice.parts.library.blocks(cities, alice.size("cities") - 1, 1)[0]
            tip = Tip(alice.size("cities"), Multihash.sha3_256(last).digest)
            peers = [node.member.peer_id for node in (alice, bob, dora)]
            holders = carol.parts.scheduler._sync._holders
            assert await holders.networks(peers, cities, tip, 3) == 3
            other = msgspec.structs.replace(tip, last=bytes(32))
            assert await holders.networks(peers, cities, other, 0) == 0


@pytest.mark.slow
async def test_strangers_leave_room_for_witnesses_that_count(world: World) -> None:
    """Attack T-HEAD-06: cosignatures by unlisted keys.

    Defence: at most 64 for a dataset; listed witnesses have a reserve.
    """
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
    """Attack T-HEAD-05: two versions of one authority, shown to a newcomer.

    Defence: the version cosigned by a quorum of witnesses is followed; without a quorum neither is followed, and the
    operator decides.

    Bob saw the other version first and cosigned it; Carol holds nothing yet, Dave holds blocks and asks.
    """
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


# A node that cosigns what it does not mirror: it asks whoever holds the blocks, and believes nobody.


MORE = "2024-01-03T00:00:00Z,Wels,60000"


def attends(*datasets: DatasetId) -> model.Policy:
    return model.Policy(publish=model.Publish(witness=tuple(map(str, datasets))))


def newest(node: Node, dataset: DatasetId) -> HeadStatement | None:
    with node.home.database.read() as connection:
        found = Ledger(connection).newest_head(dataset)
    return found[0] if found else None


async def publish_unspread(world: World, node: Node) -> DatasetId:
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT)
    await node.pull()
    dataset: DatasetId = node.dataset("cities")
    return dataset


def told(node: Node) -> list[str]:
    """Rules by which it did not cosign."""
    return [str(values["rule"]) for said, values in node.logger.said if said == "not cosigned"]


async def test_a_witness_that_mirrors_nothing_lets_a_newcomer_in(world: World) -> None:
    """The second rung of the ladder, by a node without a block of the dataset."""
    async with world.running("alice") as alice:
        cities = await publish_unspread(world, alice)
        async with world.running("witness", attends(cities)) as witness, world.running(
            "carol", asks(witness.key, quorum=1)
        ) as carol:  # fmt: skip
            await witness.heard("cosignature.signed")
            await alice.take_in(files={"b.csv": [MORE]}, pulls=["cities"])
            first, second = await witness.heard("cosignature.signed", 2)
            assert second.data["size"] == alice.size("cities") > first.data["size"]
            (made,) = cosigned(witness, cities)
            head = newest(alice, cities)
            assert head is not None
            assert (made.checkpoint.size, made.checkpoint.root_hash) == (head.size, head.root_hash)
            assert witness.home.chains.datasets() == []
            await carol.parts.scheduler.add(MirrorSpec(dataset=str(cities), name="theirs"))
            with trio.fail_after(PATIENCE):
                while carol.size("theirs") < alice.size("cities"):
                    await carol.parts.scheduler.get(cities).turned.wait()
            assert (await carol.api.trust.show("theirs")).facts.met == "witnessed"


async def look(witnessing: Witnessing) -> float:
    """A round of ours, beside those of the node."""
    witnessing.loop.touch_all()
    return await witnessing._round()


async def test_what_nobody_can_prove_waits(world: World) -> None:
    """Silent, gone or refusing: nothing is cosigned, and it is asked again."""
    async with world.running("alice") as alice:
        cities = await publish_unspread(world, alice)
        async with world.running("witness", attends(cities)) as witness:
            (first,) = await witness.heard("cosignature.signed")
            prove = witness.member.driver.prove_prefix

            async def nobody(*_: Any) -> bool:
                raise Remote("no peer proves it", rule="prove")

            witness.member.driver.prove_prefix = nobody
            await alice.take_in(files={"b.csv": [MORE]}, pulls=["cities"])
            await witness.heard_head(alice.size("cities"))
            witnessing = witness.parts.witnessing
            assert await look(witnessing) == RETRY_SECONDS
            assert set(told(witness)) == {"prove"}
            assert [each.checkpoint.size for each in cosigned(witness, cities)] == [first.data["size"]]
            witness.member.driver.prove_prefix = prove
            await look(witnessing)
            assert [each.checkpoint.size for each in cosigned(witness, cities)] == [alice.size("cities")]


async def test_a_false_proof_moves_no_witness_and_both_heads_are_told(world: World) -> None:
    """Attack T-HEAD-06: peers that send a witness false proofs or none.

    Defence: the witness waits; if no proof joins two heads, it gossips both.

    A provider that lies is no offender by that alone, for it may hold another history; but nothing is cosigned.
    """
    async with world.running("alice") as alice:
        cities = await publish_unspread(world, alice)
        async with world.running("witness", attends(cities)) as witness:
            (first,) = await witness.heard("cosignature.signed")
            before = newest(witness, cities)
            alice.member.library.prove = lambda *_, **__: [b"?" * 32] * 3
            await alice.take_in(files={"b.csv": [MORE]}, pulls=["cities"])
            (refused,) = await witness.heard("cosignature.refused")
            assert refused.data["size"] == alice.size("cities")
            assert [each.checkpoint.size for each in cosigned(witness, cities)] == [first.data["size"]]
            assert "trust.unproven" in told(witness)
            again = [kind for kind in witness.kinds() if kind == "cosignature.refused"]
            await look(witness.parts.witnessing)
            assert [kind for kind in witness.kinds() if kind == "cosignature.refused"] == again, "told once"
            assert before is not None
            assert before.size == first.data["size"]
            del alice.member.library.prove
            await look(witness.parts.witnessing)
            assert [each.checkpoint.size for each in cosigned(witness, cities)] == [alice.size("cities")]


@pytest.mark.slow
async def test_a_split_that_a_witness_sees_is_proven_by_those_who_hold_it(world: World) -> None:
    """Attack T-HEAD-06: a split view that only a witness observes.

    Defence: it gossips both heads, and nodes with the blocks prove the fork.

    The thief shows his branch to the witness, which had cosigned the owner's: both heads meet where blocks are.
    """
    async with world.running("alice") as alice:
        cities = await publish_unspread(world, alice)
    world.steal("alice", "mallory", b"m" * 32)
    async with world.running("alice") as alice, world.running("witness", attends(cities)) as witness:
        await witness.heard("cosignature.signed")
        await alice.take_in(files={"b.csv": [MORE]}, pulls=["cities"])
        await witness.heard("cosignature.signed", 2)
        world.wires.cut(alice.member.peer_id, witness.member.peer_id)
        async with world.running("mallory") as mallory:
            await mallory.sign_again(alone=True)
            for number, day in enumerate((4, 5)):
                world.write("alice", f"c{number}.csv", f"2024-01-0{day}T00:00:00Z,Steyr,38000")
                await mallory.pull("cities")
            world.wires.heal(witness.member.peer_id)
            await witness.member.pull_statements(mallory.member.peer_id, [cities])
            await witness.heard("cosignature.refused")
            world.wires.heal()
            await alice.member.pull_statements(witness.member.peer_id, [cities])
            await alice.heard("dataset.forked")
            await witness.heard("dataset.forked")
            await look(witness.parts.witnessing)
            assert "trust.forked" in told(witness)
            assert [each.checkpoint.size for each in cosigned(witness, cities)] == [alice.size("cities")]


async def test_each_epoch_is_an_origin_that_begins_with_what_is_kept(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await publish_unspread(world, alice)
        await alice.take_in(files={"b.csv": [MORE]}, pulls=["cities"])
        async with world.running("witness", attends(cities)) as witness:
            await witness.heard("cosignature.signed")
            asked: list[tuple[int, int]] = []
            prove = witness.member.driver.prove_prefix

            async def proving(peers: Any, dataset: DatasetId, old: TreeRoot, signed: TreeRoot) -> bool:
                asked.append((old.size, signed.size))
                return bool(await prove(peers, dataset, old, signed))

            witness.member.driver.prove_prefix = proving
            await alice.done(alice.api.rewriting.rewrite("cities", wire.RewriteRequest(action="compact")))
            with trio.fail_after(PATIENCE):
                count = 1
                while f"{cities}/1" not in {each.checkpoint.origin for each in cosigned(witness, cities)}:
                    count += 1
                    await witness.heard("cosignature.signed", count)
            with alice.home.database.read() as connection:
                opened = Authorities(connection).rights(cities).opened(1)
            assert opened is not None
            assert asked == [(opened.base.size, alice.size("cities"))]


async def test_the_log_of_who_may_write_is_cosigned_without_asking(world: World) -> None:
    """All its versions come as statements, so there is nothing to prove."""
    async with world.running("alice") as alice:
        cities = await publish_unspread(world, alice)
        async with world.running("witness", attends(cities)) as witness:
            await witness.heard("cosignature.signed")
            key = alice.home.keys.dataset_key(cities)
            said = Authority(
                dataset=cities,
                version=1,
                issued_at=statement.when(world.clock.now()),
                roots=Roots(threshold=1, keys=(key.did,)),
                writers=(Writer(key=key.did, expires_at="2026-06-01T00:00:00Z"),),
                head=alice.home.chains.chain(cities).block_at(0).hash,
            )
            witness.parts.board.judge(Topic.HEADS, envelope.seal(statement.encode(said), key), alice.member.peer_id)
            await witness.heard("cosignature.signed", 2)
            origins = {each.checkpoint.origin: each.checkpoint.size for each in cosigned(witness, cities)}
            assert origins == {f"{cities}/0": alice.size("cities"), f"{cities}/authority": 1}


def test_a_policy_names_what_it_attends() -> None:
    with pytest.raises(Invalid, match=r"publish\.witness"):
        policy_of(model.Policy(publish=model.Publish(witness=("nyc.flights",))))


class Patient:
    """A witness of two datasets whose heads need a proof."""

    def __init__(self) -> None:
        self.settled: list[DatasetId] = []

    def consider(self, _dataset: DatasetId) -> None: ...

    consider_authority = consider

    def question(self, dataset: DatasetId) -> CosignRequest:
        return CosignRequest(
            tree=TreeCheckpoint(dataset, 0, 9, b"n" * 32), old=KnownTree(5, b"o" * 32), head=b"{}", kept=None
        )

    def settle(self, asked: CosignRequest) -> None:
        self.settled.append(asked.tree.dataset)


async def test_silent_peers_of_one_dataset_keep_no_other_waiting(autojump_clock: MockClock) -> None:
    """Attack T-HEAD-06: peers that never answer a witness.

    Defence: a time limit of one minute for a head; eight datasets at a time.
    """
    silent, other = SigningKey(b"s" * 32).dataset_id, SigningKey(b"o" * 32).dataset_id
    witness, journal = Patient(), Lines()
    proven = trio.Event()

    class Network:
        async def of(self, *_: Any) -> list[str]:
            return ["peer"]

        async def prove_prefix(self, _peers: Any, dataset: DatasetId, *_: Any) -> bool:
            if dataset == silent:
                await trio.sleep_forever()
            proven.set()
            return True

    network: Any = Network()
    made = Witnessing(
        Nothing(), witness, lambda: WitnessRequest(True, [silent, other]), network, network,  # type: ignore[arg-type]
        WitnessEvents(lambda _: None, lambda _: None), journal,
    )  # fmt: skip
    assert await made._round() == RETRY_SECONDS
    assert (proven.is_set(), witness.settled) == (True, [other])
    assert [(said, values["rule"]) for said, values in journal.said] == [("not cosigned", "prove")]


class Nothing:
    def datasets(self) -> list[DatasetId]:
        return []


# Public witnesses: asked after each head; what they sign is kept, spread, and counted by whoever lists them.


NAME = "witness.example/w1"
KEY = SigningKey(b"p" * 32)
VKEY = checkpoint.verifier_key(NAME, COSIGNATURE_KEY, KEY.public)
URL = "https://witness.example"
LISTS = model.Policy(witness=model.Witness(quorum=1, groups=(model.Group(name="w1", keys=(VKEY,)),)))


class Public:
    """A public witness by the book: it knows what it was shown, and answers by the rules of tlog-witness."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.last: dict[str, KnownTree] = {}
        self.asked: list[tuple[str, int, int]] = []
        self.answers: list[HttpAnswer | Remote] = []
        """What it says before it does its duty."""

    async def post(self, url: str, body: bytes, limit: int) -> HttpAnswer:
        assert limit == submission.MAX_ANSWER
        read = submission.decode(body)
        self.asked.append((url, read.old, read.tree.size))
        if self.answers:
            said = self.answers.pop(0)
            if isinstance(said, Remote):
                raise said
            return said
        new, known = KnownTree(read.tree.size, read.tree.root_hash), self.last.get(read.tree.origin)
        ruling = rule([known] if known else [], read.old, new, shown_by(read.proof, read.old, new))
        if ruling is ConsistencyResult.CONFLICT:
            return HttpAnswer(409, f"{known.size if known else 0}\n".encode())
        if ruling is not ConsistencyResult.COSIGN:
            return HttpAnswer(422, b"no\n")
        self.last[read.tree.origin] = new
        made = checkpoint.decode_line(cosignature.cosign(KEY, read.tree, self.clock.now()).line).data
        return HttpAnswer(200, cosignature.line_of(checkpoint.decode_verifier_key(VKEY), made).encode())


class Bench:
    """A publisher's submissions, a round at a time, before a witness of the test's own."""

    def __init__(self, world: World, node: Node, dataset: DatasetId) -> None:
        self.world, self.node, self.dataset = world, node, dataset
        self.public = Public(world.clock)
        self.files = 0
        self.start()

    def start(self) -> None:
        """Anew, as after a restart: nothing is remembered but the database."""
        parts = self.node.parts
        made = self.node.submissions()
        self.made = WitnessSubmission(
            made._home, lambda: (read_witness(f"{VKEY} {URL}"),), self.world.clock, made._cosigned,
            parts.context.logger, self.public,
        )  # fmt: skip

    async def round(self, after: float = PAUSE) -> float:
        self.world.clock.instant += int(after * SECOND)
        self.made.loop.touch(self.dataset)
        return await self.made._round()

    async def grow(self) -> int:
        self.files += 1
        self.world.write("alice", f"b{self.files}.csv", f"2024-02-0{self.files}T00:00:00Z,Wels,{self.files}")
        await self.node.pull("cities")
        return int(self.node.size("cities"))

    @property
    def sizes(self) -> list[tuple[int, int]]:
        return [(old, new) for _, old, new in self.public.asked]

    @property
    def troubles(self) -> list[str]:
        return [str(values["why"]) for said, values in self.node.logger.said if said.startswith("a public witness")]


async def bench_of(world: World, alice: Node) -> Bench:
    await alice.take_in(ROOT, files={"a.csv": ROWS})
    return Bench(world, alice, alice.dataset("cities"))


async def test_each_head_is_submitted_and_its_cosignature_spreads(world: World) -> None:
    """A newcomer elsewhere who lists the witness by its public name comes in on the second rung."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        bench = await bench_of(world, alice)
        first = alice.size("cities")
        await bench.round()
        await bench.round()
        second = await bench.grow()
        await bench.round()
        assert bench.public.asked == [(f"{URL}/add-checkpoint", 0, first), (f"{URL}/add-checkpoint", first, second)]
        (made,) = cosigned(alice, bench.dataset)
        assert (made.witness, made.checkpoint.size) == (KEY.did, second)
        await bob.parts.scheduler.add(MirrorSpec(dataset=str(bench.dataset), name="theirs"))
        with trio.fail_after(PATIENCE):
            while cosigned(bob, bench.dataset) != [made]:
                await bob.member.pull_statements(alice.member.peer_id, [bench.dataset])
        async with world.running("carol", LISTS) as carol:
            await carol.parts.scheduler.add(MirrorSpec(dataset=str(bench.dataset), name="theirs"))
            await carol.parts.scheduler.pass_now(bench.dataset)
            assert (await carol.api.trust.show("theirs")).facts.met == "witnessed"


async def test_a_publisher_that_lost_its_cosignatures_learns_where_the_witness_stands(world: World) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        await bench.round()
        first = alice.size("cities")
        with alice.home.database.write() as connection:
            connection.execute("DELETE FROM trust_cosignatures")
        second = await bench.grow()
        bench.start()
        await bench.round()
        assert bench.sizes == [(0, first), (0, second), (first, second)]
        assert [each.checkpoint.size for each in cosigned(alice, bench.dataset)] == [second]


async def test_nobody_is_asked_oftener_than_the_pause(world: World) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        assert await bench.round() <= PAUSE
        await bench.grow()
        await bench.grow()
        await bench.round(after=PAUSE / 2)
        assert len(bench.sizes) == 1
        await bench.round(after=PAUSE / 2)
        assert [new for _, new in bench.sizes] == [alice.size("cities") - 2, alice.size("cities")], "the last alone"


async def test_a_cosignature_that_ages_is_made_anew(world: World) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        await bench.round()
        (first,) = cosigned(alice, bench.dataset)
        await bench.round(after=RENEW / SECOND)
        (again,) = cosigned(alice, bench.dataset)
        size = alice.size("cities")
        assert bench.sizes == [(0, size), (size, size)]
        assert (again.checkpoint, again.at > first.at) == (first.checkpoint, True)


async def test_a_witness_that_is_away_is_asked_ever_later(world: World) -> None:
    """And told of once; when it is back it is asked again."""
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        away = Remote("nothing in 30 s", rule="web-slow")
        bench.public.answers = [away] * 12
        pause = SOON
        for count in range(1, 12):
            await bench.round(after=0)
            assert len(bench.sizes) == count
            await bench.round(after=pause * 0.9)
            assert len(bench.sizes) == count, "not before the pause is over"
            world.clock.instant += int(pause * 0.1 * SECOND)
            pause = min(2 * pause, LONGEST)
        assert bench.troubles == [str(away)]
        await bench.round(after=LONGEST)
        await bench.round(after=LONGEST)
        assert [each.checkpoint.size for each in cosigned(alice, bench.dataset)] == [alice.size("cities")]


async def test_one_that_is_away_is_not_asked_for_every_dataset(world: World) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        await alice.apply(ROOT.replace("cities", "towns"))
        bench.public.answers = [Remote("nothing in 30 s", rule="web-slow")]
        await bench.round()
        assert len(bench.sizes) == 1
        bench.public.answers = [HttpAnswer(404, b"unknown log")]
        await bench.round(after=SOON)
        assert len(bench.sizes) == 3, "one that refuses a log may know another"
        (told,) = [text for text in bench.troubles if "does not know this log" in text]
        keys = [str(values.get("log_key")) for said, values in alice.logger.said if said.startswith("a public")]
        assert any(f"+{checkpoint.decode_verifier_key(key).key_id.hex()}+" in key for key in keys), told


async def test_of_many_datasets_only_what_moved_is_looked_at(world: World, monkeypatch: Any) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        await alice.apply(ROOT.replace("cities", "towns"))
        looked: list[DatasetId] = []
        due = bench.made._due
        monkeypatch.setattr(bench.made, "_due", lambda dataset, who: (looked.append(dataset), due(dataset, who))[1])
        await bench.round()
        assert set(looked) == {alice.dataset("cities"), alice.dataset("towns")}
        looked.clear()
        await bench.round()
        assert looked == [alice.dataset("cities")]
        looked.clear()
        await bench.round(after=ROUND_SECONDS)
        assert len(looked) == 2, "what ages is renewed"


async def test_garbage_is_kept_nowhere(world: World) -> None:
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        other = cosignature.cosign(KEY, TreeCheckpoint(bench.dataset, 0, 1, b"?" * 32), world.clock.now())
        early = cosignature.cosign(KEY, TreeCheckpoint(bench.dataset, 0, 1, b"?" * 32), Instant(world.clock.now() * 2))
        for body in (b"", b"\xff" * 100, other.line.encode(), early.line.encode()):
            bench.public.answers = [HttpAnswer(200, body)]
            await bench.round(after=LONGEST)
        assert cosigned(alice, bench.dataset) == []
        assert len(bench.sizes) == 4


async def test_of_others_datasets_nothing_is_submitted(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        bench = await bench_of(world, alice)
        await bob.mirror(bench.dataset, "theirs")
        theirs = Bench(world, bob, bench.dataset)
        await theirs.round()
        assert theirs.sizes == []


async def test_a_key_that_forgot_what_it_said_signs_no_note(world: World) -> None:
    """Attack T-HEAD-06: a note for a witness by a key without its journal.

    Defence: only trees of heads in the signing journal are signed.
    """
    async with world.running("alice") as alice:
        bench = await bench_of(world, alice)
        keys = alice.home.keys
        for journal in (alice.home.directory / "keys").glob("*.journal"):
            journal.unlink()
        keys._journals.clear()
        await bench.round()
        assert bench.sizes == []
        assert ("not submitted", "trust.journal") in [(said, values.get("rule")) for said, values in alice.logger.said]


async def test_a_person_sees_who_stands_behind_a_dataset_and_why_not(world: World) -> None:
    """The publisher sees those that it asks, with what their operators need; others see those that count for them."""
    nowhere = model.Policy(witness=model.Witness(public=(f"{VKEY} http://127.0.0.1:1",)))
    async with world.running("alice", nowhere) as alice, world.running("bob", LISTS) as bob:
        bench = await bench_of(world, alice)
        (view,) = (await alice.api.trust.show("cities")).witnesses
        assert view.size is None, "nothing listens there"
        alice.features.trust.submissions = bench.made
        (view,) = (await alice.api.trust.show("cities")).witnesses
        assert (view.witness, view.name, view.counts, view.size) == (str(KEY.did), NAME, False, None)
        assert (view.trouble, view.log_key) == ("it was not asked yet", "")
        bench.public.answers = [HttpAnswer(404, b"unknown log")]
        await bench.round()
        (view,) = (await alice.api.trust.show("cities")).witnesses
        key = checkpoint.decode_verifier_key(view.log_key)
        assert (key.name, "does not know this log" in view.trouble) == (f"{bench.dataset}/0", True)
        assert key.public_key == alice.home.keys.dataset_key(bench.dataset).public
        await bench.round(after=LONGEST)
        (view,) = (await alice.api.trust.show("cities")).witnesses
        assert (view.size, view.trouble, view.log_key) == (alice.size("cities"), "", "")
        await bob.member.pull_statements(alice.member.peer_id, [bench.dataset])
        await bob.mirror(bench.dataset, "theirs")
        (view,) = (await bob.api.trust.show("theirs")).witnesses
        assert (view.name, view.counts, view.size) == ("w1", True, bob.size("theirs"))


# Two nodes of ours as log and public witness, over real HTTP: they know of each other by the settings alone.


HTTP = model.Http(listen=("127.0.0.1:0",), witness=True)


async def test_a_node_is_a_public_witness_for_another(world: World) -> None:
    """They are in no network together: what one cosigns is brought there and back by the publisher alone."""
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice, Posts() as posts:
        await alice.apply(ROOT)
        await alice.pull()
        cities = alice.dataset("cities")
        policy = model.Policy(publish=model.Publish(witness=(str(cities),)))
        world.wires.cut(alice.member.peer_id)
        async with world.running("witness", policy, http=HTTP) as witness:
            key = witness.home.keys.node_key()
            vkey = checkpoint.verifier_key(str(key.did), COSIGNATURE_KEY, key.public)
            asked = read_witness(f"{vkey} {witness.parts.site.urls[0]}{SUBMIT.rpartition('/')[0]}")
            made = alice.submissions()
            log = WitnessSubmission(made._home, lambda: (asked,), world.clock, made._cosigned, alice.logger, posts)
            for number in range(3):
                await alice.take_in(
                    files={f"b{number}.csv": [f"2024-02-0{number + 1}T00:00:00Z,Wels,{number}"]}, pulls=["cities"]
                )
                log.loop.touch(cities)
                world.clock.instant += int(PAUSE * 1e9)
                await log._round()
                with alice.home.database.read() as connection:
                    (kept,) = Cosignatures(connection).of(cities)
                assert (kept.witness, kept.checkpoint.size) == (key.did, alice.size("cities"))
            assert log.miss(kept.checkpoint.origin, key.did).why == ""
            await witness.heard("cosignature.signed", 3)
            assert witness.home.chains.datasets() == []


async def test_requests_over_the_limit_end_unread(world: World) -> None:
    """Attack T-HEAD-06: a submission that is huge, or sent slowly.

    Defence: 10 KiB and 20 s for a request.
    """
    dataset = "did:odf:fed01" + "3b" * 32
    policy = model.Policy(publish=model.Publish(witness=(dataset,)))
    async with world.running("witness", policy, http=HTTP) as witness, httpx.AsyncClient() as client:
        url = witness.parts.site.urls[0] + SUBMIT
        assert (await client.post(url, content=b"x" * (MAX_SUBMISSION + 1))).status_code == 413
        assert (await client.post(url, content=b"x" * MAX_SUBMISSION)).status_code == 400
        assert (await client.get(url)).status_code == 404


async def test_a_site_takes_nothing_unless_it_was_asked_to(world: World) -> None:
    async with world.running("plain", http=model.Http(listen=("127.0.0.1:0",))) as plain, httpx.AsyncClient() as client:
        with trio.fail_after(PATIENCE):
            answer = await client.post(plain.parts.site.urls[0] + SUBMIT, content=b"old 0\n\n")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_settings_say_whole_what_a_witness_needs() -> None:
    problems = [str(each) for each in cross(model.Settings(http=model.Http(witness=True)), {})]
    assert any("no dataset to witness" in each for each in problems)
