"""Values about long operations and events."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from odfd.control.wire.value import Problem, Value


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
