"""Metrics follow one table; spans become OTLP."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from chain.errors import Invalid
from chain.instant import Instant
from engines.contract import RowCounts
from odfd.control import wire
from odfd.mirrors.mirror_state import SchedulerState
from odfd.obs import span_exporter
from odfd.obs.events import EVENT_KINDS, Event, EventLog
from odfd.obs.meter import MetricSample, NodeMeter, counted_by, labels_of
from odfd.obs.metric_table import BY_NAME, FATES, METRICS, MIRROR_STATES, PROCESS, STANDINGS, UNITS, MetricKind
from odfd.obs.metrics_server import MAX_SERIES, exposition
from odfd.obs.span_exporter import BATCH, WAITING, SpanExporter, encode_request
from odfd.runtime.spans import ATTRIBUTES, NAMES, Tracer, TraceSpan, span, trace_by
from odfd.runtime.supervision import Life
from worlds.clock import FixedClock
from worlds.collector import GOLDEN, collecting, request_type
from worlds.eventually import PATIENCE
from worlds.node_world import Lines, Ticking, until

# One table declares every metric; what is counted, shown and documented follows it.

TREE = Path(__file__).parents[4]
EXAMPLE = TREE / "examples" / "metrics"
KIND = re.compile(r"[a-z]+\.[a-z-]+")


def shown(meter: NodeMeter) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = exposition(meter.samples(frozenset())).decode()
    families = text_string_to_metric_families(text)
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples
    }


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_and_units_follow_the_conventions(metric: Any) -> None:
    assert re.fullmatch(r"odfd_[a-z][a-z_]*[a-z]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert metric.help[0].isupper()
    assert metric.help.endswith(".")
    assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
    words = metric.name.split("_")
    assert not {"ms", "millis", "minutes", "hours", "kib", "mib", "percent"} & set(words), "base units alone"
    assert metric.unit in ("", *UNITS)
    assert metric.kind is not MetricKind.HISTOGRAM or metric.unit == "seconds"


def test_no_label_is_left_to_strangers() -> None:
    """A label without a list of values is one that this node's own release gives."""
    free = {(metric.name, label) for metric in METRICS for label, values in metric.labels.items() if not values}
    named_in_code = {("odfd_part_up", "part"), ("odfd_part_restarts_total", "part")}
    assert free == {("odfd_build_info", "version"), *named_in_code}
    assert len(BY_NAME) == len(METRICS)
    assert sum(1 for _ in NodeMeter().samples(frozenset())) < MAX_SERIES / 4


@pytest.mark.slow
@given(st.text(max_size=40))
def test_what_a_stranger_says_makes_no_series(said: str) -> None:
    """Attack T-HTTP-01: millions of invented names of events, tasks and peers, to fill memory with series of metrics.

    Defence: labels take listed values; all others are counted as one.
    """
    meter = NodeMeter()
    before = set(shown(meter))
    meter.count("odfd_events_total", kind=said)
    counted_by(meter)(Event(1, 0, f"head.{said}", said, said, {"blocks": said}))  # type: ignore[arg-type]
    meter.count("odfd_tasks_total", kind=said, outcome="done")
    assert set(shown(meter)) == before


def test_what_is_not_declared_is_a_bug() -> None:
    meter = NodeMeter()
    with pytest.raises(KeyError):
        meter.count("odfd_nothing_total")
    with pytest.raises(KeyError):
        meter.count("odfd_events_total")
    with pytest.raises(ValueError, match="has no result 'x'"):
        meter.count("odfd_verdicts_total", result="x")


def test_the_lists_of_values_are_those_of_the_code() -> None:
    assert set(STANDINGS) == set(wire.DatasetStanding.__args__)  # type: ignore[attr-defined]
    assert set(MIRROR_STATES) == {state.value for state in SchedulerState}
    assert set(FATES) < set(RowCounts.__struct_fields__)


