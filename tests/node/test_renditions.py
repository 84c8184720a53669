"""Renditions on whole nodes: a history begun anew by its bytes or its rows, handed over, followed, whatever dies."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import duckdb
import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as some
from node.test_shards import answered

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import SECOND, from_millis, render, to_millis
from chain.model.events import AddData
from chain.multihash import Multihash
from chain.store.shards import SEALED
from odfd.cli import details
from odfd.control import wire
from odfd.errors import Bug
from odfd.queries.log_files import files_of_log
from odfd.renditions import successor
from odfd.renditions.chain_timeline import rows_of
from odfd.services.renditions import effects as rendition_effects
from odfd.services.renditions.differences import check_sql, difference_sql
from odfd.store import captures
from odfd_client import Switched, col, connect
from odfd_client.handovers import Ending, _changes, _kept_changes
from odfd_client.relations import Selection
from odfd_client.values import Pin
from worlds.eventually import PATIENCE, became
from worlds.manifests import DERIVED, ROOT, in_shards
from worlds.node_world import Node, World
from worlds.served_node import away, served

# A history decoded anew on whole nodes: times the same, rows new, the name switched at one time, whatever dies.


async def create(
    node: Node, origin: Literal["raw", "snapshot"] = "snapshot", name: str | None = None
) -> wire.RenditionView:
    request = wire.RenditionRequest(origin=origin, id=name)
    made: wire.RenditionView = await node.done(node.api.renditions.create("cities", request))
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


BY_CITY = "{kind: Ledger, primaryKey: [city]}"
SHARDS = pytest.mark.parametrize("shards", [1, 3])


async def fill_with_losses(world: World, node: Node, shards: int = 1) -> None:
    """A source whose declaration is wrong: a ledger by city loses all but the first row of each."""
    await node.apply(cities(BY_CITY, shards))
    await node.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
    await node.keep_raw("cities")
    for day, said in ((1, "Graz,1"), (2, "Linz,2"), (3, "Graz,3"), (4, "Wels,4")):
        world.write("alice", f"d{day}.csv", f"2024-01-0{day}T00:00:00Z,{said}")
        await node.pull("cities")


@SHARDS
async def test_a_decoder_that_was_wrong_is_mended(world: World, shards: int) -> None:
    async with world.running("alice") as alice:
        await fill_with_losses(world, alice, shards)
        before, old = await rows(alice, "cities"), alice.dataset("cities")
        assert len(before) == 3, "what was decoded wrongly"
        await alice.apply(cities("{kind: Append}", shards))
        made = await create(alice, "raw")
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
        await fill_with_losses(world, alice, shards)
        await alice.apply(cities("{kind: Append}", shards))
        await create(alice, "raw")
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
        await fill_with_losses(world, alice, shards)
        await alice.apply(cities("{kind: Append}", shards))
        await create(alice, "raw")
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
        await fill_with_losses(world, alice)
        made = await create(alice, "raw", "anew")
        assert await create(alice, "raw", "anew") == made
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
            await create(alice, "raw")
        world.write("alice", "d1.csv", "2024-01-02T00:00:00Z,Linz,2")
        await alice.pull("cities")
        with pytest.raises(Refused, match="is not captured"):
            await create(alice, "raw")
        assert [each.state for each in await alice.api.renditions.list("cities")] == ["Active"]


async def test_a_derived_dataset_hands_over_with_its_input(world: World) -> None:
    async with world.running("alice") as alice:
        await fill_with_losses(world, alice)
        await alice.apply(DERIVED)
        await alice.pull("towns")
        before, old = await rows(alice, "towns"), alice.dataset("towns")
        await alice.apply(cities("{kind: Append}"))
        await create(alice, "raw")
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
        await fill_with_losses(world, alice)
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
        await fill_with_losses(world, alice)
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
        await fill_with_losses(world, alice)
        await create(alice, "raw")
        assert (await alice.api.renditions.abandon("cities", 1)).state == "Dropped"
        assert (await create(alice, "raw")).number == 2, "numbers are not used again"
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
    """Attack T-PRIVATE-06: a rendition of a private dataset that settings publish automatically.

    Defence: a new rendition is marked private in the transaction that creates it.
    """
    async with world.running("alice") as alice:
        await fill_with_losses(world, alice)
        await create(alice, "raw")
        await alice.apply(ROOT.replace("name: cities", "name: other"))
        told = {ref: alice.parts.visibility.is_told(alice.dataset(ref)) for ref in ("cities", "cities.r1", "other")}
        assert told == {"cities": False, "cities.r1": False, "other": True}


class Died(Exception):
    """The process ended after a durable effect."""


@SHARDS
async def test_a_death_after_each_effect_loses_and_repeats_nothing(world: World, shards: int) -> None:
    """The next process is asked the same, by the same ids; what comes out is what one life gives."""
    async with world.running("alice") as alice:
        await fill_with_losses(world, alice, shards)
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
                await create(alice, "raw", "anew")
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


# Datasets that others know hand over, and mirrors go on with what their owner made the active rendition.


async def sorted_rows(node: Node, ref: str) -> list[Any]:
    return sorted(tuple(row)[3:] for row in (await node.api.datasets.tail(ref, 100)).rows)


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
        assert await sorted_rows(bob, "theirs") == await sorted_rows(alice, "cities")
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
            assert await sorted_rows(bob, "theirs") == await sorted_rows(alice, "cities")
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
    """Attack T-HEAD-04: a publisher that switches renditions at a time that it had promised as complete, or omits a
    switch that it signed.

    Defence: a switch is not before the block that says it, which is not before the signed frontier; the switches in the
    chain are compared with those that were followed.

    A handover at a time that was decided, and handovers that were signed and then left out.
    """
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
        assert [row[1:] for row in await sorted_rows(bob, "towns")] == [
            row[1:] for row in await sorted_rows(alice, "cities")
        ]
        assert len(await sorted_rows(bob, "towns")) == 3
        await hand_over(alice, 0)
        await bob.heard("rendition.followed", 2)
        assert bob.dataset("towns") == old, "the former one is used again"
        await bob.pull("towns")
        assert len(await sorted_rows(bob, "towns")) == 3


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


# Histories begun anew with what they contain: the same rows at all times, and old data goes when nobody needs it.


LEDGER = "{kind: Ledger, primaryKey: [event_time, city]}"
HOUR = 3600 * SECOND


async def standing(node: Node, ref: str) -> list[tuple[Any, ...]]:
    """The rows in force, without system columns, and their offsets in order."""
    rows, _ = await answered(
        node, wire.QueryRequest(sql=f'SELECT event_time, city, population FROM current."{ref}" ORDER BY ALL')
    )
    return [tuple(row.values()) for row in rows]


async def pulled(world: World, node: Node, day: int, city: str, count: int | None = None) -> None:
    world.write("alice", f"d{day}.csv", f"2024-01-0{day}T00:00:00Z,{city},{day if count is None else count}")
    await node.pull("cities")


async def filled(world: World, node: Node, merge: str = LEDGER, *, raw: bool = False) -> None:
    await node.apply(ROOT.replace("{kind: Append}", merge))
    await node.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
    if raw:
        await node.keep_raw("cities")
    for day, city in ((1, "Graz"), (2, "Linz"), (3, "Wels")):
        await pulled(world, node, day, city, day)


async def test_rows_of_the_very_time_of_a_handover_are_in_its_difference(world: World) -> None:
    """The old rendition is read before that time, so a reader gets them from the new one alone: none is lost."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        await create(alice)
        world.clock.instant += HOUR
        await pulled(world, alice, 4, "Enns", 4)
        chain = alice.home.chains.chain(alice.dataset("cities"))
        last = chain.head()
        clock = SimpleNamespace(now=lambda: chain.block_at(last.sequence_number).system_time)
        with pytest.MonkeyPatch.context() as patched:
            for each in (alice.api.renditions, alice.api.renditions._effects):
                patched.setattr(each, "_clock", clock)
            await hand_over(alice, 1)
        reading = await alice.api.renditions.reading("cities.r0")
        assert reading.old.block != str(last.hash)
        assert not reading.equal
        world.clock.instant += HOUR // 2  # after an hour the old one is sealed
        await hand_over(alice, 0)
        assert (await alice.api.renditions.reading("cities.r1")).equal


