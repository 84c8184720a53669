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
    """Of ``add`` and ``widen`` as SQL writes them, ``city STRING``; of ``rename`` the old name and the new one."""
    query: str | None = None
    """The last query of the sources' preprocess from now on."""
    computed: bool = False
    """The query computes the columns; files do not have them."""
    derived: str | None = None
    """Name of the dataset to be derived."""
    dry_run: bool = False


class AlterSchemaResult(Value, frozen=True, kw_only=True):
    """Result of the task ``alter``."""

    ref: str
    action: Literal["add", "widen", "rename", "drop"]
    outcome: Literal["altered", "planned"]
    """``planned``: nothing was written; of what is derived ``manifest`` is to be applied."""
    events: tuple[str, ...] = ()
    """What mirrors take, a block each."""
    columns: tuple[Column, ...]
    """As they are then, of the root or of what is derived."""
    added: tuple[Column, ...] = ()
    """In which earlier rows are null."""
    records: int = 0
    """Such rows."""
    derivations: tuple[str, ...] = ()
    """Datasets here that read this one: their queries go on with the columns that they know."""
    remarks: tuple[str, ...] = ()
    """What becomes of files and rows to come."""
    manifest: str | None = None
    """Of the derived dataset."""
    blocks: int = 0
    """That were written."""
    head: str | None = None
