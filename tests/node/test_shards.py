"""Collections of several shards: the same rows as in one, whatever is written and read."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import trio

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import SECOND
from chain.model.events import AddData
from chain.statements import answer
from chain.store.shards import SEALED
from engines.query.frames import ROWS, AnswerFrameReader
from odfd.api import resource_operations
from odfd.cli.trust_text import trust_text
from odfd.control import wire
from odfd.errors import Bug
from odfd.queries.askers import Asker
from odfd.resources.types import Deletion
from odfd.services.resources.types import TYPES
from worlds.accounts_world import ACCOUNT, BOB, GRANT, Asking
from worlds.eventually import PATIENCE, became
from worlds.faults import breaks
from worlds.manifests import ROOT, in_shards
from worlds.node_world import Node, World

LEDGER = "{kind: Ledger, primaryKey: [event_time, city]}"


async def shard(node: Node, shards: int, *by: str, ref: str = "cities") -> wire.RenditionView:
    request = wire.RenditionRequest(origin="snapshot", shards=shards, by=by)
    made: wire.RenditionView = await node.done(node.api.renditions.create(ref, request))
    return made


async def hand_over(node: Node, number: int) -> wire.RenditionView:
    done: wire.RenditionView = await node.done(node.api.renditions.hand_over("cities", number, wire.HandoverRequest()))
    return done


async def answered(
    node: Node, request: wire.QueryRequest, api: Any = None, *more: Any
) -> tuple[list[dict[str, Any]], bytes]:
    said = bytearray()

    async def take(data: bytes) -> None:
        said.extend(data)

    with trio.fail_after(PATIENCE):
        await (api or node.api).queries.answer(request, take, *more)
    frames = list(AnswerFrameReader().feed(bytes(said)))
    stream = b"".join(content for kind, content in frames if kind == ROWS)
    rows: list[dict[str, Any]] = pa.ipc.open_stream(stream).read_all().to_pylist()
    return rows, frames[0][1]


async def standing(node: Node, ref: str) -> list[tuple[Any, ...]]:
    """The rows in force, without system columns."""
    sql = f'SELECT event_time, city, population FROM current."{ref}" ORDER BY ALL'
    rows, _ = await answered(node, wire.QueryRequest(sql=sql))
    return [tuple(row.values()) for row in rows]


async def pulled(world: World, node: Node, day: int, city: str, count: int) -> None:
    world.write("alice", f"d{day}.csv", f"2024-01-{day:02}T00:00:00Z,{city},{count}")
    await node.pull("cities")


async def filled(world: World, node: Node, merge: str = LEDGER) -> None:
    await node.apply(ROOT.replace("{kind: Append}", merge))
    await node.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
    for day, city in ((1, "Graz"), (2, "Linz"), (3, "Wels")):
        await pulled(world, node, day, city, day)


async def test_rows_in_shards_are_those_in_one(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        before = await standing(alice, "cities")
        made = await shard(alice, 3, "city")
        assert (made.dataset, len(made.shards), made.by, made.state) == ("cities.r1", 3, ("city",), "Building")
        assert await standing(alice, "cities.r1") == before
        await pulled(world, alice, 4, "Steyr", 4)
        await hand_over(alice, 1)
        assert await standing(alice, "cities") == await standing(alice, "cities.r0")
        for day, city in ((5, "Krems"), (6, "Enns"), (7, "Melk"), (8, "Graz")):
            await pulled(world, alice, day, city, day)
        rows = await standing(alice, "cities")
        assert len(rows) == 8
        parts = [await standing(alice, ref) for ref in made.shards]
        assert sorted(row for part in parts for row in part) == sorted(rows)
        assert sum(bool(part) for part in parts) > 1


async def correct(node: Node, city: str, day: int, count: int | None) -> None:
    key = {"event_time": f"2024-01-{day:02}T00:00:00Z", "city": city}
    more: dict[str, Any] = {"retract": True} if count is None else {"values": {"population": str(count)}}
    await node.done(node.api.flow.correct("cities", wire.CorrectRequest(key=key, **more)))


async def test_the_number_grows_and_shrinks_and_goes_back(world: World) -> None:
    """All renditions of one content have the same rows, whichever is active, and corrections are in all of them."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        await shard(alice, 3, "city")
        await shard(alice, 5, "event_time", "city")
        await hand_over(alice, 1)
        await pulled(world, alice, 4, "Steyr", 4)
        await correct(alice, "Graz", 1, 10)
        await hand_over(alice, 2)
        await correct(alice, "Wels", 3, None)
        await pulled(world, alice, 5, "Krems", 5)
        assert (await shard(alice, 1)).shards == ()
        await hand_over(alice, 3)
        await pulled(world, alice, 6, "Enns", 6)
        await hand_over(alice, 1)
        await pulled(world, alice, 7, "Melk", 7)
        await hand_over(alice, 0)
        rows = await standing(alice, "cities")
        assert [row[1:] for row in rows] == [
            ("Graz", 10), ("Linz", 2), ("Steyr", 4), ("Krems", 5), ("Enns", 6), ("Melk", 7)
        ]  # fmt: skip
        for number in (1, 2, 3):
            assert await standing(alice, f"cities.r{number}") == rows, number


