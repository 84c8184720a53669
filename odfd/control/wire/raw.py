"""Defines values of sources: bytes that are kept of them, and gaps, which they let go of before these were taken.

Spec: docs/spec/collections.md#gaps.
"""

from __future__ import annotations

from odfd.control.wire.value import Request, Value


class CapturedFileView(Value, frozen=True, kw_only=True):
    """A file as received from a source."""

    name: str
    object: str
    """Hash of its bytes, which are an object of this node."""
    size: int


class CaptureView(Value, frozen=True, kw_only=True):
    """Bytes of a source, and the transaction that they became."""

    time: str
    """System time of its blocks."""
    block: str
    """Hash of its last block."""
    sequence_number: int
    source: str = ""
    """Name of the push source; empty: it was polled."""
    label: str | None = None
    """Version as the source stated it: an etag, a time, the name of a file."""
    files: tuple[CapturedFileView, ...]


class RawView(Value, frozen=True, kw_only=True):
    """The kept bytes of a dataset's source, counted."""

    dataset: str
    """Name of the dataset."""
    keeping: bool
    """Whether new bytes are kept."""
    count: int
    bytes: int
    captures: tuple[CaptureView, ...] = ()
    """The newest thousand, newest first."""


class RawDifference(Value, frozen=True, kw_only=True):
    """A transaction that its bytes do not give again."""

    block: str
    sequence_number: int
    message: str


class RawReplayResult(Value, frozen=True, kw_only=True):
    """Result of the task ``replay``: transactions by what computing them again gave."""

    ref: str
    ok: bool
    """Whether no transaction differs."""
    same: int
    equivalent: int
    """Transactions with the same rows, in slices of other bytes, as another version of a library writes them."""
    differs: int
    rewritten: int
    """Transactions whose blocks are no longer in the history."""
    differences: tuple[RawDifference, ...] = ()
    """The first thousand."""


class RawChainView(Value, frozen=True, kw_only=True):
    """Result of the task ``bind``: the captures of a source dataset as a dataset that can be published."""

    ref: str
    chain: str
    """Name of the dataset of captures."""
    chain_id: str
    bound: int
    """Captures that were appended now."""
    total: int
    """Captures with bytes."""
    gaps: int = 0
    """Gaps of the source that were accepted, which have no bytes and are not bound."""


class AttestRawRequest(Request, frozen=True, kw_only=True):
    """``chain``: the dataset of captures, by name or id."""

    chain: str


class RawAttestResult(Value, frozen=True, kw_only=True):
    """Result of the task ``attest``: transactions by what decoding their bytes gave."""

    ref: str
    ok: bool
    """Whether no transaction differs."""
    decoded: int
    otherwise: int
    """Transactions whose rows are not what their bytes give."""
    later: int
    """Transactions that have not come here yet."""
    signed: int
    """Observations that were signed."""
    differences: tuple[RawDifference, ...] = ()
    """The first thousand."""


class GapRequest(Request, frozen=True, kw_only=True):
    """Asks for the gap of a dataset's source, or accepts it, so that ingestion continues."""

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
    """Names the messages that a source deleted before they were ingested. Result of the task ``gap``."""

    dataset: str
    name: str | None = None
    """Of the gap, a hash of what is lost; null: nothing is."""
    topic: str = ""
    lost: tuple[LostRange, ...] = ()
    count: int = 0
    accepted: bool = False
    """Whether the dataset continues without it."""
    time: str | None = None
    """System time of the block that says so, once it is accepted."""
    block: str | None = None
