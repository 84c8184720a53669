"""Defines values about changes of schemas and histories."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from odfd.control.wire.authority import AuthorityDraft, SignatureText
from odfd.control.wire.datasets import Column
from odfd.control.wire.value import Request, Value


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


class AlterSchemaRequest(Request, frozen=True, kw_only=True):
    """``add`` changes a source dataset; the others make the manifest of a derived dataset with other columns."""

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
    """Whether the source dataset continues with the change, or only another dataset can have it."""
    course_text: str = ""
    """What that means for rows so far and rows to come, as sentences."""
    manifest: str | None = None
    """Manifest of the derived dataset."""
    blocks: int = 0
    """Number of blocks that were written."""
    head: str | None = None
