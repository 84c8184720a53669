"""Limits lists of skipped files to a bounded length, and counts the rest. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chain.wording import plural
from engines.contract import MAX_SKIPPED, SkippedFile

NOT_NAMED: Final = f"only the first {MAX_SKIPPED - 1} are named"
"""Reason in the last entry, which stands for all files that are not listed."""


def bounded_list(files: Iterable[SkippedFile]) -> tuple[SkippedFile, ...]:
    """Lists each file once, the first ``MAX_SKIPPED``; if there are more, the last entry counts them.

    The given lists may have been cut already; then a file in several of them counts once.
    """
    unique = dict.fromkeys(files)
    named = tuple(each for each in unique if each.reason != NOT_NAMED)
    others = max((_number(each) for each in unique if each.reason == NOT_NAMED), default=0)
    if not others and len(named) <= MAX_SKIPPED:
        return named
    others += max(0, len(named) - MAX_SKIPPED + 1)
    return (*named[: MAX_SKIPPED - 1], SkippedFile(name=plural(others, "more file"), reason=NOT_NAMED))


def _number(entry: SkippedFile) -> int:
    digits = entry.name.partition(" ")[0].replace(",", "")
    return int(digits) if digits.isdecimal() and len(digits) < 20 else 0
