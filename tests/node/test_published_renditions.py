"""Datasets that others know hand over, and mirrors go on with what their owner made the active rendition."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from node.test_shards import answered

from chain.errors import NotFound, Refused
from chain.instant import SECOND
from odfd.cli import details
from odfd.control import wire
from odfd.renditions import successor
from odfd.renditions.chain_timeline import rows_of
from odfd.services.renditions import effects as rendition_effects
from worlds.eventually import became
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World


async def create(node: Node, origin: str = "snapshot") -> wire.RenditionView:
    request = wire.RenditionRequest(origin=origin)  # type: ignore[arg-type]
    made: wire.RenditionView = await node.done(node.api.renditions.create("cities", request))
    return made


async def hand_over(node: Node, number: int) -> wire.RenditionView:
    request = wire.HandoverRequest()
    done: wire.RenditionView = await node.done(node.api.renditions.hand_over("cities", number, request))
    return done


async def rows(node: Node, ref: str) -> list[Any]:
    return sorted(tuple(row)[3:] for row in (await node.api.datasets.tail(ref, 100)).rows)


async def pulled(world: World, node: Node, day: int, city: str) -> None:
    world.write("alice", f"d{day}.csv", f"2024-01-0{day}T00:00:00Z,{city},{day}")
    await node.pull("cities")


def states(node: Node, ref: str) -> list[tuple[int, str, str, str]]:
    state = node.api.renditions._effects.state(node.dataset(ref))
    views = [node.api.renditions._view(state, each) for each in state.members]
    return [(each.number, each.dataset, each.origin, each.state) for each in views]


async def test_a_mirror_goes_on_with_the_rendition_that_its_owner_made_active(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        await pulled(world, alice, 1, "Graz")
        await pulled(world, alice, 2, "Linz")
        old = alice.dataset("cities")
        await bob.mirror(old, "theirs")
        await create(alice)
        new = alice.dataset("cities.r1")
        assert not alice.parts.visibility.is_told(new), "nobody was shown it yet"
        await pulled(world, alice, 3, "Wels")
        await hand_over(alice, 1)
        assert alice.parts.visibility.is_told(new)
        await bob.heard("rendition.followed")
        assert (bob.dataset("theirs"), bob.dataset("theirs.r0")) == (new, old)
        assert states(bob, "theirs") == [
            (0, "theirs.r0", "first", "Superseded"),
            (1, "theirs", "owner", "Active"),
        ]
        await pulled(world, alice, 4, "Steyr")
        await became(lambda: bob.size("theirs") == alice.size("cities"))
        assert await rows(bob, "theirs") == await rows(alice, "cities")
        described = await bob.api.datasets.describe("theirs.r0")
        assert str(new) in (described.description or "")
        assert {spec.spec.name for spec in bob.parts.scheduler.all()} == {"theirs", "theirs.r0"}


@pytest.mark.parametrize(("shared", "shards"), [(False, 1), (False, 3), (True, 3)])
async def test_what_was_private_says_its_handovers_when_it_is_shown(world: World, shared: bool, shards: int) -> None:
    """All of them, in the chain that is active then, once."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        await alice.unpublish("cities")
        await pulled(world, alice, 1, "Graz")
        for number, count in ((1, 2), (2, shards)):
            request = wire.RenditionRequest(origin="snapshot", shards=count, by=("city",) if count > 1 else ())
            await alice.done(alice.api.renditions.create("cities", request))
            world.clock.instant += 60 * SECOND
            await hand_over(alice, number)
            world.clock.instant += 60 * SECOND
        active = alice.dataset("cities")
        chain = alice.home.chains.chain(active)
        assert rows_of(chain, active) == (), "nobody else may know any of it"
        size = chain.head().size

        async def show() -> None:
            if shared:
                await alice.api.visibility.share(wire.ShareRequest(ref="cities", peers=(str(bob.key),)))
            else:
                await alice.publish("cities")

        await show()
        assert [each.number for each in rows_of(chain, active)] == [0, 1, 2]
        await show()
        assert chain.head().size == size + 1
        for each in alice.home.shards_of(active):
            alice.parts.cards._settle(each)
        await bob.mirror(active, "late", **({"peers": (str(alice.key),)} if shared else {}))
        mine, late = await alice.api.renditions.list("cities"), await bob.api.renditions.list("late")
        assert [(each.dataset_id, each.until) for each in late[:-1]] == [
            (each.dataset_id, each.until) for each in mine[:-1]
        ]
        assert (await alice.api.datasets.describe("cities")).keywords == ()
        await hand_over(alice, 0)
        assert [
            each.number for each in rows_of(alice.home.chains.chain(alice.dataset("cities")), alice.dataset("cities"))
        ] == [0, 1, 2, 0]


