"""Formats row counts: those that are not zero, and that the number of records does not show already. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from odfd.control import wire

_SAID: Final = {
    "unchanged": "unchanged",
    "corrected": "corrected",
    "retracted": "retracted",
    "conflicting": "conflicting",
    "superseded": "superseded",
    "late": "late",
    "untimed": "without event time",
    "quarantined": "quarantined",
}
"""By field of ``RowCounts``, in this order."""
_TOLD_FILES: Final = 3
"""Of one reason."""
_TOLD_REASONS: Final = 4


def rows_text(rows: wire.RowCounts | None) -> str:
    """``5 read: 3 appended, 2 unchanged``; empty where all that was read was appended, or nothing was read."""
    if rows is None:
        return ""
    said = [f"{number:,} {word}" for field, word in _SAID.items() if (number := getattr(rows, field))]
    told = [text for text in (skipped_text(rows.skipped), *rows.remarks) if text]
    if rows.read is None:
        return "; ".join(part for part in (", ".join(said), *told) if part)
    left_out = rows.read - (rows.shaped or 0) - (rows.quarantined or 0)
    if left_out > 0:
        said.append(f"{left_out:,} left out by preprocess")
    if said:
        if rows.appended:
            said.insert(0, f"{rows.appended:,} appended")
        said = [f"{rows.read:,} read: {', '.join(said)}"] if rows.read else [", ".join(said)]
    return "; ".join([*said, *told])


def skipped_text(skipped: Sequence[wire.SkippedFile]) -> str:
    """``skipped a.csv, b.csv and 2 more (it is empty), …``: files of one reason together."""
    if not skipped:
        return ""
    names: dict[str, list[str]] = {}
    for file in skipped:
        names.setdefault(file.reason, []).append(file.name)
    told = [f"{_some(files)} ({reason})" for reason, files in names.items()]
    left = sum(map(len, list(names.values())[_TOLD_REASONS:]))
    return "skipped " + ", ".join(told[:_TOLD_REASONS]) + (f" and {left} more" if left else "")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _TOLD_FILES} more" if len(names) > _TOLD_FILES else ""
    return ", ".join(names[:_TOLD_FILES]) + more
