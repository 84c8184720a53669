"""Recognises constructs of other SQL dialects in a query, and gives Spark's words for the same. Pure.

Spark's parser takes Flink's windows for unknown functions, a temporal join for a table of another catalog, and a name
in double quotes for a text. None of its errors says so. This module searches the words of a query for such phrases, and
translates each where Spark can express the same meaning.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from engines.spark.analysis.lexical import MAX_SAID, TEXTS, Phrase, QueryText, Word, in_backticks, is_name, is_quoted

MAX_PHRASES: Final = 20
"""Most phrases of each kind that are looked for in a query: a text may hold thousands, and each is read to its end."""
WINDOW: Final = "window-dialect"
TEMPORAL: Final = "temporal-dialect"
_WINDOWS: Final = re.compile(r"(TUMBLE|HOP|SESSION)(?:_(START|END|ROWTIME|PROCTIME))?|CUMULATE", re.IGNORECASE)
_FIELDS: Final = {"START": ".start", "END": ".end", "ROWTIME": ".end - interval '0.001' second"}
_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "TUMBLE": ("DATA", "TIMECOL", "SIZE", "OFFSET"),
    "HOP": ("DATA", "TIMECOL", "SLIDE", "SIZE", "OFFSET"),
    "SESSION": ("DATA", "TIMECOL", "GAP"),
    "CUMULATE": ("DATA", "TIMECOL", "STEP", "SIZE"),
}
"""Names of the parameters of the table functions, in their order."""
_ENDS: Final = frozenset({
    "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "JOIN", "INNER", "CROSS", "FULL", "NATURAL", "ANTI", "SEMI", "UNION",
    "EXCEPT", "INTERSECT", "MINUS", "WINDOW", "QUALIFY", "LATERAL", "SORT", "CLUSTER", "DISTRIBUTE", ",", ";", "|>",
})  # fmt: skip
"""Words that may follow the condition of a join; so may LEFT and RIGHT, where they are no functions."""
_ROWS: Final = (
    "(select *, {0}.start as window_start, {0}.end as window_end, {0}.end - interval '0.001' second as window_time "
    "from {1})"
)
_UNTRANSLATED: Final = (
    "group by window(event_time, '10 minutes'), of overlapping windows window(event_time, size, slide), of sessions "
    "session_window(event_time, gap), each with a constant like '10 minutes'"
)


def group_windows(text: QueryText) -> Iterator[Phrase]:
    """Yields ``TUMBLE(time, size)``, ``HOP(time, slide, size)``, ``SESSION(time, gap)``, and their bounds."""
    for at, match in _window_words(text):
        closing = text.closing(at + 1)
        if closing is None or match[1] is None:
            continue
        arguments = text.arguments(at + 1, closing)
        if not arguments or _is_table(text, arguments[0][0]):
            continue
        yield _group_window(text, at, closing, arguments, match[1].upper(), (match[2] or "").upper())


def _window_words(text: QueryText) -> Iterator[tuple[int, re.Match[str]]]:
    tried = 0
    for at, word in enumerate(text.words):
        match = _WINDOWS.fullmatch(word.text)
        if match is not None and text.upper(at + 1) == "(" and text.upper(at - 1) != "." and tried < MAX_PHRASES:
            tried += 1
            yield at, match


def _is_table(text: QueryText, at: int) -> bool:
    return text.upper(at) in ("TABLE", "(") or text.upper(at + 1) == "=>"


def _group_window(
    text: QueryText, at: int, closing: int, arguments: Sequence[tuple[int, int]], kind: str, part: str
) -> Phrase:
    word = text.words[at]
    spans = [text.duration(*span) for span in arguments[1:]]
    made = _window(kind, text.name(*arguments[0]), spans)
    message = f"{word.text}(…) is Flink's word for a window of event time"
    if part == "PROCTIME":
        message, replace, exact = (
            f"{word.text}(…) is the time of processing, which is no data",
            "write the bounds of windows of event time: window(event_time, '10 minutes').end",
            False,
        )
    elif made is None:
        replace, exact = _UNTRANSLATED, False
    else:
        replace, exact = made + _FIELDS.get(part, ""), True
    if exact and part == "ROWTIME":
        replace = f"({replace})"
    return Phrase(WINDOW, message, replace, at, closing, (word.line, word.column), exact)


def _window(kind: str, time: str | None, spans: Sequence[str | None]) -> str | None:
    """Returns Spark's call, given the lengths in Flink's order; ``None`` if one of them is not known."""
    match kind, time, spans:
        case "TUMBLE", str(), [str(size)]:
            return f"window({time}, '{size}')"
        case "HOP", str(), [str(slide), str(size)]:
            return f"window({time}, '{size}', '{slide}')"
        case "SESSION", str(), [str(gap)]:
            return f"session_window({time}, '{gap}')"
    return None


def table_windows(text: QueryText) -> Iterator[Phrase]:
    """Yields ``TABLE(TUMBLE(TABLE bid, DESCRIPTOR(time), size))`` and similar: rows with bounds of their windows."""
    for at, match in _window_words(text):
        closing = text.closing(at + 1)
        if closing is None or match[2] is not None:
            continue
        arguments = text.arguments(at + 1, closing)
        if not arguments or not _is_table(text, arguments[0][0]):
            continue
        kind = match[0].upper()
        first, last = at, closing
        if text.upper(at - 1) == "(" and text.upper(at - 2) == "TABLE" and text.upper(closing + 1) == ")":
            first, last = at - 2, closing + 1
        word = text.words[first]
        replace, exact = _rows_in_windows(text, kind, _by_parameter(text, kind, arguments))
        message = f"{kind} over a table is Flink's way to give rows the windows that they are in"
        yield Phrase(WINDOW, message, replace, first, last, (word.line, word.column), exact)


def _by_parameter(text: QueryText, kind: str, arguments: Sequence[tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Returns the arguments by Flink's parameter names, whether these are written or not."""
    named = {}
    for (first, last), name in zip(arguments, _PARAMETERS[kind], strict=False):
        if text.upper(first + 1) == "=>":
            named[text.upper(first)] = (first + 2, last)
        else:
            named[name] = (first, last)
    return named


