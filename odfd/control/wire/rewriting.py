"""Values about rewriting histories, collecting garbage, backups, and the log of a node."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from odfd.control.wire.authority import AuthorityDraft, SignatureText
from odfd.control.wire.value import Request, Value


class SettingsView(Value, frozen=True, kw_only=True):
    """The settings in force."""

    toml: str
    """As a file, each line with its origin; secrets are masked."""
    file: str | None = None
    """The one that was read; ``null``: none, there are defaults, variables and flags alone."""


class BackupRequest(Request, frozen=True, kw_only=True):
    to: str
    """An absolute path, as the daemon sees it."""
    keep: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 7
    """Snapshots that stay there, this one included."""


class BackupResult(Value, frozen=True, kw_only=True):
    """Result of the task ``backup``."""

    snapshot: str
    """Its folder."""
    objects: int
    copied: int
    """Objects that were not there yet."""
    bytes: int
    """Of those."""
    dropped: int = 0
    """Older snapshots that were removed."""


class RewriteRequest(Request, frozen=True, kw_only=True):
    """``reset``: ``to`` becomes the head. ``compact``: merges slices. ``keep-metadata``: removes blocks of data."""

    action: Literal["reset", "compact", "keep-metadata"]
    to: str | None = None
    """A block's hash, or ``#N``."""
    reason: Literal["reset", "recovery", "fork"] = "reset"
    """What the epoch of a reset says of itself."""
    max_slice_bytes: int | None = None
    """Of the slices that are merged into one; ``None``: 300 MB."""
    max_slice_rows: int | None = None
    """``None``: 10,000."""
    dry_run: bool = False
    payload: str | None = None
    """The draft of a dry run as it was given; ``None``: the keys that are here suffice."""
    signatures: tuple[SignatureText, ...] = ()
    """Of that draft, made elsewhere."""


class RewriteResult(Value, frozen=True, kw_only=True):
    """Result of the tasks ``reset`` and ``compact``."""

    ref: str
    dataset_id: str
    action: Literal["reset", "compact", "keep-metadata"]
    outcome: Literal["rewritten", "planned", "unchanged"]
    """``planned``: a dry run says what would be done."""
    kept: int
    """Blocks that stay as they are."""
    before: int
    """Blocks there were."""
    blocks: int
    """Blocks there are then."""
    merged: int = 0
    """Blocks of data that are merged."""
    into: int = 0
    """Blocks that they become."""
    head: str | None = None
    epoch: int = 0
    """That the head belongs to."""
    message: str = ""
    """Why nothing changes."""
    draft: AuthorityDraft | None = None
    """In a dry run: what the roots have to sign for it."""


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
    """Some of them, in a dry run."""
    unlisted: int = 0
    """How many more there are."""
    statements: int = 0
    """Dropped from the trust ledger, which need not keep them."""
    folds: int = 0
    """Dropped of what was kept for queries, of histories that are no more."""
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
    """Name of the push source; empty: they were polled."""
    label: str | None = None
    """What the source said of its version: an etag, a time, the name of a file."""
    files: tuple[CapturedFileView, ...]


class RawView(Value, frozen=True, kw_only=True):
    """The kept bytes of a dataset's source, counted."""

    dataset: str
    """Its name."""
    keeping: bool
    """Whether what comes from now on is kept."""
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
    """Whether none differs."""
    same: int
    equivalent: int
    """The same rows, in slices of other bytes, as another version of a library writes them."""
    differs: int
    rewritten: int
    """Of which the history has no block any more."""
    differences: tuple[RawDifference, ...] = ()
    """The first thousand."""
