"""A bucket as a source of a node: objects come once, and what came late is told with each pull."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from odfd.repositories.bucket import open_bucket
from odfd.repositories.manifest import place_of
from worlds.manifests import ROOT
from worlds.node_world import World
from worlds.s3_server import new_bucket, s3_server

ROWS = "event_time,city,population\n2024-01-0{0}T00:00:00Z,c{0},{0}\n"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server(page=2) as address:
        yield address


@pytest.mark.slow
async def test_objects_come_once_and_late_ones_are_told(world: World, server: str) -> None:
    url = new_bucket(server, "cities")
    owner = open_bucket("cities", place_of(url), {"accessKeyId": "a", "secretAccessKey": "b"})
    for number in (2, 3, 4):
        owner.put(f"d/{number}.csv", ROWS.format(number).encode())
    manifest = ROOT.replace("path: '*.csv'", f"path: '{url}/d/*.csv'")
    async with world.running("alice") as alice:
        await alice.apply(manifest)
        (item,) = await alice.pull("cities")
        assert (item.outcome, item.records) == ("updated", 3)
        blocks = alice.size("cities")
        owner.put("d/1.csv", ROWS.format(1).encode())
        (item,) = await alice.pull("cities")
        assert (item.outcome, alice.size("cities")) == ("up-to-date", blocks)
        assert item.rows is not None
        assert [each.name for each in item.rows.skipped] == ["d/1.csv"]
        owner.put("d/5.csv", ROWS.format(5).encode())
        (item,) = await alice.pull("cities")
        assert (item.outcome, item.records) == ("updated", 1)
