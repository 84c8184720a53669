"""Counts events as metrics: every kind, and the numbers in some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from odfd.obs.events import Event
from odfd.obs.meter import NodeMeter
from odfd.obs.metric_table import BY_NAME

_HEARD: Final = BY_NAME["odfd_statements_heard_total"].labels["kind"]
_VERDICTS: Final = BY_NAME["odfd_verdicts_total"].labels["result"]
_CONTRADICTIONS: Final = {
    "dataset.forked": "dataset",
    "authority.forked": "authority",
    "validator.suspended": "validator",
    "head.refused": "head",
}


def counted_by(meter: NodeMeter) -> Callable[[Event], None]:
    """Returns the function that an event log calls with each event."""

    def count(event: Event) -> None:
        meter.count("odfd_events_total", kind=event.kind)
        family, _, happening = event.kind.partition(".")
        if happening == "heard" and family in _HEARD:
            meter.count("odfd_statements_heard_total", kind=family)
        elif family == "verdict" and happening in _VERDICTS:
            meter.count("odfd_verdicts_total", result=happening)
        elif event.kind in _CONTRADICTIONS:
            meter.count("odfd_contradictions_total", kind=_CONTRADICTIONS[event.kind])
        elif event.kind == "mirror.synced":
            meter.count("odfd_mirror_blocks_total", _number(event, "blocks"))
        elif event.kind == "objects.collected":
            meter.count("odfd_objects_collected_total", _number(event, "objects"))
            meter.count("odfd_collected_bytes_total", _number(event, "bytes"))
        elif event.kind == "damage.found":
            meter.count("odfd_damage_total")

    return count


def _number(event: Event, name: str) -> int:
    value = event.data.get(name, 0)
    return value if isinstance(value, int) else 0
