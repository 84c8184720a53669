"""Adds up row counts, and completes them from what a slice holds. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from chain.data.operations import Operations
from engines.contract import MAX_REMARKS, RowCounts, SkippedFile
from engines.skipped import bounded_list

_NUMBERS: Final = tuple(name for name in RowCounts.__struct_fields__ if name not in ("skipped", "remarks"))
_ZEROS: Final[dict[str, Any]] = dict.fromkeys(_NUMBERS, 0)
NOTHING_READ: Final = RowCounts(**_ZEROS)


def added(one: RowCounts, other: RowCounts) -> RowCounts:
    """Of both together; what one of them does not say is not known of both. A file counts once."""
    numbers: dict[str, Any] = {}
    for name in _NUMBERS:
        pair = getattr(one, name), getattr(other, name)
        numbers[name] = None if None in pair else sum(pair)
    remarks = all_remarks(one.remarks, other.remarks)
    return RowCounts(skipped=together(one.skipped, other.skipped), remarks=remarks, **numbers)


def together(one: tuple[SkippedFile, ...], other: tuple[SkippedFile, ...]) -> tuple[SkippedFile, ...]:
    """Files that were passed over, each once, as many as are told."""
    return bounded_list((*one, *other))


def all_remarks(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Each once, as many as are told."""
    return tuple(dict.fromkeys((*one, *other)))[:MAX_REMARKS]


def says_something(counts: RowCounts) -> bool:
    """Whether any row was read, any file passed over, or anything is to be told."""
    return bool(counts.skipped or counts.remarks) or any(getattr(counts, name) for name in _NUMBERS)


def with_written(counts: RowCounts, written: Operations) -> RowCounts:
    """What was written is counted in the slice, whatever the engine says of it."""
    return msgspec.structs.replace(
        counts, appended=written.append, corrected=written.corrections, retracted=written.retract
    )
