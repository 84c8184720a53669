"""Rows of a ledger corrected by hand, on whole nodes: what is written, counted, derived, mirrored, ingested after."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from chain.data.parquet import open_slice
from chain.errors import Fault, Invalid, NotFound, Refused
from chain.model.changelog import CHANGELOG, says_by_time, says_changelog
from chain.model.events import AddData, SetDataSchema
from chain.state import load_state
from odfd.control import wire
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

KEY = {"event_time": "2024-01-02T00:00:00Z", "city": "c2"}


def ledger(manifest: str) -> str:
    return manifest.replace("merge: {kind: Append}", "merge: {kind: Ledger, primaryKey: [event_time, city]}")


async def begun(world: World, node: Node, *more: str) -> None:
    world.write("alice", "a.csv", *(f"2024-01-0{day}T00:00:00Z,c{day},{day}" for day in (1, 2, 3)), *more)
    await node.apply(ledger(ROOT), DERIVED)
    await node.pull()


async def corrected(node: Node, ref: str = "cities", **more: Any) -> wire.CorrectResult:
    request = wire.CorrectRequest(**{"key": KEY, **more})
    result: wire.CorrectResult = await node.done(node.api.flow.correct(ref, request))
    return result


def told(rows: wire.RowCounts | None) -> dict[str, Any]:
    assert rows is not None
    return {name: value for name in rows.__struct_fields__ if (value := getattr(rows, name)) not in (0, ())}


async def rows_of(node: Node, ref: str) -> list[tuple[Any, ...]]:
    """Offset, op, city and population of each record."""
    records = await node.api.datasets.tail(ref, 100)
    places = [
        [column.name for column in records.columns].index(name) for name in ("offset", "op", "city", "population")
    ]
    return [tuple(row[place] for place in places) for row in records.rows]


FIRST = [(0, 0, "c1", 1), (1, 0, "c2", 2), (2, 0, "c3", 3)]
PAIR = [(3, 2, "c2", 2), (4, 3, "c2", 20)]


async def test_a_row_is_written_as_it_was_and_as_it_is(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        chain = alice.home.chains.chain(alice.dataset("cities"))
        before = load_state(chain)
        done = await corrected(alice, values={"population": "20"})
        assert (done.outcome, done.blocks, done.records, done.dry_run) == ("corrected", 2, 2, False)
        assert (done.before["population"], done.before["offset"], done.before["op"]) == (2, 1, 0)
        assert done.after is not None
        assert (done.after["population"], done.after["offset"], done.after["op"]) == (20, 4, 3)
        assert await rows_of(alice, "cities") == FIRST + PAIR
        after = load_state(chain)
        said, data = (chain.block_at(after.size - back) for back in (2, 1))
        assert isinstance(said.event, SetDataSchema)
        assert says_changelog(said.event.schema) is True
        assert says_by_time(said.event.schema)
        assert isinstance(data.event, AddData)
        assert said.system_time == data.system_time
        assert (after.watermark, after.source_state) == (before.watermark, before.source_state)
        assert told(done.rows) == {"corrected": 1}
        assert alice.kinds().count("dataset.appended") == 2
        again = await corrected(alice, values={"population": "21"})
        assert (again.blocks, again.before["offset"], again.before["population"]) == (1, 4, 20)
        assert (await rows_of(alice, "cities"))[5:] == [(5, 2, "c2", 20), (6, 3, "c2", 21)]
        assert (await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok


async def test_a_row_is_taken_back_once(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        done = await corrected(alice, retract=True)
        assert (done.outcome, done.blocks, done.records, done.after) == ("retracted", 2, 1, None)
        assert told(done.rows) == {"retracted": 1}
        assert await rows_of(alice, "cities") == [*FIRST, (3, 1, "c2", 2)]
        size = alice.size("cities")
        for request in ({"retract": True}, {"values": {"population": "3"}}):
            with pytest.raises(NotFound, match="taken back at offset 3"):
                await corrected(alice, **request)
        assert alice.size("cities") == size


async def test_what_says_so_already_and_what_is_only_tried_writes_nothing(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        size = alice.size("cities")
        same = await corrected(alice, values={"population": "2"})
        assert (same.outcome, same.blocks, same.head, same.after) == ("unchanged", 0, None, same.before)
        tried = await corrected(alice, values={"population": "20"}, dry_run=True)
        assert (tried.outcome, tried.blocks, tried.head, tried.dry_run) == ("corrected", 0, None, True)
        assert tried.after is not None
        assert tried.after["population"] == 20
        assert alice.size("cities") == size


REFUSED: list[tuple[Any, type[Fault], str]] = [
    ({"key": {"city": "c2"}, "retract": True}, Invalid, "the key lacks event_time"),
    ({"key": {**KEY, "city": "c9"}, "retract": True}, NotFound, "no row has .*city=c9"),
    ({"key": {**KEY, "river": "Mur"}, "retract": True}, Invalid, "no column 'river'"),
    ({"key": {**KEY, "offset": "1"}, "retract": True}, Invalid, "no column 'offset'"),
    ({"key": {**KEY, "event_time": "yesterday"}, "retract": True}, Invalid, "'yesterday' is not a Timestamp"),
    ({"key": {**KEY, "event_time": "2024-01-02T00:00:00.0001Z"}, "retract": True}, Invalid, "not a Timestamp"),
    ({"values": {"population": "many"}}, Invalid, "column 'population': 'many' is not an Int64"),
    ({"values": {"population": "0x1F"}}, Invalid, "is not an Int64"),
    ({"values": {"population": "9223372036854775808"}}, Invalid, "is not an Int64"),
    ({"values": {"city": "c4"}}, Refused, "city is of the key"),
    ({"values": {"op": "0"}}, Invalid, "no column 'op'"),
    ({"values": {"population": "1"}, "retract": True}, Invalid, "either given values or retracted"),
    ({}, Invalid, "either given values or retracted"),
]


async def test_what_cannot_be_is_refused_and_nothing_is_written(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        size = alice.size("cities")
        for asked, fault, message in REFUSED:
            with pytest.raises(fault, match=message):
                await corrected(alice, **asked)
            assert alice.size("cities") == size, asked


async def test_only_ledgers_that_are_here_have_rows_to_correct(world: World) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(NotFound):
            await corrected(alice, retract=True)
        await alice.apply(ROOT, DERIVED)
        world.write("alice", "a.csv", "2024-01-02T00:00:00Z,c2,2")
        await alice.pull()
        with pytest.raises(Refused, match="only rows of a ledger"):
            await corrected(alice, retract=True)
        with pytest.raises(Refused, match="root"):
            await corrected(alice, "towns", retract=True)


async def test_rows_of_one_key_are_told_apart_by_other_columns(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        world.write("alice", "a.csv", "2024-01-02T00:00:00Z,c2,2", "2024-01-02T00:00:00Z,c2,3")
        await alice.pull()
        await alice.apply(ledger(ROOT))
        with pytest.raises(Refused, match=r"2 rows have .*: offsets 0, 1"):
            await corrected(alice, retract=True)
        done = await corrected(alice, key={**KEY, "population": "3"}, values={"population": "4"})
        assert done.before["offset"] == 1


async def test_a_later_ingest_neither_undoes_a_correction_nor_hides_what_it_brought(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await corrected(alice, values={"population": "20"})
        await corrected(alice, key={"event_time": "2024-01-03T00:00:00Z", "city": "c3"}, retract=True)
        rows = await rows_of(alice, "cities")
        world.write(
            "alice", "b.csv", "2024-01-02T00:00:00Z,c2,2", "2024-01-02T00:00:00Z,c2,20", "2024-01-03T00:00:00Z,c3,3",
            "2024-01-01T00:00:00Z,c1,1", "2024-01-04T00:00:00Z,c4,4",
        )  # fmt: skip
        (item,) = await alice.pull("cities")
        assert told(item.rows) == {"read": 5, "shaped": 5, "appended": 1, "unchanged": 2, "conflicting": 2}
        assert await rows_of(alice, "cities") == [*rows, (6, 0, "c4", 4)]


async def test_what_is_derived_passes_corrections_on_and_says_so_from_then_on(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        assert (await alice.api.datasets.describe("cities")).changelog is False
        chain = alice.home.chains.chain(alice.dataset("towns"))
        assert says_changelog(load_state(chain).schema.schema) is False
        await corrected(alice, values={"population": "20"})
        (item,) = await alice.pull("towns")
        assert (item.outcome, item.blocks, item.records) == ("updated", 2, 2)
        assert told(item.rows) == {"read": 2, "shaped": 2, "corrected": 1}
        assert await rows_of(alice, "towns") == FIRST + PAIR
        state = load_state(chain)
        assert says_changelog(state.schema.schema) is True
        assert chain.block_at(state.size - 2).event == state.schema
        await corrected(alice, retract=True)
        (item,) = await alice.pull("towns")
        assert (item.blocks, item.records) == (1, 1)
        done = await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
        assert done.ok, done
        assert (await alice.pull("towns"))[0].outcome == "up-to-date"
        for name in ("cities", "towns"):
            described = await alice.api.datasets.describe(name)
            assert described.changelog is True
            assert described.rows is not None
            assert (described.rows.rows.corrected, described.rows.rows.retracted) == (1, 1)


async def test_what_was_derived_anew_after_a_correction_is_reproduced_too(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await corrected(alice, values={"population": "20"})
        request = wire.RewriteRequest(action="keep-metadata")
        await alice.done(alice.api.rewriting.rewrite("towns", request))
        (item,) = await alice.pull("towns")
        assert item.outcome == "updated"
        assert await rows_of(alice, "towns") == FIRST + PAIR
        assert says_changelog(load_state(alice.home.chains.chain(alice.dataset("towns"))).schema.schema) is True
        done = await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
        assert done.ok, done


async def test_a_mirror_follows_and_cannot_correct(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await begun(world, alice)
        await alice.pull("towns")
        await world.spread(alice, "cities", "towns")
        for name in ("cities", "towns"):
            await bob.mirror(alice.dataset(name), name)
        await corrected(alice, values={"population": "20"})
        await alice.pull("towns")
        for name in ("cities", "towns"):
            await bob.pull(name)
            assert await rows_of(bob, name) == FIRST + PAIR
        done = await bob.done(bob.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
        assert done.ok, done
        with pytest.raises(Refused, match="not this node's own"):
            await corrected(bob, values={"population": "21"})


async def test_a_manifest_that_declares_the_schema_again_keeps_what_it_says_of_changes(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        chain = alice.home.chains.chain(alice.dataset("cities"))
        schema = load_state(chain).schema.schema
        said = {"kind": "SetDataSchema", "schema": msgspec.to_builtins(schema)}
        manifest = f"{ledger(ROOT)}    - {json.dumps(said)}\n"
        assert (await alice.apply(manifest)).items[0].action == "unchanged"
        await corrected(alice, values={"population": "20"})
        size = alice.size("cities")
        assert (await alice.apply(manifest)).items[0].action == "unchanged"
        assert alice.size("cities") == size
        said["schema"]["extra"] = {CHANGELOG: False}
        denied = f"{ledger(ROOT)}    - {json.dumps(said)}\n"
        (item,) = (await alice.apply(denied)).items
        assert (item.action, item.fault is not None and item.fault.rule) == ("failed", "schema-changelog-stays")


async def test_a_record_that_was_corrected_says_who_did_it(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await corrected(alice, values={"population": "20"})
        await alice.pull("towns")
        for offset, by_hand in ((1, False), (3, True), (4, True)):
            lineage = await alice.done(alice.api.lineage.trace("towns", wire.LineageRequest(record=offset)))
            (origin,) = [record.origin for record in lineage.records if record.origin is not None]
            assert origin.by_hand is by_hand


async def test_the_key_is_found_among_many_files_by_reading_one(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ledger(ROOT))
        for day in range(1, 8):
            world.write("alice", f"{day}.csv", f"2024-01-0{day}T00:00:00Z,c{day},{day}")
            await alice.pull()
        read: list[str] = []

        def counting(path: Any) -> Any:
            read.append(path.name)
            return open_slice(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("odfd.ingest.correction.open_slice", counting)
            await corrected(alice, values={"population": "20"})
        assert len(read) == 1


async def test_compaction_keeps_corrections(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await corrected(alice, values={"population": "20"})
        await corrected(alice, values={"population": "21"})
        rows = await rows_of(alice, "cities")
        done = await alice.done(alice.api.rewriting.rewrite("cities", wire.RewriteRequest(action="compact")))
        assert done.outcome == "rewritten"
        assert await rows_of(alice, "cities") == rows
        assert (await corrected(alice, values={"population": "22"})).before["offset"] == 6
