"""Collections of several shards that others mirror: all shards come, and are read at times that are complete in all."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from node.test_shards import LEDGER, answered, shard, standing

from chain.errors import Invalid, NotFound, Refused
from chain.instant import SECOND
from chain.statements import envelope, statement
from chain.statements.card import CardShards
from odfd.cli.details import dataset as shown
from odfd.control import wire
from odfd.mirrors.holders import Holders
from odfd.services.renditions.shard_follower import ShardFollower
from odfd.store import mirror_specs
from odfd.store.holdings import Extent, Holdings
from odfd.store.ledger.cards import Cards
from worlds.eventually import became
from worlds.manifests import ROOT
from worlds.node_world import Node, World

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
    """No transaction is read in part; the shard that is behind is told, and its coming makes it whole."""
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
        with pytest.raises(Refused) as refused:
            await answered(bob, wire.QueryRequest(sql=f"SELECT * FROM cities AT BLOCK '{newest.hash}'"))
        assert refused.value.rule == "shard-missing"
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
    """Until all are here and say so, the collection's name is refused; its shard is read by its id."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        first, _, last = alice.home.shards_of(alice.dataset("cities"))
        monkeypatch.setattr(Cards, "of", lambda *_: None)
        await bob.mirror(first, "cities")
        with pytest.raises(NotFound) as refused:
            await answered(bob, wire.QueryRequest(sql="SELECT * FROM cities"))
        assert refused.value.rule == "shard-missing"
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
        with pytest.raises(NotFound, match=r"its shard cities\.r0\.s2 is missing") as missing:
            await answered(bob, wire.QueryRequest(sql="SELECT * FROM cities"))
        assert missing.value.rule == "shard-missing"
        assert (await bob.dataset_view("cities")).frontiers.held_by == ("cities.r0.s2",)
        monkeypatch.undo()
        await passed(bob)
        assert await standing(bob, "cities") == await standing(alice, "cities")


async def test_nobody_makes_datasets_of_others_a_part_of_his_collection(world: World) -> None:
    """A card that lists a dataset which does not say that it belongs: it is never read as one with the rest."""
    async with world.running("alice") as alice, world.running("carol") as carol:
        await sharded(world, alice)
        world.write("carol", "c.csv", "2024-01-01T00:00:00Z,Wien,9")
        await carol.apply(ROOT)
        await carol.pull("cities")
        first, victim = alice.dataset("cities"), carol.dataset("cities")
        with alice.home.database.read() as connection:
            card = Cards(connection).of(first)
        lie = CardShards(function="xxhash64", by=("city",), keys=first.public_key + victim.public_key)
        false = msgspec.structs.replace(card, shards=lie, issued_at=statement.when(world.clock.instant + 90 * SECOND))
        raw = envelope.seal(statement.encode(false), alice.home.keys.dataset_key(first))
        with alice.home.database.write() as connection:
            Cards(connection).keep(false, envelope.unseal(raw, false.MAX_ENVELOPE), "signed", "", world.clock.instant)
        async with world.running("bob") as bob:
            await bob.mirror(first, "cities")
            await bob.heard("mirror.held")
            assert bob.home.shards_of(first) == (first,)
            with pytest.raises(NotFound) as refused:
                await answered(bob, wire.QueryRequest(sql="SELECT * FROM cities"))
            assert refused.value.rule == "shard-missing"


async def test_what_is_here_in_another_way_stays_so(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        first, second, _ = alice.home.shards_of(alice.dataset("cities"))
        await bob.mirror(second, "mine")
        await bob.api.declarations.delete("Mirror", "mine")
        with pytest.raises(Invalid) as refused:
            await bob.mirror(first, "cities")
        assert refused.value.rule == "shard-here"
        await bob.mirror(second, "mine")
        await bob.mirror(first, "cities")
        assert bob.home.name_of(second) == "cities.r0.s1"
        assert await standing(bob, "cities") == await standing(alice, "cities")


async def test_withdrawal_names_and_ends_are_of_all_shards(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        shards = alice.home.shards_of(alice.dataset("cities"))
        assert all(map(alice.parts.visibility.is_told, shards))
        with pytest.raises(Refused) as one:
            await alice.unpublish(str(shards[1]))
        assert one.value.rule == "shard-member"
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
