"""Defines faults of a query as an engine reports them, and the answers that carry a fault in place of a result.

Tables of the Open Data Fabric schema, with extensions after their last field; a part of ``engines.contract``.
"""

from __future__ import annotations

import enum
from typing import Annotated

from chain.errors import Fault
from chain.model.wire import U64, Scalar
from engines.tables import Table, Variant


class Severity(enum.Enum):
    ERROR = "error"
    WARNING = "warning"


class Diagnostic(Table, frozen=True, kw_only=True):
    """One fault of a query, with its place in the text and a remedy."""

    code: str
    """Stable and documented: ``float-aggregate``, ``join-unbounded``, …"""
    severity: Annotated[Severity, Scalar("int32")]
    message: str
    query: U64 = 0
    line: U64 | None = None
    column: U64 | None = None
    replace: str | None = None


class InvalidQuery(Variant, frozen=True, kw_only=True, tag="InvalidQuery"):
    """A fault of the query or of its data, in parts: ``message`` says none of what the others say.

    A coordinator that knows ODF's table alone reads ``message`` alone. So whoever serves an engine puts all parts into
    the message (``whole``) for a caller that does not say that it ``reads_extensions``; ours says so in each request.
    Methods of ``odfd.Engine`` have no other callers and always answer in parts.
    """

    message: str
    rule: str | None = None
    """Extension: which rule was broken."""
    hint: str | None = None
    """Extension: what to do next."""
    place: str | None = None
    """Extension: where in the data or the query, as ``data.csv:3`` or ``line 2, column 8``."""

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
        """The same fault with all parts in the message; the rule stays as a name for programs."""
        return InvalidQuery(message=str(self), rule=self.rule)


class InternalError(Variant, frozen=True, kw_only=True, tag="InternalError"):
    message: str
    backtrace: str | None = None
    rule: str | None = None
    """Extension: which limit was met, or that the JVM ended (``engines.errors``); ``None`` for what is a bug."""
