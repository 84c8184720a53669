"""Collections of several shards that others mirror, hand over with, and are shared with some peers only."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import msgspec
import pytest
from node.test_private import OPEN_WAYS, STRANGER, WAYS, Subject, looked, named_in
from node.test_shards import LEDGER, Died, answered, shard, standing

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import SECOND
from chain.state import load_state
from chain.statements import envelope, statement
from chain.statements.card import Card
from chain.store.shards import SEALED
from odfd.cli.details import dataset as shown
from odfd.control import wire
from odfd.errors import Bug
from odfd.mirrors.holders import Holders
from odfd.mirrors.mirror_handover import Await
from odfd.queries.log_files import files_of_log
from odfd.renditions.successor import notice_of
from odfd.renditions.timeline import RenditionRow
from odfd.services.publishing.visibility import check_card_of
from odfd.services.renditions.shard_follower import ShardFollower
from odfd.store import mirror_specs
from odfd.store.collections import Member
from odfd.store.holdings import Extent, Holdings
from odfd.store.ledger import kinds
from odfd.store.ledger.cards import Cards
from odfd.store.references import objects_of
from odfd.store.shares import Shares
from odfd.store.visibility import VisibilityMark
from worlds.eventually import became
from worlds.faults import breaks
from worlds.manifests import ROOT
from worlds.node_world import Node, World

# Collections of several shards that others mirror: all shards come, and are read at times that are complete in all.


CITIES = ("Graz", "Linz", "Wels", "Enns", "Melk", "Krems", "Steyr")


async def brought(world: World, node: Node, day: int, *cities: str) -> None:
    world.clock.instant += 60 * SECOND
    world.write("alice", f"d{day}.csv", *(f"2024-01-{day:02}T00:00:00Z,{city},{day}" for city in cities))
    (pulled,) = await node.pull("cities")
    assert pulled.outcome == "updated", pulled


async def sharded(world: World, node: Node) -> None:
    """A published collection of three shards."""
    await node.apply(ROOT.replace("{kind: Append}", LEDGER))
    await node.unpublish("cities")
    await brought(world, node, 1, *CITIES[:5])
    await shard(node, 3, "city")
    await node.done(node.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
    (view,) = await node.publish("cities")
    assert (view.published, view.changed, view.notes) == (True, True, ("3 shards, each with an id of its own",))
    await signed(node)


async def signed(node: Node) -> None:
    """Cards are signed by a worker; here it has ended its round."""
    for each in node.home.shards_of(node.dataset("cities")):
        node.parts.cards._settle(each)


async def passed(node: Node, name: str = "cities") -> None:
    (item,) = await node.pull(name)
    assert item.outcome in ("updated", "up-to-date"), item


async def test_a_stranger_gets_all_shards_by_the_first(world: World) -> None:
    """The rows of the publisher at the same cut, by the same name, as it grows and when a shard gets no block."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        await bob.mirror(alice.dataset("cities"), "cities")
        view = await bob.dataset_view("cities")
        assert view.shards == (await alice.dataset_view("cities")).shards
        assert len(view.shards) == 3
        assert await standing(bob, "cities") == await standing(alice, "cities")
        for day, city in ((2, "Krems"), (3, "Steyr"), (4, "Krems")):
            await brought(world, alice, day, city)
            await passed(bob)
            assert await standing(bob, "cities") == await standing(alice, "cities")
            found = await bob.dataset_view("cities")
            assert found.frontiers.upper == (await alice.dataset_view("cities")).frontiers.upper
            assert not found.frontiers.held_by
        records = await bob.api.datasets.tail("cities", 100)
        assert len(records.rows) == len(await standing(alice, "cities"))
        _, told = await answered(bob, wire.QueryRequest(sql="SELECT count(*) AS n FROM cities", require="data"))
        assert told.count(b"did:odf:") >= 3
    async with world.running("bob") as bob:
        assert len(await standing(bob, "cities")) == len(CITIES) + 1


