"""Cards of nodes among nodes: a name is told, kept while its node is away, changed and taken back; two look alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from chain.ids import DatasetId
from config import model
from odfd.control import wire
from odfd.network.joined_networks import Network
from odfd.store.ledger.cards import NodeCards
from p2p.ports import Topic
from worlds.manifests import ROOT
from worlds.node_world import PATIENCE, Node, World
from worlds.node_world import until as comes

T = TypeVar("T")
SILENT = {"node": model.Node(name="Graz", contact="mail@example.org")}


def named(name: str, **more: str) -> dict[str, Any]:
    return {"node": model.Node(name=name, **more), "p2p": model.P2p(card=True)}


async def until(node: Node, asked: Callable[[], Awaitable[T]]) -> T:
    """Asks until the answer is true, each time that something new came to ``node``."""
    with trio.fail_after(PATIENCE):
        while True:
            shown = node.member.shown
            if found := await asked():
                return found
            await shown.wait()


def sees(node: Node, other: Node, name: str | None) -> Callable[[], Awaitable[wire.PeerState | None]]:
    """What ``node`` shows of a connected peer, once that peer is called so here."""

    async def look() -> wire.PeerState | None:
        found = (await node.api.peers.states()).get(other.member.peer_id)
        return found if found is not None and found.name == name else None

    return look


def calls(node: Node, other: Node) -> str | None:
    """How ``node`` calls another, away or not."""
    said = node.api.peers.names().of_peer(other.member.peer_id)
    return None if said is None else said.name


def resettled(of: Node, **settings: Any) -> None:
    """As after SIGHUP with another file of settings."""
    of.parts.reload(dataclasses.replace(of.parts.settings, **settings))


async def test_a_name_is_told_kept_while_away_changed_and_taken_back(world: World) -> None:
    async with world.running("bob") as bob:
        async with world.running("alice", **named("Graz", contact="mail@example.org", about="Air")) as alice:
            peer = await until(bob, sees(bob, alice, "Graz"))
            assert peer is not None
            assert (peer.contact, peer.about, peer.alike) == ("mail@example.org", "Air", 0)
            assert (await bob.api.networks.state("wires")).members == (
                wire.PeerName(peer_id=alice.member.peer_id, name="Graz"),
            )
            assert [each.name for each in (await alice.api.peers.states()).values()] == [None], "bob told nothing"
        assert calls(bob, alice) == "Graz", "it is away"
        async with world.running("carol") as carol:
            await until(carol, _is(lambda: calls(carol, alice) == "Graz"))
        async with world.running("alice", **named("Graz", contact="mail@example.org", about="Air")) as alice:
            with alice.home.database.read() as connection:
                before = NodeCards(connection).of(alice.home.keys.node_key().did)
            world.clock.instant += 2_000_000_000
            resettled(alice, node=model.Node(name="Universität Graz"))
            changed = await until(bob, sees(bob, alice, "Universität Graz"))
            assert changed is not None
            assert changed.contact == ""
            assert alice.parts.node_card.current is not None
            assert before is not None
            assert alice.parts.node_card.current.issued > before.issued
            resettled(alice, p2p=model.P2p())
            assert await until(bob, sees(bob, alice, None))
            assert calls(alice, alice) is None
        async with world.running("dora") as dora:
            await until(dora, _is(lambda: len(dora.parts.board.peer_cards.refs()) == 1))  # the withdrawal is passed on
            assert calls(dora, alice) is None


def _is(true: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return true()

    return look


async def test_nothing_is_told_that_a_person_did_not_ask_for(world: World) -> None:
    """A name for logs and cards of datasets is not told as the node's; nor does its dataset name the node."""
    async with world.running("alice", private=True, **SILENT) as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        await alice.publish("cities")
        (found,) = await until(bob, lambda: _found(bob))
        assert (found.publisher, found.node) == ("Graz", None)
        assert not [raw for topic, raw in alice.member.announced if b"node-card" in raw]
        assert alice.parts.node_card.current is None
        assert len(bob.parts.board.peer_cards) == 0