async def test_a_row_that_came_already_is_found_in_its_shard(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        await shard(alice, 4, "city")
        await hand_over(alice, 1)
        world.write("alice", "again.csv", "2024-01-01T00:00:00Z,Graz,1\n2024-01-02T00:00:00Z,Linz,2")
        await alice.pull("cities")
        assert len(await standing(alice, "cities")) == 3


async def test_all_shards_are_of_one_time(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        made = await shard(alice, 3, "city")
        await hand_over(alice, 1)
        await pulled(world, alice, 4, "Steyr", 4)
        chains = alice.home.chains
        shards = alice.home.shards_of(alice.dataset("cities"))
        assert tuple(map(str, shards)) == made.shards
        assert len({chains.upper(each) for each in shards}) == 1
        view = await alice.dataset_view("cities")
        assert (view.records, view.shards) == (4, made.shards)
        await alice.done(alice.api.flow.advance("cities"))
        assert len({chains.upper(each) for each in shards}) == 1
        tail = await alice.api.datasets.tail("cities", 3)
        place = [column.name for column in tail.columns].index("city")
        assert ([row[place] for row in tail.rows][-1], len(tail.rows)) == ("Steyr", 3)


async def test_a_query_is_pinned_at_each_shard_and_cut_at_a_time(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        await shard(alice, 3, "city")
        await hand_over(alice, 1)
        request = wire.QueryRequest(sql="SELECT count(*) AS n FROM cities")
        (before,), said = await answered(alice, request)
        head = msgspec.json.decode(said, type=wire.QueryHead)
        assert (before["n"], len(head.pins)) == (3, 3)
        then = head.pins[0]
        await pulled(world, alice, 4, "Steyr", 4)
        pinned = msgspec.structs.replace(request, pins=head.pins)
        (again,), _ = await answered(alice, pinned)
        assert again["n"] == 3
        (now,), _ = await answered(alice, request)
        assert now["n"] == 4
        with pytest.raises(Invalid, match="not pinned"):
            await answered(alice, msgspec.structs.replace(request, pins=(then,)))
        with pytest.raises(Invalid, match="3 shards, and each has a block #2"):
            await answered(alice, wire.QueryRequest(sql="SELECT * FROM cities AT BLOCK '#2'"))
        for pin in head.pins:  # any block of a transaction means all of it
            sql = f"SELECT count(*) AS n FROM cities AT BLOCK '{pin.block}'"
            (cut,), said = await answered(alice, wire.QueryRequest(sql=sql))
            assert cut["n"] == 3
        (again,), _ = await answered(alice, wire.QueryRequest(sql=sql, pins=head_of(said).pins))
        assert again["n"] == 3


def head_of(said: bytes) -> wire.QueryHead:
    return msgspec.json.decode(said, type=wire.QueryHead)


async def test_an_answer_over_shards_is_proven_and_computed_again(world: World) -> None:
    """By the pins, which name all shards under the collection's name, whatever it is called or contains later."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        await shard(alice, 3, "city")
        await hand_over(alice, 1)
        sql = "SELECT city, population FROM current.cities ORDER BY city"
        proven = await statement(alice, wire.QueryRequest(sql=sql, prove=True))
        assert [pin.name for pin in proven.pins] == ["cities"] * 3
        assert {pin.standing for pin in proven.pins} == {proven.standing}
        await pulled(world, alice, 4, "Steyr", 4)
        await alice.api.applying.rename("Dataset", "cities", "towns")
        pins = tuple(
            wire.Pin(name=pin.name, id=pin.id, block=pin.block, sequence_number=pin.sequence_number, at=pin.at)
            for pin in proven.pins
        )
        again = await statement(alice, wire.QueryRequest(sql=sql, prove=True, pins=pins, by_pins=True))
        assert (again.logical_hash, again.rows) == (proven.logical_hash, 3)


async def statement(node: Node, request: wire.QueryRequest) -> answer.AnswerStatement:
    said = bytearray()

    async def take(data: bytes) -> None:
        said.extend(data)

    with trio.fail_after(PATIENCE):
        await node.api.queries.answer(request, take)
    frames = list(AnswerFrameReader().feed(bytes(said)))
    end = msgspec.json.decode(frames[-1][1], type=wire.QueryEnd)
    return answer.unseal(msgspec.json.encode(end.proof))[0]


async def test_what_is_of_one_chain_is_of_all_shards_by_their_name_or_refused(world: World) -> None:
    """Attack T-PRIVATE-06: one shard of a collection published under the name of all, as if it were the whole.

    Defence: a shard is not published, withdrawn or shared by itself.
    """
    async with world.running("alice") as alice:
        await filled(world, alice)
        made = await shard(alice, 2, "city")
        await hand_over(alice, 1)
        verified = await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest()))
        sizes = [alice.home.chains.chain(each).head().size for each in alice.home.shards_of(alice.dataset("cities"))]
        assert (verified.ref, verified.ok, verified.blocks) == ("cities", True, sum(sizes))
        log = await alice.api.datasets.log("cities", (), 100, None)
        assert {each.shard for each in log} == {"cities", "cities.r1.s1"}
        assert len(log) == sum(sizes)
        assert log == sorted(log, key=lambda each: each.system_time, reverse=True)
        assert await alice.api.datasets.log("cities", (), 3, None) == log[:3]
        for place, each in enumerate(log):  # page by page, in the order of the whole list
            page = await alice.api.datasets.log("cities", (), 3, each.hash)
            assert page == log[place + 1 : place + 4]
            assert (await alice.api.datasets.block("cities", each.hash)).shard == each.shard
        assert await alice.api.datasets.log("cities", ("AddData",), 50, log[0].hash) == [
            each for each in log[1:] if each.event == "AddData"
        ]
        for numbered in (
            alice.api.datasets.log("cities", (), 5, "3"), alice.api.datasets.block("cities", "#3")
        ):  # fmt: skip
            with pytest.raises(Invalid, match="2 shards, and each has a block #3"):
                await numbered
        with pytest.raises(NotFound, match="no blocks of epoch 7"):
            await alice.api.datasets.log("cities", (), 5, None, 7)
        with breaks("shard-member", Refused):
            await alice.publish(made.shards[1])
        with breaks("shard-member", Refused):
            await alice.api.visibility.share(wire.ShareRequest(ref=made.shards[1], peers=(str(alice.key),)))
        with breaks("shard-member", Refused):
            await alice.done(
                alice.api.flow.set_watermark(made.shards[1], wire.WatermarkRequest(time="2025-01-01T00:00:00Z"))
            )
        assert len(await alice.api.datasets.log(made.shards[1], (), 50, None)) > 2
        for each in made.shards:
            assert (await alice.done(alice.api.verification.verify(each, wire.VerifyRequest()))).ok
        ids = list(map(str, alice.home.shards_of(alice.dataset("cities"))))
        trust = await alice.api.trust.show("cities")
        assert [each.dataset_id for each in (trust, *trust.shards)] == ids
        assert sum(each.reach.use for each in (trust, *trust.shards)) == sum(sizes)
        text = trust_text(trust, alice.home.chains.chain(DatasetId.parse(ids[0])).block_at(0).system_time, "odfctl")
        assert text.count("Reach for use: all blocks") == len(ids)
        assert (await alice.api.trust.show(ids[1])).shards == ()


async def test_the_values_of_columns_are_those_of_all_shards(world: World) -> None:
    """As one chain had them, and with rows that came since; an id means one shard."""

    async def profile(ref: str = "cities") -> wire.DataProfile:
        found = (await alice.api.datasets.describe(ref, profile=True)).profile
        assert found is not None
        return found

    async with world.running("alice") as alice:
        await filled(world, alice)
        before = await profile()
        made = await shard(alice, 3, "city")
        await hand_over(alice, 1)
        now = await profile()
        assert (now.records, now.is_whole, now.unread) == (before.records, True, 0) == (3, True, 0)
        own = {"event_time", "city", "population"}
        compared = [
            [(each.name, each.nulls, each.minimum, each.maximum) for each in side.columns if each.name in own]
            for side in (before, now)
        ]
        assert compared[0] == compared[1]
        assert len(compared[0]) == 3
        await pulled(world, alice, 9, "Steyr", 99)
        now = await profile()
        assert [each.maximum for each in now.columns if each.name == "population"] == [99]
        parts = [await profile(each) for each in made.shards]
        assert [sum(each.records for each in parts), sum(each.slices for each in parts)] == [now.records, now.slices]


async def test_a_name_means_all_shards_to_accounts_and_to_others_too(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        made = await shard(alice, 3, "city")
        await hand_over(alice, 1)
        await alice.apply(
            ACCOUNT.format(name="bob", uid=BOB), GRANT.format(name="g", who="bob", role="editor", what="cities")
        )
        bobs = await Asking(alice).services(BOB)
        log = await bobs.datasets.log("cities", (), 100, None)
        assert {each.shard for each in log} == {"cities", "cities.r1.s1", "cities.r1.s2"}
        verified = await alice.done(bobs.verification.verify("cities", wire.VerifyRequest()))
        assert verified.blocks == len(log)
        assert len((await bobs.datasets.tail("cities", 100)).rows) == 3
        count = wire.QueryRequest(sql="select count(*) as n from cities")
        (row,), _ = await answered(alice, count, bobs)
        assert row["n"] == 3
        one = await bobs.datasets.log(made.shards[0], (), 100, None)
        assert len(one) < len(log), "an id means one chain"
        (node,) = (await bobs.lineage.graph("cities")).nodes
        assert (node.ref, node.records) == ("cities", 3), "what is inside is read with the collection"

        shards = alice.home.shards_of(alice.dataset("cities"))
        sizes = {each: alice.home.chains.chain(each).head().size for each in shards}
        served = dict(sizes)
        (row,), _ = await answered(alice, count, None, Asker(served=lambda each: served[each]))
        assert row["n"] == 3
        await pulled(world, alice, 4, "Steyr", 4)
        (row,), _ = await answered(alice, count, None, Asker(served=lambda each: served[each]))
        assert row["n"] == 3, "no transaction is read in part"
        served[shards[1]] = 0
        with pytest.raises(NotFound):
            await answered(alice, count, None, Asker(served=lambda each: served[each]))


@pytest.mark.parametrize(
    ("merge", "by", "rule"),
    [
        (LEDGER, ("population",), "shard-key"),
        ("{kind: Append}", ("nothing",), "shard-column"),
        ("{kind: Snapshot, primaryKey: [city]}", ("population",), "shard-key"),
        ("{kind: UpsertStream, primaryKey: [city]}", ("event_time", "city"), "shard-key"),
    ],
)
async def test_what_would_part_rows_of_a_key_is_refused(
    world: World, merge: str, by: tuple[str, ...], rule: str
) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice, merge)
        with breaks(rule):
            await shard(alice, 2, *by)
        assert alice.api.renditions._effects.state(alice.dataset("cities")).members[1:] == ()


async def test_a_source_that_merges_by_other_columns_is_refused_later_too(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        await shard(alice, 2, "city")
        await hand_over(alice, 1)
        (item,) = (await alice.apply(ROOT.replace("{kind: Append}", "{kind: Ledger, primaryKey: [event_time]}"))).items
        assert item.fault is not None
        assert item.fault.rule == "shard-key"


async def test_all_shards_are_renamed_and_deleted_together(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        made = await shard(alice, 3, "city")
        await hand_over(alice, 1)
        await alice.api.applying.rename("Dataset", "cities", "towns")
        names = [view.name for view in await alice.dataset_views()]
        assert names == ["towns"]
        inner = [str(alice.dataset(f"towns.r1.s{place}")) for place in (1, 2)]
        assert inner == list(made.shards[1:])
        with pytest.raises(Refused, match="is inside the Dataset towns, and goes with it"):
            await resource_operations.delete(alice.api, TYPES.get("Dataset"), made.shards[2], Deletion())
        await alice.api.declarations.delete("Dataset", "towns", purge=True)
        assert await alice.dataset_views() == []
        assert alice.home.chains.heads() == {}, "the former rendition goes with them"


class Died(Exception):
    """The process ended after a durable effect."""


async def test_a_death_after_each_effect_loses_and_repeats_nothing(world: World) -> None:
    seen: list[str] = []

    def step(name: str) -> None:
        if seen.count(name) < 2:
            seen.append(name)
            raise Died(name)

    async def grow(node: Node) -> None:
        wanted = wire.RenditionRequest(origin="snapshot", shards=3, by=("city",), id="grow")
        await node.done(node.api.renditions.create("cities", wanted))
        await node.done(node.api.renditions.hand_over("cities", 1, wire.HandoverRequest(id="over")))

    async with world.running("alice") as alice:
        await filled(world, alice)
        wanted = wire.RenditionRequest(origin="snapshot", shards=3, by=("city",), id="grow")
        await alice.done(alice.api.renditions.create("cities", wanted))
        await pulled(world, alice, 4, "Steyr", 4)
        await correct(alice, "Graz", 1, 10)
    while "switched" not in seen or seen.count("copied") < 2:
        async with world.running("alice") as alice:
            alice.api.renditions._effects.step = step
            with contextlib.suppress(Bug):
                await grow(alice)
    async with world.running("alice") as alice:
        await grow(alice)
        assert {"copied", "handover-asked", "switched"} <= set(seen)
        views = [(each.number, each.dataset, len(each.shards)) for each in await alice.api.renditions.list("cities")]
        assert views == [(0, "cities.r0", 0), (1, "cities", 3)]
        assert await standing(alice, "cities") == await standing(alice, "cities.r0")
        assert len(await standing(alice, "cities")) == 4


async def test_all_shards_of_a_former_rendition_are_sealed_and_their_data_goes(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        made = await shard(alice, 3, "city")
        await hand_over(alice, 1)
        await shard(alice, 1)
        await hand_over(alice, 2)
        chains = [alice.home.chains.chain(alice.dataset(each)) for each in made.shards]
        slices = [
            event.new_data.physical_hash
            for chain in chains
            for number in range(chain.head().size)
            if isinstance(event := chain.block_at(number).event, AddData) and event.new_data
        ]
        with trio.fail_after(PATIENCE):
            world.clock.instant += 2 * 3600 * SECOND
            alice.api.renditions.upkeep.loop.poke()
            await became(lambda: all(alice.home.chains.upper(alice.dataset(each)) == SEALED for each in made.shards))
            world.clock.instant += 8 * 86_400 * SECOND
            alice.api.renditions.upkeep.loop.poke()
            await became(lambda: not any(map(alice.home.objects.has, slices)))
        assert slices
        assert len(await standing(alice, "cities")) == 3


async def test_a_push_whose_rows_are_all_in_another_shard_is_taken_once(world: World) -> None:
    """The first shard gets no block then, and its frontier says that the time is complete."""
    async with world.running("alice") as alice:
        await alice.apply(GATE)
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("readings",)))
        await push(alice, b"2024-01-09T00:00:00Z,Graz,1\n2024-01-01T00:00:00Z,Linz,2\n", "first")
        made = await shard(alice, 2, "city", ref="readings")
        handed = wire.HandoverRequest()
        await alice.done(alice.api.renditions.hand_over("readings", 1, handed))
        shards = [alice.dataset(each) for each in made.shards]
        for place, city in enumerate(("Graz", "Linz", "Wels", "Enns", "Melk", "Krems", "Graz", "Linz")):
            await push(alice, f"2024-01-02T00:00:00Z,{city},{place}\n".encode(), f"push {place}")
            await push(alice, f"2024-01-02T00:00:00Z,{city},{place}\n".encode(), f"push {place}")
            assert len({alice.home.chains.upper(each) for each in shards}) == 1
        sizes = [alice.home.chains.chain(each).head().size for each in shards]
        assert sum(sizes) == 2 * 4 + 8, "founding blocks of both, and one block of each push"
        (row,), _ = await answered(alice, wire.QueryRequest(sql="SELECT count(*) AS n FROM readings"))
        assert row["n"] == 10
        await alice.done(alice.api.renditions.create("readings", wire.RenditionRequest(origin="snapshot", shards=1)))
        await push(alice, b"2024-01-03T00:00:00Z,Graz,9\n", "last")
        await alice.done(alice.api.renditions.hand_over("readings", 2, handed))
        (row,), _ = await answered(alice, wire.QueryRequest(sql="SELECT count(*) AS n FROM readings"))
        assert row["n"] == 11


GATE = """kind: DatasetSnapshot
version: 1
content:
  name: readings
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: gate
      read: {kind: Csv, ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']}
      merge: {kind: Append}
"""


async def push(node: Node, data: bytes, name: str) -> None:
    async def chunks() -> Any:
        yield data

    upload = await node.api.flow.stage("rows.csv", chunks())
    request = wire.IngestRequest(uploads=(upload.id,), id=name)
    (item,) = (await node.done(node.api.flow.ingest("readings", request))).items
    assert item.fault is None


async def test_slices_that_were_divided_are_collected(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        made = await shard(alice, 3, "city")
        await hand_over(alice, 1)
        await pulled(world, alice, 4, "Steyr", 4)
        refs = (*made.shards, "cities.r0")
        chains = [alice.home.chains.chain(alice.dataset(each)) for each in refs]
        named = {
            event.new_data.physical_hash
            for chain in chains
            for number in range(chain.head().size)
            if isinstance(event := chain.block_at(number).event, AddData) and event.new_data
        }
        assert set(alice.home.objects.names()) > named
        for _ in range(4):  # what was made a moment ago waits
            await alice.done(alice.api.collection.collect(wire.CollectRequest(dry_run=False)))
        assert set(alice.home.objects.names()) == named
        assert len(await standing(alice, "cities")) == 4


async def test_what_holds_in_shards_is_kept_of_each_and_folded_on(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        await shard(alice, 3, "city")
        await hand_over(alice, 1)
        await correct(alice, "Graz", 1, 10)
        folding, folder = alice.api.queries._folding, alice.home.folder("folds")
        folding._least = 1

        async def kept() -> list[tuple[Any, ...]]:
            rows = await standing(alice, "cities")
            with trio.fail_after(PATIENCE):
                await folding.wait_settled()
            return rows

        before = await kept()
        folds = set(folder.glob("*/*"))
        assert before == await kept()
        assert set(folder.glob("*/*")) == folds
        parts = {alice.dataset(each).multibase for each in (await alice.dataset_view("cities")).shards}
        assert {each.parent.name for each in folds} <= parts
        assert len(folds) > 1, "of each shard that has rows"
        await correct(alice, "Linz", 2, None)
        await pulled(world, alice, 4, "Steyr", 4)
        folding._least = 1 << 30
        rows = await standing(alice, "cities")
        assert [row[1:] for row in rows] == [("Graz", 10), ("Wels", 3), ("Steyr", 4)]


def born(root: str, merge: str = LEDGER, shards: str = "{number: 3, by: [city]}") -> str:
    """The root of a manifest as a resource with shards."""
    return in_shards(root.replace("{kind: Append}", merge), shards)


async def test_a_manifest_begins_all_shards(world: World) -> None:
    """The rows are those of one chain, it is renditions that change the number, and all of it is deleted together."""
    async with world.running("alice") as alice:
        (item,) = (await alice.apply(born(ROOT))).items
        assert item.fault is None, item.fault
        assert [view.name for view in await alice.dataset_views()] == ["cities"]
        (again,) = (await alice.apply(born(ROOT))).items
        assert (again.fault, again.action) == (None, "unchanged")
        for day, city in ((1, "Graz"), (2, "Linz"), (3, "Wels"), (4, "Enns")):
            await pulled(world, alice, day, city, day)
        rows = await standing(alice, "cities")
        assert [row[1] for row in rows] == ["Graz", "Linz", "Wels", "Enns"]
        (other,) = (await alice.apply(born(ROOT, shards="{number: 4, by: [city]}"))).items
        assert other.fault is not None
        assert other.fault.rule == "shard-number"
        await shard(alice, 1)
        await hand_over(alice, 1)
        assert await standing(alice, "cities") == rows
        await pulled(world, alice, 5, "Melk", 5)
        await hand_over(alice, 0)
        assert len(await standing(alice, "cities")) == 5
        await alice.api.renditions._delete(alice.dataset("cities.r1"))
        await alice.api.declarations.delete("Dataset", "cities", purge=True)
        assert await alice.dataset_views() == []


async def test_a_collection_that_was_born_in_shards_goes_whole(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(born(ROOT))
        await alice.api.declarations.delete("Dataset", "cities", purge=True)
        assert (await alice.dataset_views(), await alice.api.renditions.list()) == ([], [])
        (item,) = (await alice.apply(born(ROOT))).items
        assert (item.fault, item.action) == (None, "created")


@pytest.mark.parametrize(
    ("merge", "shards", "rule"),
    [
        ("{kind: Ledger, primaryKey: [event_time]}", "{number: 3, by: [city]}", "shard-key"),
        ("{kind: Append}", "{number: 3}", "shard-number"),
        ("{kind: Append}", "{number: 65, by: [city]}", "shard-number"),
        ("{kind: Append}", "{number: 1, by: [city]}", "shard-number"),
    ],
)
async def test_a_manifest_with_other_shards_begins_nothing(world: World, merge: str, shards: str, rule: str) -> None:
    async with world.running("alice") as alice:
        (item,) = (await alice.apply(born(ROOT, merge, shards))).items
        assert item.fault is not None
        assert item.fault.rule == rule
        assert await alice.dataset_views() == []
