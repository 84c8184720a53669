"""Matches groups of adjacent words in a query that have a meaning in another dialect. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engines.spark.analysis.lexical import Word, quote_name

MAX_SAID: Final = 2000
"""Most characters of a message about a phrase; longer phrases are not reported, so this bounds their words too."""
_UNITS: Final = re.compile(r"(SECOND|MINUTE|HOUR|DAY|WEEK)S?", re.IGNORECASE)
_AMOUNT: Final = re.compile(r"\d{1,9}(\.\d{1,6})?")
TEXTS: Final = frozenset({"STRING_LITERAL", "DOUBLEQUOTED_STRING"})
_PLAIN: Final = re.compile(r"[a-zA-Z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Phrase:
    """Adjacent tokens that form a construct of another dialect."""

    code: str
    message: str
    replace: str
    """Spark's words for it; if not ``exact``, advice."""
    first: int
    last: int
    """Indexes of the first and the last word."""
    place: tuple[int, int]
    """(line, column) of the first word, both counted from 1."""
    exact: bool = True
    """Whether ``replace`` can be put in place of the words, with the meaning that they have in the other dialect."""
    certain: bool = True
    """False if Spark accepts the words too, with another meaning, which may be the intended one."""


@dataclass(frozen=True, slots=True)
class QueryText:
    """The tokens of a query, and the phrases that were found in them."""

    words: Sequence[Word]
    found: Mapping[int, Phrase]
    """Phrases by the index of their first word."""

    def upper(self, at: int) -> str:
        """Returns the token at an index in capitals; empty out of range."""
        return self.words[at].text.upper() if 0 <= at < len(self.words) else ""

    def in_spark(self, first: int, last: int) -> str:
        """Returns the words from ``first`` to ``last`` in Spark's terms, without comments."""
        pieces: list[str] = []
        at, before = first, -1
        while at <= last:
            phrase = self.found.get(at)
            use = phrase is not None and phrase.exact and phrase.last <= last
            if before >= 0 and not _touches(self.words[before], self.words[at]):
                pieces.append(" ")
            pieces.append(phrase.replace if use and phrase is not None else self.words[at].text)
            before = phrase.last if use and phrase is not None else at
            at = before + 1
        return "".join(pieces)

    def name(self, first: int, last: int) -> str | None:
        """Returns a qualified column name; ``None`` if the tokens are none."""
        parts = []
        for at in range(first, last + 1):
            if (at - first) % 2:
                if self.words[at].text != ".":
                    return None
            elif not is_name(self.words[at]):
                return None
            parts.append(in_backticks(self.words[at]) if is_quoted(self.words[at]) else self.words[at].text)
        return "".join(parts) if (last - first) % 2 == 0 else None

    def closing(self, opening: int) -> int | None:
        """Returns the index of the bracket that closes the one at ``opening``; ``None`` if there is none nearby."""
        depth = 0
        for at in range(opening, min(len(self.words), opening + MAX_SAID)):
            depth += {"(": 1, ")": -1}.get(self.words[at].text, 0)
            if not depth:
                return at
        return None

    def arguments(self, opening: int, closing: int) -> list[tuple[int, int]]:
        """Returns the first and last token of each argument between two brackets."""
        found, begin, depth = [], opening + 1, 0
        for at in range(opening + 1, closing + 1):
            text = self.words[at].text
            if (text == "," and not depth) or at == closing:
                found.append((begin, at - 1))
                begin = at + 1
            depth += {"(": 1, ")": -1}.get(text, 0)
        return found if closing > opening + 1 else []

    def duration(self, first: int, last: int) -> str | None:
        """Returns a constant duration, like ``10 minutes``; ``None`` if the tokens are none, or one of months."""
        if self.upper(first) != "INTERVAL" or last != first + 2:
            return None
        amount = self.words[first + 1]
        number = amount.text[1:-1] if amount.kind in TEXTS else amount.text
        unit = _UNITS.fullmatch(self.words[last].text)
        if unit is None or _AMOUNT.fullmatch(number) is None or ("." in number and unit[1].upper() != "SECOND"):
            return None
        return f"{number} {unit[1].lower()}{'' if number == '1' else 's'}"


def _touches(word: Word, follower: Word) -> bool:
    return word.line == follower.line and word.column + len(word.text) == follower.column


def is_quoted(word: Word) -> bool:
    return word.kind == "DOUBLEQUOTED_STRING"


def is_name(word: Word) -> bool:
    return is_quoted(word) or word.kind == "BACKQUOTED_IDENTIFIER" or _PLAIN.fullmatch(word.text) is not None


def in_backticks(word: Word) -> str:
    return quote_name(word.text[1:-1])
