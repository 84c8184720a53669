"""Completes a word of a query: datasets, columns of those it names, functions and words of SQL. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

_WORD: Final = re.compile(r"[\w.]*\Z")
_NAME: Final = re.compile(r"[\w.]+")
_AFTER: Final = re.compile(r"\b(?:from|join)\s+[\w.]*\Z", re.IGNORECASE)
_COMMAND: Final = re.compile(r"\\\w*\Z")
CURRENT: Final = "current."
WORDS: Final = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "QUALIFY", "LIMIT", "JOIN", "LEFT JOIN", "USING",
    "WITH", "UNION ALL", "CASE", "WHEN", "THEN", "ELSE", "END", "DISTINCT", "BETWEEN", "IS NULL", "OVER (PARTITION BY",
    "FOR SYSTEM_TIME AS OF", "AT BLOCK", "AS AT",
)  # fmt: skip
COMMANDS: Final[Mapping[str, str]] = {
    "\\d": "datasets; \\d NAME: its columns",
    "\\o": "the form of answers: \\o csv",
    "\\pin": "what the last answer was read from; \\pin FILE writes it",
    "\\plan": "how a query would be answered: \\plan SELECT …",
    "\\q": "leave",
    "\\?": "this list",
}


def completions(
    before: str, datasets: Sequence[str], columns: Mapping[str, Sequence[str]], functions: Collection[str]
) -> Iterator[tuple[str, int]]:
    """Words for the text before the cursor, and how many characters of it each replaces. ``columns``: of datasets."""
    if command := _COMMAND.match(before.lstrip()):
        yield from ((each, len(command[0])) for each in COMMANDS if each.startswith(command[0]))
        return
    found = _WORD.search(before)
    assert found is not None
    word = found[0]
    low = word.lower()
    if before.lstrip().startswith("\\d ") or _AFTER.search(before):
        names = [*datasets, *(CURRENT + each for each in datasets)]
        yield from ((name, len(word)) for name in names if name.lower().startswith(low))
        return
    if not word:
        return
    named = set(_NAME.findall(before.lower()))
    known = [name for name in datasets if {name.lower(), CURRENT + name.lower()} & named]
    last = low.rpartition(".")[2]
    seen: set[str] = set()
    for column in (column for name in known for column in columns.get(name, ())):
        if column.lower().startswith(last) and column not in seen:
            seen.add(column)
            yield column, len(last)
    yield from ((f"{each}(", len(word)) for each in sorted(functions) if low and each.startswith(low))
    yield from ((each, len(word)) for each in WORDS if each.lower().startswith(low))
