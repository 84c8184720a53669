"""Defines values of reclocking: one source ingested by several nodes at once.

Spec: docs/spec/collections.md#reclocking.
"""

from __future__ import annotations

from odfd.control.wire.datasets import SkippedFile
from odfd.control.wire.value import Request, Value


class ReclockRequest(Request, frozen=True, kw_only=True):
    """Asks to begin a collection at a repository by a dataset's declaration, or to be one of its instances."""

    at: str
    """Name of the repository: a folder, a bucket or on an SFTP server."""
    chain: str | None = None
    """Id of the reclocking chain, to ingest as one of several instances; null: a new collection begins."""
    shards: int = 1
    """For a new one: the number of chains that its rows are in."""
    by: tuple[str, ...] = ()
    """For a new one: the columns whose hash decides the shard of a row."""
    by_part: bool = False
    """For a new one: the part of the source, a file or a partition, decides the shard of its rows."""
    keep_raw: bool = False
    """For a new one: bytes that the source would give again, as those of a topic, are kept in the repository too."""
    uploads: tuple[str, ...] = ()
    """Ids of uploads, in order, that are pushed into the collection of ``chain``."""
    id: str | None = None
    """Idempotency key of the push: repeated to any instance, it gets the same receipt; null: a hash of the push."""
    source: str | None = None
    """Of a push: the name of the push source; null: the only one."""
    event_time: str | None = None
    """Of a push: event time of rows without one."""


class ShardReceiptView(Value, frozen=True, kw_only=True):
    """The block of a push in one shard."""

    shard: str
    block: str
    number: int
    first: int | None = None
    """First offset of its rows; null: none of them is in this shard."""
    last: int | None = None


class PushReceiptView(Value, frozen=True, kw_only=True):
    """Says what became of a push; the same each time that it is repeated."""

    id: str
    time: str
    """Its time in the collection."""
    records: int
    shards: tuple[ShardReceiptView, ...]
    repeated: bool = False
    """Whether it was bound before this call."""


class ReclockView(Value, frozen=True, kw_only=True):
    """A collection that several instances ingest, and what this one did now."""

    chain: str
    """Id of the reclocking chain."""
    at: str
    """The repository."""
    shards: tuple[str, ...]
    """Ids of the shards."""
    by: tuple[str, ...] = ()
    by_part: bool = False
    keep_raw: bool = False
    bound: int = 0
    """Bindings of this instance."""
    forgotten: int = 0
    """Bindings that came after one of another instance, and were dropped."""
    written: int = 0
    """Transactions that this instance was the first to write."""
    repeated: int = 0
    """Transactions that were there already, with the same content."""
    receipt: PushReceiptView | None = None
    """Of a push."""
    skipped: tuple[SkippedFile, ...] = ()
    """What the source has, or lost, and was not bound: files that came too late, messages of a forgotten session."""
