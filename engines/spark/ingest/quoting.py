"""Checks whether quotes in CSV text stand where RFC 4180 allows them, and finds where records may end.

Sans-IO over a buffer. A quote opens a value only at the value's beginning, and the quote that closes it is followed by
a separator or a line end; between, a quote is doubled. A quote in a value that no quote opened is a plain character, as
for every reader. All else is refused, naming the line, for readers differ on its meaning: text after a closing quote,
and a quote that is never closed, which would make one value of the rest of the file.

Text with quotes in pairs is proven correct with numpy, one window at a time; other text is walked through by a regular
expression. A declared escape character precedes a quote, or itself, within quoted values only; such values are
rewritten with doubled quotes, so that only one dialect has to be parsed.
"""

from __future__ import annotations

import enum
import functools
import re
from typing import Final

import numpy as np

from chain.errors import Invalid
from chain.wording import plural
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.ranges import WINDOW, View, first_of, release

_LF: Final = 10
_CR: Final = 13
_SHOWN: Final = 60


class Quotes(enum.Enum):
    """How the quotes of a text affect its split into records."""

    IN_LINES = "in lines"
    """No value holds a line end, so every newline ends a record."""
    ACROSS_LINES = "across lines"
    LITERAL = "literal"
    """Some quotes are plain characters, so it is not proven where records end."""


def check_quotes(view: View, start: int, dialect: CsvDialect, place: str) -> Quotes:
    """Returns how quotes affect the split. Raises Invalid, naming the line, for quotes that readers
    would interpret differently."""
    quote = dialect.quote.encode()
    if first_of(view, quote, start) < 0:
        return Quotes.IN_LINES
    proven = _proven(view, start, dialect)
    if proven is not None:
        return proven
    walked = _walk(dialect).match(view, start)
    end = walked.end() if walked else start
    if end < len(view):
        raise _quote_fault(view, end, dialect, place)
    return Quotes.LITERAL


def _proven(view: View, start: int, dialect: CsvDialect) -> Quotes | None:
    """Returns the effect of quotes if each opens a value at its start, closes one at its end, or is
    doubled; else ``None``."""
    data = np.frombuffer(view, np.uint8)
    beside = np.zeros(256, bool)
    beside[[ord(dialect.separator), _LF, _CR, ord(dialect.quote)]] = True
    size = WINDOW if dialect.escape is None else max(len(data), 1)
    inside, across = 0, False
    try:
        for first in range(start, len(data), size):
            window = data[first : first + size]
            quotes = _marks(window, dialect) + first
            opening, closing = quotes[inside::2], quotes[1 - inside :: 2]
            opens = (opening == start) | beside[data[np.maximum(opening - 1, 0)]]
            if dialect.escape is not None:
                # No value begins after an escaped quote: outside of quoted values an escape is a plain character.
                behind = data[np.maximum(opening - 1, 0)] == ord(dialect.quote)
                opens &= (opening == start) | ~behind | np.isin(opening - 1, closing)
            closes = (closing == len(data) - 1) | beside[data[np.minimum(closing + 1, len(data) - 1)]]
            if not (opens.all() and closes.all()):
                return None
            if not across and (inside or len(quotes)):
                ends = np.flatnonzero((window == _LF) | (window == _CR)) + first
                across = bool(np.any((np.searchsorted(quotes, ends) + inside) % 2))
            inside = (inside + len(quotes)) % 2
            release(view, first, first + size)
    finally:
        del data
    if inside:
        return None
    return Quotes.ACROSS_LINES if across else Quotes.IN_LINES


def _marks(text: np.ndarray, dialect: CsvDialect) -> np.ndarray:
    """Returns the positions of quotes that are not escaped: an odd number of escapes precedes an escaped one."""
    quotes = np.flatnonzero(text == ord(dialect.quote))
    if dialect.escape is None:
        return quotes
    escapes = np.flatnonzero(text == ord(dialect.escape))
    if not len(escapes):
        return quotes
    firsts = np.flatnonzero(np.diff(escapes, prepend=-2) != 1)
    lengths = np.diff(firsts, append=len(escapes))
    behind = escapes[firsts] + lengths
    return np.setdiff1d(quotes, behind[lengths % 2 == 1], assume_unique=True)


