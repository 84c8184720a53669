"""A flow asks its source for the time that its run is for, also for past times; a pull by hand asks for its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Fault, Invalid
from chain.instant import parse
from chain.state import load_state
from odfd.control import wire
from worlds.eventually import PATIENCE
from worlds.flow_world import flow_of
from worlds.node_world import Node, World
from worlds.web_site import Site, plain

SOURCE = """$schema: Source
headers: {{name: weather}}
spec:
  ingress: {{kind: Url, url: "{url}/${{{{ trigger.date }}}}?to=${{{{ trigger.time }}}}"}}
  read: {{kind: Csv, header: true, ddlSchema: ["event_time TIMESTAMP, city STRING, population BIGINT"]}}
  merge: {{kind: Append}}
"""
DATASET = "$schema: Dataset\nheaders: {name: weather}\nspec: {kind: Root, metadata: []}\n"
FLOW = """$schema: Flow
headers: {name: daily, annotations: {flowPolicy: {timeZone: Europe/Vienna}}}
spec:
  target: Dataset:weather
  triggers: [{kind: Schedule, cron: "@daily"}]
  tasks: [{kind: Ingest, source: weather}]
"""


class Weather:
    """A server with a document for each day, all with one ETag, as careless servers have."""

    def __init__(self, site: Site) -> None:
        self.site, self.asked = site, []  # type: tuple[Site, list[str]]
        site.answer = self.answer

    def answer(self, request: Any) -> bool:
        self.asked.append(request.path)
        if request.headers.get("If-None-Match") == '"one"':
            plain(request, 304)
            return True
        day = request.path[1:11]
        body = f"event_time,city,population\n{day}T00:00:00Z,Graz,{day[-2:]}\n".encode()
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("ETag", '"one"')
        request.end_headers()
        request.wfile.write(body)
        return True


async def backfilled(node: Node, first: str, last: str) -> int:
    told = await node.api.flows.backfill("daily", wire.BackfillRequest(first=first, to=last))
    with trio.fail_after(PATIENCE):
        while (await flow_of(node, "daily")).owed or (await flow_of(node, "daily")).state == "running":
            await node.parts.flows.turned.wait()
    times: int = told.times
    return times


async def test_a_backfill_asks_for_each_of_its_days(world: World, tmp_path: Path) -> None:
    with Site(tmp_path).open() as site:
        weather = Weather(site)
        async with world.running("alice") as alice:
            alice.clock.instant = parse("2024-05-20T12:00:00Z")
            await alice.apply(SOURCE.format(url=site.url), DATASET, FLOW)
            assert await backfilled(alice, "2024-05-01T00:00:00Z", "2024-05-11T12:00:00Z") == 10
            days = [f"2024-05-{day:02d}" for day in range(2, 12)]
            nights = [f"2024-05-{day:02d}T22:00:00Z" for day in range(1, 11)]
            assert weather.asked == [f"/{day}?to={night}" for day, night in zip(days, nights, strict=True)]
            assert load_state(alice.home.chains.chain(alice.dataset("weather"))).last_offset == 9
            assert await backfilled(alice, "2024-05-01T00:00:00Z", "2024-05-11T12:00:00Z") == 0


async def test_a_pull_by_hand_asks_for_its_own_time_or_a_named_one(world: World, tmp_path: Path) -> None:
    with Site(tmp_path).open() as site:
        weather = Weather(site)
        async with world.running("alice") as alice:
            await alice.apply(SOURCE.format(url=site.url), DATASET)
            (item,) = await alice.pull("weather", source="weather")
            assert item.outcome == "updated"
            assert re.fullmatch(r"/(\d{4}-\d\d-\d\d)\?to=\1T\d\d:\d\d:\d\dZ", weather.asked[0])
            for outcome in ("updated", "up-to-date"):
                (item,) = await alice.pull("weather", source="weather", time="2024-03-01T00:30:00+02:00")
                assert item.outcome == outcome, "the same time is asked once"
            assert weather.asked[1:] == ["/2024-03-01?to=2024-02-29T22:30:00Z"] * 2
            with pytest.raises(Invalid, match="not a time"):
                await alice.pull("weather", source="weather", time="yesterday")


async def test_a_time_is_refused_where_no_source_asks_for_it(world: World, tmp_path: Path) -> None:
    fixed = SOURCE.format(url="https://example.org").replace("${{ trigger.date }}?to=${{ trigger.time }}", "")
    async with world.running("alice") as alice:
        await alice.apply(fixed, DATASET)
        (item,) = await alice.pull("weather", source="weather", time="2024-03-01T00:00:00Z")
        assert (item.outcome, item.fault.rule) == ("failed", "pull-time")
        with pytest.raises(Fault) as caught:
            await alice.apply(fixed.replace("kind: Url, url", "kind: FilesGlob, path").replace(
                "https://example.org/", "/data/${{ trigger.date }}/*.csv"))  # fmt: skip
        assert "goes on where the last pull ended" in str(caught.value)
