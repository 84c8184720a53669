"""Knows the default of each field that has one in the format's schemas, and compares values that may leave them out.

``Timestamp`` and ``Timestamp(Millisecond, UTC)`` are one type, and a source that names the usual separator is the same
source. Whoever compares declarations of two chains, or of a chain and a manifest, asks ``same``; blocks keep the bytes
that they were written with. Pure. Spec: ``default`` in the JSON schemas; RFC-016.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from chain.model.events import SetVocab
from chain.model.schema import Duration, Time, Timestamp, TimeUnit
from chain.model.source import MqttQos, MqttTopicSubscription, ReadCsv, ReadJson, ReadNdJson

T = TypeVar("T")

_TEXT: Final = {"encoding": "utf8", "date_format": "rfc3339", "timestamp_format": "rfc3339"}
DEFAULTS: Final[Mapping[type[msgspec.Struct], Mapping[str, object]]] = {
    Duration: {"unit": TimeUnit.MILLISECOND},
    Time: {"unit": TimeUnit.MILLISECOND},
    Timestamp: {"unit": TimeUnit.MILLISECOND, "timezone": "UTC"},
    SetVocab: {
        "offset_column": "offset",
        "operation_type_column": "op",
        "system_time_column": "system_time",
        "event_time_column": "event_time",
    },
    MqttTopicSubscription: {"qos": MqttQos.AT_MOST_ONCE},
    ReadCsv: {
        "separator": ",",
        "quote": '"',
        "escape": "\\",
        "header": False,
        "infer_schema": False,
        "null_value": "",
        **_TEXT,
    },
    ReadJson: _TEXT,
    ReadNdJson: _TEXT,
}


def spelled_out(value: T) -> T:
    """Returns an event, a schema or a part of one with each default in place of an absent value, at any depth."""
    return _with_defaults(value, lambda extra: extra)  # type: ignore[no-any-return]


def same(one: object, other: object) -> bool:
    """Whether two values say the same, each with or without defaults."""
    return bool(_with_defaults(one, _json) == _with_defaults(other, _json))


def _with_defaults(value: Any, attributes: Callable[[dict[str, object]], object]) -> Any:
    if isinstance(value, tuple):
        return tuple(_with_defaults(each, attributes) for each in value)
    if isinstance(value, dict):
        return attributes(value)
    if not isinstance(value, msgspec.Struct):
        return value
    usual = DEFAULTS.get(type(value), {})
    held = ((name, getattr(value, name)) for name in value.__struct_fields__)
    full = {name: usual.get(name) if each is None else _with_defaults(each, attributes) for name, each in held}
    return msgspec.structs.replace(value, **full)


def _json(extra: dict[str, object]) -> bytes:
    """Returns attributes as a block holds them: 1, 1.0 and true are equal in Python, and three values in the format."""
    return msgspec.json.encode(extra, order="sorted")
