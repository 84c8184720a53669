"""A history decoded anew on whole nodes: times the same, rows new, the name switched at one time, whatever dies."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import trio

from chain.errors import Invalid, Refused
from chain.instant import to_millis
from chain.model.events import AddData
from odfd.control import wire
from odfd.errors import Bug
from odfd.store import captures
from worlds.manifests import DERIVED, ROOT, in_shards
from worlds.node_world import Node, World


async def create(node: Node, name: str | None = None) -> wire.RenditionView:
    made: wire.RenditionView = await node.done(node.api.renditions.create("cities", wire.RenditionRequest(id=name)))
    return made


async def hand_over(node: Node, number: int, name: str | None = None) -> wire.RenditionView:
    done: wire.RenditionView = await node.done(
        node.api.renditions.hand_over("cities", number, wire.HandoverRequest(id=name))
    )
    return done


async def rows(node: Node, ref: str) -> list[Any]:
    return [tuple(row)[4:] for row in (await node.api.datasets.tail(ref, 100)).rows]


def times(node: Node, ref: str) -> list[int]:
    """The times of a rendition's blocks of data, in all shards."""
    found = set()
    for each in node.home.shards_of(node.dataset(ref)):
        chain = node.home.chains.chain(each)
        blocks = map(chain.block_at, range(chain.head().size))
        found |= {to_millis(block.system_time) for block in blocks if isinstance(block.event, AddData)}
    return sorted(found)


def cities(merge: str, shards: int = 1) -> str:
    root = str(ROOT.replace("{kind: Append}", merge))
    return root if shards == 1 else in_shards(root)


LEDGER = "{kind: Ledger, primaryKey: [city]}"


SHARDS = pytest.mark.parametrize("shards", [1, 3])


async def filled(world: World, node: Node, shards: int = 1) -> None:
    """A source whose declaration is wrong: a ledger by city loses all but the first row of each."""
    await node.apply(cities(LEDGER, shards))
    await node.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
    await node.keep_raw("cities")
    for day, said in ((1, "Graz,1"), (2, "Linz,2"), (3, "Graz,3"), (4, "Wels,4")):
        world.write("alice", f"d{day}.csv", f"2024-01-0{day}T00:00:00Z,{said}")
        await node.pull("cities")


@SHARDS
async def test_a_decoder_that_was_wrong_is_mended(world: World, shards: int) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice, shards)
        before, old = await rows(alice, "cities"), alice.dataset("cities")
        assert len(before) == 3, "what was decoded wrongly"
        await alice.apply(cities("{kind: Append}", shards))
        made = await create(alice)
        assert len(made.shards) == (shards if shards > 1 else 0), "it has as many as the active one"
        assert (made.number, made.dataset, made.state) == (1, "cities.r1", "Building")
        assert await rows(alice, "cities") == before, "nobody sees it yet"
        await hand_over(alice, 1)
        assert len(await rows(alice, "cities")) >= 3
        assert alice.dataset("cities") != old == alice.dataset("cities.r0")
        assert set(times(alice, "cities.r0")) <= set(times(alice, "cities"))
        world.write("alice", "d5.csv", "2024-01-05T00:00:00Z,Steyr,5")
        await alice.pull("cities")
        assert len(times(alice, "cities")) == len(times(alice, "cities.r0")) + 1
        refused = await alice.done(alice.api.flow.pull(wire.PullRequest(refs=("cities.r0",))))
        assert [each.outcome for each in refused.items] == ["failed"]
        assert "not the active one" in refused.items[0].message
        everything = await alice.done(alice.api.flow.pull(wire.PullRequest(all=True)))
        assert [each.ref for each in everything.items] == ["cities"]
        states = [(each.number, each.state) for each in await alice.api.renditions.list()]
        assert states == [(0, "Superseded"), (1, "Active")]
        result = await alice.done(alice.api.raw.replay("cities"))
        assert (result.differs, result.rewritten) == (0, 0)


@SHARDS
async def test_a_handover_back_is_exact_too(world: World, shards: int) -> None:
    """What came in meanwhile is decoded by the one that was wrong, as it always did."""
    async with world.running("alice") as alice:
        await filled(world, alice, shards)
        await alice.apply(cities("{kind: Append}", shards))
        await create(alice)
        await hand_over(alice, 1)
        world.write("alice", "d5.csv", "2024-01-05T00:00:00Z,Steyr,5")
        await alice.pull("cities")
        first = alice.dataset("cities.r0")
        await hand_over(alice, 0)
        assert alice.dataset("cities") == first
        assert times(alice, "cities")[-1] == times(alice, "cities.r1")[-1]
        world.write("alice", "d6.csv", "2024-01-06T00:00:00Z,Krems,6")
        await alice.pull("cities")
        states = [(each.number, each.dataset, each.state) for each in await alice.api.renditions.list("cities")]
        assert states == [(0, "cities", "Active"), (1, "cities.r1", "Superseded")]


