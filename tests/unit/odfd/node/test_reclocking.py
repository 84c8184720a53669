"""Two nodes ingest one source into the shards of one collection at a repository, both at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from chain.errors import Invalid, NotFound, Refused
from odfd.control import wire
from odfd_client import open_repository
from worlds.served_node import away

ARCHIVE = "$schema: Repository\nheaders: {name: archive}\nspec: {url: %s}\n"
CITIES = ("Graz", "Linz", "Wels", "Steyr", "Enns", "Melk", "Krems")


async def reclocked(node: Any, **more: Any) -> wire.ReclockView:
    request = wire.ReclockRequest(at="archive", **more)
    done: wire.ReclockView = await node.done(node.api.reclocking.run("cities", request))
    return done


async def prepared(node: Any, worlds: Any, store: Path, folder: Path) -> None:
    await node.apply(worlds.ROOT.replace("{kind: Append}", "{kind: Ledger, primaryKey: [city]}"), base=folder)
    await node.apply(ARCHIVE % store.as_uri())


def rows_at(store: Path, view: wire.ReclockView) -> list[str]:
    """The cities in all shards, as the client reads them there."""
    repository = open_repository(store)
    tables = [repository.open(each.removeprefix("did:odf:")).to_arrow() for each in view.shards]
    assert sum(table.num_rows > 0 for table in tables) > 1
    return sorted(city for table in tables for city in table.column("city").to_pylist())


async def test_two_nodes_write_each_row_once_into_its_shard(world: Any, worlds: Any, tmp_path: Path) -> None:
    store, folder = tmp_path / "archive", world.folder / "alice" / "source"
    store.mkdir()
    async with world.running("alice") as alice, world.running("bob") as bob:
        for node in (alice, bob):
            await prepared(node, worlds, store, folder)
        made = await reclocked(alice, shards=3, by=("city",))
        assert (len(made.shards), made.by) == (3, ("city",))
        for day, city in enumerate(CITIES, start=1):
            world.write("alice", f"d{day}.csv", f"2024-01-0{day}T00:00:00Z,{city},{day}", "2024-01-01T00:00:00Z,Graz,1")
        views: list[wire.ReclockView] = []

        async def run(node: Any) -> None:
            views.append(await reclocked(node, chain=made.chain))

        async with trio.open_nursery() as nursery:
            for node in (alice, bob):
                nursery.start_soon(run, node)
        assert sum(view.bound for view in views) == sum(view.written for view in views) == len(CITIES)
        assert await away(lambda: rows_at(store, made)) == sorted(CITIES)
        for node in (alice, bob):
            done = await reclocked(node, chain=made.chain)
            assert (done.bound, done.written, done.repeated) == (0, 0, 0)


PUSHED = """
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: clients
      read: {kind: Csv, header: true, ddlSchema: [event_time TIMESTAMP, city STRING, population BIGINT]}
      merge: {kind: Append}
"""


async def test_a_push_is_taken_once_by_two_nodes_and_has_one_receipt(world: Any, tmp_path: Path) -> None:
    store = tmp_path / "archive"
    store.mkdir()
    rows = "event_time,city,population\n" + "".join(f"2024-01-01T00:00:00Z,{city},1\n" for city in CITIES)
    async with world.running("alice") as alice, world.running("bob") as bob:
        for node in (alice, bob):
            await node.apply(PUSHED)
            await node.apply(ARCHIVE % store.as_uri())
        made = await reclocked(alice, shards=3, by=("city",))
        views = []
        for node in (alice, bob, alice):
            views.append(await pushed(node, made.chain, rows, id="one"))
        receipts = [view.receipt for view in views]
        assert [each.repeated for each in receipts] == [False, True, True]
        assert {msgspec.structs.replace(each, repeated=False) for each in receipts} == {receipts[0]}
        assert (receipts[0].records, len(receipts[0].shards)) == (len(CITIES), 3)
        assert await away(lambda: rows_at(store, made)) == sorted(CITIES)
        with pytest.raises(Refused, match="the id 'one' was used at"):
            await pushed(bob, made.chain, rows.replace("Graz", "Gras"), id="one")
        with pytest.raises(NotFound, match="no upload"):
            await reclocked(alice, chain=made.chain, uploads=("none",))
        with pytest.raises(Refused, match="a push goes into a collection that is there"):
            await reclocked(alice, uploads=("none",))
        assert (await reclocked(bob, chain=made.chain)).written == 0


async def pushed(node: Any, chain: str, text: str, **more: Any) -> wire.ReclockView:
    async def chunks() -> AsyncIterator[bytes]:
        yield text.encode()

    upload = await node.api.flow.stage("cities.csv", chunks())
    return await reclocked(node, chain=chain, uploads=(upload.id,), **more)


async def test_what_cannot_be_ingested_so_is_refused_by_name(world: Any, worlds: Any, tmp_path: Path) -> None:
    store, folder = tmp_path / "archive", world.folder / "alice" / "source"
    store.mkdir()
    async with world.running("alice") as alice:
        await prepared(alice, worlds, store, folder)
        with pytest.raises(Invalid, match="3 shards by 0 columns"):
            await reclocked(alice, shards=3)
        with pytest.raises(Refused, match="rows of one key would be in several"):
            await reclocked(alice, shards=3, by=("population",))
        made = await reclocked(alice)
        with pytest.raises(Invalid, match="is no reclocking chain"):
            await reclocked(alice, chain=made.shards[0])
        await alice.apply(worlds.ROOT, base=folder)
        with pytest.raises(Refused, match="declare another source than this node's dataset"):
            await reclocked(alice, chain=made.chain)
