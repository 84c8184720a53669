"""Mirrors that fetch one dataset at once give each other what they have, before their blocks are committed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from chain.errors import Remote
from config import model
from odfd.control import wire
from odfd.mirrors import object_fetcher, swarm_fetcher
from p2p.ports import PartsAsk, Tip
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Member, Node, World

DAYS = 7


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Pieces by taker and giver. Each slice is a piece, and nothing is too small."""
    monkeypatch.setattr(object_fetcher, "LEAST", 1)
    monkeypatch.setattr(swarm_fetcher, "PIECE", 1)
    taken: Counter[tuple[str, str]] = Counter()
    small = Member.fetch_small

    async def counted(self: Any, peers: Any, names: Any, *more: Any) -> None:
        await small(self, peers, names, *more)
        taken[self.peer_id, peers[0]] += len(names)

    monkeypatch.setattr(Member, "fetch_small", counted)
    return taken


async def published(world: World, node: Node) -> Any:
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
        small, begun, ended = mirror.member.fetch_small, 0, 0

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

        mirror.member.fetch_small = slowly


@pytest.mark.parametrize("serve", ["chain", "data", "data & reproduced"])
async def test_what_is_verified_is_passed_on_before_it_is_committed(
    world: World, taken: Counter[tuple[str, str]], serve: str
) -> None:
    """As far as policy passes on blocks of which no more is known than that they are signed."""
    policy = model.Policy(serve=serve)
    async with world.running("alice") as alice, world.running("bob", policy) as bob, world.running("carol") as carol:
        cities = await published(world, alice)
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
                    while taken[carol.member.peer_id, bob.member.peer_id] < 2:  # noqa: ASYNC110
                        await trio.sleep(0.01)
                    step = carol.parts.arriving.of(cities)
                    assert step is not None
                    assert not step.have & ~has, "the publisher gives nothing that is true"
                alice.member.lies.object = bytes
                halfway.release.set()
        assert bob.size("theirs") == alice.size("cities")


async def test_a_publisher_offers_each_piece_to_one(world: World, taken: Counter[tuple[str, str]]) -> None:
    async with (
        world.running("alice") as alice,
        world.running("bob") as bob,
        world.running("carol") as carol,
        world.running("dora") as dora,
    ):
        cities = await published(world, alice)
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


async def test_nothing_private_is_told(world: World, taken: Counter[tuple[str, str]]) -> None:
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
    world: World, taken: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(_self: Any, _peer: Any, _ask: Any) -> None:
        raise Remote("no such protocol")

    monkeypatch.setattr(Member, "ask_parts", unknown)
    monkeypatch.setattr(swarm_fetcher, "FIRST_WORD", 0.1)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        view = await bob.mirror(cities, "theirs")
        assert view.state == "current"
