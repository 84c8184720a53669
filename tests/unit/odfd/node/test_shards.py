"""Collections of several shards: the same rows as in one, whatever is written and read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import trio

from engines.query.frames import ROWS, FrameReader
from odfd.control import wire
from worlds.eventually import PATIENCE

LEDGER = "{kind: Ledger, primaryKey: [event_time, city]}"


async def shard(node: Any, shards: int, *by: str, ref: str = "cities") -> wire.RenditionView:
    request = wire.RenditionRequest(origin="snapshot", shards=shards, by=by)
    made: wire.RenditionView = await node.done(node.api.renditions.create(ref, request))
    return made


async def hand_over(node: Any, number: int) -> wire.RenditionView:
    done: wire.RenditionView = await node.done(node.api.renditions.hand_over("cities", number, wire.HandoverRequest()))
    return done


async def answered(node: Any, request: wire.QueryRequest) -> tuple[list[dict[str, Any]], bytes]:
    said = bytearray()

    async def take(data: bytes) -> None:
        said.extend(data)

    with trio.fail_after(PATIENCE):
        await node.api.queries.answer(request, take)
    frames = list(FrameReader().feed(bytes(said)))
    stream = b"".join(content for kind, content in frames if kind == ROWS)
    rows: list[dict[str, Any]] = pa.ipc.open_stream(stream).read_all().to_pylist()
    return rows, frames[0][1]


async def standing(node: Any, ref: str) -> list[tuple[Any, ...]]:
    """The rows in force, without system columns."""
    sql = f'SELECT event_time, city, population FROM current."{ref}" ORDER BY ALL'
    rows, _ = await answered(node, wire.QueryRequest(sql=sql))
    return [tuple(row.values()) for row in rows]


async def pulled(world: Any, node: Any, day: int, city: str, count: int) -> None:
    world.write("alice", f"d{day}.csv", f"2024-01-{day:02}T00:00:00Z,{city},{count}")
    await node.pull("cities")


async def filled(world: Any, worlds: Any, node: Any, merge: str = LEDGER) -> None:
    await node.apply(worlds.ROOT.replace("{kind: Append}", merge))
    await node.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
    for day, city in ((1, "Graz"), (2, "Linz"), (3, "Wels")):
        await pulled(world, node, day, city, day)


async def test_rows_in_shards_are_those_in_one(world: Any, worlds: Any) -> None:
    async with world.running("alice") as alice:
        await filled(world, worlds, alice)
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