async def _found(node: Node) -> tuple[wire.CardView, ...]:
    return (await node.api.search.search(wire.SearchRequest())).found


async def test_a_dataset_shows_the_node_that_signed_to_publish_it(world: World) -> None:
    async with world.running("alice", private=True, **named("Graz")) as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        world.write("alice", "cities.csv", "2024-01-01T00:00:00Z,Graz,300000")
        await alice.pull()
        await alice.publish("cities")
        (found,) = await until(bob, lambda: _found(bob))
        node = wire.PeerName(peer_id=alice.member.peer_id, name="Graz")
        assert found.node == node
        assert (await bob.api.search.card(found.id)).node == node
        (announced,) = (await bob.api.networks.state("wires")).datasets
        assert announced.node == node
        await bob.added(wire.MirrorRequest(source=found.id))
        (mirror,) = await bob.mirrors()
        assert mirror.node == node


async def test_a_second_node_of_a_name_that_looks_the_same_is_told_apart_by_id(world: World) -> None:
    async with (
        world.running("alice", **named("Graz")) as alice,
        world.running("mallory", **named("Gr\u0430z")) as mallory,
        world.running("bob") as bob,
    ):
        for other, name in ((alice, "Graz"), (mallory, "Gr\u0430z")):
            await until(bob, sees(bob, other, name))
        shown = (await bob.api.networks.state("wires")).members
        assert {(each.peer_id, each.name, each.alike) for each in shown} == {
            (alice.member.peer_id, "Graz", 1),
            (mallory.member.peer_id, "Gr\u0430z", 1),
        }


async def test_a_name_that_cannot_be_told_is_not_signed(world: World) -> None:
    """Settings are checked before; this holds whatever they say."""
    async with world.running("alice", **named("Graz")) as alice:
        alice.parts.node_card.loop._work()
        told = alice.parts.node_card.current
        alice.parts.in_force.settings.put(dataclasses.replace(alice.parts.settings, node=model.Node(name="12D3KooW")))
        alice.parts.node_card.loop._work()
        assert alice.parts.node_card.current == told
        assert told is not None


async def test_a_damaged_card_is_signed_anew(world: World) -> None:
    async with world.running("alice", **named("Graz")) as alice:
        alice.parts.node_card.loop._work()
        with alice.home.database.write() as connection:
            connection.execute("UPDATE trust_node_cards SET issued = 0")
        alice.parts.node_card.loop._work()
        with alice.home.database.read() as connection:
            kept = NodeCards(connection).of(alice.home.keys.node_key().did)
        assert kept is not None
        assert kept.claims is not None


def _heads(node: Node) -> list[bytes]:
    return [raw for topic, raw in node.member.announced if topic is Topic.HEADS]


async def test_a_card_that_was_heard_in_one_network_is_told_in_no_other(world: World) -> None:
    """A node in two networks tells its own card in both, and a stranger's where it came from."""
    async with (
        world.running("alice", private=True, **named("Graz")) as alice,
        world.running("bob", **named("Wien")) as bob,
    ):
        await comes(lambda: alice.parts.node_card.current is not None)
        await comes(lambda: _heads(bob))
        raw = _heads(bob)[0]
        alice.member.networks = (Network(name="a"), Network(name="b"))
        cards = alice.parts.board.peer_cards
        with cards._lock:
            for node in list(cards._kept):
                cards._forget(node)
        alice.parts.board.within("a").judge(Topic.HEADS, raw, bob.member.peer_id)
        mine, theirs = (DatasetId(each.home.keys.node_key().did) for each in (alice, bob))
        told = {name: {ref.dataset for ref in alice.parts.board.within(name).refs()} for name in ("a", "b")}
        assert told == {"a": {mine, theirs}, "b": {mine}}
        (ref,) = [ref for ref in alice.parts.board.within("a").refs() if ref.dataset == theirs]
        assert alice.parts.board.within("a").envelope(ref.sid) == (Topic.HEADS, raw)
        assert alice.parts.board.within("b").envelope(ref.sid) is None
