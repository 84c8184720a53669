"""What a node measures: every metric of the table, and the traces that a collector gets."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from config import model
from odfd.node.readings import Readings
from odfd.obs import span_exporter
from odfd.obs.meter import NodeMeter
from odfd.obs.metric_table import METRICS, MetricKind
from odfd.obs.span_exporter import SpanExporter
from odfd.runtime.http_server import url_of
from odfd.runtime.spans import Tracer, trace_by
from odfd.runtime.supervision import Life
from worlds.collector import Collector, collecting
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Lines, Node, Ticking, World

# A node is scraped: every metric of the table is there, and tells what the node did.


LISTEN = model.Metrics(listen=("127.0.0.1:0",))


def told(text: bytes) -> dict[tuple[str, str], float]:
    """By name and the values of labels."""
    return {
        (sample.name, " ".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def asked(node: Node, path: str, host: str | None = None) -> tuple[int, bytes]:
    (server,) = (each for each in node.parts.context.servers if each.name == "metrics")
    request = urllib.request.Request(url_of(server.listeners[0]) + path, headers={"host": host} if host else {})

    def fetch() -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return int(answer.status), bytes(answer.read())
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()

    return await trio.to_thread.run_sync(fetch)


async def test_every_metric_is_scraped_and_tells_what_happened(world: World) -> None:
    folders = model.Ingest(settle_seconds=0, folders=("/",))
    async with world.running("alice", metrics=LISTEN, ingest=folders) as alice, world.running("bob") as bob:
        await alice.api.about.doctor()
        await alice.take_in(
            ROOT,
            files={"a.csv": ["2024-01-01T00:00:00Z,Wels,60000", "2024-01-02T00:00:00Z,Graz,290000"]},
            pulls=["cities"],
        )
        await bob.mirror(alice.dataset("cities"), "theirs")
        await trio.to_thread.run_sync(alice.parts.views.all)
        readings = Readings(alice.features)
        await readings.surveyor._round()
        text = await readings.scrape()
        found = told(text)
        status, over_http = await asked(alice, "/metrics")
        assert status == 200
        assert told(over_http).keys() >= {("odfd_ready", ""), ("odfd_build_info", "test")}
        names = {name for name, _ in found}
        for metric in METRICS:
            ending = "_bucket" if metric.kind is MetricKind.HISTOGRAM else ""
            assert metric.name + ending in names, f"{metric.name} is declared, and nobody tells it"
        assert found["odfd_records_total", "ingest"] == 2
        assert found["odfd_transactions_total", "ingest"] == 1
        assert found["odfd_rows_total", "appended ingest"] == 2
        assert sum(value for (name, _), value in found.items() if name == "odfd_datasets") == 1
        assert found["odfd_peers_connected", ""] == 1
        assert found["odfd_events_total", "dataset.appended"] == 1
        assert found["process_resident_memory_bytes", ""] > 1e6
        assert "cities" not in text.decode(), "no name of a dataset is ever a label"


async def test_ready_says_what_is_wrong(world: World) -> None:
    async with world.running("alice", metrics=LISTEN) as alice:
        ready = alice.parts.context.readiness
        others = b"\nok database\nok disk\nok listening\n"
        await alice.api.about.dependencies.probes()  # the first are made beside the start
        assert await asked(alice, "/readyz") == (503, b"no parts: the node is starting" + others)
        ready.started = True
        assert await asked(alice, "/readyz") == (200, b"ok parts" + others)
        alice.parts.in_force.settings.put(model.Settings(limits=model.Limits(disk_reserve_bytes=1 << 60)))
        status, text = await asked(alice, "/readyz")
        assert status == 503
        assert b"no disk:" in text
        ready.stopping = True
        assert b"the node is stopping" in (await asked(alice, "/readyz"))[1]
        assert await asked(alice, "/livez") == (200, b"ok\n"), "it lives while it stops"
        assert (await asked(alice, "/"))[0] == 404


@pytest.mark.parametrize("host", ["rebound.example", "127.0.0.1.example", "192.0.2.1:80"])
async def test_a_page_of_a_stranger_reads_nothing(world: World, host: str) -> None:
    """Attack T-HTTP-03: a web page whose name resolves to this machine, to read the node's metrics.

    Defence: a request to `/metrics` under a host name other than this machine's is refused.

    A browser that resolves the stranger's name to this machine names the stranger.
    """
    async with world.running("alice", metrics=LISTEN) as alice:
        status, text = await asked(alice, "/metrics", host)
        assert status == 403
        assert b"odfd_" not in text


async def test_a_scrape_costs_the_same_however_many_datasets_there_are(world: World) -> None:
    """Nothing that lists datasets, mirrors or flows is called."""
    alice = world.node("alice")
    parts = alice.parts

    def listed(*_: object) -> None:
        raise AssertionError("a scrape lists what there is")

    parts.views.cache.standings = parts.views.cache.entries = parts.scheduler.all = listed
    parts.flows.scheduler.entries = parts.home.chains.datasets = parts.home.chains.heads = listed
    assert b"odfd_ready" in await Readings(alice.features).scrape()


async def test_without_a_setting_nobody_listens_and_nothing_is_counted_behind(world: World) -> None:
    async with world.running("alice") as alice:
        assert [server.name for server in alice.parts.context.servers if server.listeners] == []
        names = [child.name for child in alice.assembly.foundations]
        assert "metrics" not in names
        assert "survey" not in names


# What a node does, as the traces that a collector gets: which spans lie in which, and what is not in them.


ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
ATTESTS = model.Policy(profile="validator", publish=model.Publish(attest=True))


@asynccontextmanager
async def traced(url: str, meter: NodeMeter) -> AsyncIterator[None]:
    """Everything that is started inside is traced; what was recorded is sent at the end."""
    exporter, life = SpanExporter(url, "test", meter, Lines()), Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporter.run, life)
        trace_by(Tracer(Ticking(), exporter.take))
        try:
            yield
        finally:
            trace_by(None)
            life.stopping.set()


def tree(collector: Collector, root: Any) -> list[Any]:
    """Names, each with a list of what lies in it where there is something."""
    found: list[Any] = []
    for each in collector.below(root):
        found.append(each.name)
        if inner := tree(collector, each):
            found.append(inner)
    return found


def roots(collector: Collector, name: str) -> list[Any]:
    return [span for span in collector.spans() if span.name == name and not span.parent_span_id]


def words(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.mark.slow
async def test_pulls_syncs_and_validations_are_traced_and_name_nothing(world: World) -> None:
    """Attack T-PRIVATE-02: reading traces in transit, or at the collector, for names, rows, queries, or the existence
    of a private dataset.

    Defence: names of spans and attributes are two lists in the code; of a fault only the rule is sent; the node's own
    log has names beside the trace's id; TLS is required beyond this machine. The collector that the owner names learns
    times and counts of work.
    """
    with collecting() as collector:
        async with (
            traced(collector.url, NodeMeter()),
            world.running("alice") as alice,
            world.running("bob", ATTESTS) as bob,
        ):
            await alice.take_in(ROOT, DERIVED, files={"a.csv": ROWS})
            await world.spread(alice, "cities", "towns")
            ids = [str(alice.dataset(name)) for name in ("cities", "towns")]
            for name in ("cities", "towns"):
                await bob.mirror(alice.dataset(name), name)
            with trio.fail_after(PATIENCE):
                await bob.parts.validator.validate(alice.dataset("towns"))
        pulls = {tuple(tree(collector, root)): words(root) for root in roots(collector, "pull")}
        root = pulls["fetch", "read", "engine", "commit"]
        assert root["odfd.rows"] == 2
        assert any(found[:3] == ("read", "engine", "commit") for found in pulls), pulls
        syncs = [tree(collector, root) for root in roots(collector, "sync")]
        assert ["negotiate", "blocks", "verify", "objects", "commit"] in syncs
        steps = [tree(collector, root) for root in roots(collector, "validation")]
        assert ["plan", "run"] in steps
        assert any("sign" in each for each in steps), steps
        (run, *_) = [span for span in collector.spans() if span.name == "run"]
        assert words(run)["odfd.reproduced"] is True
        sent = b"".join(collector.bodies)
        for private in (*ids, "cities", "towns", "Graz", "alice", "bob", str(alice.home.directory)):
            assert private.encode() not in sent, private


@pytest.mark.slow
async def test_a_failed_pull_says_its_rule_and_nothing_of_the_row(world: World) -> None:
    with collecting() as collector:
        async with traced(collector.url, NodeMeter()), world.running("alice") as alice:
            (item,) = await alice.take_in(
                ROOT, files={"a.csv": ["2024-01-01T00:00:00Z,Secretville,not-a-number"]}, pulls=["cities"]
            )
            assert item.fault is not None
        (root,) = roots(collector, "pull")
        assert root.status.code == 2
        assert words(root)["odfd.fault"] == item.fault.rule
        assert b"Secretville" not in b"".join(collector.bodies)


@pytest.mark.slow
async def test_a_dead_collector_changes_nothing_and_its_spans_are_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_exporter, "GATHER_SECONDS", 0)
    with collecting() as collector:
        gone = collector.url
    meter = NodeMeter()
    async with traced(gone, meter), world.running("alice") as alice:
        await alice.take_in(ROOT, files={"a.csv": ROWS}, pulls=["cities"])
        assert alice.size("cities")
    counted = {each.labels[0]: each.value for each in meter.samples(frozenset()) if "spans" in each.metric.name}
    assert counted["sent"] == counted["full"] == 0
    assert counted["unsent"] >= 5
