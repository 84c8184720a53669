"""Sources of a node: declared, pushed to, slow, in buckets, not told apart, and what they let go of too early."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Conflict, Invalid, NotFound, Refused
from chain.instant import SECOND, Instant
from chain.model.events import AddData
from chain.model.source import ReadCsv, ReadJson, ReadNdJson, ReadParquet, ReadStep
from chain.state import load_state
from chain.walk import newest_first
from config import model
from odfd.cli.offline.restore import what_is_wrong
from odfd.control import wire
from odfd.ingest import driver
from odfd.ingest.clients.kafka import TopicPosition, decode_position, lost_ranges, missing_message, starts
from odfd.ingest.endpoint import records_in
from odfd.ingest.fetch.kafka import state_of
from odfd.ingest.fetch.source import AddressRange, Fetched, Unchanged
from odfd.ingest.gaps import EXTRA
from odfd.repositories.bucket import open_bucket
from odfd.repositories.manifest import place_of
from odfd.resources.store import ResourceStore
from odfd.runtime import slots
from odfd.runtime.tasks import Bounds, Report, TaskPhase
from odfd.services.ingest.ingest_pull import TOGETHER
from odfd.services.ingest.sources import SourceReader
from odfd.services.maintenance.restore import choose, restore
from odfd.store.directory import open_state_directory
from worlds.dripping import Dripping, Manner
from worlds.eventually import PATIENCE
from worlds.faults import breaks
from worlds.flow_world import flow_of, flows
from worlds.kafka import ModelTopic, message
from worlds.manifests import DERIVED, FROM_URL, ROOT, in_shards
from worlds.manifests import ROOT as FROM_FILES
from worlds.node_world import Node, World, until
from worlds.s3_server import new_bucket, s3_server
from worlds.web_site import Site

# Sources as resources: datasets take from them by flows and pulls, and their chains never hold them.


DATASET = "$schema: Dataset\nheaders: {{name: {name}}}\nspec: {{kind: Root, metadata: []}}\n"
SOURCE = """$schema: Source
headers: {{name: {name}}}
spec:
  config: {{folder: "SecretSet:places#folder"}}
  ingress: {{kind: FilesGlob, path: "{folder}/*.csv", order: ByName}}
  read: {{kind: Csv, header: true, ddlSchema: ["event_time TIMESTAMP, city STRING, population BIGINT"]}}
  merge: {{kind: Ledger, primaryKey: [event_time, city]}}
"""
SECRET = "$schema: SecretSet\nheaders: {name: places}\nspec: {secrets: {folder: nowhere}}\n"
FLOW = """$schema: Flow
headers: {{name: often}}
spec:
  target: Dataset:{target}
  triggers: [{{kind: Interval, interval: 1min}}]
  tasks: [{{kind: Ingest, source: {source}}}]
