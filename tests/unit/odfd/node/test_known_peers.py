"""Whose nodes have room that no stranger touches: listed validators and witnesses, writers of mirrored datasets."""

from __future__ import annotations

from typing import Any

from chain.ids import KeyDid
from config import model


async def test_listed_groups_and_writers_of_mirrors_are_known(world: Any, worlds: Any) -> None:
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
        await alice.apply(worlds.ROOT)
        await alice.pull()
        await world.spread(alice, "cities")
        groups = (model.Group(name="others", keys=(alice.key,)),)
        listens = model.Policy(validators=model.Validators(f=0, groups=groups))
        async with world.running("bob", listens) as bob:
            assert bob.parts.membership.known() == ({KeyDid.parse(alice.key)}, set()), "what it does not mirror is none"
            await bob.mirror(alice.dataset("cities"), "cities")
            known = bob.parts.membership.known()
            assert known.chosen == {KeyDid.parse(alice.key)}
            rights = {key.public_key for key in known.publishers}
            assert rights == {alice.dataset("cities").public_key}, "version 0: the dataset's own key writes"