async def correct(node: Node, city: str, day: int, count: int | None) -> None:
    key = {"event_time": f"2024-01-0{day}T00:00:00Z", "city": city}
    more = {"retract": True} if count is None else {"values": {"population": str(count)}}
    await node.done(node.api.flow.correct("cities", wire.CorrectRequest(key=key, **more)))


def state_of(node: Node, number: int = 0) -> str:
    service = node.api.renditions
    state = service._effects.state(node.dataset("cities"))
    view = service._view(state, state.member(number))
    return str(view.state)


def objects(node: Node, dataset: Any) -> list[bool]:
    chain = node.home.chains.chain(dataset)
    events = [chain.block_at(number).event for number in range(chain.head().size)]
    slices = [event.new_data for event in events if isinstance(event, AddData) and event.new_data]
    return [node.home.objects.has(each.physical_hash) for each in slices]


async def test_a_snapshot_has_what_stands_in_one_slice_and_what_comes_after(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        await correct(alice, "Linz", 2, 20)
        await correct(alice, "Wels", 3, None)
        before, old = await standing(alice, "cities"), alice.dataset("cities")
        made = await create(alice)
        assert (made.number, made.dataset, made.state, made.origin) == (1, "cities.r1", "Building", "snapshot")
        assert made.since is not None
        assert len(objects(alice, alice.dataset("cities.r1"))) == 1
        assert await standing(alice, "cities.r1") == before
        await pulled(world, alice, 4, "Steyr", 4)
        await correct(alice, "Graz", 1, 10)
        await hand_over(alice, 1)
        now = await standing(alice, "cities")
        assert now == await standing(alice, "cities.r0")
        assert [row[1:] for row in now] == [("Graz", 10), ("Linz", 20), ("Steyr", 4)]
        assert alice.dataset("cities.r0") == old
        await pulled(world, alice, 5, "Krems", 5)
        assert len(await standing(alice, "cities")) == len(await standing(alice, "cities.r0")) + 1
        assert (await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest()))).ok