async def test_a_handover_back_and_a_restart_are_followed(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await pulled(world, alice, 1, "Graz")
        old = alice.dataset("cities")
        async with world.running("bob") as bob:
            await bob.mirror(old, "theirs")
        await create(alice)
        await hand_over(alice, 1)
        await pulled(world, alice, 2, "Linz")
        new = alice.dataset("cities")
        async with world.running("bob") as bob:
            await bob.heard("rendition.followed")
            assert bob.dataset("theirs") == new
            await hand_over(alice, 0)
            await bob.heard("rendition.followed", 2)
            assert (bob.dataset("theirs"), bob.dataset("theirs.r1")) == (old, new)
            await pulled(world, alice, 3, "Wels")
            await became(lambda: bob.size("theirs") == alice.size("cities"))
            assert await rows(bob, "theirs") == await rows(alice, "cities")
        async with world.running("bob") as bob:
            assert [each[3] for each in states(bob, "theirs")] == ["Active", "Superseded"]


async def test_all_handovers_are_in_the_chain_that_goes_on(world: World) -> None:
    """Who mirrors the active rendition alone knows when others held, and answers for no time of theirs."""
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        await alice.apply(ROOT)
        await pulled(world, alice, 1, "Graz")
        before = await alice.manifest("cities")
        await bob.mirror(alice.dataset("cities"), "theirs")
        for number, shards in ((1, 1), (2, 3), (3, 1)):
            request = wire.RenditionRequest(origin="snapshot", shards=shards, by=("city",) if shards > 1 else ())
            await alice.done(alice.api.renditions.create("cities", request))
            world.clock.instant += 60 * SECOND
            await hand_over(alice, number)
            await bob.heard("rendition.followed", number)
        await pulled(world, alice, 2, "Linz")
        mine = await alice.api.renditions.list("cities")
        assert [each.active_since for each in mine[1:]] == [each.until for each in mine[:-1]]
        assert mine[-1].until == mine[-1].upper
        await became(lambda: bob.size("theirs") == alice.size("cities"))
        await bob.pull("theirs")
        theirs = await bob.api.renditions.list("theirs")
        assert [(each.dataset_id, each.until) for each in theirs] == [(each.dataset_id, each.until) for each in mine]

        await carol.mirror(alice.dataset("cities"), "late")
        late = await carol.api.renditions.list("late")
        assert [(each.dataset_id, each.active_since, each.until) for each in late[:-1]] == [
            (each.dataset_id, each.active_since, each.until) for each in mine[:-1]
        ]
        assert [each.dataset for each in late] == ["", "", "", "late"]
        sinces = [(await node.dataset_view(name)).frontiers.since
                  for node, name in ((alice, "cities"), (bob, "theirs"), (carol, "late"))]  # fmt: skip
        assert sinces == [None, None, mine[3].active_since]
        assert f"from {mine[3].active_since} before" in details.dataset(await carol.api.datasets.describe("late"))
        for at, is_here in ((mine[2].until, True), (mine[2].active_since, False), (mine[0].until, False)):
            sql = f"SELECT count(*) AS n FROM late FOR SYSTEM_TIME AS OF '{at}'"
            if is_here:
                (row,), _ = await answered(carol, wire.QueryRequest(sql=sql))
                assert row["n"] == 1
            else:
                with pytest.raises(NotFound) as missing:
                    await answered(carol, wire.QueryRequest(sql=sql))
                assert missing.value.rule == "rendition-missing"

        detail = await alice.api.datasets.describe("cities")
        assert (detail.keywords, detail.description) == ((), None), "nobody declared that"
        assert (await alice.manifest("cities")).spec == before.spec
        (item,) = (await alice.apply(ROOT)).items
        assert item.action == "unchanged"
        await alice.apply(f"{ROOT}    - {{kind: SetInfo, description: towns, keywords: [a]}}\n")
        assert (await alice.api.datasets.describe("cities")).keywords == ("a",)
        chain = alice.home.chains.chain(alice.dataset("cities"))
        assert [each.number for each in rows_of(chain, alice.dataset("cities"))] == [0, 1, 2, 3]


@pytest.mark.parametrize("rule", ["rendition-promised", "rendition-timeline"])
async def test_an_owner_that_goes_back_on_a_promise_is_not_followed(
    world: World, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """A handover at a time that was decided, and handovers that were signed and then left out."""
    said, words = rendition_effects.announce, successor.words_of
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        await pulled(world, alice, 1, "Graz")
        await bob.mirror(alice.dataset("cities"), "theirs")
        await create(alice)
        await hand_over(alice, 1)
        await bob.heard("rendition.followed")
        await create(alice)
        if rule == "rendition-timeline":
            monkeypatch.setattr(successor, "words_of", lambda timeline: (words(timeline)[0], words(timeline)[-1]))
        else:
            monkeypatch.setattr(
                rendition_effects, "announce",
                lambda info, notice: said(info, msgspec.structs.replace(notice, time=notice.time - 1)),
            )  # fmt: skip
        await hand_over(alice, 2)
        (held,) = await bob.heard("mirror.held")
        assert held.data["rule"] == rule
        followed = alice.dataset("cities") if rule == "rendition-timeline" else alice.dataset("cities.r1")
        assert bob.dataset("theirs") == followed
        (view,) = [each for each in await bob.api.renditions.list("theirs") if each.state == "Active"]
        assert view.until == view.upper, "no frontier goes back"


async def test_a_successor_that_is_here_by_another_name_is_left_so(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        await pulled(world, alice, 1, "Graz")
        old = alice.dataset("cities")
        await bob.mirror(old, "theirs")
        await create(alice)
        new = alice.dataset("cities.r1")
        await alice.publish("cities.r1")
        await bob.mirror(new, "elsewhere")
        await hand_over(alice, 1)
        (held,) = await bob.heard("mirror.held")
        assert "as elsewhere" in held.message
        assert (bob.dataset("theirs"), bob.dataset("elsewhere")) == (old, new)


async def test_what_is_shared_with_some_stays_so(world: World) -> None:
    async with world.running("alice", private=True) as alice, world.running("bob", private=True) as bob:
        await alice.apply(ROOT)
        await pulled(world, alice, 1, "Graz")
        await alice.api.visibility.share(wire.ShareRequest(ref="cities", peers=(str(bob.key),)))
        await create(alice)
        await hand_over(alice, 1)
        new = alice.dataset("cities")
        assert not alice.parts.visibility.is_told(new)
        assert alice.parts.visibility.shared_with(new) == alice.parts.visibility.shared_with(alice.dataset("cities.r0"))
        assert len(alice.parts.visibility.shared_with(new)) == 1


async def test_what_derives_from_a_mirror_hands_over_with_it(world: World) -> None:
    """Its rows are those of the new rendition, its name is the same, and it goes on with what comes."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        await pulled(world, alice, 1, "Graz")
        await bob.mirror(alice.dataset("cities"), "theirs")
        await bob.apply(DERIVED.replace("datasetRef: cities", "datasetRef: theirs"))
        await bob.pull("towns")
        old = bob.dataset("towns")
        await create(alice)
        await pulled(world, alice, 2, "Linz")
        await hand_over(alice, 1)
        (followed,) = await bob.heard("rendition.followed")
        assert "still derives" not in followed.message
        assert (bob.dataset("towns.r0"), bob.dataset("theirs")) == (old, alice.dataset("cities"))
        assert states(bob, "towns") == [
            (0, "towns.r0", "first", "Superseded"),
            (1, "towns", "inputs", "Active"),
        ]
        await pulled(world, alice, 3, "Wels")
        await became(lambda: bob.size("theirs") == alice.size("cities"))
        await bob.pull("towns")
        assert [row[1:] for row in await rows(bob, "towns")] == [row[1:] for row in await rows(alice, "cities")]
        assert len(await rows(bob, "towns")) == 3
        await hand_over(alice, 0)
        await bob.heard("rendition.followed", 2)
        assert bob.dataset("towns") == old, "the former one is used again"
        await bob.pull("towns")
        assert len(await rows(bob, "towns")) == 3


async def test_a_transform_that_cannot_run_stays_and_is_named(world: World, monkeypatch: Any) -> None:
    """What one reader here cannot do keeps no mirror from its owner's choice."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        await pulled(world, alice, 1, "Graz")
        await bob.mirror(alice.dataset("cities"), "theirs")
        await bob.apply(DERIVED.replace("datasetRef: cities", "datasetRef: theirs"))
        await bob.pull("towns")
        old = bob.dataset("towns")

        async def fails(_dataset: Any) -> None:
            raise Refused("the input is not relied on", rule="trust")

        monkeypatch.setattr(bob.api.renditions._derived, "_derive", fails)
        await create(alice)
        await hand_over(alice, 1)
        (followed,) = await bob.heard("rendition.followed")
        assert "towns still derives from theirs.r0: the input is not relied on" in followed.message
        assert (bob.dataset("towns"), bob.dataset("theirs")) == (old, alice.dataset("cities"))
