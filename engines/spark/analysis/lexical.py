"""Splits a query into tokens as Spark's own lexer does, for checks of a text before it is parsed. Pure.

A parser recurses as deep as brackets nest, and forgets how a constant was written: ``date'today'`` and ``time '12:00'``
are plain constants in its plan. So depth, size, typed literals and texts that mean a time of today are checked here.
The tokens come from the lexer of the pinned Spark, so comments, escapes and odd spellings mean what they mean to Spark.
Spec: docs/spec/engine-semantics.md#determinism.

Words are also matched in groups that have a meaning in another dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chain.errors import Invalid
from engines.spark.analysis.functions import NOT_TEXT
from engines.spark.analysis.tree import PlanNode

MAX_WORDS: Final = 50_000
"""Most tokens of one query; 20,000 columns take 60,000 and are not written by hand."""
MAX_BRACKETS: Final = 100
"""Greatest depth to which brackets and CASE nest: the parser's time grows with its square."""
MAX_TYPES: Final = 16
"""Greatest depth to which ``array<array<...`` nests: a hundred levels take the parser three seconds."""
MAX_PREFIXES: Final = 32
"""Most signs and NOTs in a row, and arrows of lambdas in one expression."""
TOO_LARGE: Final = "plan-too-large"
_SPLIT: Final = "split the query: make an inner part a dataset of its own"
_HEAD: Final = re.compile(r"\[@-?\d+,(\d+):(\d+)='")
_TAIL: Final = re.compile(r"',<(-?\d+)>(?:,channel=(\d+))?,(\d+):(\d+)\](?:, )?")
_OPEN: Final = {"LEFT_PAREN": "RIGHT_PAREN", "LEFT_BRACKET": "RIGHT_BRACKET", "CASE": "END"}
_CLOSE: Final = frozenset(_OPEN.values())
_PREFIXES: Final = frozenset({"PLUS", "MINUS", "TILDE", "NOT", "BANG"})
_NESTED_TYPES: Final = frozenset({"ARRAY", "MAP", "STRUCT"})
_STRINGS: Final = frozenset({"STRING_LITERAL", "DOUBLEQUOTED_STRING"})
_TIMES: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
_DATED: Final = re.compile(r"\s*[+-]?\d{4,7}(-\d{1,2}){0,2}(?![\d:])", re.ASCII)
"""A time that states its day: it begins with a year, a month or a day."""
MOVES: Final = re.compile(r"\s*(now|today|yesterday|tomorrow)\b", re.IGNORECASE)
"""Words that mean the current day or time; Spark takes them in any case, and with a zone after them."""
_DATES: Final = frozenset({"date", "timestamp_ntz"})
_STAMPS: Final = {"ParseToTimestamp": "timestamp", "TryToTimestamp": "timestamp", "ParseToDate": "date"}
"""Casts to times, unless a pattern is given."""
_COLUMNS: Final = frozenset({"AttributeReference", "NamedLambdaVariable", "OuterReference"})
_DOCUMENTS: Final = frozenset({"JsonToStructs", "CsvToStructs"})


@dataclass(frozen=True, slots=True)
class Word:
    """A token of a query, with its place."""

    kind: str
    """Symbolic name of the token type in Spark's grammar."""
    text: str
    line: int
    column: int
    """Line and column, both counted from 1."""


def read_words(rendered: str, sql: str, name_of: Callable[[int], str]) -> list[Word]:
    """Reads tokens from a Java list of tokens as text. ``name_of``: the symbolic name of a token type.

    A token shows its text in quotes, and the text may hold anything; but its position in ``sql`` comes first, so the
    text is known before it is read. Raises Invalid for what is not such a list, and for more than ``MAX_WORDS``.
    """
    words: list[Word] = []
    at = 1
    while at < len(rendered) - 1:
        head = _HEAD.match(rendered, at)
        if head is None:
            raise Invalid("the query cannot be cut into words", rule="parse")
        text = sql[int(head[1]) : int(head[2]) + 1]
        shown = text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
        tail = _TAIL.match(rendered, head.end() + len(shown))
        if tail is None:
            raise Invalid("the query cannot be cut into words", rule="parse")
        at = tail.end()
        if tail[2] is None:
            words.append(Word(name_of(int(tail[1])), text, int(tail[3]), int(tail[4]) + 1))
            if len(words) > MAX_WORDS:
                raise Invalid(f"the query has more than {MAX_WORDS} words", rule=TOO_LARGE, hint=_SPLIT)
    return words


