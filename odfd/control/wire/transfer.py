"""Defines requests to export, import and push datasets, and their results."""

from __future__ import annotations

from typing import Literal

from odfd.control.wire.value import Problem, Request, Value


class ExportRequest(Request, frozen=True, kw_only=True):
    to: str
    """Absolute path or URL, as the daemon sees it."""
    table: Literal["delta"] | None = None
    """Table format whose metadata is also written; ``None``: none."""


class PushRequest(Request, frozen=True, kw_only=True):
    refs: tuple[str, ...] = ()
    all: bool = False
    """Whether to push every published dataset."""
    to: str | None = None
    """REPOSITORY, or REPOSITORY/NAME for one dataset; ``None``: the only repository."""
    private: bool = False
    """Whether to push datasets that are not published, too."""


class PushItem(Value, frozen=True, kw_only=True):
    ref: str
    outcome: Literal["pushed", "up-to-date", "private", "failed"]
    """``private``: left out, as it is not published and all datasets were requested."""
    place: str = ""
    """The place in the form REPOSITORY/NAME."""
    blocks: int = 0
    objects: int = 0
    bytes: int = 0
    """Bytes of the objects."""
    head: str | None = None
    fault: Problem | None = None


class PushResult(Value, frozen=True, kw_only=True):
    """Result of the task ``push``."""

    items: tuple[PushItem, ...]


class ImportRequest(Request, frozen=True, kw_only=True):
    source: str
    """Absolute path or URL, as the daemon sees it."""
    as_name: str | None = None


class TransferResult(Value, frozen=True, kw_only=True):
    """Result of the tasks ``export`` and ``import``."""

    ref: str
    place: str
    blocks: int
    objects: int
    bytes: int
    table_version: int | None = None
    """Version of the table whose metadata an export wrote; null without one, or without rows."""
    compared: str | None = None
    """Agreement of the import of a former format with its original, in words; null without conversion."""
