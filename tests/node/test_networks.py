"""A dataset that is published to one of several networks: members of the others cannot tell it from what is nowhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from node.test_shared import OPEN_WAYS, ROWS, STRANGER, WAYS, Subject, looked, named_in

from chain.errors import NotFound, Refused
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.store.database import open_database
from odfd.control import wire
from odfd.network.joined_networks import Network
from odfd.store.ledger.cards import Cards
from odfd.store.shares import NetworkScopes
from odfd.store.visibility import Marks, VisibilityMark
from p2p.ports import Topic
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

A, B = Network(name="a"), Network(name="b")


def inside(node: Node, network: str) -> Any:
    """The node as members of a network see it."""
    member = SimpleNamespace(library=node.parts.library.within(network), board=node.parts.board.within(network))
    return SimpleNamespace(member=member)


async def published_to(world: World, node: Node, *networks: str) -> Subject:
    node.member.networks = (A, B)
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT, DERIVED)
    await node.pull()
    (done,) = await node.api.visibility.publish(wire.VisibilityRequest(refs=("cities",), to=networks))
    assert (done.changed, done.published, done.networks) == (True, True, networks)
    (shown,) = [each for each in await node.dataset_views() if each.name == "cities"]
    assert (shown.published, shown.published_in) == (True, networks)
    cities = node.dataset("cities")
    node.parts.heads.loop._work()
    seen = SimpleNamespace(home=node.home, member=inside(node, networks[0]).member)
    return Subject(cities, *named_in(seen, cities, STRANGER))


async def test_each_way_out_is_open_in_one_network_alone(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        cities = await published_to(world, alice, "a")
        there, elsewhere, nowhere = inside(alice, "a"), inside(alice, "b"), Subject()
        for way, ask in WAYS.items():
            assert ask(there, STRANGER, cities) != ask(there, STRANGER, nowhere), way
            assert ask(elsewhere, STRANGER, cities) == ask(elsewhere, STRANGER, nowhere), way
            assert ask(alice, STRANGER, cities) == ask(alice, STRANGER, nowhere), "in no network"
        listed = OPEN_WAYS["listing of all"]
        assert listed(elsewhere, STRANGER, cities) != listed(there, STRANGER, cities)
        assert there.member.library.datasets(9) == [cities.dataset], "presences"
        assert elsewhere.member.library.datasets(9) == [] == list(alice.parts.library.datasets(9))
        assert cities.dataset in there.member.board.interests()
        assert cities.dataset not in elsewhere.member.board.interests()
        assert not alice.parts.visibility.is_public(cities.dataset), "sites, IPFS, witnesses and repositories"
        for way in ("size", "blocks", "proof", "listing"):
            costs = {len(looked(alice, lambda way=way, of=of: WAYS[way](elsewhere, STRANGER, of))) for of in
                     (cities, Subject(alice.dataset("towns")), nowhere)}  # fmt: skip
            assert len(costs) == 1, (way, costs)


async def test_gossip_and_what_is_taken_back_stay_in_the_network(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice", private=True) as alice:
        told: list[frozenset[str]] = []

        async def announce_in(networks: Any, _topic: Topic, _envelope: bytes) -> None:
            told.append(frozenset(networks))

        alice.member.announce_in = announce_in
        cities = await published_to(world, alice, "b")
        await alice.parts.outbox._loop._work()
        alice.parts.cards._settle(cities.dataset)
        await alice.unpublish("cities")
        later = Instant(alice.clock.now() + 3600 * SECOND)
        monkeypatch.setattr(alice.parts.cards._clock, "now", lambda: later)
        alice.parts.cards._settle(cities.dataset)
        with alice.home.database.read() as connection:
            taken_back = Cards(connection).of(cities.dataset)
        assert taken_back is not None
        assert taken_back.is_withdrawal
        await alice.parts.outbox._loop._work()
        assert alice.member.announced == []
        assert set(told) == {frozenset({"b"})}
        card = next(ref for ref in inside(alice, "b").member.board.refs([cities.dataset]))
        kind = alice.parts.board.envelope(card.sid)
        assert kind is not None
        assert inside(alice, "a").member.board.refs([cities.dataset]) == [], "it was never there"
        assert inside(alice, "a").member.board.envelope(card.sid) is None


async def test_what_is_said_in_one_network_is_not_passed_on_in_another(world: World) -> None:
    """bob is in both; alice publishes in one of them. Of what nobody mirrors, and of his own mirror."""
    async with world.running("alice") as alice, world.running("bob", private=True) as bob:
        bob.member.networks = (A, B)
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT)
        await alice.pull()
        cities = alice.dataset("cities")
        refs = alice.parts.board.refs([cities])
        assert refs
        for ref in refs:
            found = alice.parts.board.envelope(ref.sid)
            bob.parts.board.within("a").judge(*found, alice.member.peer_id)
        for view, known in (("a", True), ("b", False)):
            board = bob.parts.board.within(view)
            assert bool(board.refs([cities])) is known, view
            assert (board.envelope(refs[0].sid) is not None) is known, view
        bob.parts.visibility.keep_heard(cities, bob.clock.now())
        assert bob.parts.visibility.scope(cities) == {"a"}, "and after a restart"
        bob.parts.board.within("b").judge(*alice.parts.board.envelope(refs[0].sid), alice.member.peer_id)
        assert bob.parts.board.within("b").refs([cities]), "it is told there too"


async def test_mirrors_stay_where_they_were_found(world: World) -> None:
    async with world.running("alice") as alice:
        mirror = DatasetId.from_public_key(b"\5" * 32)
        with alice.home.database.write() as connection:
            Marks(connection).put(mirror, VisibilityMark.MIRRORED, alice.clock.now())
        visibility = alice.parts.visibility
        assert visibility.within("b")([mirror]) == {mirror}, "while one network is joined"
        alice.api.networks._limit(B)
        assert (visibility.within("wires")([mirror]), visibility.within("b")([mirror])) == ({mirror}, frozenset())
        assert visibility.limit_mirrors("b", alice.clock.now()) == 0, "it has a place"


async def test_a_mirror_is_looked_for_in_the_network_that_its_owner_names(world: World) -> None:
    """Nowhere else, and a network that this node is not in is a mistake and not passed over."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT)
        await alice.pull()
        cities = alice.dataset("cities")
        await world.spread(alice, "cities")
        bob.member.networks = (A, B)
        with pytest.raises(NotFound, match="this node is not in the network c"):
            await bob.mirror(cities, "theirs", network="c")
        assert await bob.mirrors() == []
        assert (await bob.mirror(cities, "theirs", network="b")).network == "b"
        assert bob.parts.visibility.scope(cities) == {"b"}
        assert (bob.parts.visibility.within("a")([cities]), bob.parts.visibility.within("b")([cities])) == (
            frozenset(), {cities},
        )  # fmt: skip