async def test_a_handover_back_brings_what_came_meanwhile(world: World) -> None:
    """Corrections too, which were never captured; and it may go on between three of one content."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        await create(alice)
        await create(alice)
        await hand_over(alice, 1)
        await pulled(world, alice, 4, "Steyr", 4)
        await correct(alice, "Graz", 1, 10)
        await hand_over(alice, 0)
        await pulled(world, alice, 5, "Krems", 5)
        await hand_over(alice, 2)
        shown = [await standing(alice, ref) for ref in ("cities", "cities.r0", "cities.r1")]
        assert shown[0] == shown[1] == shown[2]
        assert [row[1] for row in shown[0]] == ["Graz", "Linz", "Wels", "Steyr", "Krems"]


async def test_captured_bytes_go_on_across_a_snapshot(world: World) -> None:
    """A rendition from raw is made of all of them, also of those that came before the snapshot."""
    async with world.running("alice") as alice:
        await filled(world, alice, raw=True)
        await create(alice)
        await pulled(world, alice, 4, "Steyr", 4)
        await hand_over(alice, 1)
        await pulled(world, alice, 5, "Krems", 5)
        with alice.home.database.read() as connection:
            assert len(captures.of(connection, alice.dataset("cities"))) == 2
        await alice.apply(ROOT)
        await create(alice, "raw")
        assert await standing(alice, "cities.r2") == await standing(alice, "cities")
        await hand_over(alice, 2)
        await pulled(world, alice, 6, "Enns", 6)
        await hand_over(alice, 0)
        assert len(await standing(alice, "cities")) == 6
        assert await standing(alice, "cities.r1") == await standing(alice, "cities")


async def test_a_dataset_without_rows_begins_anew_without_any(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        await create(alice)
        await hand_over(alice, 1)
        await pulled(world, alice, 1, "Graz", 1)
        assert len(await standing(alice, "cities")) == 1


async def test_the_old_data_goes_when_no_reader_holds_it(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        old = alice.dataset("cities")
        held = await alice.api.holds.take(wire.HoldRequest(ref="cities", seconds=86_400))
        await create(alice)
        await hand_over(alice, 1)
        with trio.fail_after(PATIENCE):
            world.clock.instant += HOUR + SECOND
            alice.api.renditions.upkeep.loop.poke()
            await alice.heard("rendition.sealed")
            assert (state_of(alice), alice.home.chains.upper(old)) == ("Sealed", SEALED)
            for _ in range(8):
                world.clock.instant += 22 * HOUR
                await alice.api.holds.renew(held.id, wire.HoldRenewal(seconds=86_400))
            await alice.api.renditions.upkeep.loop._work()
            assert (state_of(alice), all(objects(alice, old))) == ("Sealed", True)
            await alice.api.holds.release(held.id)
            (event,) = await alice.heard("rendition.dropped")
            await became(lambda: not any(objects(alice, old)))
        assert (event.subject, event.data["rendition"]) == ("cities.r0", 0)
        assert state_of(alice) == "Dropped"
        assert all(objects(alice, alice.dataset("cities")))
        with pytest.raises(NotFound, match="dropped after"):
            await alice.api.datasets.tail("cities.r0", 5)
        assert len(await alice.api.datasets.log("cities.r0", (), 50, None)) > 3, "its chain stays"
        with pytest.raises(Refused, match="active, or gone"):
            await hand_over(alice, 0)
        assert len(await standing(alice, "cities")) == 3


async def test_a_time_is_read_from_the_rendition_that_was_active_then(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        old = alice.dataset("cities")
        last = alice.home.chains.chain(old).block_at(alice.size("cities") - 1)
        early = render(from_millis(to_millis(last.system_time)))
        await pulled(world, alice, 4, "Steyr", 4)
        await create(alice)
        handed = await hand_over(alice, 1)
        held = await alice.api.holds.take(wire.HoldRequest(ref="cities", at=early))
        assert held.pin is not None
        assert held.pin.id == str(old)
        rows, _ = await answered(alice, wire.QueryRequest(sql=f"SELECT city FROM cities AS OF '{early}'"))
        assert [row["city"] for row in rows] == ["Graz", "Linz", "Wels"]
        assert (await alice.api.holds.take(wire.HoldRequest(ref="cities"))).time == handed.active_since
        new = alice.dataset("cities")
        with pytest.raises(NotFound, match="nothing of cities was known"):
            await answered(alice, wire.QueryRequest(sql=f"SELECT city FROM \"{new}\" AS OF '{early}'"))


async def test_a_listener_that_a_handover_overtakes_gets_rows_of_its_own_rendition(world: World) -> None:
    """The name that its rows were to be planned by is another rendition's by then."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        await create(alice)
        old, plans = alice.dataset("cities"), []

        def plan(tables: Any, request: Any) -> Any:
            plans.append(tables[0].path)
            if len(plans) == 1:
                trio.from_thread.run(hand_over, alice, 1)
            return alice.api.queries._planner.plan(tables, request)

        asked = wire.SlicesRequest(dataset=str(old), together=True, after=wire.LogPosition(offset=-1))
        found = await trio.to_thread.run_sync(files_of_log, alice.home, plan, asked)
        assert plans == [("cities",), ("cities.r0",)]
        assert (found.view.dataset, found.ended) == (old, True)


