"""Spans become OTLP as OpenTelemetry writes it; a collector that is away or slow costs spans, and no work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import structlog
import trio

from chain.errors import Invalid
from chain.instant import Instant
from odfd.obs import span_exporter
from odfd.obs.meter import NodeMeter
from odfd.obs.span_exporter import BATCH, WAITING, SpanExporter, encode_request
from odfd.runtime.spans import ATTRIBUTES, NAMES, Tracer, TraceSpan, span, trace_by
from odfd.runtime.supervision import Life
from worlds.collector import GOLDEN, collecting, request_type
from worlds.eventually import PATIENCE
from worlds.node_world import Lines, Ticking, until


def counted(meter: NodeMeter) -> dict[str, float]:
    samples = (each for each in meter.samples(frozenset()) if each.metric.name == "odfd_spans_total")
    return {sample.labels[0]: sample.value for sample in samples}


def some(count: int) -> Iterator[TraceSpan]:
    return (TraceSpan("fetch", bytes(16), bytes(8), b"", Instant(1), Instant(2)) for _ in range(count))


@asynccontextmanager
async def exporting(url: str, meter: NodeMeter, lines: Lines) -> AsyncIterator[SpanExporter]:
    exporter, life = SpanExporter(url, "test", meter, lines), Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporter.run, life)
        await life.wait_ready()
        yield exporter
        life.stopping.set()


def test_a_request_has_the_bytes_that_opentelemetry_writes() -> None:
    at = 1_700_000_000 * 10**9
    words = {"odfd.fault": "ingest", "odfd.rows": 0, "odfd.blocks": -1, "odfd.reproduced": False}
    one, two = bytes(range(8)), bytes(range(8, 16))
    failed = TraceSpan(
        "pull", bytes(range(16)), one, b"", Instant(at), Instant(at + 10**9), failed=True, attributes=words
    )
    inner = TraceSpan("fetch", bytes(range(16)), two, one, Instant(at + 1), Instant(at + 300))
    made = encode_request([failed, inner], {"service.name": "odfd"}, "odfd")
    golden = (GOLDEN / "request.binpb").read_bytes()
    assert request_type().FromString(made) == request_type().FromString(golden)
    assert len(made) == len(golden)


async def test_spans_are_nested_and_say_no_more_than_the_rule_of_a_fault() -> None:
    taken: list[TraceSpan] = []
    trace_by(Tracer(Ticking(), taken.append))
    with pytest.raises(Invalid), span("pull", "cities") as outer:  # noqa: PT012  what is inside of the span is tried
        with span("fetch") as inner:
            inner.note("odfd.rows", 3)
            bound = structlog.contextvars.get_contextvars()
            assert bound == {"trace_id": outer.trace_id.hex(), "span_id": inner.span_id.hex()}
        raise Invalid("a row of Graz, by way of https://secret.example/key", rule="csv-line")
    assert structlog.contextvars.get_contextvars() == {}
    assert taken == [inner, outer]
    assert (inner.parent_id, inner.trace_id, outer.parent_id) == (outer.span_id, outer.trace_id, b"")
    assert outer.failed
    assert outer.attributes == {"odfd.fault": "csv-line"}
    assert b"cities" not in encode_request(taken, {}, "odfd")
    with pytest.raises(KeyError), span("fetch") as other:
        other.note("dataset", "cities")
    with pytest.raises(KeyError), span("cities"):
        pass


async def test_a_cancelled_span_ends_and_says_so() -> None:
    taken: list[TraceSpan] = []
    trace_by(Tracer(Ticking(), taken.append))
    with trio.CancelScope() as scope, span("fetch"):
        scope.cancel()
        await trio.lowlevel.checkpoint()
    (only,) = taken
    assert only.attributes == {"odfd.cancelled": True}
    assert not only.failed


async def test_spans_are_sent_in_batches_and_the_rest_when_the_daemon_stops() -> None:
    meter, lines = NodeMeter(), Lines()
    with collecting() as collector:
        async with exporting(collector.url, meter, lines) as exporter:
            for each in some(BATCH + 3):
                exporter.take(each)
        assert len(collector.spans()) == BATCH + 3
        (resource,) = request_type().FromString(collector.bodies[0]).resource_spans
    told = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert told.keys() == {"service.name", "service.version", "service.instance.id"}
    assert counted(meter) == {"sent": BATCH + 3, "full": 0, "unsent": 0}
    assert not lines.said


async def test_a_collector_that_is_away_costs_spans_and_tells_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "GATHER_SECONDS", 0)
    meter, lines = NodeMeter(), Lines()
    with collecting() as collector:
        collector.status = 503
        async with exporting(collector.url, meter, lines) as exporter:
            for number in (1, 2):
                for each in some(5):
                    exporter.take(each)
                await until(lambda number=number: counted(meter)["unsent"] == 5 * number)
            collector.status = 200
            for each in some(1):
                exporter.take(each)
            await until(lambda: counted(meter)["sent"] == 1)
    first, last = lines.said
    assert first == ("traces are dropped", {"endpoint": "traces.endpoint", "why": "it answered 503"})
    assert last == ("traces are taken again", {"dropped": 10})


async def test_a_port_where_nobody_listens_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, lines = NodeMeter(), Lines()
    with collecting() as collector:
        gone = collector.url
    async with exporting(gone, meter, lines) as exporter:
        for each in some(1):
            exporter.take(each)
    assert counted(meter) == {"sent": 0, "full": 0, "unsent": 1}
    assert lines.said


async def test_what_waits_when_the_daemon_stops_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "LAST_SECONDS", 0)
    meter, lines = NodeMeter(), Lines()
    with collecting() as collector:
        async with exporting(collector.url, meter, lines) as exporter:
            for each in some(2 * BATCH):
                exporter.take(each)
    assert sum(counted(meter).values()) == 2 * BATCH


async def test_no_name_leads_beyond_this_machine_without_tls() -> None:
    meter, lines = NodeMeter(), Lines()
    async with exporting("http://192.0.2.1:4318/v1/traces", meter, lines) as exporter:
        for each in some(1):
            exporter.take(each)
    assert counted(meter)["unsent"] == 1


@pytest.mark.slow
async def test_a_collector_that_says_nothing_is_left_and_its_spans_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(_stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(span_exporter, "SEND_SECONDS", 0.05)
    monkeypatch.setattr(span_exporter, "GATHER_SECONDS", 0)
    meter, lines = NodeMeter(), Lines()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, silent, 0, host="127.0.0.1"))
            url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1/traces"
            async with exporting(url, meter, lines) as exporter:
                for each in some(WAITING + 7):
                    exporter.take(each)
                assert counted(meter)["full"] == 7, "who gives a span waits for nobody"
                await until(lambda: counted(meter)["unsent"] == WAITING)
            nursery.cancel_scope.cancel()


@pytest.mark.slow
def test_a_node_without_an_endpoint_imports_nothing_of_it() -> None:
    code = (
        "import sys, odfd.daemon.wiring as w, config.model as m;"
        "assert w._exporter(m.Settings(), None, None, None) is None;"
        "assert not {'odfd.obs.span_exporter', 'odfd.obs.span_exporter'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_lists_every_span_and_attribute() -> None:
    page = (GOLDEN.parents[2] / "docs" / "traces.md").read_text()
    for name, meaning in (*NAMES.items(), *ATTRIBUTES.items()):
        assert f"| `{name}` | {meaning} |" in page
    assert f"{WAITING} spans wait" in page
