"""Values about flows: what is pulled by itself, when, and what became of it."""

from __future__ import annotations

from typing import Literal

from odfd.control.wire.value import Value


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