@functools.cache
def _walk(dialect: CsvDialect) -> re.Pattern[bytes]:
    """Returns a pattern that matches as many complete values, with the separator after each, as there are."""
    separator = re.escape(dialect.separator.encode())
    bare = rb"[^%b%b\r\n][^%b\r\n]*+" % (re.escape(dialect.quote.encode()), separator, separator)
    return re.compile(rb"(?:(?:%b|%b|)(?:%b|\r\n?|\n|\Z))*+" % (_quoted_pattern(dialect), bare, separator))


def _quoted_pattern(dialect: CsvDialect) -> bytes:
    quote = re.escape(dialect.quote.encode())
    if dialect.escape is None:
        return rb"%b(?:[^%b]++|%b%b)*+%b" % (quote, quote, quote, quote, quote)
    escape = re.escape(dialect.escape.encode())
    within = rb"[^%b%b]++|%b%b|%b[%b%b]|%b" % (quote, escape, quote, quote, escape, quote, escape, escape)
    return rb"%b(?:%b)*+%b" % (quote, within, quote)


def record_pattern(dialect: CsvDialect) -> bytes:
    separator = re.escape(dialect.separator.encode())
    bare = rb"[^%b%b\r\n][^%b\r\n]*+" % (re.escape(dialect.quote.encode()), separator, separator)
    value = rb"(?:%b|%b|)" % (_quoted_pattern(dialect), bare)
    return rb"%b(?:%b%b)*+(?:\r\n?|\n|\Z)" % (value, separator, value)


def record_end(view: View, start: int, dialect: CsvDialect) -> int:
    """Returns the position after the record that begins at ``start``, and after its line end."""
    found = re.compile(record_pattern(dialect)).match(view, start)
    return found.end() if found else len(view)


def quote_marks(data: bytes, dialect: CsvDialect) -> np.ndarray | None:
    """Returns the positions of the quotes that open and close values, in turn; ``None`` if some
    quotes are plain characters."""
    if not data or _proven(data, 0, dialect) is None:
        return None
    return _marks(np.frombuffer(data, np.uint8), dialect)


def _quote_fault(view: View, at: int, dialect: CsvDialect, place: str) -> Invalid:
    """Makes the error for a value that cannot be read; ``at``: position of the quote that opens it."""
    line = view[:at].count(b"\n") + 1
    closed = re.compile(_quoted_pattern(dialect)).match(view, at)
    if closed is None:
        lost = view[at:].count(b"\n")
        behind = f"; the {plural(lost, 'line')} behind it would be one value" if lost else ""
        return Invalid(
            f"a quote is opened and never closed{behind}: {_excerpt(view, at)}",
            rule="read-quotes",
            hint="close it, or if the file's last part is missing, wait for the whole file",
            place=f"{place}:{line}",
        )
    return Invalid(
        f"text behind the quote that closes a value: {_excerpt(view, at)}",
        rule="read-quotes",
        hint="write quotes within a quoted value twice, or declare the escape character that the file has",
        place=f"{place}:{line}",
    )


def _excerpt(view: View, at: int) -> str:
    return repr(bytes(view[at : at + _SHOWN]).split(b"\n")[0].decode("utf-8", "replace"))


def unescape(data: bytes, dialect: CsvDialect) -> bytes:
    """Rewrites quoted values with doubled quotes and without escapes; lines stay unchanged."""
    if dialect.escape is None or dialect.escape.encode() not in data:
        return data
    quote, escape = dialect.quote.encode(), dialect.escape.encode()
    if _escapes_are_quoted(data, dialect):
        parts = (part.replace(escape + quote, quote + quote) for part in data.split(escape + escape))
        return escape.join(parts)
    pairs = re.compile(rb"%b([%b%b])" % tuple(map(re.escape, (escape, quote, escape))))
    separator = re.escape(dialect.separator.encode())
    values = re.compile(rb"(?<![^%b\r\n])%b" % (separator, _quoted_pattern(dialect)))

    def double(pair: re.Match[bytes]) -> bytes:
        return quote + quote if pair[1] == quote else escape

    def rewritten(value: re.Match[bytes]) -> bytes:
        return pairs.sub(double, value[0]) if escape in value[0] else value[0]

    return values.sub(rewritten, data)


def _escapes_are_quoted(data: bytes, dialect: CsvDialect) -> bool:
    """Whether it is proven that each escape stands within a quoted value."""
    if _proven(data, 0, dialect) is None:
        return False
    text = np.frombuffer(data, np.uint8)
    escapes = np.flatnonzero(text == ord(dialect.escape or ""))
    return bool(np.all(np.searchsorted(_marks(text, dialect), escapes) % 2 == 1))
