"""Values about long operations, flows and events."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from odfd.control.wire.value import Problem, Value


class FlowView(Value, frozen=True, kw_only=True):
    """A flow, or a derived dataset that follows its inputs without one."""

    name: str
    kind: Literal["flow", "follow"]
    """``follow``: nobody declared it; it has the name of its dataset."""
    target: str
    """Name of the dataset that it pulls."""
    when: str
    """Its schedule, and the datasets whose new data makes it run."""
    state: Literal["waiting", "running", "retrying", "paused"]
    next: str | None = None
    """When it runs next; ``None``: not before something new comes."""
    last: str | None = None
    """When its last run ended."""
    outcome: str | None = None
    """Of that: ``updated``, ``up-to-date``, ``blocked``, ``failed``, ``refused`` or ``cancelled``."""
    message: str = ""
    runs: int = 0
    failures: int = 0
    """In a row."""
    missed: int = 0
    """Times of its schedule that passed without a run, up to a thousand for each time that they did."""


class TaskRef(Value, frozen=True, kw_only=True):
    """A long operation that goes on, whether or not anyone watches."""

    id: str
    kind: str
    target: str = ""


class TaskView(Value, frozen=True, kw_only=True):
    id: str
    kind: str
    target: str = ""
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    done: int = 0
    total: int | None = None
    unit: str = ""
    """What ``done`` and ``total`` count: ``blocks``, ``bytes``, ``transforms``."""
    message: str = ""
    """What it is at now."""
    started_at: str | None = None
    finished_at: str | None = None
    result: Any = None
    """The result's own JSON, once done."""
    fault: Problem | None = None


class EventView(Value, frozen=True, kw_only=True):
    """A line of ``odfctl watch``. The kind ``lagged`` says that events were lost to this reader: ``data.missed``."""

    sequence: int
    time: str
    kind: str
    """``dataset.appended``, ``mirror.synced``, ``verdict.mismatch``, ``peer.connected``, ``task.done``, …"""
    subject: str = ""
    """The dataset, peer or task it is about."""
    message: str = ""
    data: dict[str, Any] = msgspec.field(default_factory=dict)
