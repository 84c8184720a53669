"""Values about queries: a statement, and the sources of its answer. Rows come separately, as Arrow."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from odfd.control.wire.value import Request, Value


class Pin(Value, frozen=True, kw_only=True):
    """The cut of a dataset for a query."""

    name: str
    id: str
    block: str
    """Hash of the last block that was read."""
    sequence_number: int
    at: str = ""
    """What the query says of time at this table; empty: nothing."""


class QueryRequest(Request, frozen=True, kw_only=True):
    sql: str
    parameters: dict[str, Any] | list[Any] | None = None
    """By name, or in order."""
    pins: tuple[Pin, ...] = ()
    """Of an earlier answer: the same rows. Every table of the query is among them."""
    require: str | None = None
    """An expression of facts, like ``attested:2``, that everything read must satisfy."""
    explain: bool = False
    """Say how it would be answered, instead of answering it."""
    cut: bool = False
    """Read only what satisfies it, instead of nothing."""
    prove: bool = False
    """Sign a statement about the answer, which then comes with its end."""
    by_pins: bool = False
    """The names in the query are those of the pins, whatever datasets are called here."""
    engine: str = ""
    """The engine of transforms that answers, like ``spark``, in place of the query's own process."""
    plain: bool = False
    """Rows as JSON values, with names and types of columns before them, instead of Arrow."""


class TimeClause(Request, frozen=True, kw_only=True):
    """A clause of time at a table of a query."""

    kind: Literal["as-of", "at-block", "as-at"]
    value: str


class SlicesRequest(Request, frozen=True, kw_only=True):
    """All of a log at a cut, for its files; the members that a query has too mean the same."""

    dataset: str
    times: Annotated[tuple[TimeClause, ...], msgspec.Meta(max_length=3)] = ()
    pins: tuple[Pin, ...] = ()
    require: str | None = None
    cut: bool = False


class SlicesEnd(Value, frozen=True, kw_only=True):
    """The end of the files of a log."""

    rows: int
    offsets: tuple[tuple[int, int], ...]
    """Of the first and the last row of each file."""


class ReadStanding(Value, frozen=True, kw_only=True):
    """How far the data read of a dataset may be relied on."""

    name: str
    fact: str
    """``data``, ``reproduced``, ``attested 2/3``, or why it is not relied on."""
    blocks: int
    """Of those read, how many may be relied on."""
    of: int
    """Blocks read."""


class QueryHead(Value, frozen=True, kw_only=True):
    """The sources of an answer, sent before the first row."""

    pins: tuple[Pin, ...]
    standing: str
    """The weakest of what was read."""
    standings: tuple[ReadStanding, ...]
    remarks: tuple[str, ...] = ()
    """What is not in the answer though it could be expected."""
    parameters: tuple[str, ...] = ()
    """Names of those of the statement, or numbers from 1."""


class QueryEnd(Value, frozen=True, kw_only=True):
    """The end of an answer, sent after the last row; an answer without it was cut off."""

    rows: int
    proof: dict[str, Any] | None = None
    """The envelope of a statement about the answer, where one was asked for."""


class HoldRequest(Request, frozen=True, kw_only=True):
    ref: str
    at: str | None = None
    """The time to read at, which must be complete; ``None``: as the dataset is now."""
    seconds: int | None = None
    """Until it expires, 1 to 86,400; ``None``: a quarter of an hour."""
    note: str = ""
    """By whom, or for what; 200 characters at most."""


class HoldRenewal(Request, frozen=True, kw_only=True):
    seconds: int | None = None
    """From now on; it never expires earlier than it would."""


class HoldView(Value, frozen=True, kw_only=True):
    """A row of ``odfctl hold list``."""

    id: str
    dataset: str
    """Its name."""
    time: str
    """What is read at it, and at any later time, stays as it is."""
    pin: Pin | None = None
    """Reads the rows of that time, while the hold lives. ``null``: its row is damaged."""
    shards: tuple[Pin, ...] = ()
    """Of a collection with several shards, the pin of each, that of the first too."""
    note: str = ""
    taken_at: str
    expires_at: str | None = None
    """``null``: its row is damaged, and it ends when it is released."""
