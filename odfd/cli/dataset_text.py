"""Formats columns of datasets, their profiles, and row counts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from odfd.cli import formatting
from odfd.cli.table import WHOLE, Stack, TableColumn, render
from odfd.control import wire

_FIELDS: Final[tuple[TableColumn[wire.Column], ...]] = (
    TableColumn("COLUMN", lambda row: row.name),
    TableColumn("TYPE", lambda row: row.type),
    TableColumn("", lambda row: "" if row.optional else "required"),
)
_COMMENT: Final[TableColumn[Any]] = TableColumn("COMMENT", lambda row: row.comment, most=WHOLE)
_PROFILE: Final[tuple[TableColumn[wire.ColumnProfile], ...]] = (
    TableColumn("COLUMN", lambda row: row.name),
    TableColumn("TYPE", lambda row: row.type),
    TableColumn("NULLS", lambda row: formatting.count(row.nulls), right=True),
    TableColumn("MINIMUM", lambda row: formatting.cell(row.minimum), most=32),
    TableColumn("MAXIMUM", lambda row: formatting.cell(row.maximum), most=32),
    TableColumn("DISTINCT", lambda row: _distinct(row.distinct), right=True),
)


def schema_table(columns: Sequence[wire.Column]) -> str:
    """Formats columns as a table, with comments if there are any."""
    return render((*_FIELDS, _COMMENT) if any(column.comment for column in columns) else _FIELDS, columns)


def profile_text(profile: wire.DataProfile) -> str:
    """Formats a table of the columns, and the coverage of the profile."""
    if not profile.columns:
        return profile.message
    table = (*_PROFILE, _COMMENT) if any(column.comment for column in profile.columns) else _PROFILE
    return Stack([render(table, profile.columns), *_remarks(profile)])


def size_text(profile: wire.DataProfile, records: int | None) -> str:
    """Formats the size of all slices; an estimate from the inspected slices if those are not all."""
    if profile.is_whole or not profile.records:
        return f"{formatting.size(profile.bytes)} in {formatting.plural(profile.slices, 'slice')}"
    whole = profile.bytes * (records or profile.records) / profile.records
    return f"about {formatting.size(whole)}, by the newest {formatting.plural(profile.slices, 'slice')}"


def growth_text(growth: wire.Growth | None) -> str:
    if growth is None:
        return "not known: no two slices were written an hour apart"
    rows, since, until = round(growth.records_per_day), *map(formatting.moment, (growth.since, growth.until))
    rate = formatting.plural(rows, "record") if rows else "less than a record"
    return f"{rate}, {formatting.size(growth.bytes_per_day)} a day, from {since} to {until}"


def _distinct(count: wire.CountRange | None) -> str:
    if count is None:
        return formatting.NOTHING
    ends = [formatting.count(each) for each in (count.at_least, count.at_most)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _remarks(profile: wire.DataProfile) -> list[str]:
    """Lists remarks on parts that the table does not show."""
    parts = [f"  of the newest {formatting.plural(profile.slices, 'slice')} alone"] if not profile.is_whole else []
    if profile.unread:
        parts.append(f"  without {formatting.plural(profile.unread, 'slice')} whose files cannot be read here")
    if profile.message:
        parts.append(f"  {profile.message}")
    text = "  from the statistics in the files; - is a value that they do not have"
    return [*parts, text] if profile.slices > profile.unread else parts


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
"""Words by field of ``RowCounts``, in this order."""
_TOLD_FILES: Final = 3
"""Files that are listed for one reason."""
_TOLD_REASONS: Final = 4


def rows_text(rows: wire.RowCounts | None) -> str:
    """Formats ``5 read: 3 appended, 2 unchanged``; empty if all rows were appended, or none read."""
    if rows is None:
        return ""
    parts = [f"{number:,} {word}" for field, word in _SAID.items() if (number := getattr(rows, field))]
    remarks = [text for text in (skipped_text(rows.skipped), *rows.remarks) if text]
    if rows.read is None:
        return "; ".join(part for part in (", ".join(parts), *remarks) if part)
    left_out = rows.read - (rows.shaped or 0) - (rows.quarantined or 0)
    if left_out > 0:
        parts.append(f"{left_out:,} left out by preprocess")
    if parts:
        if rows.appended:
            parts.insert(0, f"{rows.appended:,} appended")
        parts = [f"{rows.read:,} read: {', '.join(parts)}"] if rows.read else [", ".join(parts)]
    return "; ".join([*parts, *remarks])


def skipped_text(skipped: Sequence[wire.SkippedFile]) -> str:
    """Formats ``skipped a.csv, b.csv and 2 more (it is empty), …``: files grouped by reason."""
    if not skipped:
        return ""
    names: dict[str, list[str]] = {}
    for file in skipped:
        names.setdefault(file.reason, []).append(file.name)
    parts = [f"{_some(files)} ({reason})" for reason, files in names.items()]
    left = sum(map(len, list(names.values())[_TOLD_REASONS:]))
    return "skipped " + ", ".join(parts[:_TOLD_REASONS]) + (f" and {left} more" if left else "")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _TOLD_FILES} more" if len(names) > _TOLD_FILES else ""
    return ", ".join(names[:_TOLD_FILES]) + more


def state_text(view: wire.DatasetView) -> str:
    """Formats the state of a dataset, with the rule by which newer blocks of it are refused."""
    return f"{view.state} by {view.refused_by}" if view.refused_by else view.state
