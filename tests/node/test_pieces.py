"""Mirrors that fetch one dataset, or one large object, at once give each other what they have of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from chain.errors import Remote
from chain.model.block import objects_of
from config import model
from odfd.control import wire
from odfd.mirrors import object_fetcher, piece_fetcher, swarm_fetcher
from odfd.network import swarm_parts
from p2p.driver.replication import ReplicationDriver
from p2p.ports import PartsAsk, PeerId, PiecesAsk, Tip
from p2p.wire import swarm
from p2p.wire.swarm import PieceList, piece_count, sign_list
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Node, World

# Mirrors that fetch one large object at once give each other its pieces, while none of them has all.


PIECE = 128


def hear_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, nobody gives up to hear from others and takes all from the publisher."""
    monkeypatch.setattr(swarm_fetcher, "FIRST_WORD", math.inf)
    monkeypatch.setattr(piece_fetcher, "LIST_PATIENCE", math.inf)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Pieces by taker and giver. Each slice is large, and has pieces of some bytes."""
    hear_all(monkeypatch)
    monkeypatch.setattr(object_fetcher, "LEAST", 1)
    monkeypatch.setattr(object_fetcher, "LARGE_OBJECT", 1)
    monkeypatch.setattr(swarm_parts, "LARGE_OBJECT", 1)
    monkeypatch.setattr(swarm, "LEAST_PIECE", PIECE)
    monkeypatch.setattr(swarm._SIZE, "_low", 1)
    taken: Counter[tuple[str, str]] = Counter()
    fetch = ReplicationDriver.fetch_object

    async def counted(self: Any, peers: Any, name: Any, size: int, sink: Any, *more: Any) -> None:
        await fetch(self, peers, name, size, sink, *more)
        if sink.stop is not None:
            taken[self.peer_id, peers[0]] += 1

    monkeypatch.setattr(ReplicationDriver, "fetch_object", counted)
    return taken


async def publish_large(world: World, node: Node) -> tuple[Any, Any, int]:
    """A dataset, and the name and size of its slice."""
    await node.apply(ROOT)
    world.write("alice", "a.csv", *(f"2024-01-{day:02}T00:00:00Z,Graz {day * 7919},{day}" for day in range(1, 29)))
    await node.pull("cities")
    await world.spread(node, "cities")
    cities = node.dataset("cities")
    return cities, *large(node, cities)


def large(node: Node, cities: Any) -> tuple[Any, int]:
    """The name and size of its slice."""
    chain = node.home.chains.chain(cities)
    blocks = (chain.block_at(number) for number in range(node.size("cities")))
    (found,) = [named for block in blocks for named in objects_of(block) if named[1] > 2 * PIECE]
    return found


def counts(node: Node) -> Any:
    return node.parts.arriving.counts


@pytest.mark.parametrize("asks_for_parts", [True, False])
async def test_pieces_go_from_mirror_to_mirror(
    world: World, taken: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, asks_for_parts: bool
) -> None:
    """The publisher gives each a third before a piece has gone from mirror to mirror, also where nobody asks for more
    than pieces."""
    fetch, passed_on = ReplicationDriver.fetch_object, trio.Event()
    begun: Counter[str] = Counter()

    async def seldom(self: ReplicationDriver, peers: Sequence[PeerId], name: Any, size: int, *more: Any) -> None:
        if peers[0] == alice.member.peer_id:
            begun[self.peer_id] += 1
            if begun[self.peer_id] > piece_count(size) // 3:
                await passed_on.wait()
        await fetch(self, peers, name, size, *more)
        if peers[0] != alice.member.peer_id:
            passed_on.set()

    async def told_of_none(self: ReplicationDriver, peer: PeerId, ask: PartsAsk) -> None:
        pass

    if not asks_for_parts:
        monkeypatch.setattr(ReplicationDriver, "ask_parts", told_of_none)
    monkeypatch.setattr(ReplicationDriver, "fetch_object", seldom)
    # Whoever waits for the publisher has room for what others give.
    monkeypatch.setattr("p2p.machines.swarm.AT_ONCE", 100)
    monkeypatch.setattr(swarm_fetcher, "EVERY", 0.2)  # a mirror that had nothing is asked again in two seconds
    async with (
        world.running("alice") as alice,
        world.running("bob") as bob,
        world.running("carol") as carol,
        world.running("dora") as dora,
    ):
        await publish_large(world, alice)
        cities = alice.dataset("cities")
        mirrors = (bob, carol, dora)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for node in mirrors:
                    nursery.start_soon(node.mirror, cities, "theirs")
        assert all(node.size("theirs") == alice.size("cities") for node in mirrors)
        assert sum(taken.values()) == sum(counts(node).from_publisher + counts(node).from_mirrors for node in mirrors)
        assert any(giver != alice.member.peer_id for _, giver in taken)
        assert counts(alice).offered
        assert counts(alice).bytes_given


async def test_a_false_piece_is_its_givers_fault(
    world: World, taken: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and the object comes from whoever gives what fits."""
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        cities, _, _ = await publish_large(world, alice)
        await carol.mirror(cities, "ours")
        carol.member.lies.object = lambda data: b"?" * len(data)
        with trio.fail_after(PATIENCE):
            await bob.mirror(cities, "theirs")
        assert bob.size("theirs") == alice.size("cities")
        assert not taken[bob.member.peer_id, carol.member.peer_id]