def check_depth(words: Sequence[Word]) -> None:
    """Raises Invalid for nesting that is too deep for a parser's recursion."""
    brackets: list[str] = []
    types = prefixes = arrows = 0
    before = ""
    for word in words:
        kind = word.kind
        if kind in _OPEN:
            brackets.append(_OPEN[kind])
            if len(brackets) > MAX_BRACKETS:
                raise _too_deep(f"brackets nest deeper than {MAX_BRACKETS} levels", word)
        elif kind in _CLOSE and brackets and brackets[-1] == kind:
            brackets.pop()
        if kind == "LT" and before in _NESTED_TYPES:
            types += 1
            if types > MAX_TYPES:
                raise _too_deep(f"types nest deeper than {MAX_TYPES} levels", word)
        elif types and kind == "GT":
            types -= 1
        elif types and kind == "SHIFT_RIGHT":
            types = max(0, types - 2)
        prefixes = prefixes + 1 if kind in _PREFIXES else 0
        arrows += kind == "ARROW"
        if prefixes > MAX_PREFIXES:
            raise _too_deep(f"more than {MAX_PREFIXES} signs or NOTs in a row", word)
        if arrows > MAX_WORDS // 100:
            raise _too_deep(f"more than {MAX_WORDS // 100} lambda functions", word)
        before = kind


def _too_deep(what: str, word: Word) -> Invalid:
    return Invalid(f"{what} (line {word.line}, column {word.column})", rule=TOO_LARGE, hint=_SPLIT)


def find_undated(words: Sequence[Word]) -> Iterator[tuple[str, int, int]]:
    """Yields (text, line, column) of each typed time literal without a day, which takes the day of the run.

    Adjacent texts are one to Spark. A text with an escape in it may spell anything, and no time needs one: it counts as
    undated.
    """
    for at, word in enumerate(words):
        if word.kind not in _TIMES or at + 1 == len(words) or words[at + 1].kind not in _STRINGS:
            continue
        end = at + 1
        parts = []
        while end < len(words) and words[end].kind in _STRINGS:
            parts.append(words[end].text)
            end += 1
        text = "".join(part.lstrip("rR")[1:-1] for part in parts)
        if "\\" in text or not says_its_day(text):
            yield text.strip(), word.line, word.column


def says_its_day(text: str) -> bool:
    """Whether a constant text denotes the same time on every day."""
    return _DATED.match(text) is not None


def type_depth(text: str) -> int:
    """Bounds from above how deep types nest in a text that may be read as a type, such as a schema of ``from_json``."""
    depth = deepest = 0
    for mark in text:
        if mark in "<(":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in ">)" and depth:
            depth -= 1
    return deepest


def reads_todays_time(node: PlanNode) -> bool:
    """Whether an expression reads a text as a time that may lack its day: a cast of '12:34' has the current day.

    Spark takes the day of the clock if the text of a timestamp has none, in casts that are written, in casts that it
    adds by itself, and in JSON and CSV. A pattern always has a day: 1970-01-01 if it states none. Dates and local
    timestamps refuse such texts, but constants among them may be words such as 'today'. A constant text is inspected;
    one that is computed may spell anything, since it is not evaluated here.
    """
    if node.kind in _DOCUMENTS:
        return '"timestamp"' in json.dumps(node.fields.get("schema"))  # its options are not in a plan's JSON
    target = node.type_name if node.kind == "Cast" else _STAMPS.get(node.kind, "")
    if not target or len(node.children) != 1:
        return False
    child = node.only
    if child.kind == "Literal":
        text = str(child.fields.get("value"))
        moves = bool(MOVES.match(text)) or (target == "timestamp" and not says_its_day(text))
        return target in ("timestamp", *_DATES) and child.type_name == "string" and moves
    if target == "timestamp":
        return may_be_text(child)
    constant = not any(part.kind in _COLUMNS for part in child.preorder())
    return target in _DATES and constant and may_be_text(child)


def may_be_text(node: PlanNode) -> bool:
    """Whether an expression's value may be a text, as far as a plan's JSON shows, which only has the
    types of columns."""
    stated = node.fields.get("dataType")
    if stated is not None and node.kind in ("AttributeReference", "Cast", "Literal", "NamedLambdaVariable"):
        return isinstance(stated, str) and stated.startswith(("string", "char", "varchar"))
    if node.kind in NOT_TEXT:
        return False
    if node.kind == "GetStructField" and isinstance(node.only.fields.get("dataType"), dict):
        ordinal, fields = node.fields.get("ordinal"), node.only.fields["dataType"].get("fields")
        if isinstance(fields, list) and isinstance(ordinal, int):
            return str(fields[ordinal].get("type")).startswith(("string", "char", "varchar"))
    if node.kind == "If":
        return any(may_be_text(child) for child in node.children[1:])
    return not node.children or any(may_be_text(child) or _holds_text(child) for child in node.children)


def _holds_text(node: PlanNode) -> bool:
    stated = node.fields.get("dataType")
    return isinstance(stated, dict) and '"string' in json.dumps(stated)


def quote_name(name: str) -> str:
    """Formats a name as Spark's SQL reads it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


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