"""


def source(world: World, name: str = "cities") -> str:
    return SOURCE.format(name=name, folder=world.folder / "alice" / "source")


async def status(node: Node, name: str = "cities") -> dict[str, Any]:
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()
    found: dict[str, Any] = (await node.api.declarations.get("source", name)).status
    return found


async def test_datasets_take_from_a_source_that_is_in_no_chain(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world), DATASET.format(name="one"), DATASET.format(name="two"))
        assert (await status(alice))["phase"] == "Ready"
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        for name in ("one", "two"):
            (item,) = await alice.pull(name, source="cities")
            assert (item.outcome, item.rows.read if item.rows else 0) == ("updated", 1), item
        (item,) = await alice.take_in(files={"2.csv": ["2024-01-02T00:00:00Z,Linz,2"]}, pulls=["one"], source="cities")
        assert item.outcome == "updated"
        (item,) = await alice.pull("one", source="cities")
        assert item.outcome == "up-to-date"
        state = load_state(alice.home.chains.chain(alice.dataset("one")))
        assert state.polling_source is None
        assert state.source_state is not None
        assert state.source_state.source_name == "cities"
        added = list(
            newest_first(alice.home.chains.chain(alice.dataset("two")), (AddData.__name__,), alice.size("two"))
        )
        assert len(added) == 1, "each dataset has gone as far as it has"
        verified = await alice.done(alice.api.verification.verify("one", wire.VerifyRequest(level="data")))
        assert verified.ok


async def test_a_flow_takes_from_a_source_and_follows_its_name(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world), DATASET.format(name="one"), FLOW.format(target="one", source="cities"))
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        alice.clock.instant += 60 * SECOND
        alice.parts.flows.loop.poke()
        with trio.fail_after(PATIENCE):
            while (seen := await flow_of(alice, "often")).runs < 1:
                await alice.parts.flows.turned.wait()
        assert (seen.outcome, seen.failures) == ("Success", 0), seen.message
        await alice.api.declarations.delete("source", "cities")
        with trio.fail_after(PATIENCE):
            await alice.parts.reconciler.wait_settled()
        waits = (await alice.api.declarations.get("Flow", "often")).status
        assert (waits["code"], waits["message"]) == (
            "unresolved-reference", "the Source 'cities' that was meant is gone"
        )  # fmt: skip
        await alice.apply(source(world), FLOW.format(target="one", source="cities"))
        with trio.fail_after(PATIENCE):
            await alice.parts.reconciler.wait_settled()
        alice.clock.instant += 60 * SECOND
        alice.parts.flows.loop.poke()
        with trio.fail_after(PATIENCE):
            while (seen := await flow_of(alice, "often")).runs < 2:
                await alice.parts.flows.turned.wait()
        assert (seen.outcome, seen.failures) == ("NoOp", 0), seen.message


@pytest.mark.parametrize("becomes", ["deleted", "renamed"])
async def test_what_was_taken_counts_whatever_becomes_of_its_source_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    pull = driver.pull_root
    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world), DATASET.format(name="one"))
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")

        async def changed(*given: Any, **more: Any) -> Any:
            done = await pull(*given, **more)
            if becomes == "deleted":
                await alice.api.declarations.delete("source", "cities")
            else:
                await alice.api.applying.rename("Source", "cities", "towns")
            return done

        monkeypatch.setattr(driver, "pull_root", changed)
        (item,) = await alice.pull("one", source="cities")
        assert (item.outcome, item.records, item.fault) == ("updated", 1, None)


async def test_a_source_reads_its_own_values_in_its_url(world: World) -> None:
    url = source(world).replace("kind: FilesGlob, path", "kind: Url, url").replace(", order: ByName", "")
    at = url.index("url: ") + len("url: ")
    url = url[:at] + '"https://example.org/${{ config.folder }}.csv"' + url[url.index("}\n  read") :]
    async with world.running("alice") as alice:
        await alice.apply(SECRET, url)
        assert (await status(alice))["phase"] == "Ready"


async def test_one_dataset_has_one_source(world: World) -> None:
    own = DATASET.format(name="own").replace("[]", "[{kind: AddPushSource, sourceName: a, read: {kind: NdJson}, "
                                             "merge: {kind: Append}}]")  # fmt: skip
    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world), source(world, "others"), DATASET.format(name="one"), own)
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull("one", source="cities")
        for name in ("one", "own"):
            (item,) = await alice.pull(name, source="others")
            assert (item.outcome, item.fault.rule) == ("failed", "second-source")


async def test_a_renamed_source_goes_on_and_another_of_its_name_is_refused(world: World) -> None:
    """Also after a kill before anything is committed, a handover, and under the reused name, at once or later."""

    async def pull(node: Node, name: str) -> str:
        (item,) = await node.pull("one", source=name)
        return str(item.fault.rule if item.fault else item.outcome)

    async def rows(node: Node) -> int:
        return int((await node.dataset_view("one")).records)

    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world), DATASET.format(name="one"))
        given, _ = SourceReader(alice.home).open_given("cities", alice.dataset("one"))
        SourceReader(alice.home).bind(given)  # and it is killed before it commits: nothing holds it to this Source
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.apply(source(world, "others"))
        assert await pull(alice, "others") == "updated"
        assert await pull(alice, "cities") == "second-source"
        first = await alice.api.declarations.get("source", "others")
        renamed = source(world, "towns").replace("headers: {", f"headers: {{id: {first.id}, ")
        await alice.apply(renamed, source(world, "others"))  # in one batch
        (item,) = await alice.take_in(files={"2.csv": ["2024-01-02T00:00:00Z,Linz,2"]}, pulls=["one"], source="others")
        assert item.fault.rule == "second-source"
        assert "takes its records from the Source towns, and not from the Source others" in item.message
        assert await pull(alice, "towns") == "updated"
        assert await rows(alice) == 2
        state = load_state(alice.home.chains.chain(alice.dataset("one"))).source_state
        assert state is not None
        assert state.source_name == "others", "what the chain began with"
    async with world.running("alice") as alice:
        await alice.done(alice.api.renditions.create("one", wire.RenditionRequest(origin="snapshot")))
        await alice.done(alice.api.renditions.hand_over("one", 1, wire.HandoverRequest(id="over")))
        await alice.apply(source(world, "places").replace("headers: {", f"headers: {{id: {first.id}, "))
        world.write("alice", "3.csv", "2024-01-03T00:00:00Z,Wels,3")
        assert await pull(alice, "others") == "second-source"
        assert await pull(alice, "places") == "updated"
        assert await pull(alice, "places") == "up-to-date"
        assert await rows(alice) == 3
        await alice.api.declarations.delete("source", "places")
        assert await pull(alice, "others") == "up-to-date", "what was meant is gone, and this has its name"
        assert await rows(alice) == 3


async def test_values_that_are_not_here_are_told_and_come_by_themselves(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(source(world))
        told = await status(alice)
        assert (told["phase"], told["code"]) == ("Failed", "unresolved-reference")
        await alice.apply(SECRET)
        assert (await status(alice))["phase"] == "Ready"


async def test_a_value_that_its_set_lacked_is_looked_for_when_the_set_changes(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SECRET.replace("folder:", "other:"), source(world))
        assert (await status(alice))["code"] == "unresolved-reference"
        await alice.apply(SECRET)
        assert (await status(alice))["phase"] == "Ready"


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("/*.csv", "/${{ env.HOME }}.csv", "source-variable"),
        ("/*.csv", "/${{ config.other }}.csv", "source-variable"),
        ("SecretSet:places#folder", "places", "reference-type"),
        ("SecretSet:places#folder", "SecretSet:places", "source-config"),
        ("kind: FilesGlob, path", "kind: RestEndpoint, path", "unknown-field"),
    ],
)
async def test_what_a_source_may_not_say_is_refused_at_its_line(
    world: World, before: str, after: str, rule: str
) -> None:
    """Attack T-SOURCE-02: a Source that reads values of others.

    Defence: it reads only the values that its `config` names, not sets of the dataset's name or the environment.
    """
    async with world.running("alice") as alice:
        with breaks(rule, Invalid) as refused:
            await alice.apply(source(world).replace(before, after))
        assert refused.value.hint


async def test_a_source_that_the_settings_refuse_is_told_by_its_status(world: World) -> None:
    async with world.running("alice") as alice:
        piped = source(world).replace("  read:", "  prepare: [{kind: Pipe, command: []}]\n  read:")
        await alice.apply(SECRET, piped, DATASET.format(name="one"))
        assert (await status(alice))["code"] == "prepare-pipe"
        (item,) = await alice.pull("one", source="cities")
        assert item.outcome == "failed"
        with breaks("pull-source"):
            await alice.pull("one", "two", source="cities")


async def test_a_source_never_reads_another_set_that_took_the_name_of_its_own(world: World) -> None:
    """The other secret would leave the node in a request that was written for the first."""
    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world))
        made = await alice.api.declarations.get("secretset", "places")
        renamed = SECRET.replace("{name: places}", f"{{name: towns, id: {made.id}}}")
        await alice.apply(renamed, SECRET.replace("nowhere", "of another"))
        opened = await trio.to_thread.run_sync(SourceReader(alice.home).open, "cities")
        assert opened.values == {"folder": "nowhere"}
        await alice.api.declarations.delete("secretset", "towns")
        told = await status(alice)
        assert (told["phase"], told["code"]) == ("Failed", "unresolved-reference"), "the set that was meant is gone"


async def test_references_are_written_as_objects_too(world: World) -> None:
    long = "{type: 'https://opendatafabric.org/schemas/config/v1alpha1/SecretSet', name: places, path: folder}"
    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world).replace('"SecretSet:places#folder"', long))
        assert (await status(alice))["phase"] == "Ready"
        shown = await alice.api.declarations.get("source", "cities")
        assert shown.spec["config"] == {"folder": "SecretSet:places#folder"}
        with pytest.raises(Invalid, match="no reference"):
            await alice.apply(source(world).replace('"SecretSet:places#folder"', "{name: places}"))


# A source that drips holds nobody but its own dataset: not those pulled with it, not what observers look at.


ROW = "2024-01-01T00:00:00Z,Graz,300000\n"
DERIVED_FROM = """kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{{datasetRef: {input}, alias: x}}]
      transform: {{kind: Sql, engine: spark, query: 'select * from x'}}