@SHARDS
async def test_what_waits_for_a_handover_goes_to_the_rendition_that_is_active_then(world: World, shards: int) -> None:
    """A pull and an advance that were asked for by the name of the collection, before it handed over."""
    async with world.running("alice") as alice:
        await filled(world, alice, shards)
        await alice.apply(cities("{kind: Append}", shards))
        await create(alice)
        old = alice.dataset("cities")
        world.write("alice", "d5.csv", "2024-01-05T00:00:00Z,Steyr,5")
        done: dict[str, Any] = {}

        async def ask(name: str, asked: Any) -> None:
            done[name] = await alice.done(asked)

        async with trio.open_nursery() as nursery, alice.home.turns.of(old):
            for number, (name, asked) in enumerate((
                ("handover", alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest())),
                ("pull", alice.api.flow.pull(wire.PullRequest(refs=("cities",)))),
                ("advance", alice.api.flow.advance("cities")),
            ), 1):  # fmt: skip
                nursery.start_soon(ask, name, asked)
                while alice.home.turns.waiting(old) < number:
                    await trio.lowlevel.checkpoint()
        assert alice.dataset("cities.r0") == old
        assert [(each.ref, each.outcome) for each in done["pull"].items] == [("cities", "updated")]
        assert [each.outcome for each in done["advance"].items] == ["up-to-date"], "the pull moved it"
        assert (5,) in {row[-1:] for row in await rows(alice, "cities")}
        assert (5,) not in {row[-1:] for row in await rows(alice, "cities.r0")}


