"""Messages about endpoints of Sources."""

from __future__ import annotations

from odfd.control.wire.value import Value


class PushReceipt(Value, frozen=True, kw_only=True):
    """The answer to a push to the endpoint of a Source."""

    source: str
    number: int
    """Pushes are numbered from 1, in the order of arrival."""
    records: int
    bytes: int
    repeated: bool = False
    """It came before, with the same id, and counts once."""
    durable: bool = True
    """On the disk; else it waits in a buffer that may lose it."""


class EndpointView(Value, frozen=True, kw_only=True):
    """The pushes that wait at the endpoint of a Source."""

    name: str
    path: str
    """Where to POST."""
    pushes: int
    records: int
    bytes: int
    first: int | None = None
    last: int | None = None
    oldest_at: str | None = None
    dropped: int = 0
    """Records that no dataset got: of a full buffer, or by a person."""
