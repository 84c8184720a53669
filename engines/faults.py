"""Defines the faults of a query as an engine reports them, and the answers that carry a fault in place of a result.

These are tables of the Open Data Fabric schema, with extensions after their last field; part of ``engines.contract``.
"""

from __future__ import annotations

import enum
from typing import Annotated

from chain.errors import Fault
from chain.model.wire import U64, Scalar
from engines.tables import ContractTable, Variant


class Severity(enum.Enum):
    ERROR = "error"
    WARNING = "warning"


class Diagnostic(ContractTable, frozen=True, kw_only=True):
    """One fault of a query, with its place in the text and a remedy."""

    code: str
    """Stable, documented name of the fault: ``float-aggregate``, ``join-unbounded``, …"""
    severity: Annotated[Severity, Scalar("int32")]
    message: str
    query: U64 = 0
    line: U64 | None = None
    column: U64 | None = None
    replace: str | None = None


class InvalidQuery(Variant, frozen=True, kw_only=True, tag="InvalidQuery"):
    """Reports a fault of the query or of its data, in parts: ``message`` repeats nothing of the other fields.

    A coordinator that knows only ODF's table reads ``message`` alone. So an engine's server puts all parts into the
    message (``whole``) for a caller that does not set ``reads_extensions``; our coordinator sets it in each request.
    Methods of ``odfd.Engine`` have no other callers and always answer in parts.
    """

    message: str
    rule: str | None = None
    """Extension: name of the rule that was broken."""
    hint: str | None = None
    """Extension: what the user should do next."""
    place: str | None = None
    """Extension: place in the data or the query, as ``data.csv:3`` or ``line 2, column 8``."""

    @classmethod
    def of(cls, fault: Fault) -> InvalidQuery:
        return cls(message=fault.message, rule=fault.rule or None, hint=fault.hint or None, place=fault.place or None)

    def __str__(self) -> str:
        here = f"{self.place}: " if self.place else ""
        rule = f" [{self.rule}]" if self.rule else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{here}{self.message}{rule}{hint}"

    @property
    def whole(self) -> InvalidQuery:
        """Returns the same fault with all parts in the message; the rule stays as a name for programs."""
        return InvalidQuery(message=str(self), rule=self.rule)


class EngineInternalError(Variant, frozen=True, kw_only=True, tag="InternalError"):
    """Reports a fault of the engine itself, not of the query."""

    message: str
    backtrace: str | None = None
    rule: str | None = None
    """Extension: the limit exceeded, or that the JVM ended (``engines.errors``); ``None`` for a bug."""
