"""Reads ``node.log-levels``: the least level that is logged, for single parts of the program. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error")
_PART: Final = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*")


def part_levels(entries: Iterable[str]) -> dict[str, str]:
    """Returns the level of each part from entries like ``p2p.driver=debug``. Raises ValueError for a bad one."""
    levels: dict[str, str] = {}
    for entry in entries:
        part, _, level = entry.partition("=")
        if not _PART.fullmatch(part) or level not in LEVELS:
            raise ValueError(f"{entry!r} is no part with a level, one of {', '.join(LEVELS)}")
        if part in levels:
            raise ValueError(f"{part} has two levels")
        levels[part] = level
    return levels
