"""Encodes spans as OTLP: the request of an exporter, in Protocol Buffers, as ``opentelemetry/proto`` declares it.

Nine messages with 22 fields are all that is needed, and OTLP 1.x keeps their numbers (ADR 43). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from odfd.runtime.spans import Span, Value

CONTENT_TYPE: Final = "application/x-protobuf"
_INTERNAL: Final = 1
"""Value SPAN_KIND_INTERNAL of OTLP."""
_ERROR: Final = 2
"""Value STATUS_CODE_ERROR of OTLP."""
_VARINT, _FIXED64, _BYTES = 0, 1, 2


def request(spans: Iterable[Span], resource: Mapping[str, Value], scope: str) -> bytes:
    """Encodes an ExportTraceServiceRequest: ``spans`` of one ``resource``, recorded by ``scope``."""
    told = _message(1, _attributes(1, resource))
    recorded = _message(1, _text(1, scope)) + b"".join(_message(2, _span(each)) for each in spans)
    return _message(1, told + _message(2, recorded))


def _span(span: Span) -> bytes:
    parent = _message(4, span.parent_id) if span.parent_id else b""
    status = _message(15, _number(3, _ERROR)) if span.failed else b""
    return b"".join((
        _message(1, span.trace_id),
        _message(2, span.span_id),
        parent,
        _text(5, span.name),
        _number(6, _INTERNAL),
        _fixed(7, span.began),
        _fixed(8, max(span.began, span.ended)),  # max, as the clock may have been set back
        _attributes(9, span.attributes),
        status,
    ))  # fmt: skip


def _attributes(field: int, values: Mapping[str, Value]) -> bytes:
    return b"".join(_message(field, _text(1, name) + _message(2, _value(value))) for name, value in values.items())


def _value(value: Value) -> bytes:
    """Encodes an AnyValue, in which zero is written, too."""
    if isinstance(value, str):
        return _text(1, value)
    return _number(2 if isinstance(value, bool) else 3, value)


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(number % 2**64)


def _fixed(field: int, number: int) -> bytes:
    return _varint(field << 3 | _FIXED64) + number.to_bytes(8, "little")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
