"""Whose nodes have room that no stranger touches, and what peers are asked about by id."""

from __future__ import annotations

from chain.ids import DatasetId, KeyDid
from config import model
from odfd.store.visibility import VisibilityMark
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import World


async def test_listed_groups_and_writers_of_mirrors_are_known(world: World) -> None:
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
        await alice.apply(ROOT)
        await alice.pull()
        await world.spread(alice, "cities")
        groups = (model.Group(name="others", keys=(alice.key,)),)
        listens = model.Policy(validators=model.Validators(f=0, groups=groups))
        async with world.running("bob", listens) as bob:
            assert bob.parts.membership.known() == ({KeyDid.parse(alice.key)}, set()), "what it does not mirror is none"
            await bob.mirror(alice.dataset("cities"), "cities")
            known = bob.parts.membership.known()
            assert known == ({KeyDid.parse(alice.key)}, {KeyDid.parse(alice.key)}), "version 0: heads name the node"


async def test_peers_are_asked_of_inputs_and_listed_keys_and_of_nothing_private(world: World) -> None:
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        cities, towns = alice.dataset("cities"), alice.dataset("towns")
        await world.spread(alice, "towns")
        validator = DatasetId.from_public_key(KeyDid.parse(alice.key).public_key)
        groups = (model.Group(name="others", keys=(alice.key,)),)
        async with world.running("bob", model.Policy(validators=model.Validators(f=0, groups=groups))) as bob:
            assert set(bob.parts.board.interests()) == {validator}
            await bob.mirror(towns, "towns")
            assert set(bob.parts.board.interests()) == {validator, towns, cities}, "forks of its input end it too"
            bob.parts.visibility.set_for_all([towns], VisibilityMark.PRIVATE, bob.parts.context.clock.now())
            assert set(bob.parts.board.interests()) == {validator}
