"""Collections of shards that are shared with some peers: these have all of it, and for everybody else it is nowhere."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from node.test_mirrored_shards import brought, signed
from node.test_published_shards import over
from node.test_shards import LEDGER, shard, standing
from node.test_shared import OPEN_WAYS, STRANGER, WAYS, Subject, looked, named_in

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.statements import envelope, statement
from chain.statements.card import Card
from odfd.control import wire
from odfd.store.ledger.cards import Cards
from odfd.store.shares import Shares
from odfd.store.visibility import VisibilityMark
from worlds.eventually import became
from worlds.manifests import ROOT
from worlds.node_world import Node, World


async def several(world: World, node: Node) -> tuple[DatasetId, ...]:
    """A private collection of three shards."""
    await node.apply(ROOT.replace("{kind: Append}", LEDGER))
    await brought(world, node, 1, "Graz", "Linz", "Wels", "Enns", "Melk", "Krems", "Steyr")
    await shard(node, 3, "city")
    await node.done(node.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
    shards: tuple[DatasetId, ...] = node.home.shards_of(node.dataset("cities"))
    return shards


async def shared(node: Node, *peers: Any, revoke: Any = ()) -> wire.VisibilityView:
    request = wire.ShareRequest(ref="cities", peers=tuple(map(str, peers)), revoke=tuple(map(str, revoke)))
    view: wire.VisibilityView = await node.api.visibility.share(request)
    await signed(node)
    return view


def cards_told(node: Node, peer: Any, dataset: DatasetId) -> list[Card]:
    """The cards that a node tells a peer which asks for a dataset and passes nothing on."""
    board = node.member.board.to(peer)
    raw = [board.envelope(ref.sid) for ref in board.refs([dataset])]
    said = [statement.decode_any(envelope.payload_of(found[1])) for found in raw if found is not None]
    return [each for each in said if isinstance(each, Card)]


async def test_a_listed_peer_has_all_shards_and_nobody_else_has_one(world: World) -> None:
    async with (
        world.running("alice", private=True) as alice,
        world.running("bob", private=True) as bob,
        world.running("carol", private=True) as carol,
    ):
        shards = await several(world, alice)
        view = await shared(alice, bob.key)
        assert (view.changed, view.published, view.shared_with) == (True, False, (bob.member.peer_id,))
        assert all(alice.parts.visibility.shared_with(each) == [bob.member.peer_id] for each in shards)
        await bob.mirror(shards[0], "theirs", peers=(alice.member.peer_id,))
        assert bob.home.shards_of(shards[0]) == shards
        assert await standing(bob, "theirs") == await standing(alice, "cities")
        await brought(world, alice, 2, "Graz")
        await bob.pull("theirs")
        assert await standing(bob, "theirs") == await standing(alice, "cities")
        found = await bob.dataset_view("theirs")
        ours = (await alice.dataset_view("cities")).frontiers
        assert found.frontiers.upper == ours.upper, "of shards without a block too"
        (_, active) = await alice.api.renditions.list("cities")
        assert (found.frontiers.since, ours.since) == (active.active_since, None), "the former one is not here"
        assert {spec.spec.peers for spec in bob.parts.scheduler.all()} == {(alice.member.peer_id,)}
        for each in shards:
            everything = Subject(each, *named_in(alice, each, bob.member.peer_id))
            (card,) = cards_told(alice, bob.member.peer_id, each)
            assert card.shards is not None
            assert card.shards.ids == shards
            for node in (alice, bob):
                for way, ask in (WAYS | OPEN_WAYS).items():
                    answers = {ask(node, peer, everything) for peer in (carol.member.peer_id, STRANGER)}
                    assert answers == {ask(node, STRANGER, Subject())}, way
            assert cards_told(alice, carol.member.peer_id, each) == cards_told(bob, carol.member.peer_id, each) == []
            with alice.home.database.read() as connection:
                assert Cards(connection).of(each) is None
            assert each not in alice.member.library.datasets(100)
        for node in (alice, bob):
            assert node.member.announced == []
        costs = {len(looked(alice, partial(WAYS["listing"], alice, STRANGER, Subject(each)))) for each in shards}
        assert costs == {len(looked(alice, partial(WAYS["listing"], alice, STRANGER, Subject())))}


async def test_the_end_of_sharing_is_of_all_shards_and_former_ones(world: World) -> None:
    async with world.running("alice", private=True) as alice, world.running("bob", private=True) as bob:
        await several(world, alice)
        await shared(alice, bob.key)
        await shard(alice, 2, "city")
        await over(alice, 2)
        with alice.home.catalog() as catalog:
            chains = catalog.chains()
        ids = [each.id for each in chains if alice.parts.visibility.shared_with(each.id)]
        assert len(ids) == 3 + 2
        subjects = [Subject(each, *named_in(alice, each, bob.member.peer_id)) for each in ids]
        cards = {each.sid for each in alice.member.board.shared_cards.refs(ids)}
        assert len(cards) >= 2
        view = await shared(alice, revoke=(bob.key,))
        assert (view.changed, view.shared_with) == (True, ())
        for of in subjects:
            for way, ask in WAYS.items():
                assert ask(alice, bob.member.peer_id, of) == ask(alice, STRANGER, Subject()), way
        assert all(alice.member.board.to(bob.member.peer_id).envelope(each) is None for each in cards)
        assert not alice.member.board.shared_cards.refs(alice.home.shards_of(alice.dataset("cities")))
        with alice.home.database.read() as connection:
            assert Cards(connection).list_withdrawn() == {}, "nobody else was told of it"
        assert alice.member.announced == []


async def test_a_new_peer_gets_all_or_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice", private=True) as alice, world.running("bob", private=True) as bob:
        shards = await several(world, alice)
        put, made = Shares.put, []

        def some(self: Shares, dataset: DatasetId, *more: Any) -> None:
            made.append(dataset)
            if len(made) == 2:
                raise Invalid("the disk is full", rule="test")
            put(self, dataset, *more)

        monkeypatch.setattr(Shares, "put", some)
        with pytest.raises(Invalid):
            await shared(alice, bob.key)
        monkeypatch.undo()
        assert not any(map(alice.parts.visibility.shared_with, shards))
        with pytest.raises(Refused) as refused:
            await alice.api.visibility.share(wire.ShareRequest(ref=str(shards[1]), peers=(str(bob.key),)))
        assert refused.value.rule == "shard-member"
        await shared(alice, bob.key)
        assert alice.parts.visibility.revoke(shards[2], [bob.member.peer_id]), "as if one were missing"
        asked = wire.MirrorRequest(source=str(shards[0]), as_name="theirs", peers=(alice.member.peer_id,))
        await bob.api.mirrors.add(asked)
        await became(lambda: bob.size("theirs") == alice.size("cities"))
        with pytest.raises(NotFound) as missing:
            await standing(bob, "theirs")
        assert missing.value.rule == "shard-missing", "one of several is not read as all"


async def test_a_shared_collection_hands_over_to_other_shards(world: World) -> None:
    async with (
        world.running("alice", private=True) as alice,
        world.running("bob", private=True) as bob,
        world.running("carol", private=True) as carol,
    ):
        shards = await several(world, alice)
        await shared(alice, bob.key)
        await bob.mirror(shards[0], "theirs", peers=(alice.member.peer_id,))
        for number, count in ((2, 2), (3, 1)):
            await shard(alice, count, *(("city",) if count > 1 else ()))
            (building, *_) = alice.api.renditions._effects.state(shards[0]).member(number).shards
            assert not alice.parts.visibility.is_public(building, bob.member.peer_id), "nobody was shown it yet"
            await brought(world, alice, number, "Graz", "Wien")
            await over(alice, number)
            await bob.pull("theirs")
            await bob.heard("rendition.followed", number - 1)
            assert await standing(bob, "theirs") == await standing(alice, "cities")
            assert bob.home.shards_of(bob.dataset("theirs")) == alice.home.shards_of(alice.dataset("cities"))
            for each in alice.home.shards_of(alice.dataset("cities")):
                assert not alice.parts.visibility.is_public(each, carol.member.peer_id)
                assert not alice.parts.visibility.is_told(each)
        for node in (alice, bob):
            assert node.member.announced == []


async def test_all_shards_are_published_to_a_network_or_none_is(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        shards = await several(world, alice)
        visibility, (here,) = alice.parts.visibility, [each.name for each in alice.parts.membership.networks]
        visibility.set_for_all(shards[-1:], VisibilityMark.PUBLISHED, alice.clock.now())
        request = wire.VisibilityRequest(refs=("cities",), to=(here,))
        with pytest.raises(Refused, match="published everywhere"):
            await alice.api.visibility.publish(request)
        assert [visibility.mark(each) for each in shards] == [
            VisibilityMark.PRIVATE,
            VisibilityMark.PRIVATE,
            VisibilityMark.PUBLISHED,
        ]
        assert not visibility.is_told(shards[0])
        visibility.set_for_all(shards[-1:], VisibilityMark.PRIVATE, alice.clock.now())
        await alice.api.visibility.publish(request)
        assert {visibility.mark(each) for each in shards} == {VisibilityMark.PUBLISHED_TO}