async def test_a_late_shard_holds_the_cut_back_and_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-HEAD-04: a shard that is withheld or comes late, so that transactions are seen in part.

    Defence: the collection is read at the last time that is complete in all shards, by signed frontiers; the shard that
    is behind is named.

    No transaction is read in part; the shard that is behind is told, and its coming makes it whole.
    """
    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        await bob.mirror(alice.dataset("cities"), "cities")
        before = await standing(bob, "cities")
        _, _, late = bob.home.shards_of(bob.dataset("cities"))
        await bob.api.mirrors.pause(str(late))
        await brought(world, alice, 2, *CITIES)
        for each in bob.home.shards_of(bob.dataset("cities"))[:2]:
            await bob.parts.scheduler.pass_now(each)
        assert await standing(bob, "cities") == before
        assert len((await bob.api.datasets.tail("cities", 100)).rows) == len(before)
        held = await bob.api.holds.take(wire.HoldRequest(ref="cities"))
        assert held.time == (await bob.dataset_view("cities")).frontiers.upper or held.time < "2027"
        detail = await bob.api.datasets.describe("cities")
        assert detail.dataset.frontiers.held_by == (bob.home.name_of(late),)
        assert f"{bob.home.name_of(late)} holds it back" in shown(detail)
        newest = alice.home.chains.chain(bob.home.shards_of(bob.dataset("cities"))[0]).head()
        with breaks("shard-missing", Refused):
            await answered(bob, wire.QueryRequest(sql=f"SELECT * FROM cities AT BLOCK '{newest.hash}'"))
        await bob.api.mirrors.resume(str(late))
        await passed(bob)
        assert await standing(bob, "cities") == await standing(alice, "cities")
        assert not (await bob.dataset_view("cities")).frontiers.held_by


async def test_a_collection_is_relied_on_as_far_as_each_of_its_shards(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        await bob.mirror(alice.dataset("cities"), "cities")
        shards = bob.home.shards_of(bob.dataset("cities"))
        sizes = [bob.home.chains.chain(each).head().size for each in shards]
        whole = await bob.dataset_view("cities")
        assert (whole.state, whole.blocks, whole.rely_on.blocks) == ("fresh", sum(sizes), sum(sizes))
        (mirror,) = bob.api.mirrors.states([shards[0]], None).values()
        assert (mirror.state, mirror.blocks) == ("current", wire.Share(have=sum(sizes), want=sum(sizes)))
        await bob.api.mirrors.pause(str(shards[2]))
        (mirror,) = bob.api.mirrors.states([shards[0]], None).values()
        assert (mirror.state, bob.api.mirrors.counts()) == ("paused", {"paused": 1})
        with bob.home.database.write() as connection:
            Holdings(connection).keep_extent(shards[2], Extent(sizes[2], sizes[2], ""))  # as if its data was let go
        now = await bob.dataset_view("cities")
        parts = [bob.parts.views.cache.dataset(bob.home.resolve(str(each))) for each in shards]
        assert [each.rely_on.blocks == each.blocks for each in parts] == [True, True, False]
        assert now.blocks == sum(each.blocks for each in parts) > now.rely_on.blocks
        assert "of each of 3 shards" in shown(await bob.api.datasets.describe("cities"))
        trust = await bob.api.trust.show("cities")
        assert [each.reach.use for each in (trust, *trust.shards)] == [each.rely_on.blocks for each in parts]


async def test_a_manifest_pauses_and_resumes_all_shards(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        first = alice.dataset("cities")
        await bob.mirror(first, "cities")
        shards = bob.home.shards_of(first)
        for said, paused in (("true", True), ("false", False)):
            await bob.apply(f"$schema: Mirror\nheaders: {{name: cities}}\nspec: {{source: {first}, paused: {said}}}\n")
            assert [bob.parts.scheduler.get(each).spec.paused for each in shards] == [paused] * 3
        await bob.api.mirrors.pause("cities")
    async with world.running("bob") as bob:
        assert [bob.parts.scheduler.get(each).spec.paused for each in shards] == [True] * 3


async def test_no_shard_is_mirrored_of_what_was_deleted_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = ShardFollower._check_new

    def deleted(self: Any, listed: Any, spec: Any) -> bool:
        told = check(self, listed, spec)
        with bob.home.database.write() as connection:
            mirror_specs.drop(connection, listed.spec.id, bob.clock.now())
        return told

    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        first, *others = alice.home.shards_of(alice.dataset("cities"))
        monkeypatch.setattr(ShardFollower, "_check_new", deleted)
        with contextlib.suppress(NotFound):
            await bob.mirror(first, "cities")
        await bob.parts.handovers.shards.follow(first)
        with bob.home.database.read() as connection:
            assert mirror_specs.all_of(connection) == []
        assert [bob.parts.scheduler.find(each) for each in others] == [None, None]


async def test_shards_of_which_one_is_missing_are_not_read_as_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-HEAD-04: rows of one shard taken for the whole collection.

    Defence: a shard's head names its collection; the name is refused until all shards are here.

    Until all are here and say so, the collection's name is refused; its shard is read by its id.
    """
    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        first, middle, last = alice.home.shards_of(alice.dataset("cities"))
        monkeypatch.setattr(Cards, "of", lambda *_: None)
        await bob.mirror(first, "cities")
        with breaks("shard-missing", NotFound):
            await answered(bob, wire.QueryRequest(sql="SELECT * FROM cities"))
        with pytest.raises(NotFound):
            await bob.api.datasets.tail("cities", 5)
        rows, _ = await answered(bob, wire.QueryRequest(sql=f'SELECT * FROM "{first}"'))
        assert rows
        monkeypatch.undo()
        asked = Holders.of

        async def nobody(self: Holders, dataset: Any, size: int) -> Any:
            return [] if dataset == last else await asked(self, dataset, size)

        monkeypatch.setattr(Holders, "of", nobody)
        await bob.api.mirrors.add(wire.MirrorRequest(source=str(first), as_name="cities"))
        await became(lambda: len(bob.home.shards_of(first)) == 3)
        await became(lambda: bob.size(str(middle)) == alice.size(str(middle)))
        with breaks("shard-missing", NotFound, match=r"its shard cities\.r0\.s2 is missing"):
            await answered(bob, wire.QueryRequest(sql="SELECT * FROM cities"))
        assert (await bob.dataset_view("cities")).frontiers.held_by == ("cities.r0.s2",)
        monkeypatch.undo()
        await passed(bob)
        assert await standing(bob, "cities") == await standing(alice, "cities")


