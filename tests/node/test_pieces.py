"""Mirrors that fetch one large object at once give each other its pieces, while none of them has all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from chain.model.block import objects_of
from odfd.mirrors import object_fetcher, piece_fetcher
from odfd.network import swarm_parts
from p2p.ports import PiecesAsk
from p2p.wire import swarm
from p2p.wire.swarm import PieceList, piece_count, sign_list
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Member, Node, World

PIECE = 128


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Pieces by taker and giver. Each slice is large, and has pieces of some bytes."""
    monkeypatch.setattr(object_fetcher, "LEAST", 1)
    monkeypatch.setattr(object_fetcher, "LARGE_OBJECT", 1)
    monkeypatch.setattr(swarm_parts, "LARGE_OBJECT", 1)
    monkeypatch.setattr(swarm, "LEAST_PIECE", PIECE)
    taken: Counter[tuple[str, str]] = Counter()
    fetch = Member.fetch_object

    async def counted(self: Any, peers: Any, name: Any, size: int, sink: Any, *more: Any) -> None:
        await fetch(self, peers, name, size, sink, *more)
        if sink.stop is not None:
            taken[self.peer_id, peers[0]] += 1

    monkeypatch.setattr(Member, "fetch_object", counted)
    return taken


async def published(world: World, node: Node) -> tuple[Any, Any, int]:
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


async def test_pieces_go_from_mirror_to_mirror(world: World, taken: Counter[tuple[str, str]]) -> None:
    async with (
        world.running("alice") as alice,
        world.running("bob") as bob,
        world.running("carol") as carol,
        world.running("dora") as dora,
    ):
        await published(world, alice)
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
        cities, _, _ = await published(world, alice)
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
    monkeypatch.setattr(Member, "penalise", lambda _self, peer, _reason, _weight: penalised.append(peer))

    async def forged(self: Any, peer: str, dataset: Any, name: Any, size: int) -> tuple[bytes, bytes]:
        return bytes(32 * piece_count(size)), bytes(64)

    monkeypatch.setattr(Member, "piece_list", forged)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities, _, _ = await published(world, alice)
        view = await bob.mirror(cities, "theirs")
        assert view.state == "current"
        assert not taken, "it is fetched whole"
        assert alice.member.peer_id in penalised


async def test_a_false_list_of_the_publisher_costs_one_object(
    world: World, taken: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces fit the list, and the whole is not the object: it is fetched in order, and its signer penalised."""
    penalised: list[str] = []
    monkeypatch.setattr(Member, "penalise", lambda _self, peer, _reason, _weight: penalised.append(peer))
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities, _, _ = await published(world, alice)
        key, lists = alice.home.keys.node_key(), alice.parts.arriving.lists
        give = Member.fetch_object

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

        monkeypatch.setattr(Member, "fetch_object", garbage)
        monkeypatch.setattr(lists, "of", of)
        view = await bob.mirror(cities, "theirs")
        assert view.state == "current"
        assert bob.size("theirs") == alice.size("cities")
        assert set(penalised) == {alice.member.peer_id}


async def test_nothing_private_is_told(world: World, taken: Counter[tuple[str, str]]) -> None:
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

    monkeypatch.setattr(Member, "piece_list", silent)
    monkeypatch.setattr(piece_fetcher, "LIST_PATIENCE", 0.1)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities, _, _ = await published(world, alice)
        view = await bob.mirror(cities, "theirs")
        assert view.state == "current"
        assert not taken