"""


@pytest.fixture(params=[Manner.DRIPS_BODY, Manner.SILENT], ids=lambda manner: manner.name.lower())
def slow(request: Any) -> Any:
    with Dripping(request.param).open() as server:
        yield server


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "PATIENCE", 0.05)


@pytest.fixture
def site(tmp_path: Path) -> Any:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "rows.csv").write_text(f"event_time,city,population\n{ROW}")
    with Site(tmp_path / "pages").open() as opened:
        yield opened


@asynccontextmanager
async def pulling(alice: Node) -> AsyncIterator[Any]:
    """All at once, and given up at the end."""
    task = alice.board.get((await alice.api.flow.pull(wire.PullRequest(all=True))).id)
    yield task
    alice.board.cancel(task.id)
    with trio.fail_after(PATIENCE):
        await task.finished.wait()


@pytest.mark.usefixtures("impatient")
async def test_datasets_pulled_with_a_slow_one_go_on(world: World, slow: Any, site: Any) -> None:
    """Attack T-SOURCE-04: a slow source that delays other datasets.

    Defence: datasets are pulled concurrently, each after its inputs.
    """
    async with world.running("alice") as alice:
        for name, url in (("aaa", slow.url), ("bbb", site.url), ("ccc", site.url)):
            await alice.apply(FROM_URL.format(name=name, url=f"{url}/rows.csv"))
        await alice.apply(DERIVED_FROM.format(name="aab", input="bbb"), DERIVED_FROM.format(name="aac", input="aab"))
        async with pulling(alice) as task:
            heard = [event.subject for event in await alice.heard("dataset.derived", 2)]
            assert heard == ["aab", "aac"], "each after what it derives from"
            await alice.heard("dataset.appended", 2)
            assert not task.finished.is_set()
            await until(lambda: task.progress()[-1] == "pulling aaa")


MANY = 2 * TOGETHER


@pytest.mark.usefixtures("impatient")
async def test_more_slow_sources_than_are_pulled_at_once_hold_nobody(world: World, slow: Any, site: Any) -> None:
    """Wherever those that answer stand among the many that do not."""
    quick = {f"z{number}" for number in range(10)}
    async with world.running("alice") as alice:
        for name in [*(f"a{number}" for number in range(MANY)), *quick]:
            server = site if name in quick else slow
            await alice.apply(FROM_URL.format(name=name, url=f"{server.url}/rows.csv"))
        async with pulling(alice) as task:
            assert {event.subject for event in await alice.heard("dataset.appended", len(quick))} == quick
            assert not task.finished.is_set()


@pytest.mark.usefixtures("impatient")
async def test_more_slow_pulls_than_tasks_run_at_once_hold_no_other_task(world: World, slow: Any, site: Any) -> None:
    async with world.running("alice") as alice:
        await alice.apply(FROM_URL.format(name="a", url=f"{slow.url}/rows.csv"))
        await alice.apply(FROM_URL.format(name="z", url=f"{site.url}/rows.csv"))
        tasks = [
            alice.board.get((await alice.api.flow.pull(wire.PullRequest(refs=("a",)))).id)
            for _ in range(2 * Bounds().running)
        ]
        await alice.api.flow.pull(wire.PullRequest(refs=("z",)))
        (event,) = await alice.heard("dataset.appended")
        assert event.subject == "z"
        assert not any(task.finished.is_set() for task in tasks)
        for task in tasks:
            alice.board.cancel(task.id)
        with trio.fail_after(PATIENCE):
            for task in tasks:
                await task.finished.wait()


@pytest.mark.usefixtures("impatient")
async def test_a_node_that_stops_waits_for_no_source(world: World, slow: Any) -> None:
    """Attack T-SOURCE-04: a slow source that delays the end of a node.

    Defence: a stop cancels waits for others at once.

    The pull says that the daemon is stopping; its dataset is as it was.
    """
    async with world.running("alice") as alice:
        await alice.apply(FROM_URL.format(name="aaa", url=f"{slow.url}/rows.csv"))
        size = alice.size("aaa")
        task = alice.board.get((await alice.api.flow.pull(wire.PullRequest(refs=("aaa",)))).id)
        await trio.to_thread.run_sync(slow.taken.wait, PATIENCE)
        alice.board._outside.end()
        with trio.fail_after(PATIENCE):
            await task.finished.wait()
        (item,) = task.result.items
        assert (item.outcome, item.fault.rule, alice.size("aaa")) == ("failed", "draining", size)


@pytest.mark.usefixtures("impatient")
@pytest.mark.slow
async def test_observers_look_at_others_meanwhile(world: World, site: Any) -> None:
    """Attack T-SOURCE-04: a slow source that delays observers.

    Defence: an observer's round does not wait for a source.

    The sources of two datasets, one of which says nothing any more since its rows were published.
    """
    world.may_dial = lambda _: True
    observes = model.Policy(publish=model.Publish(observe=True))
    asked, over = threading.Event(), threading.Event()

    def hold(request: Any) -> bool:
        asked.set()
        over.wait(PATIENCE)
        request.close_connection = True
        return True

    async with world.running("alice") as alice, world.running("bob", observes) as bob:
        with Site(site.folder).open() as bad:
            for name, page in (("first", bad), ("second", site)):
                await alice.apply(FROM_URL.format(name=name, url=f"{page.url}/rows.csv"))
            await alice.pull("first", "second")
            bad.answer = hold
            await world.spread(alice, "first", "second")
            try:
                await bob.mirror(alice.dataset("first"), "first")
                await trio.to_thread.run_sync(asked.wait, PATIENCE)
                await bob.mirror(alice.dataset("second"), "second")
                (event,) = await bob.heard("observation.signed")
                assert event.subject == "second"
            finally:
                over.set()


@pytest.mark.usefixtures("impatient")
async def test_who_a_site_publishes_is_asked_in_a_task(world: World, slow: Any) -> None:
    """It was asked within the request: ``odfctl`` gave up first, and nobody saw what the daemon was waiting for."""
    async with world.running("bob") as bob:
        with trio.fail_after(PATIENCE):
            ref = await bob.api.mirrors.add(wire.MirrorRequest(source=f"{slow.url}/x", as_name="theirs"))
            await trio.to_thread.run_sync(slow.taken.wait, abandon_on_cancel=True)
            task = bob.board.get(ref.id)
            assert (task.state, task.target) == (TaskPhase.RUNNING, f"{slow.url}/x")
            bob.board.cancel(ref.id)
            await task.finished.wait()
        assert task.state is TaskPhase.CANCELLED
        assert await bob.mirrors() == []


# A bucket as a source of a node: objects come once, and what came late is told with each pull.


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


# A source that cannot tell whether it changed is read once; a person who wants it read again can say so.


HEADER = "event_time,city,population\n"
FIRST_ROW, SECOND_ROW = "2024-01-01T00:00:00Z,Graz,300000\n", "2024-01-02T00:00:00Z,Linz,200000\n"


async def test_it_is_read_again_when_a_person_says_so(world: World, tmp_path: Path) -> None:
    with Site(tmp_path).open() as site:
        async with world.running("alice") as alice:
            file = tmp_path / "cities.csv"
            file.write_text(HEADER + FIRST_ROW)
            await alice.apply(FROM_URL.format(name="cities", url=f"{site.url}/cities.csv"))
            assert [item.records for item in await alice.pull()] == [1]
            file.write_text(HEADER + FIRST_ROW + SECOND_ROW)
            (item,) = await alice.pull("cities")
            assert (item.outcome, len(site.asked)) == ("up-to-date", 1)
            assert "odfctl pull cities --fetch-uncacheable" in item.message
            (item,) = await alice.pull("cities", fetch_uncacheable=True)
            assert (item.outcome, item.records) == ("updated", 1)
            (item,) = await alice.pull(fetch_uncacheable=True)
            assert (item.outcome, item.records, item.message) == ("up-to-date", 0, "nothing-new")


# Endpoints of Sources: pushes that wait, are taken in once each by every dataset, and make flows run.


SENSORS = """$schema: Source
headers: {{name: sensors}}
spec:
  {ingress}
  read: {{kind: Csv, header: true, ddlSchema: ['event_time TIMESTAMP, temp DOUBLE']}}
