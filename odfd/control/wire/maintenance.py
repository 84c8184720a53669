"""Values about the care of a node: backups, its log, and what is sent to those who are asked for help."""

from __future__ import annotations

from typing import Annotated

import msgspec

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
