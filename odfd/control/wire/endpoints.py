"""Defines values about endpoints of Sources and the pushes to them."""

from __future__ import annotations

from odfd.control.wire.value import Value


class PushReceipt(Value, frozen=True, kw_only=True):
    """The answer to a push to the endpoint of a Source."""

    source: str
    number: int
    """Number of the push, from 1, in the order of arrival."""
    records: int
    bytes: int
    repeated: bool = False
    """Whether it came before, with the same id; it counts once."""
    durable: bool = True
    """Whether it is on disk; else it waits in a buffer that may be lost."""


class EndpointView(Value, frozen=True, kw_only=True):
    """The pushes that wait at the endpoint of a Source."""

    name: str
    path: str
    """Path to POST to."""
    pushes: int
    records: int
    bytes: int
    first: int | None = None
    last: int | None = None
    oldest_at: str | None = None
    dropped: int = 0
    """Records that were dropped before a dataset got them: by a full buffer, or by a person."""
