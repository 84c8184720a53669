"""Infers the type of a column of texts, and defines what is inferred of a file. Pure over a sample."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

NULLS: Final = ("NA", "N/A", "n/a", "NULL", "null", "None", "NaN", "nan", "-", "?", ".")
"""Words that files use for a missing value; each use is reported, for it may be a value."""
_WHOLE: Final = re.compile(r"[+-]?(?:0|[1-9]\d{0,17})")
_POINT: Final = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_COMMA: Final = re.compile(r"[+-]?\d+,\d+")
_GROUPS: Final = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+(?:,\d+)?")
_ZERO: Final = re.compile(r"[+-]?0\d|\+")
_DIGITS: Final = re.compile(r"[+-]?\d+(?:[.,]\d*)?")
_BOOLS: Final = frozenset({"true", "false", "True", "False", "TRUE", "FALSE"})
_ISO_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_ISO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?P<zone>Z|[+-]\d\d:?\d\d)?")
_NUMBERED: Final = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})((?:[ T]\d{1,2}:\d\d(?::\d\d)?)?)")


class GuessedColumn(NamedTuple):
    """A guessed column; ``ddl``: its type. The other fields are options for the read step, and doubts."""

    ddl: str
    decimal: str | None = None
    thousands: str | None = None
    date: str | None = None
    timestamp: str | None = None
    nulls: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    grouped: GuessedColumn | None = None
    """The column in a file whose decimals have commas, so that its points divide groups of thousands."""


TEXT: Final = GuessedColumn("STRING")


def column_of(values: Sequence[str]) -> GuessedColumn:
    """Infers a column from its nonempty values."""
    nulls = tuple(word for word in NULLS if word in values)
    remarks = tuple(f"{word!r} is taken for no value" for word in nulls)
    for words in ((), nulls) if nulls else ((),):
        left = [value.strip() for value in values if value not in words]
        found = _kind(left) if left else None
        if found is not None:
            return found._replace(nulls=words, unsure=(*found.unsure, *(remarks if words else ())))
    return TEXT


def _kind(values: Sequence[str]) -> GuessedColumn | None:
    def all_(pattern: re.Pattern[str]) -> bool:
        return all(pattern.fullmatch(value) for value in values)

    if any(_ZERO.match(value) for value in values) and all_(_DIGITS):
        return GuessedColumn(
            "STRING", unsure=("texts of digits with zeros or signs before them, which a number loses",)
        )
    if all_(_WHOLE):
        return GuessedColumn("BIGINT")
    if all_(_POINT):
        amounts = GuessedColumn("DOUBLE", unsure=("DECIMAL(p,s) keeps all digits, where these are amounts",))
        return amounts._replace(grouped=_whole_groups(values))
    if all(value in _BOOLS for value in values):
        return GuessedColumn("BOOLEAN")
    if all_(_ISO_DATE):
        return GuessedColumn("DATE")
    if all_(_ISO_TIME):
        naive = any(not match["zone"] for value in values if (match := _ISO_TIME.fullmatch(value)))
        return GuessedColumn(
            "TIMESTAMP", unsure=("times without a zone are taken for UTC; timeZone says another",) if naive else ()
        )
    return _guess_by_spelling(values, all_)


def _whole_groups(values: Sequence[str]) -> GuessedColumn | None:
    first = next((value for value in values if _GROUPS.fullmatch(value)), None)
    if first is None or not all(_GROUPS.fullmatch(value) or _WHOLE.fullmatch(value) for value in values):
        return None
    doubt = f"{first} is taken for {first.replace('.', '')}, as other columns have decimal commas"
    return GuessedColumn("BIGINT", thousands=".", unsure=(doubt,))


def _guess_by_spelling(values: Sequence[str], all_: Callable[[re.Pattern[str]], bool]) -> GuessedColumn | None:
    if all(_COMMA.fullmatch(value) or _GROUPS.fullmatch(value) or _WHOLE.fullmatch(value) for value in values):
        groups = any(_GROUPS.fullmatch(value) for value in values)
        comma = any("," in value for value in values)
        if comma:
            return GuessedColumn("DOUBLE", decimal=",", thousands="." if groups else None)
    if all_(_NUMBERED):
        return _guess_date(values)
    return None


def _guess_date(values: Sequence[str]) -> GuessedColumn | None:
    parts = [_NUMBERED.fullmatch(value) for value in values]
    found = [part for part in parts if part is not None]
    first, second = (max(int(each[place]) for each in found) for place in (1, 3))
    marks, tails = {each[2] for each in found}, {each[5].count(":") for each in found}
    if len(marks) != 1 or len(tails) != 1 or (first > 12 and second > 12):
        return None
    mark, colons = marks.pop(), tails.pop()
    month_first = second > 12 or (first <= 12 and mark == "/")
    date = f"%m{mark}%d{mark}%Y" if month_first else f"%d{mark}%m{mark}%Y"
    unsure = (f"day and month may be the other way round: {date}",) if max(first, second) <= 12 else ()
    if not colons:
        return GuessedColumn("DATE", date=date, unsure=unsure)
    between = "T" if "T" in found[0][5] else " "
    time = date + between + ("%H:%M" if colons == 1 else "%H:%M:%S")
    return GuessedColumn(
        "TIMESTAMP", timestamp=time, unsure=(*unsure, "these times name no zone: UTC, or what timeZone says")
    )


class Guess(NamedTuple):
    """A guess; ``read``: the step of a manifest. ``columns``: names and types in DDL, with the doubts about each.

    ``gaps``: the columns in which a row of the sample has no value.
    """

    read: dict[str, Any]
    columns: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    unsure: tuple[str, ...] = ()
    gaps: frozenset[str] = frozenset()
