"""Defines values of gaps: messages that a source let go of before they were taken.

Spec: docs/spec/collections.md#gaps.
"""

from __future__ import annotations

from odfd.control.wire.value import Request, Value


class GapRequest(Request, frozen=True, kw_only=True):
    """Asks what a dataset's source let go of, or that the dataset goes on without it."""

    accept: str | None = None
    """Name of the gap that is accepted; null: nothing is accepted."""


class LostRange(Value, frozen=True, kw_only=True):
    """Messages of one partition that are lost."""

    topic_id: str
    partition: int
    first: int
    """Offset of the first one."""
    last: int
    count: int
    """Number of offsets, of which some may never have had a message."""


class GapView(Value, frozen=True, kw_only=True):
    """Names the messages that a source let go of before they were taken. Result of the task ``gap``."""

    dataset: str
    name: str | None = None
    """Of the gap, a hash of what is lost; null: nothing is."""
    topic: str = ""
    lost: tuple[LostRange, ...] = ()
    count: int = 0
    accepted: bool = False
    """Whether the dataset goes on without it."""
    time: str | None = None
    """System time of the block that says so, once it is accepted."""
    block: str | None = None
