"""Collections that others know hand over to any number of shards, and mirrors cross at the time of the publisher."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from node.test_mirrored_shards import brought, signed
from node.test_shards import LEDGER, Died, shard, standing
from node.test_shared import STRANGER, WAYS, Subject, named_in

from chain.errors import NotFound, Refused
from chain.instant import SECOND
from chain.state import load_state
from chain.store.shards import SEALED
from odfd.control import wire
from odfd.errors import Bug
from odfd.mirrors.holders import Holders
from odfd.mirrors.mirror_handover import Await
from odfd.renditions.successor import notice_of
from odfd.renditions.timeline import RenditionRow
from odfd.services.publishing.visibility import check_card_of
from odfd.store.collections import Member
from odfd.store.ledger import kinds
from odfd.store.ledger.cards import Cards
from odfd.store.references import objects_of
from worlds.eventually import became
from worlds.manifests import ROOT
from worlds.node_world import Node, World


async def over(node: Node, number: int, name: str = "cities") -> None:
    await node.done(node.api.renditions.hand_over(name, number, wire.HandoverRequest()))
    await signed(node)


async def known(world: World, node: Node) -> None:
    """A published collection of one chain."""
    await node.apply(ROOT.replace("{kind: Append}", LEDGER))
    await brought(world, node, 1, "Graz", "Linz", "Wels", "Enns", "Melk")
    await signed(node)


async def test_mirrors_follow_to_any_number_of_shards_and_back(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await known(world, alice)
        await bob.mirror(alice.dataset("cities"), "theirs")
        for number, count in enumerate((3, 5, 1, 2), start=1):
            await shard(alice, count, *(("city",) if count > 1 else ()))
            await brought(world, alice, number + 1, "Graz", "Krems")
            await over(alice, number)
            await bob.heard("rendition.followed", number)
            assert await standing(bob, "theirs") == await standing(alice, "cities")
            assert len((await bob.dataset_view("theirs")).shards) == (count if count > 1 else 0)
        await over(alice, 1)
        await bob.heard("rendition.followed", 5)
        await brought(world, alice, 9, "Steyr")
        await became(lambda: bob.size("theirs") == alice.size("cities"))
        assert bob.dataset("theirs") == alice.dataset("cities")
        await bob.pull("theirs")
        assert await standing(bob, "theirs") == await standing(alice, "cities")
        theirs, own = bob.api.renditions._effects, alice.api.renditions._effects
        there, here = theirs.state(bob.dataset("theirs")), own.state(alice.dataset("cities"))
        assert [each.time for each in there.timeline.switches] == [each.time for each in here.timeline.switches]
        assert [each.row.shards for each in there.members] == [each.row.shards for each in here.members]
        for ref in ("theirs.r0", "theirs.r2", "theirs.r3", "theirs.r4"):
            reading = await bob.api.renditions.reading(ref)
            said = await alice.api.renditions.reading(ref.replace("theirs", "cities"))
            assert (reading.time, pinned(reading)) == (said.time, pinned(said)), "it reads the same difference"


async def test_what_is_withdrawn_by_name_is_withdrawn_with_former_renditions(world: World) -> None:
    """They have the same rows; who wants to keep one in public names it."""
    async with world.running("alice") as alice:
        await known(world, alice)
        await shard(alice, 3, "city")
        await over(alice, 1)
        chains = [*alice.home.shards_of(alice.dataset("cities")), alice.dataset("cities.r0")]
        assert all(alice.parts.visibility.is_told(each) for each in chains)
        (view,) = await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        assert view.notes[:2] == (
            "3 shards, each with an id of its own",
            "cities.r0 too, of former renditions, with the same rows",
        )
        assert not any(alice.parts.visibility.is_told(each) for each in chains)
        await alice.api.visibility.publish(wire.VisibilityRequest(refs=("cities.r0",)))
        assert [alice.parts.visibility.is_told(each) for each in chains] == [False, False, False, True]


def pinned(reading: wire.HandoverReading) -> list[tuple[str, str]]:
    pins = (reading.old, reading.new, *reading.old_shards, *reading.new_shards)
    return [(each.id, each.block) for each in pins]


def test_columns_that_no_card_can_name_are_not_handed_over_to_in_public() -> None:
    row = RenditionRow(number=1, shards=("a", "b"), by=("city", "c" * 65))
    with pytest.raises(Refused, match="too long for a card") as refused:
        check_card_of(Member(row=row, origin="snapshot"), "cities")
    assert refused.value.rule == "shard-column"
    check_card_of(Member(row=msgspec.structs.replace(row, by=("c" * 64,)), origin="snapshot"), "cities")


async def test_former_shards_that_are_sealed_are_read_and_held_at_a_mirror(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await known(world, alice)
        await bob.mirror(alice.dataset("cities"), "theirs")
        before = await standing(bob, "theirs")
        for number, count in ((1, 3), (2, 2)):
            await shard(alice, count, "city")
            await over(alice, number)
            await bob.heard("rendition.followed", number)
        old = bob.home.shards_of(bob.dataset("theirs.r1"))
        world.clock.instant += 2 * 3600 * SECOND
        alice.api.renditions.upkeep.loop.poke()
        await became(lambda: all(alice.home.chains.upper(each) == SEALED for each in old))
        await signed(alice)
        await bob.pull("theirs.r1")
        await became(lambda: all(bob.home.chains.upper(each) == SEALED for each in old))
        assert await standing(bob, "theirs.r1") == before
        held = await bob.api.holds.take(wire.HoldRequest(ref="theirs.r1"))
        assert (len(held.shards), held.time < "2027") == (3, True)
        assert (await bob.api.renditions.reading("theirs.r1")).equal is False


async def test_a_mirror_that_is_behind_goes_on_with_the_old_shards(world: World) -> None:
    """One late shard of the new rendition keeps the name where it was; what comes meanwhile is read when it crosses."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await known(world, alice)
        await bob.mirror(alice.dataset("cities"), "theirs")
        old, before = bob.dataset("theirs"), await standing(bob, "theirs")
        asked, late = Holders.of, list[Any]()

        async def slow(self: Holders, dataset: Any, size: int) -> Any:
            return [] if dataset in late else await asked(self, dataset, size)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Holders, "of", slow)
            made = await shard(alice, 3, "city")
            late.append(alice.dataset(made.shards[2]))
            await over(alice, 1)
            await brought(world, alice, 2, "Krems")
            new = alice.dataset("cities")
            await became(lambda: len(bob.home.shards_of(new)) == 3 and bob.home.chains.chain(new).head())
            await bob.parts.handovers._follow(old)
            assert (bob.dataset("theirs"), await standing(bob, "theirs")) == (old, before)
            (step,) = [bob.parts.handovers._look(old).step]
            assert step == Await((late[0],))
            with pytest.raises(NotFound, match="is missing"):
                await standing(bob, "theirs.r1")
        await bob.pull("theirs.r1")
        await bob.heard("rendition.followed")
        assert bob.dataset("theirs") == new
        assert await standing(bob, "theirs") == await standing(alice, "cities")


