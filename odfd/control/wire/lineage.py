"""Defines values about lineage: where records came from, and which datasets a dataset is made of."""

from __future__ import annotations

from typing import Any, Literal

from odfd.control.wire.value import Problem, Request, Value


class LineageRequest(Request, frozen=True, kw_only=True):
    record: int
    """Offset of the record."""
    column: str | None = None
    """Column to explain; records of inputs are traced whole. ``None``: all columns."""
    limit: int = 20
    """Rows listed for each record; 1 to 1,000."""


class LineageStep(Value, frozen=True, kw_only=True):
    """An operator between an input and the result, with its position in the SQL."""

    operator: str
    detail: str
    query: int
    line: int | None = None
    column: int | None = None
    hides: bool = False
    """Whether rows that it hid from an aggregate above also affect the record, and are not listed."""


class LineagePath(Value, frozen=True, kw_only=True):
    """One occurrence of an input in the query."""

    ref: str
    id: str
    steps: tuple[LineageStep, ...] = ()
    """The steps from the input upwards."""


class LineageRow(Value, frozen=True, kw_only=True):
    """A record of an input that contributed."""

    ref: str
    id: str
    offset: int
    role: Literal["value", "decides", "change"]
    path: int | None = None
    """Index in ``paths``; ``null`` for a statement that retracted a record."""
    cause: bool = False
    """Whether its arrival in a changing table caused the record."""


class LineageOrigin(Value, frozen=True, kw_only=True):
    """The source from which a block of a source dataset was ingested."""

    kind: Literal["polling", "push"]
    name: str = ""
    address: str = ""
    state_kind: str = ""
    """``odf/etag`` or ``odf/last-modified``."""
    state: str = ""
    """State of the source: an etag, a time, the name of the last file."""
    by_hand: bool = False
    """Whether it came not from the source, but from a correction or retraction by the dataset's owner."""


class LineageRecord(Value, frozen=True, kw_only=True):
    """One record in a lineage, and its known origin."""

    ref: str
    id: str
    offset: int
    state: Literal["derived", "ingested", "unknown"]
    """``unknown``: ``problem`` has the reason."""
    op: int | None = None
    block: str | None = None
    sequence_number: int | None = None
    system_time: str | None = None
    """Time at which the block of the record was made."""
    row: dict[str, Any] | None = None
    mode: str | None = None
    paths: tuple[LineagePath, ...] = ()
    rows: tuple[LineageRow, ...] = ()
    count: int = 0
    """Number of contributing rows, listed or not."""
    truncated: bool = False
    absent: tuple[int, ...] = ()
    """Paths without any row, which is why the record is as it is."""
    origin: LineageOrigin | None = None
    problem: Problem | None = None


class Lineage(Value, frozen=True, kw_only=True):
    """The result of the task ``lineage``. Each record occurs once, the requested one first, inputs after their outputs.

    A row whose record is not listed was not followed: the answer reached its limit.
    """

    ref: str
    id: str
    record: int
    column: str | None = None
    records: tuple[LineageRecord, ...]
    complete: bool
    """Whether everything was traced down to its ingestion, with nothing left out."""
    remarks: tuple[str, ...] = ()
    """Names the blocks of its records whose engine nobody here has, so that nobody can be held to them."""
    roots: tuple[str, ...] = ()
    """Ids of the shards that have a record of this offset, if the dataset has several: each was traced."""


class LineageInput(Value, frozen=True, kw_only=True):
    ref: str
    id: str
    alias: str


class LineageNode(Value, frozen=True, kw_only=True):
    """A dataset in the graph around another."""

    ref: str
    id: str
    relation: Literal["self", "upstream", "downstream"]
    kind: Literal["root", "derivative"] | None = None
    """``null``: it is not stored here."""
    records: int | None = None
    watermark: str | None = None
    source: str = ""
    """For a root: the address that is polled, or the push source."""
    inputs: tuple[LineageInput, ...] = ()
    problem: Problem | None = None


class LineageGraph(Value, frozen=True, kw_only=True):
    """The graph of ``odfctl lineage REF``: all inputs upwards, and the local datasets derived from it."""

    ref: str
    id: str
    nodes: tuple[LineageNode, ...]
