"""Takes time clauses that DuckDB does not know out of a statement; all other text stays in place.

``FOR SYSTEM_TIME AS OF '…'`` (or ``AS OF '…'``), ``AT BLOCK '…'`` and ``AS AT '…'`` follow the name of a dataset. They
are replaced by blanks of the same length, so positions in errors are those in the text that a person wrote. Should the
lexer here mistake text for a clause, no harm is done: only the remaining text is judged and run. Pure.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

AS_OF: Final = "as-of"
AT_BLOCK: Final = "at-block"
AS_AT: Final = "as-at"
_TOKEN: Final = re.compile(
    rb"""[eE]'(?:\\.|''|[^'\\])*'|'(?:''|[^'])*'|"(?:""|[^"])*"|--[^\n]*|/\*.*?(?:\*/|\Z)|\$(\w*)\$.*?(?:\$\1\$|\Z)"""
    rb"""|[A-Za-z_\x80-\xff][\w$\x80-\xff]*|\s+|.""",
    re.DOTALL,
)
"""What is opened and never closed reaches to the end: each of many such would be looked for up to there."""
_QUOTED: Final = re.compile(rb"""[eE]?'|"|\$""")
_BLANK: Final = re.compile(rb"\xc2\xa0|\xe2\x80[\x80-\x8b\xaf]|\xe2\x81[\x9f\xa0]|\xe3\x80\x80|\xef\xbb\xbf")
"""What DuckDB takes for blanks beyond ASCII, in UTF-8."""
_SHAPES: Final[Sequence[tuple[str, tuple[bytes, ...]]]] = (
    (AS_OF, (b"for", b"system_time", b"as", b"of")),
    (AS_OF, (b"as", b"of")),
    (AT_BLOCK, (b"at", b"block")),
    (AS_AT, (b"as", b"at")),
)
_TYPES: Final = (b"timestamp", b"timestamptz", b"date")
"""Words that may precede a time."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A time clause; it has the bytes ``start <= n < end`` of the statement."""

    kind: str
    value: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Word:
    text: bytes
    start: int
    end: int


def take_out(statement: bytes) -> tuple[bytes, tuple[Clause, ...]]:
    """Returns the statement with its clauses blanked, and the clauses in order."""
    words = list(_words(statement))
    clauses: list[Clause] = []
    place = 0
    while place < len(words):
        found = _clause(words, place)
        if found is None:
            place += 1
            continue
        clause, place = found
        clauses.append(clause)
    left = bytearray(statement)
    for each in clauses:
        left[each.start : each.end] = b" " * (each.end - each.start)
    return bytes(left), tuple(clauses)


def is_blank(between: bytes) -> bool:
    """Whether a text has only blanks and comments."""
    return next(_words(between), None) is None


def name_end(statement: bytes, start: int, path: Sequence[str]) -> int | None:
    """Returns the end of the name that begins at ``start``; ``None`` if that is not ``path``. Case does not matter.

    DuckDB knows no place of the name after ``TABLE``, and says one far behind the end.
    """
    if start > len(statement):
        return None
    wanted = [each for part in path for each in (part.encode().lower(), b".")][:-1]
    found = list(itertools.islice(_words(statement, start), len(wanted)))
    return found[-1].end if [_unquote(word.text).lower() for word in found] == wanted else None


def _unquote(word: bytes) -> bytes:
    quote = word[:1]
    return word[1:-1].replace(2 * quote, quote) if quote in (b'"', b"'") else word


def with_plain_blanks(statement: bytes) -> bytes:
    """Replaces blanks of Unicode by as many of ASCII as they have bytes, except in quotes.

    DuckDB takes each for one blank, and would give the places of what follows in a text that nobody has.
    """

    def plain(token: re.Match[bytes]) -> bytes:
        word = token[0]
        return word if _QUOTED.match(word) else _BLANK.sub(lambda blank: b" " * len(blank[0]), word)

    return _TOKEN.sub(plain, statement)


def first_of(statement: bytes, name: str) -> int | None:
    plain = name.casefold().encode()
    return next((word.start for word in _words(statement) if word.text.lower() in (plain, b'"' + plain + b'"')), None)


def with_backquotes(statement: bytes) -> str:
    """Converts the statement to Spark's spelling: names in backquotes, and backslashes in texts escaped."""

    def spelt(token: re.Match[bytes]) -> bytes:
        word = token[0]
        if word.startswith(b'"'):
            return b"`" + word[1:-1].replace(b'""', b'"').replace(b"`", b"``") + b"`"
        if word.startswith(b"'"):
            return b"'" + word[1:-1].replace(b"\\", b"\\\\").replace(b"''", b"\\'") + b"'"
        return word

    return _TOKEN.sub(spelt, statement).decode()


def _words(statement: bytes, start: int = 0) -> Iterator[_Word]:
    for token in _TOKEN.finditer(statement, start):
        text = token[0]
        if not (text.isspace() or text.startswith((b"--", b"/*"))):
            yield _Word(text, token.start(), token.end())


def _clause(words: Sequence[_Word], place: int) -> tuple[Clause, int] | None:
    """Returns the clause that begins at a word, and the index of the word after it; ``None`` if none begins there."""
    for kind, shape in _SHAPES:
        after = place + len(shape)
        if tuple(word.text.lower() for word in words[place:after]) != shape:
            continue
        if kind != AT_BLOCK and after < len(words) and words[after].text.lower() in _TYPES:
            after += 1
        if after < len(words) and words[after].text.startswith(b"'"):
            literal = words[after]
            value = literal.text[1:-1].replace(b"''", b"'").decode("utf-8", "replace")
            return Clause(kind, value, words[place].start, literal.end), after + 1
    return None