"""
TAKING = """$schema: Flow
headers: {{name: taking}}
spec:
  target: Dataset:temp
  triggers: [{{kind: SourceUpdated, source: sensors, {terms}}}]
  tasks: [{{kind: Ingest, source: sensors}}]
"""
MEMORY = "ingress: {{kind: RestEndpoint, buffer: {{kind: Memory, bufferSize: 3{more}}}}}"


def sensors(ingress: str = "ingress: {kind: RestEndpoint}") -> str:
    return SENSORS.format(ingress=ingress)


def rows(*temps: float) -> bytes:
    lines = [f"2024-01-01T00:{at // 60:02}:{at % 60:02}Z,{temp}" for at, temp in enumerate(temps)]
    return "\n".join(["event_time,temp", *lines, ""]).encode()


async def push(node: Node, data: bytes, push_id: str | None = None) -> wire.PushReceipt:
    receipt: wire.PushReceipt = await node.api.endpoints.push("sensors", data, push_id)
    return receipt


async def taken(node: Node, name: str) -> list[float]:
    (item,) = await node.pull(name, source="sensors")
    assert item.fault is None, item.message
    return await temps(node, name)


async def temps(node: Node, name: str) -> list[float]:
    found = await node.api.datasets.tail(name, 100)
    return [dict(zip((column.name for column in found.columns), each, strict=True))["temp"] for each in found.rows]


async def test_what_is_pushed_waits_and_every_dataset_takes_it_once(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(sensors(), DATASET.format(name="temp"), DATASET.format(name="copy"))
        first = await push(alice, rows(1.0, 2.0))
        assert first == wire.PushReceipt(source="sensors", number=1, records=2, bytes=len(rows(1.0, 2.0)))
        await push(alice, rows(3.0))
        assert await taken(alice, "temp") == [1.0, 2.0, 3.0]
        before = alice.size("temp")
        assert await taken(alice, "temp") == [1.0, 2.0, 3.0]
        assert alice.size("temp") == before
        assert (await alice.api.endpoints.show("sensors")).pushes == 0, "all datasets that read it have it"
        await push(alice, rows(4.0))
        assert await taken(alice, "copy") == [4.0], "what was there when it began"
        assert (await alice.api.endpoints.show("sensors")).pushes == 1, "the other has not taken it"
    async with world.running("alice") as alice:
        assert await taken(alice, "temp") == [1.0, 2.0, 3.0, 4.0]
        assert (await push(alice, rows(5.0))).number == 4
        assert (await alice.api.endpoints.show("sensors")).oldest_at is not None
        await alice.api.declarations.delete("Dataset", "copy")
        assert await taken(alice, "temp") == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert (await alice.api.endpoints.show("sensors")).pushes == 0, "what is deleted holds nothing back"
        assert not files_of(alice.home.directory)


async def test_a_push_counts_once_for_each_id(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(sensors(), DATASET.format(name="temp"))
        first = await push(alice, rows(1.0), "a")
        assert (first.number, first.repeated) == (1, False)
        assert await taken(alice, "temp") == [1.0]
        again = await push(alice, rows(1.0), "a")
        assert (again.number, again.repeated) == (1, True)
        with pytest.raises(Conflict, match="was received before with other content"):
            await push(alice, rows(2.0), "a")
        assert (await push(alice, rows(1.0), "b")).number == 2
        assert await taken(alice, "temp") == [1.0, 1.0]
        for bad in ("", "x" * 201):
            with pytest.raises(Invalid):
                await push(alice, rows(1.0), bad)


@pytest.mark.parametrize(
    ("read", "data", "said"),
    [
        (ReadCsv(header=True), b"", "nothing was pushed"),
        (ReadCsv(header=True), b" \n", "nothing was pushed"),
        (ReadCsv(header=True), b"a\n\xff\n", "this is no Csv"),
        (ReadNdJson(), b'{"a": 1}\n{"a"', "this is no NdJson"),
        (ReadNdJson(), b"[1]\n", "this is no NdJson"),
        (ReadNdJson(), b'{"a": "\xff"}', "this is no NdJson"),
        (ReadJson(), b'{"a": 1', "this is no Json"),
        (ReadParquet(), b"PAR0", "this is no Parquet"),
        (ReadCsv(header=True), b" " * (8 << 20) + b"a", "8.4 MB were pushed"),
    ],
)
def test_what_is_not_of_the_format_is_refused_at_once(read: ReadStep, data: bytes, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        records_in(data, read)


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3)), min_size=1, max_size=9))
def test_records_are_counted_as_they_are_read(written: list[dict[str, Any]]) -> None:
    lines = b"\n".join(map(msgspec.json.encode, written))
    assert records_in(lines, ReadNdJson()) == records_in(lines + b"\n", ReadNdJson()) == len(written)
    assert records_in(b"a,b\n" + b"1,2\n" * len(written), ReadCsv(header=True)) == len(written)
    assert records_in(b"1,2\n" * len(written), ReadCsv()) == len(written)


async def test_a_push_that_no_dataset_can_take_is_told_and_dropped_by_a_person(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(sensors(), DATASET.format(name="temp"))
        await push(alice, b"event_time,temp\nyesterday,1\n")
        await push(alice, rows(2.0))
        (item,) = await alice.pull("temp", source="sensors")
        assert item.outcome == "failed"
        left = await alice.api.endpoints.drop("sensors", 1)
        assert (left.pushes, left.first, left.dropped) == (1, 2, 1)
        assert await taken(alice, "temp") == [2.0]
        with pytest.raises(NotFound, match="no push #1 waits"):
            await alice.api.endpoints.drop("sensors", 1)
        await push(alice, rows(3.0))
        assert (await alice.api.endpoints.drop("sensors", None)).pushes == 0


async def test_a_full_spool_and_a_full_buffer_refuse_what_is_new(world: World) -> None:
    """Attack T-SOURCE-06: a client that fills the disk through the endpoint of a Source.

    Defence: a push has at most 8 MiB; pushes waiting for one Source have a limit, beyond which new ones are refused; a
    push needs a role.
    """
    async with world.running("alice", limits=model.Limits(spool_bytes=200)) as alice:
        await alice.apply(sensors())
        while (await alice.api.endpoints.show("sensors")).bytes + len(rows(1.0)) <= 200:
            await push(alice, rows(1.0))
        with pytest.raises(Refused, match="is the most") as full:
            await push(alice, rows(1.0))
        assert (full.value.rule, "limits.spool-bytes" in full.value.hint) == ("endpoint-full", True)
    async with world.running("bob") as bob:
        await bob.apply(sensors(MEMORY.format(more="")), DATASET.format(name="temp"))
        receipt = await push(bob, rows(1.0, 2.0))
        assert not receipt.durable
        with pytest.raises(Refused, match="2 records wait, and the buffer holds 3"):
            await push(bob, rows(3.0, 4.0))
        dropping = MEMORY.format(more=", overflowPolicy: DropOldest")
        await bob.apply(sensors(dropping))
        await push(bob, rows(3.0, 4.0))
        (event,) = await bob.heard("source.dropped")
        assert "2 records of a full buffer" in event.message
        assert await taken(bob, "temp") == [3.0, 4.0]
        with pytest.raises(Refused):
            await push(bob, rows(1.0, 2.0, 3.0, 4.0))


async def test_a_source_goes_when_nothing_waits(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(sensors())
        await push(alice, rows(1.0))
        with breaks("source-waits", Refused, match="1 record that were pushed"):
            await alice.api.declarations.delete("source", "sensors")
        await alice.api.endpoints.drop("sensors", None)
        await alice.api.declarations.delete("source", "sensors")
        with pytest.raises(NotFound):
            await push(alice, rows(1.0))
        await alice.apply(sensors())
        assert (await push(alice, rows(1.0))).number == 1, "another Source of the name begins anew"


async def test_a_flow_runs_at_so_many_records_or_when_the_oldest_is_so_old(world: World) -> None:
    """Also of what came before a restart, and not before its time."""
    async with world.running("alice") as alice:
        await alice.apply(sensors(), DATASET.format(name="temp"), TAKING.format(terms="minRecordsToAwait: 3"))
        (view,) = await flows(alice)
        assert view.when == "3 records pushed to sensors, or one that is 1h old"
        await push(alice, rows(1.0, 2.0))
        for _ in range(3):
            await alice.parts.flows.look()
        assert (await temps(alice, "temp"), (await flows(alice))[0].runs) == ([], 0)
        await push(alice, rows(3.0))
        await until_taken(alice, [1.0, 2.0, 3.0])
        await push(alice, rows(4.0))
    async with world.running("alice") as alice:
        assert await temps(alice, "temp") == [1.0, 2.0, 3.0]
        world.clock.instant += 3601 * SECOND
        alice.parts.flows.loop.poke()
        await until_taken(alice, [1.0, 2.0, 3.0, 4.0])


async def until_taken(node: Node, wanted: list[float]) -> None:
    with trio.fail_after(PATIENCE):
        while True:
            turned = node.parts.flows.turned
            if await temps(node, "temp") == wanted:
                return
            await turned.wait()


@pytest.mark.parametrize(
    ("trigger", "rule"),
    [
        (TAKING.format(terms="minRecordsToAwait: 0"), "number-range"),
        (TAKING.format(terms="maxAwaitInterval: 2d"), "number-range"),
        (TAKING.format(terms="minRecordsToAwait: 2").replace("Ingest, source: sensors", "Ingest"), "flow-trigger"),
    ],
)
async def test_what_a_trigger_cannot_mean_is_refused(world: World, trigger: str, rule: str) -> None:
    async with world.running("alice") as alice:
        with breaks(rule):
            await alice.apply(sensors(), DATASET.format(name="temp"), trigger)


async def test_what_waits_is_in_a_backup_and_new_pushes_have_numbers_of_their_own(world: World, tmp_path: Path) -> None:
    """Also what a dataset takes while the backup is written; and a chain that went on is not owed what it has."""
    async with world.running("alice") as alice:
        await alice.apply(sensors(), DATASET.format(name="temp"))
        large = [1.0] * 1000
        await push(alice, rows(*large))
        with alice.home.spool.hold_files():
            assert set(await taken(alice, "temp")) == {1.0}
            assert len(files_of(alice.home.directory)) == 1
        assert files_of(alice.home.directory) == []
        await push(alice, rows(2.0))
        await push(alice, rows(*large))
        request = wire.BackupRequest(to=str(tmp_path / "saved"))
        await alice.done(alice.api.backups.backup(request))
    restore(choose(tmp_path / "saved", None), tmp_path / "again", what_is_wrong, Report())
    with open_state_directory(tmp_path / "again") as home:
        assert [each.name for each in files_of(home.directory)] == ["000000000003"]
        (resource,) = (each for each in declared(home) if each.type == "Source")
        assert home.spool.waiting(resource.id).records == 1001
        found, _ = home.spool.after(resource.id, 1, 10, 1 << 30)
        assert [each.path.read_bytes() for each in found] == [rows(2.0), rows(*large)]
        assert home.spool.add(resource.id, rows(3.0), 1, Instant(0), None).number > 10**9
        left = home.directory / "spool" / resource.id / "000000000009"
        left.write_bytes(b"of a push that was cut off")
    with open_state_directory(tmp_path / "again") as home:
        assert (home.recovery.files, left.exists(), home.spool.waiting(resource.id).pushes) == (1, False, 3)


def files_of(directory: Path) -> list[Path]:
    return sorted(each for each in (directory / "spool").rglob("*") if each.is_file())


def declared(home: Any) -> list[Any]:
    with home.database.read() as connection:
        return ResourceStore(connection).all()


# What a source deleted before it was ingested stops a dataset, until a person accepts it by its name.


FROM_KAFKA = """kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Kafka, url: 'kafka://127.0.0.1:1/towns'}
      read: {kind: NdJson, ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']}
      merge: {kind: Append}
"""
CITIES = ("Graz", "Linz", "Wels", "Steyr", "Enns", "Melk")


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> ModelTopic:
    """A topic in memory, in place of a broker."""
    made = ModelTopic(2)

    def after(job: Any) -> TopicPosition | None:
        return None if job.state is None else decode_position(job.state.value)

    async def fetch(_polled: object, job: Any, _trigger: object) -> Fetched | Unchanged:
        begin = starts(after(job), made.id, [0, 1])
        for each in begin:
            if after(job) is not None and begin[each] < made.low[each]:
                raise missing_message(each, begin[each])
        lines = [line for each, log in enumerate(made.logs) for line in log[begin[each] :]]
        if not lines:
            return Unchanged()
        path = job.folder / "messages.ndjson"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        state = state_of(TopicPosition(topic=made.id, next={str(each): len(log) for each, log in enumerate(made.logs)}))
        return Fetched(path=path, name="towns", identity=state.value, event_time=None, state=state)

    async def gaps(_source: object, job: Any) -> tuple[AddressRange, ...]:
        begin = starts(after(job), made.id, [0, 1])
        lost = lost_ranges(after(job), begin, made.bounds)
        return tuple(AddressRange(f"{made.id}/{each.partition}", each.start, each.end) for each in lost)

    monkeypatch.setattr("odfd.ingest.driver.fetch_for", fetch)
    monkeypatch.setattr("odfd.ingest.fetch.kafka.KafkaSource.find_lost", gaps)
    return made


async def asked(node: Node, accept: str | None = None, ref: str = "cities") -> wire.GapView:
    done: wire.GapView = await node.done(node.api.gaps.run(ref, wire.GapRequest(accept=accept)))
    return done


def send(topic: ModelTopic, *numbers: int, partition: int = 0) -> None:
    topic.send(*(message(CITIES[each % len(CITIES)], each) for each in numbers), partition=partition)


async def pulled(node: Node) -> str | None:
    """Pulls. Returns the rule of the fault, if any."""
    (item,) = await node.pull("cities")
    return None if item.fault is None else str(item.fault.rule)


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_gap_is_accepted_by_name_and_stays_in_the_chain(world: World, topic: ModelTopic, shards: int) -> None:
    """In that of each shard, in captures, and in what is decoded from them anew."""
    async with world.running("alice") as alice:
        await alice.apply(FROM_KAFKA if shards == 1 else in_shards(FROM_KAFKA))
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        await alice.keep_raw("cities")
        assert (await asked(alice)).name is None
        send(topic, 0, 1)
        assert await pulled(alice) is None
        with pytest.raises(Refused, match="the source has no gap"):
            await asked(alice, "0" * 16)
        send(topic, 2, 3, 4, 5, 6)
        topic.forget(4)
        assert await pulled(alice) == "kafka-position"
        found = await asked(alice)
        assert [(each.partition, each.first, each.last, each.count) for each in found.lost] == [(0, 2, 3, 2)]
        assert (found.topic, found.count, found.accepted) == ("towns", 2, False)
        topic.forget(5)
        with breaks("gap-changed", Refused, match=f"the gap {found.name} is another one now"):
            await asked(alice, found.name)
        assert await pulled(alice) == "kafka-position", "nothing was written"
        found = await asked(alice)
        done = await asked(alice, found.name)
        assert (done.accepted, done.count) == (True, 3)
        assert await asked(alice, found.name) == done, "it has one effect"
        lost = [
            each.value
            for each in alice.api.gaps._meter.samples(frozenset())
            if each.metric.name == "odfd_source_lost_total"
        ]
        assert lost == [3]
        for each in alice.home.shards_of(alice.dataset("cities")):
            chain = alice.home.chains.chain(each)
            event = chain.block_at(chain.head().sequence_number).event
            assert isinstance(event, AddData)
            assert event.new_data is None
            assert event.extra == {EXTRA: {"gap": found.name, "lost": [{"part": "topic-1/0", "from": 2, "to": 5}]}}
        assert await pulled(alice) is None
        assert len((await alice.api.datasets.tail("cities", 100)).rows) == 4
        result = await alice.done(alice.api.raw.replay("cities"))
        assert (result.ok, result.same) == (True, 3)
        await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest()))
        await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
        assert len((await alice.api.datasets.tail("cities", 100)).rows) == 4
        anew = await asked(alice, found.name)
        assert (anew.name, anew.lost, anew.time) == (done.name, done.lost, done.time), "the same, at the same time"
        assert anew.block != done.block


async def test_a_gap_is_only_of_what_is_ingested_here(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(FROM_FILES, DERIVED)
        assert (await asked(alice)).name is None, "files have no positions"
        with pytest.raises(Refused, match="not ingested by this node"):
            await asked(alice, ref="towns")