async def test_mistakes_of_publishing_to_networks(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        cities = (await published_to(world, alice, "a")).dataset
        api = alice.api.visibility
        with pytest.raises(NotFound, match="not in the network c"):
            await api.publish(wire.VisibilityRequest(refs=("cities",), to=("c",)))
        (more,) = await api.publish(wire.VisibilityRequest(refs=("cities",), to=("B",)))
        assert (more.changed, more.networks) == (True, ("a", "b"))
        (again,) = await api.publish(wire.VisibilityRequest(refs=("cities",), to=("a",)))
        assert (again.changed, again.networks) == (False, ("a", "b"))
        (everywhere,) = await api.publish(wire.VisibilityRequest(refs=("cities",)))
        assert (everywhere.changed, everywhere.networks) == (True, None)
        assert alice.parts.visibility.is_public(cities)
        with pytest.raises(Refused, match="cities is published everywhere") as fault:
            await api.publish(wire.VisibilityRequest(refs=("cities",), to=("a",)))
        assert "odfctl unpublish cities" in str(fault.value.hint)


def test_a_damaged_row_limits_to_nothing(tmp_path: Any) -> None:
    """It fails closed."""
    database, dataset = open_database(tmp_path / "db"), DatasetId.from_public_key(b"\6" * 32)
    database.migrate(NetworkScopes.ROOM, NetworkScopes.STEPS)
    with database.write() as connection:
        scopes = NetworkScopes(connection)
        assert scopes.of(dataset) is None
        scopes.add(dataset, ["a"], 7)  # type: ignore[arg-type]
        assert (scopes.of(dataset), scopes.all()) == ({"a"}, {dataset: {"a"}})
        connection.execute("UPDATE network_scopes SET network = 'b'")
        assert (scopes.of(dataset), scopes.all()) == (frozenset(), {dataset: frozenset()})
    database.close()