@pytest.mark.slow
def test_every_event_that_is_told_is_listed() -> None:
    """A kind that is put together of parts is one of those that its beginning allows."""
    found, beginnings = set(), set()
    for path in sorted((TREE / "odfd").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(("emit", "_tell", "partial")):
                continue
            for argument in ast.walk(ast.Tuple(elts=list(node.args[:2]))):
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    if KIND.fullmatch(argument.value):
                        found.add(argument.value)
                    elif argument.value.endswith("."):
                        beginnings.add(argument.value)
    assert len(found) > 30, "the test no longer finds what it is about"
    assert not found - EVENT_KINDS.keys()
    assert beginnings == {"task.", "dataset.", "flow.", "mirror.", "resource.", "verdict."}
    assert all(any(kind.startswith(each) for kind in EVENT_KINDS) for each in beginnings)


def test_events_are_counted_with_what_they_say_in_numbers() -> None:
    meter = NodeMeter()
    log = EventLog(FixedClock(Instant(0)), heard=counted_by(meter))
    log.emit("mirror.synced", "x", "", blocks=7)
    log.emit("verdict.mismatch", "x")
    log.emit("dataset.forked", "x")
    log.emit("attestation.heard", "x")
    log.emit("objects.collected", objects=2, bytes=300)
    told = shown(meter)
    assert told["odfd_mirror_blocks_total", ()] == 7
    assert told["odfd_verdicts_total", (("result", "mismatch"),)] == 1
    assert told["odfd_contradictions_total", (("kind", "dataset"),)] == 1
    assert told["odfd_statements_heard_total", (("kind", "attestation"),)] == 1
    assert told["odfd_collected_bytes_total", ()] == 300
    assert told["odfd_events_total", (("kind", "objects.collected"),)] == 1


def test_a_histogram_adds_up() -> None:
    meter = NodeMeter()
    for value in (0.0005, 0.001, 0.2, 99):
        meter.observe("odfd_event_loop_lag_seconds", value)
    told = shown(meter)
    assert told["odfd_event_loop_lag_seconds_bucket", (("le", "0.001"),)] == 2
    assert told["odfd_event_loop_lag_seconds_bucket", (("le", "0.25"),)] == 3
    assert told["odfd_event_loop_lag_seconds_bucket", (("le", "+Inf"),)] == 4
    assert told["odfd_event_loop_lag_seconds_sum", ()] == pytest.approx(99.2015)


def test_rows_are_counted_by_what_became_of_them() -> None:
    meter = NodeMeter()
    meter.rows("ingest", RowCounts(read=9, late=2, quarantined=1))
    told = shown(meter)
    assert told["odfd_rows_total", (("fate", "late"), ("work", "ingest"))] == 2
    assert told["odfd_rows_total", (("fate", "quarantined"), ("work", "ingest"))] == 1
    assert told["odfd_rows_total", (("fate", "appended"), ("work", "ingest"))] == 0


def test_more_series_than_the_table_can_give_are_a_bug() -> None:
    metric = BY_NAME["odfd_build_info"]
    with pytest.raises(ValueError, match="series"):
        exposition(MetricSample(metric, labels_of(metric, {"version": str(each)}), 1) for each in range(MAX_SERIES + 1))


def names_in(expression: str) -> set[str]:
    found = set(re.findall(r"\b(?:odfd|process)_[a-z_]+", expression))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def test_dashboard_and_alerts_ask_for_what_there_is() -> None:
    dashboard = json.loads((EXAMPLE / "dashboard.json").read_text())
    rules = yaml.safe_load((EXAMPLE / "alerts.yaml").read_text())["groups"][0]["rules"]
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [rule["expr"] for rule in rules]
    known = BY_NAME.keys() | {name for name, *_ in PROCESS}
    assert len(asked) > 35
    for expression in asked:
        assert not names_in(expression) - known, expression
        for name in names_in(expression) & BY_NAME.keys():
            for label, values in re.findall(r'(\w+)=~?"([^"]+)"', expression):
                if label in BY_NAME[name].labels:
                    assert set(values.split("|")) <= set(BY_NAME[name].labels[label]), expression
    for rule in rules:
        assert rule["annotations"]["what_to_do"]
        assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_the_alerts_come_when_they_should() -> None:
    for words in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]):
        done = subprocess.run(["promtool", *words], cwd=EXAMPLE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


# Spans become OTLP as OpenTelemetry writes it; a collector that is away or slow costs spans, and no work.


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
    """Attack T-PRIVATE-02: a collector that is slow, dead or hostile, to delay a node or fill its memory.

    Defence: at most 2048 spans wait, a batch is tried once for 10 s, only the status of the answer is read; drops are
    counted.
    """

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
    page = (GOLDEN.parents[2] / "docs" / "how-to" / "traces.md").read_text()
    for name, meaning in (*NAMES.items(), *ATTRIBUTES.items()):
        assert f"| `{name}` | {meaning} |" in page
    assert f"{WAITING} spans wait" in page