def _rows_in_windows(text: QueryText, kind: str, given: Mapping[str, tuple[int, int]]) -> tuple[str, bool]:
    """Returns the text to write instead, and whether it has the same meaning by itself."""
    data, time = given.get("DATA"), given.get("TIMECOL")
    spans = {name: text.duration(*given[name]) for name in ("SIZE", "SLIDE", "GAP", "OFFSET") if name in given}
    column = None
    if time is not None and text.upper(time[0]) == "DESCRIPTOR" and time[1] >= time[0] + 3:
        column = text.name(time[0] + 2, time[1] - 1)
    if kind == "SESSION":
        session = _window(kind, column, [spans.get("GAP")]) or "session_window(event_time, '10 minutes')"
        return (
            f"group by {_keys(text, data)}{session}, whose bounds are session_window.start and session_window.end",
            False,
        )
    if kind == "CUMULATE":
        return "group by window(event_time, step), and add the windows up in a query over that dataset", False
    table = text.name(data[0] + 1, data[1]) if data is not None and text.upper(data[0]) == "TABLE" else None
    lengths = [spans.get("SIZE")] if kind == "TUMBLE" else [spans.get("SLIDE"), spans.get("SIZE")]
    call = _window(kind, column, lengths)
    if call is None or table is None or "OFFSET" in given:
        return _UNTRANSLATED, False
    return _ROWS.format(call, table), True


def _keys(text: QueryText, data: tuple[int, int] | None) -> str:
    """Returns the keys of ``TABLE bid PARTITION BY bidder``, as text to put before more keys in a GROUP BY."""
    for at in range(data[0], data[1] - 1) if data is not None else ():
        if (text.upper(at), text.upper(at + 1)) == ("PARTITION", "BY") and data is not None:
            return text.in_spark(at + 2, data[1]) + ", "
    return ""


def temporal_joins(text: QueryText) -> Iterator[Phrase]:
    """Yields ``JOIN rates FOR SYSTEM_TIME AS OF o.time AS r ON …``: the version of a row in force at a time."""
    for at, word in enumerate(text.words):
        if [text.upper(at + number) for number in range(4)] != ["FOR", "SYSTEM_TIME", "AS", "OF"]:
            continue
        table = text.words[at - 1].text if at and is_name(text.words[at - 1]) else "the input"
        message = f"FOR SYSTEM_TIME AS OF joins {table} as it was at a time: name it, with its key, in temporalTables"
        made = _temporal_join(text, at)
        replace, last = made if made is not None else (_versions("a.event_time", "b"), at + 3)
        yield Phrase(TEMPORAL, message, replace, at, last, (word.line, word.column), exact=made is not None)


def _versions(time: str, alias: str) -> str:
    return f"{time} >= {alias}.valid_from and {time} < {alias}.valid_to"


def _temporal_join(text: QueryText, at: int) -> tuple[str, int] | None:
    """Returns Spark's words for the part from FOR to the end of the condition, and the index of that end;
    ``None`` if it is not understood."""
    begin = at + 4
    end = _end_of_name(text, begin)
    time = text.name(begin, end) if end is not None else None
    table = at - 1
    if end is None or time is None or not is_name(text.words[table]) or text.upper(end + 1) == "(":
        return None
    following = end + 1
    named = ""
    if text.upper(following) == "AS":
        following += 1
        named = "as "
    alias = text.name(table, table)
    if text.upper(following) != "ON":
        alias = text.name(following, following) if following < len(text.words) else None
        named += f"{alias} "
        following += 1
    if alias is None or text.upper(following) != "ON":
        return None
    last = _end_of_condition(text, following + 1)
    if last is None or last <= following:
        return None
    condition = text.in_spark(following + 1, last)
    if _has_or(text, following + 1, last):
        condition = f"({condition})"
    return f"{named}on {condition} and {_versions(time, alias)}", last


def _end_of_name(text: QueryText, begin: int) -> int | None:
    if begin >= len(text.words) or not is_name(text.words[begin]):
        return None
    end = begin
    while text.upper(end + 1) == "." and end + 2 < len(text.words):
        end += 2
    return end


def _end_of_condition(text: QueryText, begin: int) -> int | None:
    """Returns the index of the last word of a join's condition; ``None`` if it is too far away."""
    for at in _outside_brackets(text, begin):
        spoken = text.upper(at)
        side = spoken in ("LEFT", "RIGHT") and text.upper(at + 1) != "("
        if spoken in _ENDS or side or spoken == ")":
            return at - 1
    return len(text.words) - 1 if len(text.words) < begin + MAX_SAID else None


def _has_or(text: QueryText, begin: int, last: int) -> bool:
    return any(text.upper(at) == "OR" for at in _outside_brackets(text, begin) if at <= last)


def _outside_brackets(text: QueryText, begin: int) -> Iterator[int]:
    """Yields the indexes of words outside brackets opened after ``begin``, up to the end of the bracket
    around ``begin``."""
    depth = 0
    for at in range(begin, min(len(text.words), begin + MAX_SAID)):
        depth += {"(": 1, ")": -1}.get(text.upper(at), 0)
        if depth < 0:
            yield at
            return
        if not depth and text.upper(at) != ")":
            yield at


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
            message = f"{word.text} is a text to Spark, and a name is expected here: names have backticks"
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
