"""Projections: tables that are kept of what queries over datasets answer, and follow the datasets."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
import trio
from node.test_shards_of_peers import CITIES, brought, passed, signed

from chain.errors import Invalid, NotFound
from engines.query.frames import HEAD, ROWS, AnswerFrameReader
from odfd.control import wire
from odfd.queries.askers import Asker
from odfd.store.directory import PROJECTIONS
from worlds.eventually import PATIENCE
from worlds.faults import breaks
from worlds.manifests import ROOT, in_shards
from worlds.node_world import Node, World

ROWS_A = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
LARGE = """
$schema: Projection
headers: {name: large}
spec:
  inputs: [{datasetRef: cities}]
  project: {kind: Sql, query: 'SELECT city, population FROM current.cities ORDER BY population DESC LIMIT 2'}
"""
COUNTED = "select count(*) as n, max(population) as most from projection.large"


async def ask(alice: Node, sql: str, asker: Asker | None = None, **more: Any) -> tuple[wire.QueryHead, list[Any]]:
    """The head of an answer, and its rows."""
    said = bytearray()

    async def take(data: bytes) -> None:
        said.extend(data)

    with trio.fail_after(PATIENCE):
        request = wire.QueryRequest(sql=sql, **more)
        await (alice.api.queries.answer(request, take, asker) if asker else alice.api.queries.answer(request, take))
    frames = list(AnswerFrameReader().feed(bytes(said)))
    assert frames[0][0] == HEAD
    rows = pa.ipc.open_stream(b"".join(content for kind, content in frames if kind == ROWS)).read_all().to_pylist()
    return msgspec.json.decode(frames[0][1], type=wire.QueryHead), rows


async def status(alice: Node) -> dict[str, Any]:
    """Once all is done."""
    with trio.fail_after(PATIENCE):
        await alice.parts.reconciler.wait_settled()
    found: dict[str, Any] = (await alice.api.declarations.get("projection", "large")).status
    return found


def table(said: dict[str, Any]) -> Any:
    (found,) = [each["value"] for key, each in said["conditions"].items() if key.endswith("/dataset/v1alpha1/Table")]
    return found


async def test_a_projection_is_a_table_that_follows_its_inputs(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(LARGE)
        said = await status(alice)
        assert (said["phase"], said["code"]) == ("Failed", "unresolved-reference"), "it waits for its input"
        with pytest.raises(NotFound, match="the projection large has no table yet"):
            await ask(alice, COUNTED)
        with pytest.raises(NotFound, match="large is a projection, not a dataset") as told:
            await ask(alice, "select * from large")
        assert told.value.hint == "its table is projection.large"
        world.write("alice", "a.csv", *ROWS_A)
        await alice.apply(ROOT)
        assert (await status(alice))["code"] == "query-schema", "which has no columns yet"
        await alice.pull()
        said = await status(alice)
        assert (said["phase"], table(said)["rows"], table(said)["lag"]) == ("Ready", 2, 0)
        head, rows = await ask(alice, COUNTED)
        assert rows == [{"n": 2, "most": 300_000}]
        assert [each.name for each in head.standings] == ["cities"]
        assert any("projection.large was computed from cities to block #" in each for each in head.remarks)
        _, rows = await ask(alice, "select c.city from cities c join projection.large l on c.city = l.city order by 1")
        assert rows == [{"city": "Graz"}, {"city": "Linz"}], "beside datasets"
        await alice.take_in(files={"b.csv": ["2024-01-03T00:00:00Z,Wien,2000000"]})
        said = await status(alice)
        assert (said["phase"], table(said)["lag"]) == ("Ready", 0)
        assert table(said)["inputs"][0]["head"]["hash"] == str(
            alice.home.chains.chain(alice.dataset("cities")).head().hash
        )
        assert (await ask(alice, COUNTED))[1] == [{"n": 2, "most": 2_000_000}]
        folder = alice.home.folder(PROJECTIONS)
        assert len(list(folder.glob("*.parquet"))) == 2, "the table and the one before"
        (item,) = (await alice.apply(LARGE)).items
        assert item.action == "unchanged"
    async with world.running("alice") as alice:
        assert (await ask(alice, COUNTED))[1] == [{"n": 2, "most": 2_000_000}], "after a start"
        assert (await status(alice))["phase"] == "Ready"
        await alice.api.declarations.delete("projection", "large")
        with trio.fail_after(PATIENCE):
            await alice.parts.reconciler.wait_settled()
        assert list(folder.iterdir()) == []
        with breaks("query-dataset"):
            await ask(alice, COUNTED)


async def test_a_table_that_is_damaged_is_computed_again_and_never_read(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.take_in(ROOT, LARGE, files={"a.csv": ROWS_A})
        await status(alice)
        (kept,) = alice.home.folder(PROJECTIONS).glob("*.parquet")
    left = [kept.with_name(f"{name}.part") for name in (kept.name.partition(".")[0], "gone")]
    for each in (*left, kept.with_name("gone.json")):
        each.write_bytes(b"left by a crash")
    sound = kept.read_bytes()
    kept.write_bytes(sound[:-9] + bytes([sound[-9] ^ 1]) + sound[-8:])
    async with world.running("alice") as alice:
        assert (await status(alice))["phase"] == "Ready"
        assert kept.read_bytes() == sound
        assert len(list(kept.parent.iterdir())) == 2, "the table and its record"
        assert (await ask(alice, COUNTED))[1] == [{"n": 2, "most": 300_000}]


async def test_what_fails_is_told_beside_the_table_that_stands(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.take_in(ROOT, LARGE, files={"a.csv": ROWS_A})
        await status(alice)
        await alice.apply(LARGE.replace("SELECT city", "SELECT town"))
        said = await status(alice)
        assert (said["phase"], table(said)["rows"]) == ("Failed", 2)
        assert "town" in said["message"]
        assert (await ask(alice, COUNTED))[1] == [{"n": 2, "most": 300_000}]
        await alice.apply(LARGE.replace("current.cities", "other"))
        assert (await status(alice))["code"] == "query-dataset", "it reads its inputs alone"
        renamed = LARGE.replace("{datasetRef: cities}", "{datasetRef: cities, alias: all}").replace(
            "current.cities", '"all"'
        )
        await alice.apply(renamed)
        assert (await status(alice))["phase"] == "Ready"


async def test_a_table_is_for_its_owner_and_is_not_proven_or_pinned(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.take_in(ROOT, LARGE, files={"a.csv": ROWS_A})
        await status(alice)
        for more in ({"prove": True}, {"require": "data"}):
            with breaks("query-projection"):
                await ask(alice, COUNTED, **more)
        with breaks("query-dataset"):
            await ask(alice, COUNTED, Asker(served=lambda _: 100))


@pytest.mark.parametrize(
    ("wrong", "by", "rule"),
    [
        ("kind: Sql,", "kind: Sql, engine: datafusion,", "engine-unavailable"),
        ("[{datasetRef: cities}]", "[]", "projection-inputs"),
        ("[{datasetRef: cities}]", "[{datasetRef: cities}, {datasetRef: b, alias: Cities}]", "projection-inputs"),
        ("{datasetRef: cities}", "{datasetRef: cities, alias: 'a b'}", "projection-alias"),
        ("{datasetRef: cities}", "{datasetRef: 'Flow:cities'}", "reference-type"),
    ],
)
async def test_what_is_wrong_with_a_projection_is_told_when_it_is_applied(
    world: World, wrong: str, by: str, rule: str
) -> None:
    async with world.running("alice") as alice:
        with breaks(rule, Invalid):
            await alice.apply(LARGE.replace(wrong, by))


async def test_the_table_of_a_collection_follows_all_its_shards(world: World) -> None:
    """Here and at a mirror, also after transactions of which some shards get nothing."""
    counted = f"{LARGE.partition('  project:')[0]}  project: {{kind: Sql, query: 'SELECT count(*) AS n FROM cities'}}\n"
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(in_shards(ROOT), counted)
        for day, city in enumerate(CITIES[:6], start=1):
            await brought(world, alice, day, city)
            said = await status(alice)
            assert (said["phase"], table(said)["lag"]) == ("Ready", 0)
            assert (await ask(alice, "select n from projection.large"))[1] == [{"n": day}]
        assert len(table(said)["inputs"]) == 3
        await alice.publish("cities")
        await signed(alice)
        await bob.mirror(alice.dataset("cities"), "cities")
        await passed(bob)
        await bob.apply(counted)
        for day in (6, 7, 8):
            said = await status(bob)
            assert (said["phase"], table(said)["lag"]) == ("Ready", 0)
            assert (await ask(bob, "select n from projection.large"))[1] == [{"n": day}]
            await brought(world, alice, day + 1, "Krems")
            await passed(bob)