async def test_a_death_after_each_effect_of_a_snapshot_loses_and_repeats_nothing(world: World) -> None:
    seen: list[str] = []

    def step(name: str) -> None:
        if seen.count(name) < 2:
            seen.append(name)
            raise Died(name)

    async with world.running("alice") as alice:
        await filled(world, alice, raw=True)
        before = len(await standing(alice, "cities"))
        await create(alice, name="anew")
        await pulled(world, alice, 4, "Steyr", 4)
        await correct(alice, "Graz", 1, 10)
    while "switched" not in seen or seen.count("copied") < 2:
        async with world.running("alice") as alice:
            alice.api.renditions._effects.step = step
            with contextlib.suppress(Bug):
                await create(alice, name="anew")
                await hand_over(alice, 1, "over")
    async with world.running("alice") as alice:
        await hand_over(alice, 1, "over")
        assert {"rendition-begun", "copied", "handover-asked", "switched"} <= set(seen)
        views = [(each.number, each.dataset, each.state) for each in await alice.api.renditions.list("cities")]
        assert views == [(0, "cities.r0", "Superseded"), (1, "cities", "Active")]
        assert await standing(alice, "cities") == await standing(alice, "cities.r0")
        assert len(await standing(alice, "cities")) == before + 1


async def test_a_death_between_mark_and_sweep_is_made_good(world: World) -> None:
    async with world.running("alice") as alice:

        def later(*_: object) -> float:
            return math.inf

        alice.api.renditions.upkeep._after = later  # the test is what drops it
        await filled(world, alice)
        old = alice.dataset("cities")
        await create(alice)
        await hand_over(alice, 1)
        world.clock.instant += 8 * 24 * HOUR
        effects, held = alice.api.renditions._effects, list[bool]()

        def step(name: str) -> None:
            held.extend(objects(alice, old))  # now: the node goes on, and sweeps what is marked
            raise Died(name)

        effects.step = step
        with pytest.raises(Died):
            await trio.to_thread.run_sync(lambda: effects.drop(effects.state(old).member(0)))
        assert held, "there are objects"
        assert all(held), "marked, and not swept"
        assert state_of(alice) == "Dropped"
    async with world.running("alice") as alice:
        alice.api.renditions.upkeep.loop.poke()
        await became(lambda: not any(objects(alice, old)))
        assert len(await standing(alice, "cities")) == 3


