"""Defines values about changes of schemas and histories, garbage collection, backups and captured bytes of sources."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from odfd.control.wire.authority import AuthorityDraft, SignatureText
from odfd.control.wire.datasets import Column
from odfd.control.wire.value import Request, Value


class SettingsView(Value, frozen=True, kw_only=True):
    """The settings in force."""

    toml: str
    """The settings as a file, each line with its origin; secrets are masked."""
    file: str | None = None
    """The settings file that was read; ``null``: none, only defaults, variables and flags."""


class BackupRequest(Request, frozen=True, kw_only=True):
    to: str
    """An absolute path, as the daemon sees it."""
    keep: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 7
    """Number of snapshots that stay there, this one included."""


class BackupResult(Value, frozen=True, kw_only=True):
    """Result of the task ``backup``."""

    snapshot: str
    """Folder of the snapshot."""
    objects: int
    copied: int
    """Number of objects that were not there yet."""
    bytes: int
    """Bytes of those."""
    dropped: int = 0
    """Number of older snapshots that were removed."""
    small: int = 0
    """Number of further objects, which are in the database."""
    database: int = 0
    """Bytes of the copied database."""


class RewriteRequest(Request, frozen=True, kw_only=True):
    """``reset``: ``to`` becomes the head. ``compact``: merges slices. ``keep-metadata``: removes blocks of data."""

    action: Literal["reset", "compact", "keep-metadata"]
    to: str | None = None
    """A block's hash, or ``#N``."""
    before: str | None = None
    """Hash that the head must have; with another one nothing is done."""
    reason: Literal["reset", "recovery", "fork"] = "reset"
    """Reason that is stated for the epoch of a reset."""
    max_slice_bytes: int | None = None
    """Most bytes of the slices that are merged into one; ``None``: 300 MB."""
    max_slice_rows: int | None = None
    """Most rows of such a slice; ``None``: 10,000."""
    dry_run: bool = False
    payload: str | None = None
    """The unchanged draft of a dry run; ``None``: the keys that are here suffice."""
    signatures: tuple[SignatureText, ...] = ()
    """Signatures of that draft, made elsewhere."""


class RewriteResult(Value, frozen=True, kw_only=True):
    """Result of the tasks ``reset`` and ``compact``."""

    ref: str
    dataset_id: str
    action: Literal["reset", "compact", "keep-metadata"]
    outcome: Literal["rewritten", "planned", "unchanged"]
    """``planned``: a dry run, which describes the rewrite."""
    kept: int
    """Number of blocks that stay unchanged."""
    before: int
    """Number of blocks before."""
    blocks: int
    """Number of blocks after."""
    merged: int = 0
    """Number of data blocks that are merged."""
    into: int = 0
    """Number of blocks that they become."""
    head: str | None = None
    epoch: int = 0
    """Epoch of the new head."""
    message: str = ""
    """Reason why nothing changes."""
    draft: AuthorityDraft | None = None
    """In a dry run: the draft that the roots have to sign."""


class CollectRequest(Request, frozen=True, kw_only=True):
    dry_run: bool = False


class CollectedObject(Value, frozen=True, kw_only=True):
    name: str
    size: int


class CollectResult(Value, frozen=True, kw_only=True):
    """The result of the task ``gc``: what was freed; in a dry run what would be."""

    objects: int
    bytes: int
    waiting: int = 0
    """Unreferenced objects that may still be read or referenced soon."""
    waiting_bytes: int = 0
    dry_run: bool = False
    listed: tuple[CollectedObject, ...] = ()
    """Some of the objects, in a dry run."""
    unlisted: int = 0
    """Number of objects that are not listed."""
    statements: int = 0
    """Number of statements dropped from the trust ledger, which need not keep them."""
    folds: int = 0
    """Number of states dropped that were kept for queries, of histories that no longer exist."""
    fold_bytes: int = 0


class CapturedFileView(Value, frozen=True, kw_only=True):
    """A file as it came from a source."""

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
    """Result of the task ``bind``: the captures of a root as a dataset that others may have."""

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


class AlterSchemaRequest(Request, frozen=True, kw_only=True):
    """``add`` changes a root; the others make the manifest of a dataset derived from it, in which columns differ."""

    action: Literal["add", "widen", "rename", "drop"]
    columns: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=10_000)]
    """For ``add`` and ``widen`` columns as in SQL, ``city STRING``; for ``rename`` the old name and the new one."""
    query: str | None = None
    """The new last query of the sources' preprocess; ``None``: it stays."""
    computed: bool = False
    """Whether the query computes the columns, which files do not have."""
    derived: str | None = None
    """Name of the dataset to be derived."""
    dry_run: bool = False


class AlterSchemaResult(Value, frozen=True, kw_only=True):
    """Result of the task ``alter``."""

    ref: str
    action: Literal["add", "widen", "rename", "drop"]
    outcome: Literal["altered", "planned"]
    """``planned``: nothing was written; for a derived dataset, apply ``manifest``."""
    events: tuple[str, ...] = ()
    """Names of the events that were added, a block each, which mirrors will take."""
    columns: tuple[Column, ...]
    """The columns after the change, of the root or of the derived dataset."""
    added: tuple[Column, ...] = ()
    """The new columns, which are null in earlier rows."""
    records: int = 0
    """Number of those earlier rows."""
    derivations: tuple[str, ...] = ()
    """Local datasets that read this one: their queries continue with the columns that they know."""
    remarks: tuple[str, ...] = ()
    """Effects on future files and rows."""
    course: Literal["evolves", "rewrites"] = "evolves"
    """Whether the root goes on with the change, or only another dataset can have it."""
    course_text: str = ""
    """What that means for rows so far and rows to come, as sentences."""
    manifest: str | None = None
    """Manifest of the derived dataset."""
    blocks: int = 0
    """Number of blocks that were written."""
    head: str | None = None
