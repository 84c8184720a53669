"""Defines values about queries: a statement, and the sources of its answer. Rows are sent separately, as Arrow."""

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
    """The query's clause of time at this table; empty: none."""


class QueryRequest(Request, frozen=True, kw_only=True):
    sql: str
    parameters: dict[str, Any] | list[Any] | None = None
    """Values of the parameters by name, or in order."""
    pins: tuple[Pin, ...] = ()
    """Pins of an earlier answer, to get the same rows. They must include every table of the query."""
    require: str | None = None
    """An expression of facts, like ``attested:2``, that everything read must satisfy."""
    explain: bool = False
    """Whether to describe how it would be answered, instead of answering it."""
    cut: bool = False
    """Whether to read only blocks that satisfy ``require``, instead of failing."""
    prove: bool = False
    """Whether to sign a statement about the answer, sent at its end."""
    by_pins: bool = False
    """Whether names in the query are those of the pins, whatever datasets are called here."""
    engine: str = ""
    """Name of an engine of transforms that answers, like ``spark``; empty: the query's own process."""
    plain: bool = False
    """Whether rows are sent as JSON values, after names and types of columns, instead of Arrow."""
    lines: Literal["", "csv", "ndjson"] = ""
    """The format of rows that are sent as lines of text, after names and types of columns; empty: they are not."""


class TimeClause(Request, frozen=True, kw_only=True):
    """A clause of time at a table of a query."""

    kind: Literal["as-of", "at-block", "as-at"]
    value: str


class LogPosition(Request, frozen=True, kw_only=True):
    """How far a log was read."""

    offset: int
    """Offset of the last row that was read; -1: none was."""
    block: str = ""
    """Hash of the block up to which was read, which the chain must still have; empty: none was."""
    sequence_number: int = -1


class SlicesRequest(Request, frozen=True, kw_only=True):
    """All of a log at a cut, for its files; the members that a query has too mean the same."""

    dataset: str
    times: Annotated[tuple[TimeClause, ...], msgspec.Meta(max_length=3)] = ()
    pins: tuple[Pin, ...] = ()
    require: str | None = None
    cut: bool = False
    after: LogPosition | None = None
    """Only files with later rows are given, the first ones if there are many; ``None``: all."""
    explain: bool = False
    """Whether to say only where the log is cut, and whether it has ended; no file is given."""
    together: bool = False
    """Whether the rendition of the dataset is meant as its name reads it, also where ``dataset`` is an id: all its
    shards (for ``explain``), and nothing beyond its end."""
    offsets: tuple[int, int] | None = None
    """Only files with rows of these offsets, from the first to the last, are given; ``None``: all."""
    listed: bool = False
    """Whether to say only the offsets of the files and the columns; no file is given."""
    again: bool = False
    """Whether to hash the files again, because a reader could not decode one of them."""


class SlicesEnd(Value, frozen=True, kw_only=True):
    """The end of the files of a log."""

    rows: int
    offsets: tuple[tuple[int, int], ...]
    """Offsets of the first and the last row of each file."""
    more: bool = False
    """Whether the log has more files, after these; only where ``after`` was given."""
    ended: bool = False
    """Whether another rendition has replaced this one, which gets no more rows; only for ``after`` and ``explain``."""


class ReadStanding(Value, frozen=True, kw_only=True):
    """The trust level and reach of the data read of a dataset."""

    name: str
    fact: str
    """``data``, ``reproduced``, ``attested 2/3``, or why it is not relied on."""
    blocks: int
    """Number of the blocks read that may be relied on."""
    of: int
    """Number of blocks read."""


class QueryHead(Value, frozen=True, kw_only=True):
    """The sources of an answer, sent before the first row."""

    pins: tuple[Pin, ...]
    standing: str
    """The weakest standing of the data read."""
    standings: tuple[ReadStanding, ...]
    remarks: tuple[str, ...] = ()
    """Remarks on data that the answer unexpectedly lacks."""
    parameters: tuple[str, ...] = ()
    """Names of the statement's parameters, or numbers from 1."""


class QueryEnd(Value, frozen=True, kw_only=True):
    """The end of an answer, sent after the last row; an answer without it was cut off."""

    rows: int
    proof: dict[str, Any] | None = None
    """The envelope of a statement about the answer, if requested."""


class HoldRequest(Request, frozen=True, kw_only=True):
    ref: str
    at: str | None = None
    """The time to read at, which must be complete; ``None``: the current state of the dataset."""
    seconds: int | None = None
    """Seconds until it expires, 1 to 86,400; ``None``: a quarter of an hour."""
    note: str = ""
    """Note on the holder, or the purpose; 200 characters at most."""
    owner: str = ""
    """Name by which it is owned: it lasts until it is released, and ``seconds`` mean nothing. Empty: it is leased."""


class HoldRenewal(Request, frozen=True, kw_only=True):
    seconds: int | None = None
    """Seconds from now until it expires, which is never earlier than before."""
    fence: int | None = None
    """Of an owned hold: that of the process that asks."""
    at: str | None = None
    """Of an owned hold: the later time to which it moves; ``None``: it stays."""


class HoldView(Value, frozen=True, kw_only=True):
    """A row of ``odfctl hold list``."""

    id: str
    dataset: str
    """Name of the dataset."""
    time: str
    """Time from which on reads stay unchanged."""
    pin: Pin | None = None
    """Reads the rows of that time, while the hold lives. ``null``: its row is damaged."""
    shards: tuple[Pin, ...] = ()
    """Of a collection with several shards, the pin of each, that of the first too."""
    note: str = ""
    taken_at: str
    expires_at: str | None = None
    """``null``: it is owned, or its row is damaged, and it ends when it is released."""
    owner: str = ""
    """Name by which it is owned; empty: it is leased."""
    fence: int | None = None
    """Of an owned hold: how often it was taken. Only the process that got this number may move or release it."""