async def test_a_reader_that_comes_before_the_mark_keeps_the_data(world: World) -> None:
    """Also one that reads the former rendition by its own name, at whatever time."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        old = alice.dataset("cities")
        await create(alice)
        await hand_over(alice, 1)
        await alice.api.holds.take(wire.HoldRequest(ref="cities.r0"))
        effects = alice.api.renditions._effects
        with pytest.raises(Refused, match="held for a reader"):
            await trio.to_thread.run_sync(lambda: effects.drop(effects.state(old).member(0)))
        assert all(objects(alice, old))


# Differences of handovers that are computed once: readers get the same rows as from a comparison of all rows.


OVER = wire.HandoverRequest(difference=True, id="over")
ROWS = some.lists(some.tuples(some.none() | some.sampled_from("abc"), some.none() | some.integers(0, 2)), max_size=8)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a short name: a socket's may have 107 bytes."""
    return tmp_path_factory.mktemp("c")


def pin_of(name: str) -> wire.Pin:
    dataset = DatasetId.from_public_key(name.encode() * 32)
    return wire.Pin(name=name, id=str(dataset), block=str(Multihash.sha3_256(b"")), sequence_number=1)


READING = wire.HandoverReading(
    time="", old=pin_of("o"), new=pin_of("n"), new_shards=(pin_of("n"), pin_of("m")), columns=("key", "value")
)
ENDING = Ending(
    "", (Pin("old0", "old0", "", 0),), (Pin("new0", "new0", "", 0), Pin("new1", "new1", "", 0)), False,
    ("key", "value"), Pin("kept", "kept", "", 0),
)  # fmt: skip


def as_added(rows: list[tuple[Any, ...]]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for op, *values in rows:
        found[tuple(values)] += -1 if op == 1 else 1
    return found


@pytest.fixture(scope="module")
def base() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        made.execute("CREATE SCHEMA current")
        for name in ("old0", "new0", "new1"):
            made.execute(f"CREATE TABLE current.{name} (key VARCHAR, value INT)")
        made.execute("CREATE TABLE kept (op INT, key VARCHAR, value INT)")
        yield made


def fill_table(base: duckdb.DuckDBPyConnection, table: str, rows: list[Any]) -> None:
    base.execute(f"DELETE FROM {table}")
    if rows:
        base.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)


@settings(max_examples=40)
@given(old=ROWS, new=ROWS, more=ROWS, columns=some.sampled_from([("key", "value"), ("key",)]), asked=some.booleans())
def test_a_kept_difference_is_the_computed_one(
    base: duckdb.DuckDBPyConnection,
    old: list[Any],
    new: list[Any],
    more: list[Any],
    columns: tuple[str, ...],
    asked: bool,
) -> None:
    """Rows that are in both more than once, nulls, chosen columns and rows; and no other rows pass for it."""
    for name, rows in (("old0", old), ("new0", new), ("new1", more)):
        fill_table(base, f"current.{name}", rows)
    base.execute("DELETE FROM kept")
    base.execute(f"INSERT INTO kept {difference_sql(('key', 'value'), READING)}")
    kept = as_added(base.execute("SELECT op, key, value FROM kept").fetchall())
    had = Counter(old)
    had.update(kept)
    assert +had == Counter([*new, *more])
    assert not -had
    assert base.execute(check_sql(("key", "value"), READING)).fetchone() == (0,)
    where = col("value") == 1 if asked else None
    selection = Selection("d", columns=columns, where=where)
    answers = [
        as_added(base.execute(sql, parameters or None).fetchall())
        for sql, parameters in (_changes(selection, ENDING.old, ENDING), _kept_changes(selection, ENDING))
    ]
    assert answers[0] == answers[1]
    base.execute("INSERT INTO kept VALUES (0, 'a', 1)")
    assert base.execute(check_sql(("key", "value"), READING)).fetchone() == (1,)


