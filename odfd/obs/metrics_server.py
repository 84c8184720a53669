"""Answers ``/metrics``, ``/livez`` and ``/readyz`` on this machine, and measures how late the event loop is.

A scrape has the text format of Prometheus, by its client library, which is imported at the first one.

There is no authentication: everyone on this machine may read. Browser requests under a foreign host name are refused,
so that no web page can read a node's metrics.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from odfd.obs.meter import MetricSample, NodeMeter
from odfd.obs.metric_table import METRICS, Metric, MetricKind
from odfd.runtime.http import Limits, Message, Receive, Send
from odfd.runtime.http_server import ConnectionHandler, HttpServer, listening, parse_address, url_of
from odfd.runtime.supervision import Life, Logger

if TYPE_CHECKING:
    from prometheus_client import Metric as Family


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_SERIES: Final = 2000
"""Most series of a scrape. The table can give far fewer; more is a bug, and would fill the scraper's disk."""


def exposition(samples: Iterable[MetricSample]) -> bytes:
    """Formats a scrape, with the process's own figures. Blocking: it reads /proc."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.process_collector import ProcessCollector

    found = list(samples)
    if len(found) > MAX_SERIES:
        raise ValueError(f"{len(found)} series, where {MAX_SERIES} are the most")
    registry = CollectorRegistry()
    registry.register(_Collected(found))
    ProcessCollector(registry=registry)
    return bytes(generate_latest(registry))


class _Collected:
    """Presents samples as a collector of the client library."""

    def __init__(self, samples: list[MetricSample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        by_name: dict[str, list[MetricSample]] = {}
        for sample in self._samples:
            by_name.setdefault(sample.metric.name, []).append(sample)
        for metric in METRICS:
            if metric.name in by_name:
                yield _family(metric, by_name[metric.name])


def _family(metric: Metric, samples: list[MetricSample]) -> Family:
    from prometheus_client import core

    labels = tuple(metric.labels)
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = core.HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for sample in samples:
            bounds = [*map(str, metric.buckets), "+Inf"]
            sums = list(zip(bounds, accumulate(sample.counts), strict=True))
            histogram.add_metric(sample.labels, buckets=sums, sum_value=sample.value)
        return histogram
    kind = core.CounterMetricFamily if metric.kind is MetricKind.COUNTER else core.GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=labels)
    for sample in samples:
        family.add_metric(sample.labels, sample.value)
    return family


PULSE_SECONDS: Final = 1.0
LIMITS: Final = Limits(idle_seconds=60.0, stall_seconds=10.0, least_bytes=1024, drain_bytes=1024)
SCRAPE_SECONDS: Final = 10.0
"""Most seconds of a scrape; Prometheus gives up after as long."""
_HERE: Final = re.compile(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")
_TEXT: Final = "text/plain; charset=utf-8"


class Probing(NamedTuple):
    """The functions of the node that this server calls."""

    scrape: Callable[[], Awaitable[bytes]]
    why_not_ready: Callable[[], Awaitable[Mapping[str, str]]]
    """Returns each part that was checked, with its problem; an empty text means that it is ready."""
    dependencies: Callable[[], Mapping[str, str]] = dict
    """Returns the same of what the node depends on: without it the node does less, and is ready."""


class MetricsServer:
    """Serves at ``addresses`` of ``metrics.listen`` while ``run`` runs."""

    def __init__(self, addresses: Sequence[str], probing: Probing, meter: NodeMeter, logger: Logger) -> None:
        self._places = [parse_address(address, "metrics.listen") for address in addresses]
        self._probing = probing
        self._meter = meter
        self._logger = logger
        self._alone = trio.Lock()
        """Permits one scrape at a time, so that many cost no more than one."""
        self.server = HttpServer("metrics", [], self._respond, logger, LIMITS)

    async def run(self, life: Life) -> None:
        """Runs until stopped. Raises Environment when it cannot listen."""
        with ExitStack() as stack:
            listeners = [stack.enter_context(listening(place)) for place in self._places]
            self._logger.info("metrics", urls=[url_of(listener) for listener in listeners])
            self.server.listeners = listeners
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pulse)
                await self.server.run(life)
                nursery.cancel_scope.cancel()

    async def _pulse(self) -> None:
        while True:
            due = trio.current_time() + PULSE_SECONDS
            await trio.sleep_until(due)
            self._meter.observe("odfd_event_loop_lag_seconds", trio.current_time() - due)

    @contextmanager
    def _respond(self, _stream: trio.SocketStream) -> Iterator[ConnectionHandler]:
        yield ConnectionHandler(self._answer)

    async def _answer(self, scope: Message, _receive: Receive, send: Send) -> None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if not _HERE.fullmatch(host):
            return await _send_response(send, 403, b"ask for it by the address of this machine\n")
        if scope["method"] not in ("GET", "HEAD"):
            return await _send_response(send, 405, b"GET and HEAD are understood here\n")
        if scope["path"] == "/livez":
            return await _send_response(send, 200, b"ok\n")
        if scope["path"] == "/readyz":
            return await self._ready(send)
        if scope["path"] == "/metrics":
            return await self._scrape(send)
        return await _send_response(send, 404, b"there are /metrics, /livez and /readyz here\n")

    async def _ready(self, send: Send) -> None:
        looked = await self._probing.why_not_ready()
        lines = [
            f"{bad if wrong else 'ok'} {name}{': ' + wrong if wrong else ''}"
            for bad, found in (("no", looked), ("without", self._probing.dependencies()))
            for name, wrong in found.items()
        ]
        await _send_response(send, 503 if any(looked.values()) else 200, "\n".join([*lines, ""]).encode())

    async def _scrape(self, send: Send) -> None:
        with trio.move_on_after(SCRAPE_SECONDS) as patience:
            async with self._alone:
                body = await self._probing.scrape()
        if patience.cancelled_caught:
            return await _send_response(send, 503, b"the node has no time for it now\n")
        return await _send_response(send, 200, body, CONTENT_TYPE)


async def _send_response(send: Send, status: int, body: bytes, kind: str = _TEXT) -> None:
    fields = {"content-type": kind, "content-length": str(len(body)), "cache-control": "no-store"}
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
