"""Encodes spans as OTLP: the request of an exporter, in Protocol Buffers, as ``opentelemetry/proto`` declares it.

Nine messages with 22 fields are all that is needed, and OTLP 1.x keeps their numbers (ADR 43). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from chain.codec.protobuf import field, fixed64_field
from odfd.runtime.spans import Span, Value

CONTENT_TYPE: Final = "application/x-protobuf"
_INTERNAL: Final = 1
"""Value SPAN_KIND_INTERNAL of OTLP."""
_ERROR: Final = 2
"""Value STATUS_CODE_ERROR of OTLP."""


def request(spans: Iterable[Span], resource: Mapping[str, Value], scope: str) -> bytes:
    """Encodes an ExportTraceServiceRequest: ``spans`` of one ``resource``, recorded by ``scope``."""
    origin = field(1, _attributes(1, resource))
    recorded = field(1, field(1, scope.encode())) + b"".join(field(2, _span(each)) for each in spans)
    return field(1, origin + field(2, recorded))


def _span(span: Span) -> bytes:
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
