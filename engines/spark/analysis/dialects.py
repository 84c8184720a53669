"""Recognises constructs of other SQL dialects in a query, and gives Spark's words for the same. Pure.

Spark's parser takes Flink's windows for unknown functions, a temporal join for a table of another catalog, and a name
in double quotes for a text. None of its errors says so. This module searches the words of a query for such phrases, and
translates each where Spark can express the same meaning.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from engines.spark.analysis.flink import MAX_PHRASES, group_windows, table_windows, temporal_joins
from engines.spark.analysis.lexical import Word
from engines.spark.analysis.phrases import MAX_SAID, TEXTS, Phrase, QueryText, in_backticks, is_quoted

QUOTED: Final = "quoted-name"
_SIGNS: Final = re.compile(
    r'"|\b(?:tumble|hop|session|cumulate)(?:_start|_end|_rowtime|_proctime)?\s*\(|\bfor\s+system_time\b', re.IGNORECASE
)


def may_be_foreign(sql: str) -> bool:
    """Whether a text may hold such phrases at all; most do not, and need no tokens."""
    return _SIGNS.search(sql) is not None


def foreign(words: Sequence[Word], columns: Collection[str] = ()) -> list[Phrase]:
    """Returns phrases of other dialects, in order. ``columns``: names of columns that the query sees."""
    known = {name.casefold() for name in columns}
    found = _first(_find_double_quoted(words, known))
    for read in (group_windows, table_windows, temporal_joins):
        found.update(_first(read(QueryText(words, found))))
    phrases = [found[first] for first in sorted(found)]
    sure = [phrase for phrase in phrases if phrase.certain]
    # A quoted name inside another phrase is translated with that phrase.
    return [phrase for phrase in phrases if phrase.certain or not any(_holds(each, phrase) for each in sure)]


def _holds(whole: Phrase, part: Phrase) -> bool:
    return whole.exact and whole.first <= part.first and part.last <= whole.last


def _first(phrases: Iterator[Phrase]) -> dict[int, Phrase]:
    """Returns the phrases by the index of their first word."""
    few = itertools.islice(phrases, MAX_PHRASES)
    return {phrase.first: phrase for phrase in few if len(phrase.message) + len(phrase.replace) <= MAX_SAID}


def _find_double_quoted(words: Sequence[Word], columns: Collection[str]) -> Iterator[Phrase]:
    """Yields texts in double quotes that stand where a name must be, or that are spelled like a column."""
    clauses = [False]
    for at, word in enumerate(words):
        if word.text == "(":
            clauses.append(False)
        elif word.text == ")" and len(clauses) > 1:
            clauses.pop()
        elif word.text.upper() == "SELECT":
            clauses[-1] = True
        if not is_quoted(word) or len(word.text) < 3 or "\\" in word.text:
            continue
        name = in_backticks(word)
        if _is_named(words, at, clauses[-1]):
            message = f"{word.text} is a text to Spark, and here stands a name: names have backticks"
            yield Phrase(QUOTED, message, name, at, at, (word.line, word.column))
        elif word.text[1:-1].casefold() in columns and not _is_part_of_literal(words, at):
            message = (
                f"{word.text} is the text '{word.text[1:-1]}' to Spark, in every row, and not the column of that name; "
                "in single quotes it is plainly a text"
            )
            yield Phrase(QUOTED, message, name, at, at, (word.line, word.column), certain=False)


def _is_named(words: Sequence[Word], at: int, in_query: bool) -> bool:
    """Whether the grammar has a name, not a text, at this place. ``in_query``: a FROM before it belongs to a SELECT."""
    before = words[at - 1] if at else None
    after = words[at + 1] if at + 1 < len(words) else None
    if after is not None and after.text == ".":
        return True
    if before is None:
        return False
    spoken = before.text.upper()
    if spoken in ("FROM", "JOIN"):
        return in_query
    return spoken in (".", "AS", ")") or (before.kind == "IDENTIFIER" and spoken != "X")


def _is_part_of_literal(words: Sequence[Word], at: int) -> bool:
    """Whether a text is part of a longer literal: texts side by side are one, and those after DATE,
    INTERVAL etc. are times."""
    neighbours = [words[number].kind for number in (at - 1, at + 1) if 0 <= number < len(words)]
    if TEXTS.intersection(neighbours):
        return True
    return at > 0 and words[at - 1].text.upper().partition("_")[0] in ("DATE", "TIMESTAMP", "TIME", "INTERVAL", "X")
