"""Values about lineage: where records came from, and which datasets a dataset is made of."""

from __future__ import annotations

from typing import Any, Literal

from odfd.control.wire.value import Problem, Request, Value


class LineageRequest(Request, frozen=True, kw_only=True):
    record: int
    """Its offset."""
    column: str | None = None
    """Only what this column of the record was made of; its inputs' records are traced whole."""
    limit: int = 20
    """Rows told of each record; 1 to 1,000."""


class LineageStep(Value, frozen=True, kw_only=True):
    """An operator between an input and the result, with its place in the SQL."""

    operator: str
    detail: str
    query: int
    line: int | None = None
    column: int | None = None
    hides: bool = False
    """What it took away from an aggregate above it bears on the record too, and is not among the rows named."""


class LineagePath(Value, frozen=True, kw_only=True):
    """One occurrence of an input in the query."""

    ref: str
    id: str
    steps: tuple[LineageStep, ...] = ()
    """From the input up."""


class LineageRow(Value, frozen=True, kw_only=True):
    """A record of an input that contributed."""

    ref: str
    id: str
    offset: int
    role: Literal["value", "decides", "change"]
    path: int | None = None
    """Place in ``paths``; ``null`` for a statement that took a record back."""
    cause: bool = False
    """Of a changing table: its coming made the record be written."""


class LineageOrigin(Value, frozen=True, kw_only=True):
    """The source that a root's block was ingested from."""

    kind: Literal["polling", "push"]
    name: str = ""
    address: str = ""
    state_kind: str = ""
    """``odf/etag`` or ``odf/last-modified``."""
    state: str = ""
    """What the source had come to: an etag, a time, the name of the last file."""
    by_hand: bool = False
    """The record is none of the source's: the dataset's owner corrected or retracted a row of it."""


class LineageRecord(Value, frozen=True, kw_only=True):
    """One record in a lineage, and its known origin."""

    ref: str
    id: str
    offset: int
    state: Literal["derived", "ingested", "unknown"]
    """``unknown``: ``problem`` says why."""
    op: int | None = None
    block: str | None = None
    sequence_number: int | None = None
    system_time: str | None = None
    """When the block that holds it was made."""
    row: dict[str, Any] | None = None
    mode: str | None = None
    paths: tuple[LineagePath, ...] = ()
    rows: tuple[LineageRow, ...] = ()
    count: int = 0
    """Rows that there are, told or not."""
    truncated: bool = False
    absent: tuple[int, ...] = ()
    """Paths of which there was no row, which is why the record is as it is."""
    origin: LineageOrigin | None = None
    problem: Problem | None = None


class Lineage(Value, frozen=True, kw_only=True):
    """The result of the task ``lineage``. Each record occurs once, the requested one first, inputs after their outputs.

    A row whose record does not stand here was not followed: the answer was long enough.
    """

    ref: str
    id: str
    record: int
    column: str | None = None
    records: tuple[LineageRecord, ...]
    complete: bool
    """Everything was followed down to where it was ingested, and nothing was left out."""


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
    """``null``: it is not held here."""
    records: int | None = None
    watermark: str | None = None
    source: str = ""
    """Of a root: what is polled, or the push source."""
    inputs: tuple[LineageInput, ...] = ()
    problem: Problem | None = None


class LineageGraph(Value, frozen=True, kw_only=True):
    """The graph of ``odfctl lineage REF``: all inputs upwards, and the local datasets derived from it."""

    ref: str
    id: str
    nodes: tuple[LineageNode, ...]