async def test_nobody_makes_datasets_of_others_a_part_of_his_collection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-HEAD-04: a card that lists datasets of others as shards of a collection.

    Defence: they are mirrored on the terms that the operator gave, 63 at most; none is read with the collection unless
    its own head names it.

    A card that lists a dataset which does not say that it belongs: it is never read as one with the rest.
    """
    async with world.running("alice") as alice, world.running("carol") as carol:
        world.write("carol", "c.csv", "2024-01-01T00:00:00Z,Wien,9")
        await carol.apply(ROOT)
        await carol.pull("cities")
        victim, honest = carol.dataset("cities"), alice.parts.cards._shards

        def lie(dataset: DatasetId, member: Member | None) -> Any:
            shards, others = honest(dataset, member)
            if shards is None or not others:
                return shards, others
            return msgspec.structs.replace(shards, keys=dataset.public_key + victim.public_key), others

        monkeypatch.setattr(alice.parts.cards, "_shards", lie)
        await sharded(world, alice)
        first = alice.dataset("cities")
        async with world.running("bob") as bob:
            await bob.mirror(first, "cities")
            await bob.heard("mirror.held")
            assert bob.home.shards_of(first) == (first,)
            with breaks("shard-missing", NotFound):
                await answered(bob, wire.QueryRequest(sql="SELECT * FROM cities"))


async def test_what_is_here_in_another_way_stays_so(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        first, second, _ = alice.home.shards_of(alice.dataset("cities"))
        await bob.mirror(second, "mine")
        await bob.api.declarations.delete("Mirror", "mine")
        with breaks("shard-here", Invalid):
            await bob.mirror(first, "cities")
        await bob.mirror(second, "mine")
        await bob.mirror(first, "cities")
        assert bob.home.name_of(second) == "cities.r0.s1"
        assert await standing(bob, "cities") == await standing(alice, "cities")


async def test_withdrawal_names_and_ends_are_of_all_shards(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        shards = alice.home.shards_of(alice.dataset("cities"))
        assert all(map(alice.parts.visibility.is_told, shards))
        with breaks("shard-member", Refused):
            await alice.unpublish(str(shards[1]))
        found = (await bob.api.search.search(wire.SearchRequest(words="cities"))).found
        await bob.mirror(shards[0], "cities")
        assert [each.id for each in found] in ([], [str(shards[0])])
        await bob.api.applying.rename("Dataset", "cities", "towns")
        assert [bob.home.name_of(each) for each in shards] == ["towns", "towns.r0.s1", "towns.r0.s2"]
        assert [each.name for each in await bob.mirrors()] == ["towns"]
        assert {each.spec.name for each in bob.parts.scheduler.all()} == {"towns", "towns.r0.s1", "towns.r0.s2"}
        await bob.api.declarations.delete("Mirror", "towns")
        assert not bob.parts.scheduler.all()
        assert len(await standing(bob, "towns")) == 5
        await alice.unpublish("cities")
        assert not any(map(alice.parts.visibility.is_told, shards))
        await signed(alice)
        with alice.home.database.read() as connection:
            assert all(Cards(connection).of(each).is_withdrawal for each in shards)


# Collections that others know hand over to any number of shards, and mirrors cross at the time of the publisher.


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
    with breaks("shard-column", Refused, match="too long for a card"):
        check_card_of(Member(row=row, origin="snapshot"), "cities")
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
            await became(lambda: (seen := bob.parts.handovers._look(old)) and seen.step == Await((late[0],)))
            await bob.parts.handovers._follow(old)
            assert (bob.dataset("theirs"), await standing(bob, "theirs")) == (old, before)
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


# Collections of shards that are shared with some peers: these have all of it, and for everybody else it is nowhere.


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
    """Attack T-PRIVATE-04: shards of a shared collection, or the card that lists them, disclosed to peers outside of
    the share, also by the end of sharing.

    Defence: all shards have one list of peers, written in one transaction; the card is in memory, in no ledger, and
    sent like a private head.
    """
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
    """Attack T-PRIVATE-04: a peer that is revoked and keeps access to a part of a collection: one shard, or a former
    rendition.

    Defence: one transaction takes it off all shards and all renditions.
    """
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
        with breaks("shard-member", Refused):
            await alice.api.visibility.share(wire.ShareRequest(ref=str(shards[1]), peers=(str(bob.key),)))
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


# A mirror that is late at a handover shows no row that its owner has already copied for the way back.


async def seen(node: Node, ref: str) -> tuple[Any, ...]:
    """Everything that a name shows: rows in force, the newest rows, the frontier, and where it would be held."""
    held = await node.api.holds.take(wire.HoldRequest(ref=ref))
    await node.api.holds.release(held.id)
    records = await node.api.datasets.tail(ref, 100)
    pins = tuple((each.id, each.block) for each in held.shards or (held.pin,))
    rows = sorted(tuple(map(str, row)) for row in records.rows)
    return await standing(node, ref), rows, (await node.dataset_view(ref)).frontiers, held.time, pins


def listened(node: Node, ref: str) -> tuple[Any, ...]:
    """The cuts that a listener of the name gets."""
    asked = wire.SlicesRequest(dataset=str(node.dataset(ref)), explain=True, together=True)
    return tuple(
        (pin.id, pin.block) for pin in files_of_log(node.home, node.api.queries._planner.plan, asked).head.pins
    )


@pytest.mark.parametrize(("first", "other"), [(1, 3), (3, 1)])
async def test_rows_that_are_copied_back_are_not_shown_before(world: World, first: int, other: int) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await known(world, alice)
        if first > 1:
            await shard(alice, first, "city")
            await over(alice, 1)
        number = int(first > 1)
        old = alice.dataset("cities")
        shards = alice.home.shards_of(old)
        await bob.mirror(old, "theirs")
        await became(lambda: bob.home.shards_of(old) == shards)
        before, rows = await seen(bob, "theirs"), await standing(alice, "cities")
        asked, late = Holders.of, set[Any]()

        async def slow(self: Holders, dataset: Any, size: int) -> Any:
            return [] if dataset in late else await asked(self, dataset, size)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Holders, "of", slow)
            await shard(alice, other, *(("city",) if other > 1 else ()))
            late |= {*alice.home.shards_of(alice.dataset(f"cities.r{number + 1}"))}
            await over(alice, number + 1)
            await brought(world, alice, 2, "Krems")
            await brought(world, alice, 3, "Steyr")
            lengths = [_length(alice, each) for each in shards]

            def dying(name: str) -> None:
                """Ends the process when the first copy is in the old rendition, not only in another one like it."""
                if name == "copied" and [_length(alice, each) for each in shards] != lengths:
                    raise Died(name)

            alice.api.renditions._effects.step = dying
            with pytest.raises(Bug):
                await over(alice, number)
            for place, each in enumerate(shards):
                alice.parts.committer.sign_upper(each)
                await bob.pull("theirs" if not place else str(each))
            await became(lambda: all(_length(bob, each) == _length(alice, each) for each in shards))
            copied = [await standing(bob, str(each)) for each in shards]
            assert sum(map(len, copied)) > len(rows), "a copied row is here"
            await bob.parts.handovers._follow(old)
            assert bob.dataset("theirs") == old
            after = await seen(bob, "theirs")
            assert (after[0], after[1]) == (before[0], before[1])
            assert after[3] >= before[3]
            assert await standing(bob, "theirs") == rows
            assert listened(bob, "theirs") == after[4], "a listener has the same cut"
        alice.api.renditions._effects.step = lambda _: None
        await over(alice, number)
        for each in (*shards, *late):
            await bob.pull(str(each))
        await became(lambda: all(_length(bob, each) == _length(alice, each) for each in shards))
        assert bob.dataset("theirs") == old
        assert await standing(bob, "theirs") == await standing(alice, "cities")


def _length(node: Node, shard: Any) -> int:
    head = node.home.chains.chain(shard).head()
    return 0 if head is None else int(head.size)
