"""Defines the values of changes of a root's schema."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from odfd.control.wire.datasets import Column
from odfd.control.wire.value import Request, Value


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
