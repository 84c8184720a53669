"""Formats row counts: those that are not zero, and that the number of records does not show already. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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


def rows_text(rows: Mapping[str, Any] | None) -> str:
    """``5 read: 3 appended, 2 unchanged``; empty where all that was read was appended, or nothing was read."""
    if rows is None:
        return ""
    said = [f"{rows[field]:,} {word}" for field, word in _SAID.items() if rows.get(field)]
    told = [text for text in (skipped_text(rows.get("skipped") or ()), *(rows.get("remarks") or ())) if text]
    if rows.get("read") is None:
        return "; ".join(part for part in (", ".join(said), *told) if part)
    left_out = rows["read"] - (rows.get("shaped") or 0) - (rows.get("quarantined") or 0)
    if left_out > 0:
        said.append(f"{left_out:,} left out by preprocess")
    if said:
        if rows.get("appended"):
            said.insert(0, f"{rows['appended']:,} appended")
        said = [f"{rows['read']:,} read: {', '.join(said)}"] if rows["read"] else [", ".join(said)]
    return "; ".join([*said, *told])


def skipped_text(skipped: Any) -> str:
    """``skipped 2 files: a.csv (it is empty), …``."""
    if not skipped:
        return ""
    told = ", ".join(f"{file['name']} ({file['reason']})" for file in skipped[:_TOLD_FILES])
    more = f" and {len(skipped) - _TOLD_FILES} more" if len(skipped) > _TOLD_FILES else ""
    return f"skipped {told}{more}"
