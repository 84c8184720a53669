"""Refuses records that are too long before a parser sees them: Arrow takes several times their size, in one piece.

Sans-IO over a buffer. A file of no more bytes than a record may have is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.wording import size
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.quoting import record_pattern
from engines.spark.ingest.ranges import WINDOW, View

RULE: Final = "record-size"


def check_lines(view: View, most: int, place: str, ends: Sequence[bytes] = (b"\n",)) -> None:
    """Raises Invalid, with the line, for a line of more than ``most`` bytes.

    Looks back from where the longest line would end, so that few of the bytes are read.
    """
    at = 0
    while len(view) - at > most:
        end = max(view.rfind(each, at, at + most + 1) for each in ends)
        if end < 0:
            after = min((found for each in ends if (found := view.find(each, at)) >= 0), default=len(view))
            raise _too_long(view, at, after - at, most, place)
        at = end + 1


def check_quoted(view: View, start: int, dialect: CsvDialect, most: int, place: str) -> None:
    """Raises Invalid, with its first line, for a record of CSV whose quoted values make it longer than ``most``."""
    for record in re.compile(record_pattern(dialect)).finditer(view, start) if len(view) > most else ():
        if record.end() - record.start() > most:
            raise _too_long(view, record.start(), record.end() - record.start(), most, place)


def check_items(view: View, items: Sequence[bytes | msgspec.Raw], most: int, place: str) -> None:
    """Raises Invalid for an element of a document of more than ``most`` bytes."""
    longest = max(items, key=len, default=b"")
    if len(longest) > most:
        raise _too_long(view, view.find(bytes(longest)), len(longest), most, place)


def _too_long(view: View, at: int, length: int, most: int, place: str) -> Invalid:
    before = sum(view[start : min(start + WINDOW, at)].count(b"\n") for start in range(0, at, WINDOW))
    return Invalid(
        f"a record of {size(length)}, and {size(most)} is the most",
        rule=RULE,
        hint="is another kind of file, separator or quote meant? ingest.record-bytes of the settings allows more, "
        "of which the engine needs several times as much memory",
        place=f"{place}:{before + 1}",
    )
