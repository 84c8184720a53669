"""A source that cannot tell whether it changed is read once; a person who wants it read again can say so."""

from __future__ import annotations

from pathlib import Path

from worlds.node_world import World
from worlds.web_site import Site

ROOT = """kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: '{url}/cities.csv'}}
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: {{kind: Ledger, primaryKey: [event_time, city]}}
"""
HEADER = "event_time,city,population\n"
FIRST, SECOND = "2024-01-01T00:00:00Z,Graz,300000\n", "2024-01-02T00:00:00Z,Linz,200000\n"


async def test_it_is_read_again_when_a_person_says_so(world: World, tmp_path: Path) -> None:
    with Site(tmp_path).open() as site:
        async with world.running("alice") as alice:
            file = tmp_path / "cities.csv"
            file.write_text(HEADER + FIRST)
            await alice.apply(ROOT.format(url=site.url))
            assert [item.records for item in await alice.pull()] == [1]
            file.write_text(HEADER + FIRST + SECOND)
            (item,) = await alice.pull("cities")
            assert (item.outcome, len(site.asked)) == ("up-to-date", 1)
            assert "odfctl pull cities --fetch-uncacheable" in item.message
            (item,) = await alice.pull("cities", fetch_uncacheable=True)
            assert (item.outcome, item.records) == ("updated", 1)
            (item,) = await alice.pull(fetch_uncacheable=True)
            assert (item.outcome, item.records, item.message) == ("up-to-date", 0, "nothing-new")