async def test_a_command_has_one_effect_and_one_meaning(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        made = await create(alice, "anew")
        assert await create(alice, "anew") == made
        done = await hand_over(alice, 1, "over")
        assert await hand_over(alice, 1, "over") == done
        with pytest.raises(Invalid, match="something else"):
            await hand_over(alice, 0, "over")
        await hand_over(alice, 0, "back")
        assert (await hand_over(alice, 1, "over")).state == "Superseded", "it was done, and is not done again"
        with pytest.raises(Invalid, match="no rendition 7"):
            await hand_over(alice, 7)


async def test_what_cannot_be_is_refused_by_name(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(cities("{kind: Append}"))
        world.write("alice", "d0.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull("cities")
        await alice.keep_raw("cities")
        with pytest.raises(Refused, match="is not captured"):
            await create(alice)
        world.write("alice", "d1.csv", "2024-01-02T00:00:00Z,Linz,2")
        await alice.pull("cities")
        with pytest.raises(Refused, match="is not captured"):
            await create(alice)
        assert [each.state for each in await alice.api.renditions.list("cities")] == ["Active"]


async def test_a_derived_dataset_hands_over_with_its_input(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        await alice.apply(DERIVED)
        await alice.pull("towns")
        before, old = await rows(alice, "towns"), alice.dataset("towns")
        await alice.apply(cities("{kind: Append}"))
        await create(alice)
        with pytest.raises(Refused, match="is not ingested by this node"):
            await alice.done(alice.api.renditions.create("towns", wire.RenditionRequest(origin="snapshot")))
        await hand_over(alice, 1)
        assert await rows(alice, "towns.r0") == before
        assert alice.dataset("towns.r0") == old
        world.write("alice", "d5.csv", "2024-01-05T00:00:00Z,Steyr,5")
        await alice.pull("cities")
        await alice.pull("towns")
        shown = [tuple(row)[3:] for row in (await alice.api.datasets.tail("towns", 100)).rows]
        assert shown == [tuple(row)[3:] for row in (await alice.api.datasets.tail("cities", 100)).rows]
        switched = [
            alice.api.renditions._effects.state(alice.dataset(ref)).timeline.switches[1] for ref in ("cities", "towns")
        ]
        assert switched[0].time == switched[1].time
        with pytest.raises(Refused, match="hands over with its inputs"):
            await alice.done(alice.api.renditions.hand_over("towns", 0, wire.HandoverRequest()))
        await hand_over(alice, 0)
        assert alice.dataset("towns") == old, "what there was is used again"
        assert len(await alice.api.renditions.list("towns")) == 2
        assert (await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest()))).ok


async def test_shards_are_decoded_from_one_chain_and_back(world: World) -> None:
    """The same bytes give the same rows in any number of shards, at the same times, across each handover."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        await alice.apply(cities("{kind: Append}"))
        for number, shards in ((1, 3), (2, 1), (3, 2)):
            by = ("city",) if shards > 1 else ()
            wanted = wire.RenditionRequest(shards=shards, by=by)
            made = await alice.done(alice.api.renditions.create("cities", wanted))
            assert len(made.shards) == (shards if shards > 1 else 0)
            await hand_over(alice, number)
            world.write("alice", f"e{number}.csv", f"2024-02-0{number}T00:00:00Z,Steyr,{number}")
            await alice.pull("cities")
            assert (await alice.done(alice.api.raw.replay("cities"))).ok
        wanted = wire.RenditionRequest(origin="snapshot", shards=4, by=("city",))
        await alice.done(alice.api.renditions.create("cities", wanted))
        world.write("alice", "f.csv", "2024-03-01T00:00:00Z,Krems,9")
        await alice.pull("cities")
        await hand_over(alice, 4)
        copied = await alice.done(alice.api.raw.replay("cities"))
        assert (copied.same + copied.equivalent, copied.differs, copied.rewritten) == (1, 0, 0)
        await hand_over(alice, 1)
        with alice.home.database.read() as connection:
            one, two, three = (
                captures.of(connection, alice.dataset(ref)) for ref in ("cities", "cities.r2", "cities.r3")
            )
        assert [each.time for each in one][:-1] == [each.time for each in three][:-1]
        assert {each.time for each in two} <= {each.time for each in one}
        assert len({each.time for each in one}) == len(one) == 8


async def test_bytes_of_one_time_are_not_decoded_into_shards(world: World) -> None:
    """As captures have that were made before times grew strictly."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        dataset = alice.dataset("cities")
        with alice.home.database.write() as connection:
            first, second, *_ = captures.of(connection, dataset)
            captures.keep(connection, dataset, second.capture, second.parts, first.time)
        wanted = wire.RenditionRequest(shards=2, by=("city",))
        with pytest.raises(Refused, match="shards have one at a time"):
            await alice.done(alice.api.renditions.create("cities", wanted))
        assert [each.state for each in await alice.api.renditions.list("cities")] == ["Active"]


async def test_one_that_was_never_active_can_be_abandoned(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        await create(alice)
        assert (await alice.api.renditions.abandon("cities", 1)).state == "Dropped"
        assert (await create(alice)).number == 2, "numbers are not used again"
        with pytest.raises(Refused, match="was active"):
            await alice.api.renditions.abandon("cities", 0)
        await hand_over(alice, 2)
        with pytest.raises(Refused, match="was active") as told:
            await alice.api.renditions.abandon("cities", 0)
        name = str(told.value.hint).rpartition("odfctl delete dataset ")[2]
        with pytest.raises(Refused, match="active, or gone"):
            await hand_over(alice, 1)
        await alice.api.declarations.delete("Dataset", name)
        assert await alice.api.declarations.list("Dataset", None) == []


async def test_a_new_rendition_is_private_whatever_is_published(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        await create(alice)
        await alice.apply(ROOT.replace("name: cities", "name: other"))
        told = {ref: alice.parts.visibility.is_told(alice.dataset(ref)) for ref in ("cities", "cities.r1", "other")}
        assert told == {"cities": False, "cities.r1": False, "other": True}


class Died(Exception):
    """The process ended after a durable effect."""


@SHARDS
async def test_a_death_after_each_effect_loses_and_repeats_nothing(world: World, shards: int) -> None:
    """The next process is asked the same, by the same ids; what comes out is what one life gives."""
    async with world.running("alice") as alice:
        await filled(world, alice, shards)
        if shards == 1:  # the small engine knows no union
            await alice.apply(DERIVED)
            await alice.pull("towns")
        await alice.apply(cities("{kind: Append}", shards))
    seen: list[str] = []

    def step(name: str) -> None:
        if seen.count(name) < 2:
            seen.append(name)
            raise Died(name)

    while True:
        async with world.running("alice") as alice:
            alice.api.renditions._effects.step = step
            with contextlib.suppress(Bug):
                await create(alice, "anew")
                await hand_over(alice, 1, "over")
                break
    async with world.running("alice") as alice:
        assert {"rendition-begun", "decoded", "handover-asked", "switched"} <= set(seen)
        assert ("derived" in seen) == (shards == 1)
        states = [(each.number, each.dataset, each.state) for each in await alice.api.renditions.list("cities")]
        assert states == [(0, "cities.r0", "Superseded"), (1, "cities", "Active")]
        with alice.home.database.read() as connection:
            old, new = (captures.of(connection, alice.dataset(ref)) for ref in ("cities.r0", "cities"))
        assert [each.time for each in new] == [each.time for each in old]
        assert (await alice.done(alice.api.raw.replay("cities"))).ok
        if shards > 1:
            return
        derived = [(each.dataset, each.state) for each in await alice.api.renditions.list("towns")]
        assert derived == [("towns.r0", "Superseded"), ("towns", "Active")]