async def test_a_mirror_that_missed_a_handover_and_the_way_back_stays(world: World) -> None:
    """Also if the rendition between them is gone; the chain says that it is the collection again."""
    async with world.running("alice") as alice:
        await known(world, alice)
        old = alice.dataset("cities")
        async with world.running("bob") as bob:
            await bob.mirror(old, "theirs")
        await shard(alice, 3, "city")
        await over(alice, 1)
        assert notice_of(load_state(alice.home.chains.chain(old)).set_info) is not None
        await brought(world, alice, 2, "Krems")
        await over(alice, 0)
        assert notice_of(load_state(alice.home.chains.chain(old)).set_info) is None
        await brought(world, alice, 3, "Steyr")
        await alice.api.renditions._delete(alice.dataset("cities.r1"))
        async with world.running("bob") as bob:
            await bob.pull("theirs")
            await became(lambda: bob.size("theirs") == alice.size("cities"))
            assert bob.dataset("theirs") == old
            assert await standing(bob, "theirs") == await standing(alice, "cities")
            assert {each.spec.name for each in bob.parts.scheduler.all()} == {"theirs"}


async def test_a_death_right_after_the_handover_leaves_nothing_unsaid(world: World) -> None:
    """The frontiers that mirrors wait for are signed by the next life of the publisher."""

    def step(name: str) -> None:
        if name == "switched":
            raise Died(name)

    async with world.running("alice") as alice, world.running("bob") as bob:
        await known(world, alice)
        await bob.mirror(alice.dataset("cities"), "theirs")
        await shard(alice, 2, "city")
        alice.api.renditions._effects.step = step
        with pytest.raises(Bug):
            await over(alice, 1)
        new = alice.dataset("cities")
    async with world.running("alice") as alice, world.running("bob") as bob:
        assert alice.dataset("cities") == new
        alice.api.renditions.upkeep.loop.poke()
        await signed(alice)
        await bob.pull("theirs")
        await bob.heard("rendition.followed")
        assert await standing(bob, "theirs") == await standing(alice, "cities")


async def test_nothing_of_a_rendition_is_told_before_its_handover(world: World) -> None:
    """Each shard of one that is made, and of one that is abandoned, is answered for like what is nowhere."""
    async with world.running("alice", private=True) as alice:
        await known(world, alice)
        await alice.publish("cities")
        made = await shard(alice, 3, "city")
        await brought(world, alice, 2, "Krems")
        await signed(alice)
        public = Subject(alice.dataset("cities"), *named_in(alice, alice.dataset("cities"), STRANGER))
        hidden = []
        for each in made.shards:
            with alice.home.database.read() as connection:
                (_, sid) = kinds.refs(connection, of_dataset=True, subjects=[alice.dataset(each)])[0]
            chain = alice.home.chains.chain(alice.dataset(each))
            names = [name for at in range(chain.head().size) for name, _ in objects_of(chain.block_at(at))]
            hidden += [Subject(alice.dataset(each), name, sid) for name in names]
        assert len(hidden) >= 2
        for _ in range(2):
            for way, ask in WAYS.items():
                assert ask(alice, STRANGER, public) != ask(alice, STRANGER, Subject()), way
                assert {ask(alice, STRANGER, of) for of in hidden} == {ask(alice, STRANGER, Subject())}, way
            told = {ref.dataset for ref in alice.member.board.refs()} | set(alice.member.library.datasets(100))
            assert not told & {of.dataset for of in hidden}
            with alice.home.database.read() as connection:
                assert Cards(connection).of(public.dataset).shards is None
                assert not any(Cards(connection).of(of.dataset) for of in hidden)
            if made.state == "Building":
                await alice.api.renditions.abandon("cities", 1)
                made = msgspec.structs.replace(made, state="Dropped")
