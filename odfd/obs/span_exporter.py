"""Sends spans to the collector of ``traces.endpoint`` by OTLP over HTTP; unsent ones are dropped and counted.

Made with the daemon if an endpoint is set. Taking a span never waits and never fails. At most ``WAITING`` spans are
kept; they are sent in batches, one request at a time, each batch once: if the collector is away its spans are lost, and
the traced work is not affected.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import trio

from chain.codec.protobuf import field, fixed64_field
from odfd.obs.meter import NodeMeter
from odfd.runtime.spans import TraceSpan, Value
from odfd.runtime.supervision import Life, Logger
from p2p.ip import Ip, anywhere

CONTENT_TYPE: Final = "application/x-protobuf"
_INTERNAL: Final = 1
"""Value SPAN_KIND_INTERNAL of OTLP."""
_ERROR: Final = 2
"""Value STATUS_CODE_ERROR of OTLP."""


def encode_request(spans: Iterable[TraceSpan], resource: Mapping[str, Value], scope: str) -> bytes:
    """Encodes an ExportTraceServiceRequest: ``spans`` of one ``resource``, recorded by ``scope``."""
    origin = field(1, _attributes(1, resource))
    recorded = field(1, field(1, scope.encode())) + b"".join(field(2, _span(span)) for span in spans)
    return field(1, origin + field(2, recorded))


def _span(span: TraceSpan) -> bytes:
    parent = field(4, span.parent_id) if span.parent_id else b""
    status = field(15, field(3, _ERROR)) if span.failed else b""
    return b"".join((
        field(1, span.trace_id),
        field(2, span.span_id),
        parent,
        field(5, span.name.encode()),
        field(6, _INTERNAL),
        fixed64_field(7, span.began),
        fixed64_field(8, max(span.began, span.ended)),  # max, as the clock may have been set back
        _attributes(9, span.attributes),
        status,
    ))  # fmt: skip


def _attributes(number: int, values: Mapping[str, Value]) -> bytes:
    return b"".join(field(number, field(1, name.encode()) + field(2, _value(it))) for name, it in values.items())


def _value(value: Value) -> bytes:
    """Encodes an AnyValue, in which zero is written, too."""
    if isinstance(value, str):
        return field(1, value.encode())
    # Protobuf writes a negative int64 as its two's complement, in ten bytes.
    return field(2 if isinstance(value, bool) else 3, value % 2**64)


WAITING: Final = 2048
"""Most spans that wait, of some 300 bytes: ten pulls a second for twenty seconds. More are dropped."""
BATCH: Final = 512
"""Most spans of one request: some 100 KB."""
GATHER_SECONDS: Final = 1.0
"""Seconds after the first span of a batch in which others are gathered."""
SEND_SECONDS: Final = 10.0
"""Most seconds of one request, including the look-up of the collector; OTLP's own default."""
LAST_SECONDS: Final = 2.0
"""Most seconds for waiting spans when the daemon stops."""


class SpanExporter:
    """Sends the spans of one daemon."""

    def __init__(self, endpoint: str, version: str, meter: NodeMeter, logger: Logger) -> None:
        self._endpoint = endpoint
        self._meter = meter
        self._logger = logger
        self._resource = {
            "service.name": "odfd",
            "service.version": version,
            "service.instance.id": secrets.token_hex(16),  # of this start; reveals neither node nor key
        }
        self._waiting: deque[TraceSpan] = deque()
        self._some = trio.Event()
        self._lost = 0
        """Number of spans dropped in a row; 0: the last batch was accepted."""

    def take(self, span: TraceSpan) -> None:
        """Keeps a span until it is sent, or drops it. In the trio thread."""
        if len(self._waiting) >= WAITING:
            self._drop(1, "full", f"{WAITING} spans wait already")
            return
        self._waiting.append(span)
        self._some.set()

    async def run(self, life: Life) -> None:
        """Sends until stopped, then sends the waiting spans for at most ``LAST_SECONDS``."""
        life.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_all, life.stopping)
            await life.stopping.wait()
            self._some.set()
            nursery.cancel_scope.deadline = trio.current_time() + LAST_SECONDS
        if self._waiting:
            self._drop(len(self._waiting), "unsent", "the daemon stopped")
            self._waiting.clear()

    async def _send_all(self, stopping: trio.Event) -> None:
        while self._waiting or not stopping.is_set():
            await self._some.wait()
            if len(self._waiting) < BATCH:
                with trio.move_on_after(GATHER_SECONDS):
                    await stopping.wait()
            if self._waiting:
                await self._send()
            if not self._waiting and not stopping.is_set():
                self._some = trio.Event()

    async def _send(self) -> None:
        """Sends one batch, once, and counts it as sent or dropped."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        why = "it was cut off"
        try:
            with trio.move_on_after(SEND_SECONDS) as patience:
                why = await _post(self._endpoint, encode_request(batch, self._resource, "odfd"))
            if patience.cancelled_caught:
                why = f"no answer in {SEND_SECONDS:g} seconds"
        finally:
            if why:
                self._drop(len(batch), "unsent", why)
            else:
                self._note_sent(len(batch))

    def _note_sent(self, count: int) -> None:
        self._meter.count("odfd_spans_total", count, outcome="sent")
        if self._lost:
            self._logger.info("traces are taken again", dropped=self._lost)
            self._lost = 0

    def _drop(self, count: int, how: str, why: str) -> None:
        """Logs only the first of drops in a row, and their number at the end: a collector may be away for days."""
        self._meter.count("odfd_spans_total", count, outcome=how)
        if not self._lost:
            self._logger.error("traces are dropped", endpoint="traces.endpoint", why=why)
        self._lost += count


async def ask_collector(endpoint: str) -> str:
    """Asks a collector to take no spans; returns why it does not answer as one, empty if it does."""
    return await _post(endpoint, b"")


async def _post(endpoint: str, body: bytes) -> str:
    """Posts a request; returns why it was not accepted, empty if it was."""
    import httpx

    from p2p.dial import NotAllowed
    from p2p.web.client import machine_authorities, new_client

    allows = anywhere if endpoint.startswith("https:") else _here
    headers = {"content-type": CONTENT_TYPE}
    try:
        async with (
            new_client(allows, timeout=SEND_SECONDS, verify=machine_authorities(), trust_env=False) as client,
            client.stream("POST", endpoint, headers=headers, content=body) as answer,
        ):
            return "" if answer.status_code == httpx.codes.OK else f"it answered {answer.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL, NotAllowed, OSError) as error:
        return (str(error) or type(error).__name__)[:300]


def _here(ip: Ip) -> bool:
    return ip.is_loopback