async def brought(world: World, node: Node, day: int, *rows: str) -> None:
    world.write("alice", f"d{day}.csv", *(f"2024-01-0{day}T00:00:00Z,{row}" for row in rows))
    await node.pull("cities")


async def begun(world: World, node: Node) -> None:
    """A ledger, and a rendition that is decoded without one: it has a row more for each repetition of a key."""
    await node.apply(ROOT.replace("{kind: Append}", BY_CITY))
    await node.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
    await node.keep_raw("cities")
    await brought(world, node, 1, "Graz,1", "Linz,2")
    await brought(world, node, 2, "Graz,3", "Graz,3", "Wels,4")
    await node.apply(ROOT)
    await node.done(node.api.renditions.create("cities", wire.RenditionRequest()))


def crossed(path: Path) -> tuple[Counter[Any], str]:
    """The rows of the handover, and the query for them."""
    (switched,) = [each for each in connect(path).open("cities.r0").cross(follow=False) if isinstance(each, Switched)]
    assert switched.changes is not None
    rows = switched.changes.to_arrow().select(["op", "city", "population"]).to_pylist()
    return as_added([tuple(row.values()) for row in rows]), switched.changes._statement[0]


async def test_readers_cross_by_the_kept_rows(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await alice.done(alice.api.renditions.hand_over("cities", 1, OVER))
        reading = await alice.api.renditions.reading("cities.r0")
        assert reading.difference is not None
        assert reading.difference.name == "cities.h1"
        async with served(alice, folder) as path:
            kept, sql = await away(lambda: crossed(path))
            assert reading.difference.id in sql
            assert "current" not in sql
            gone = await alice.api.renditions.abandon("cities.h1", 0)
            assert (gone.origin, gone.state) == ("difference", "Dropped")
            computed, sql = await away(lambda: crossed(path))
            assert "current" in sql
        assert kept == computed == Counter({("Graz", 3): 2})


async def test_a_wrong_difference_is_refused_by_name_and_a_death_before_the_check_is_mended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-HEAD-04: a stored difference of two renditions that is false.

    Defence: it is compared with both renditions before it is recorded, and its block names their cuts.
    """

    def die(step: str) -> None:
        assert step != "difference-written"

    async with world.running("alice") as alice:
        await begun(world, alice)
        alice.api.renditions._effects.step = die
        with pytest.raises(Bug, match="AssertionError"):
            await alice.done(alice.api.renditions.hand_over("cities", 1, OVER))
        alice.api.renditions._effects.step = lambda _: None
        assert (await alice.api.renditions.reading("cities.r0")).difference is None, "it was not compared yet"
        await alice.done(alice.api.renditions.hand_over("cities", 1, OVER))
        assert (await alice.api.renditions.reading("cities.r0")).difference is not None
        wrong = "SELECT 0 AS op, event_time, city, population FROM current.new0"
        monkeypatch.setattr("odfd.services.renditions.differences.difference_sql", lambda *_: wrong)
        back = wire.HandoverRequest(difference=True, id="back")
        with pytest.raises(Refused, match=r"cities.h2 is not the difference of both renditions: \d+ rows"):
            await alice.done(alice.api.renditions.hand_over("cities", 0, back))
        assert (await alice.api.renditions.reading("cities.r1")).difference is None
        wrongly = alice.dataset("cities.h2")
        monkeypatch.undo()
        await alice.done(alice.api.renditions.hand_over("cities", 0, back))
        kept = (await alice.api.renditions.reading("cities.r1")).difference
        assert kept is not None
        assert (kept.name, kept.id) == ("cities.h2", str(alice.dataset("cities.h2")))
        assert alice.dataset("cities.h2") != wrongly
        assert alice.home.chains.chain(wrongly).head() is None, "it is made anew"


EACH = """$schema: Flow
headers: {name: every}
spec: {target: "Dataset:%", triggers: [{kind: Schedule, cron: '@yearly'}], tasks: [{kind: Compaction}]}
"""


async def with_difference(world: World, node: Node) -> DatasetId:
    """Records the difference of the first handover of a collection. Returns its id."""
    await begun(world, node)
    await node.done(node.api.renditions.hand_over("cities", 1, OVER))
    return node.dataset("cities.h1")


async def test_lists_and_patterns_leave_recorded_differences_out(world: World) -> None:
    async with world.running("alice") as alice:
        await with_difference(world, alice)
        await alice.apply(EACH)
        await alice.parts.reconciler.wait_settled()
        await alice.parts.flows.look(())
        plans = [entry.plan for _, entry in alice.parts.flows.scheduler.entries()]
        assert {plan.target for plan in plans if plan.name == "every"} == {alice.dataset("cities")}
        assert [each.name for each in await alice.api.declarations.list("Dataset", None)] == ["cities"]
        assert [each.name for each in await alice.dataset_views()] == ["cities"]


async def test_a_recorded_difference_is_named_after_its_collection(world: World) -> None:
    async with world.running("alice") as alice:
        difference = await with_difference(world, alice)
        await alice.api.applying.rename("Dataset", "cities", "towns")
        with pytest.raises(NotFound):
            alice.home.resolve("cities.h1")
        assert alice.dataset("towns.h1") == alice.dataset(str(difference)) == difference
        await alice.apply(ROOT.replace("name: cities", "name: towns.h2"))
        with pytest.raises(Invalid, match=r"towns\.h1 is already the name"):
            await alice.api.applying.rename("Dataset", "towns.h2", "towns.h1")
        with pytest.raises(Invalid, match=r"towns\.h2 is already the name"):
            await alice.done(alice.api.renditions.hand_over("towns", 0, wire.HandoverRequest(difference=True)))
        assert (await alice.api.renditions.list("towns"))[1].state == "Active", "nothing was handed over"


async def test_a_recorded_difference_is_read_as_a_rendition_is_and_stays_as_it_is(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice:
        await with_difference(world, alice)
        api = alice.api
        assert len(await api.datasets.log("cities.h1", (), 50, None)) == 3
        assert len((await api.datasets.tail("cities.h1", 5)).rows) == 2
        assert (await alice.done(api.verification.verify("cities.h1", wire.VerifyRequest(level="data")))).ok
        await alice.done(api.flow.export("cities.h1", wire.ExportRequest(to=str(tmp_path / "out"))))
        (shown,) = await api.renditions.list("cities.h1")
        assert (shown.dataset, shown.origin) == ("cities.h1", "difference")
        for change in (
            lambda: api.flow.set_watermark("cities.h1", wire.WatermarkRequest(time="2024-02-01T00:00:00Z")),
            lambda: api.renditions.create("cities.h1", wire.RenditionRequest(origin="snapshot")),
        ):
            with pytest.raises(Refused, match="a recorded difference is no rendition"):
                await alice.done(change())


async def test_a_recorded_difference_is_deleted_with_its_collection(world: World) -> None:
    async with world.running("alice") as alice:
        difference = await with_difference(world, alice)
    async with world.running("alice") as alice:
        assert (await alice.api.renditions.reading("cities.r0")).difference is not None
        await alice.api.declarations.delete("Dataset", "cities", purge=True)
        assert alice.home.chains.chain(difference).head() is None
        assert await alice.dataset_views() == []
        with alice.home.database.read() as connection:
            assert connection.execute("SELECT count(*) FROM collection_members").fetchone() == (0,)


async def test_equal_contents_need_none_and_other_columns_have_none(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await alice.apply(ROOT.replace("population BIGINT", "population STRING"))
        await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest(id="texts")))
        with pytest.raises(Refused, match="there is no difference of rows"):
            await alice.done(alice.api.renditions.hand_over("cities", 2, OVER))
        request = wire.RenditionRequest(origin="snapshot", id="more")
        await alice.done(alice.api.renditions.create("cities", request))
        await alice.done(alice.api.renditions.hand_over("cities", 3, OVER))
        reading = await alice.api.renditions.reading("cities.r0")
        assert (reading.equal, reading.difference) == (True, None)
