"""What is wrong with a query, as an engine says it to a coordinator."""

from __future__ import annotations

import enum
from typing import Annotated

from chain.model.wire import U64, Scalar
from engines.tables import Table


class Severity(enum.Enum):
    ERROR = "error"
    WARNING = "warning"


class Diagnostic(Table, frozen=True, kw_only=True):
    """One thing wrong with a query, at a place a person can find, with what to write instead."""

    code: str
    """Stable and documented: ``float-aggregate``, ``join-unbounded``, …"""
    severity: Annotated[Severity, Scalar("int32")]
    message: str
    query: U64 = 0
    line: U64 | None = None
    column: U64 | None = None
    replace: str | None = None
