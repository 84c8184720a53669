"""A collector of traces on loopback: takes OTLP over HTTP, and decodes it as OpenTelemetry's own descriptors say."""

from __future__ import annotations

import functools
import http.server
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from worlds.http_served import HttpServer, serving

GOLDEN = Path(__file__).parents[1] / "golden" / "otlp"
REQUEST = "opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest"


@functools.cache
def request_type() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString((GOLDEN / "descriptors.binpb").read_bytes()).file:
        pool.AddSerializedFile(each.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(REQUEST))


@dataclass
class Collector:
    """What came, and how it is answered."""

    url: str = ""
    status: int = 200
    bodies: list[bytes] = field(default_factory=list)

    def spans(self) -> list[Any]:
        requests = [request_type().FromString(body) for body in self.bodies]
        return [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def below(self, parent: Any) -> list[Any]:
        """Spans whose parent this is, in the order of their beginnings."""
        found = [span for span in self.spans() if span.parent_span_id == parent.span_id]
        assert all(span.trace_id == parent.trace_id for span in found)
        return sorted(found, key=lambda span: span.start_time_unix_nano)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Taking(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/x-protobuf"
            collector.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with serving(HttpServer(Taking)) as server:
        collector.url = f"{server.url}/v1/traces"
        yield collector