async def test_a_list_that_the_publisher_did_not_sign_is_refused(
    world: World, taken: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    penalised: list[str] = []
    monkeypatch.setattr(ReplicationDriver, "penalise", lambda _self, peer, _reason, _weight: penalised.append(peer))

    async def forged(self: Any, peer: str, dataset: Any, name: Any, size: int) -> tuple[bytes, bytes]:
        return bytes(32 * piece_count(size)), bytes(64)

    monkeypatch.setattr(ReplicationDriver, "piece_list", forged)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities, _, _ = await publish_large(world, alice)
        view = await bob.mirror(cities, "theirs")
        assert view.state == "current"
        assert not taken, "it is fetched whole"
        assert alice.member.peer_id in penalised


async def test_a_false_list_of_the_publisher_costs_one_object(
    world: World, taken: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-PEER-07: a false list of the pieces of a large object, or pieces that do not fit it, so that mirrors
    collect garbage or blame the honest.

    Defence: only a list that the publisher's node signed counts; peers offer pieces by one list alone, so a peer whose
    piece does not fit it lied; the whole is hashed, and a false list costs its signer its score and the mirror one
    object.

    The pieces fit the list, and the whole is not the object: it is fetched in order, and its signer penalised.
    """
    penalised: list[str] = []
    monkeypatch.setattr(ReplicationDriver, "penalise", lambda _self, peer, _reason, _weight: penalised.append(peer))
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities, _, _ = await publish_large(world, alice)
        key, lists = alice.home.keys.node_key(), alice.parts.arriving.lists
        give = ReplicationDriver.fetch_object

        async def garbage(self: Any, peers: Any, name: Any, size: int, sink: Any, *more: Any) -> None:
            if sink.stop is None:
                await give(self, peers, name, size, sink, *more)
                return
            await trio.to_thread.run_sync(sink.write, bytes(sink.stop - sink.received))
            await trio.to_thread.run_sync(sink.finish)

        def of(name: Any, size: int, _opened: Any) -> PieceList:
            spans = [PieceList(name, size, b"").span(number) for number in range(piece_count(size))]
            hashes = b"".join(swarm.hashlib.sha3_256(bytes(stop - start)).digest() for start, stop in spans)
            return sign_list(name, size, hashes, key)

        monkeypatch.setattr(ReplicationDriver, "fetch_object", garbage)
        monkeypatch.setattr(lists, "of", of)
        view = await bob.mirror(cities, "theirs")
        assert view.state == "current"
        assert bob.size("theirs") == alice.size("cities")
        assert set(penalised) == {alice.member.peer_id}


async def test_nothing_private_is_told(world: World, taken: Counter[tuple[str, str]]) -> None:
    """Attack T-PRIVATE-01: learning of a private dataset by asking which peers have which of its objects.

    Defence: answers are as for an absent dataset; fetchers of a shared dataset are named to no other peer.
    """
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        world.write("alice", "a.csv", *(f"2024-01-{day:02}T00:00:00Z,Graz {day * 7919},{day}" for day in range(1, 29)))
        await alice.pull("cities")
        cities, library = alice.dataset("cities"), alice.parts.library.to(bob.member.peer_id)
        name, size = large(alice, cities)
        assert library.piece_list(cities, name, size) is None
        await alice.publish("cities")
        hashes, _ = library.piece_list(cities, name, size)
        ask = PiecesAsk(dataset=cities, name=name, size=size, root=PieceList(name, size, hashes).root, have=0)
        assert library.pieces(ask) is not None
        other = PiecesAsk(dataset=cities, name=name, size=size, root=bytes(32), have=0)
        assert library.pieces(other) is None, "of another list there is nothing"
        await alice.unpublish("cities")
        assert library.pieces(ask) is None
        assert library.piece_list(cities, name, size) is None


async def test_where_nobody_shows_a_list_all_comes_whole(
    world: World, taken: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: Any) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(ReplicationDriver, "piece_list", silent)
    monkeypatch.setattr(piece_fetcher, "LIST_PATIENCE", 0.1)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities, _, _ = await publish_large(world, alice)
        view = await bob.mirror(cities, "theirs")
        assert view.state == "current"
        assert not taken


# Mirrors that fetch one dataset at once give each other what they have, before their blocks are committed.


DAYS = 7


@pytest.fixture
def taken_small(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Pieces by taker and giver. Each slice is a piece, and nothing is too small."""
    hear_all(monkeypatch)
    monkeypatch.setattr(object_fetcher, "LEAST", 1)
    monkeypatch.setattr(swarm_fetcher, "PIECE", 1)
    taken_small: Counter[tuple[str, str]] = Counter()
    small = ReplicationDriver.fetch_small

    async def counted(self: Any, peers: Any, names: Any, *more: Any) -> None:
        await small(self, peers, names, *more)
        taken_small[self.peer_id, peers[0]] += len(names)

    monkeypatch.setattr(ReplicationDriver, "fetch_small", counted)
    return taken_small


async def publish_daily(world: World, node: Node) -> Any:
    await node.apply(ROOT)
    for day in range(1, DAYS + 1):
        world.write("alice", f"a{day}.csv", f"2024-01-{day:02}T00:00:00Z,Graz,{day}")
        await node.pull("cities")
    await world.spread(node, "cities")
    return node.dataset("cities")


def tip_of(node: Node, cities: Any) -> Tip:
    head = node.home.chains.chain(cities).head()
    return Tip(head.sequence_number + 1, head.hash.digest)


def asking(node: Node, cities: Any) -> PartsAsk:
    tip = tip_of(node, cities)
    return PartsAsk(dataset=cities, tip=tip, start=0, count=tip.size, have=0)


class Halfway:
    """Holds a mirror back once it has some pieces, and has the publisher fail from then on."""

    def __init__(self, publisher: Node, mirror: Any, pieces: int) -> None:
        self.reached, self.release = trio.Event(), trio.Event()
        small, begun, ended = mirror.member.driver.fetch_small, 0, 0

        async def slowly(peers: Any, names: Any, *more: Any) -> None:
            nonlocal begun, ended
            begun += 1
            if begun > pieces:
                await self.release.wait()
            await small(peers, names, *more)
            ended += 1
            if ended == pieces:
                publisher.member.lies.object = lambda data: b"?" * len(data)
                self.reached.set()

        mirror.member.driver.fetch_small = slowly


@pytest.mark.parametrize("serve", ["chain", "data", "data & reproduced"])
async def test_what_is_verified_is_passed_on_before_it_is_committed(
    world: World, taken_small: Counter[tuple[str, str]], serve: str
) -> None:
    """Attack T-PRIVATE-02: data passed on before its commit that policy would hold back.

    Defence: data is passed on early only where policy passes on signed data without any verdict.

    As far as policy passes on blocks of which no more is known than that they are signed.
    """
    policy = model.Policy(serve=serve)
    async with world.running("alice") as alice, world.running("bob", policy) as bob, world.running("carol") as carol:
        cities = await publish_daily(world, alice)
        halfway = Halfway(alice, bob, 3)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bob.mirror, cities, "theirs")
                await halfway.reached.wait()
                assert bob.parts.library.to(carol.member.peer_id).size(cities) == 0, "nothing is committed"
                told = bob.parts.library.to(carol.member.peer_id).parts(asking(alice, cities))
                if serve.endswith("reproduced"):
                    assert told is None
                else:
                    assert told.has == told.offers
                    has = told.has
                    await carol.api.mirrors.add(wire.MirrorRequest(source=str(cities), as_name="ours"))
                    while taken_small[carol.member.peer_id, bob.member.peer_id] < 2:  # noqa: ASYNC110
                        await trio.sleep(0.01)
                    step = carol.parts.arriving.of(cities)
                    assert step is not None
                    assert not step.have & ~has, "the publisher gives nothing that is true"
                alice.member.lies.object = bytes
                halfway.release.set()
        assert bob.size("theirs") == alice.size("cities")


async def test_a_publisher_offers_each_piece_to_one(world: World, taken_small: Counter[tuple[str, str]]) -> None:
    async with (
        world.running("alice") as alice,
        world.running("bob") as bob,
        world.running("carol") as carol,
        world.running("dora") as dora,
    ):
        cities = await publish_daily(world, alice)
        library, ask = alice.parts.library, asking(alice, cities)
        whole = (1 << ask.count) - 1
        first = library.to(bob.member.peer_id).parts(ask)
        assert (first.has, first.offers) == (whole, whole), "to one alone it offers all"
        offers = [library.to(node.member.peer_id).parts(ask).offers for node in (carol, dora)]
        assert not offers[0] & offers[1]
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for number, node in enumerate((bob, carol, dora)):
                    nursery.start_soon(node.mirror, cities, f"theirs{number}")
        assert all(node.size(f"theirs{number}") == ask.tip.size for number, node in enumerate((bob, carol, dora)))


async def test_no_parts_of_what_is_private_are_told(world: World, taken_small: Counter[tuple[str, str]]) -> None:
    """Neither by its publisher nor by a mirror under way, whatever history is named."""
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull("cities")
        cities = alice.dataset("cities")
        library = alice.parts.library.to(bob.member.peer_id)
        assert library.parts(asking(alice, cities)) is None
        await alice.publish("cities")
        assert library.parts(asking(alice, cities)) is not None
        other = PartsAsk(dataset=cities, tip=Tip(alice.size("cities"), bytes(32)), start=0, count=1, have=0)
        assert library.parts(other) is None, "of another history there is nothing"
        await alice.unpublish("cities")
        assert library.parts(asking(alice, cities)) is None


async def test_without_the_protocol_all_comes_as_before(
    world: World, taken_small: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(_self: Any, _peer: Any, _ask: Any) -> None:
        raise Remote("no such protocol")

    monkeypatch.setattr(ReplicationDriver, "ask_parts", unknown)
    monkeypatch.setattr(swarm_fetcher, "FIRST_WORD", 0.1)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_daily(world, alice)
        view = await bob.mirror(cities, "theirs")
        assert view.state == "current"
