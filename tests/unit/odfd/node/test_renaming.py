"""A dataset gets another local name; its id, its history and whoever mirrors it stay."""

from __future__ import annotations

from typing import Any

import pytest

from chain.errors import Invalid, NotFound
from odfd.control import wire


async def test_a_renamed_dataset_goes_on_under_its_new_name(world: Any, worlds: Any) -> None:
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    async with world.running("alice") as alice:
        await alice.apply(worlds.ROOT, worlds.DERIVED)
        await alice.pull("cities", "towns")
        before = await alice.api.datasets.describe("cities")
        renamed = await alice.api.datasets.rename("cities", wire.RenameRequest(name="places"))
        assert (renamed.name, renamed.id, renamed.head) == ("places", before.dataset.id, before.dataset.head)
        after = await alice.api.datasets.describe("places")
        assert after.created_at == before.created_at
        with pytest.raises(NotFound):
            await alice.api.datasets.get("cities")
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        assert [item.outcome for item in await alice.pull("places", "towns")] == ["updated", "updated"]
        assert alice.kinds().count("dataset.renamed") == 1
    async with world.running("alice") as alice:
        assert {view.name for view in await alice.api.datasets.list()} == {"places", "towns"}
        assert (await alice.api.datasets.describe("places")).created_at == before.created_at


async def test_a_mirror_goes_by_its_new_name_too(world: Any, worlds: Any) -> None:
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(worlds.ROOT)
        await alice.pull("cities")
        cities = alice.dataset("cities")
        await bob.mirror(cities, "theirs")
        await bob.api.datasets.rename("theirs", wire.RenameRequest(name="ours"))
        assert [view.name for view in await bob.api.mirrors.list()] == ["ours"]
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        await alice.pull("cities")
        await bob.pull("ours")
        assert bob.size("ours") == alice.size("cities")


async def test_a_name_that_is_taken_or_none_is_refused(world: Any, worlds: Any) -> None:
    async with world.running("alice") as alice:
        await alice.apply(worlds.ROOT, worlds.DERIVED)
        for name, rule in (("towns", "dataset-exists"), ("no name", "dataset-name"), ("", "dataset-name")):
            with pytest.raises(Invalid) as caught:
                await alice.api.datasets.rename("cities", wire.RenameRequest(name=name))
            assert (caught.value.rule, bool(caught.value.hint)) == (rule, True)
        assert (await alice.api.datasets.rename("cities", wire.RenameRequest(name="Cities"))).name == "Cities"
