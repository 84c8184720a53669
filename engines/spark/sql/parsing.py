"""Parses texts to analysed plans, through one check: what is not checked is not analysed.

Spark's analyser runs some statements while it looks at them, and evaluates constants. So a text is cut into words by
Spark's lexer, bounded, parsed, and its plan judged by ``analysis.parsed``; only a ``ParsedQuery`` can be analysed.
Nothing is executed to be looked at. Whoever gives Spark a text that a person or a peer wrote does it here.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from chain.errors import Invalid
from engines.spark.analysis.declarations import MAX_TEXT
from engines.spark.analysis.lexical import TOO_LARGE, Word, check_depth, read_words, undated
from engines.spark.analysis.parsed import Size, bounded_size
from engines.spark.analysis.refusals import Refused
from engines.spark.analysis.tree import Node, parse_plan
from engines.spark.catalyst.expressions import skip_commands
from engines.spark.catalyst.jvm_objects import jvm_object
from engines.spark.catalyst.plans import items, json_of, place_of
from engines.spark.sql import faults

Answer = TypeVar("Answer")
_REMEMBERED: Final = 1024
"""Texts whose judgement is kept: it depends on nothing but them."""
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ")
"""What an error of Spark's own begins with, also where PySpark does not know its class."""
_PARSER: Final = "org.apache.spark.sql.catalyst.parser"
MAX_SAID: Final = 1000
"""Characters of what Spark says; it repeats queries and plans in it."""
_WINDOWS: Final = '"class":"org.apache.spark.sql.catalyst.plans.logical.WithWindowDefinition"'
_SPLIT: Final = "split the query: make an inner part a dataset of its own"
_NOTHING: Final[Mapping[str, Size]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TextFindings:
    """What was found out about a text that may be analysed."""

    size: Size
    undated: tuple[tuple[str, int, int], ...]
    """Typed literals of a time that does not say its day: text, line, column."""


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query that was judged and is not analysed yet."""

    plan: Any
    """Of the JVM."""
    judgement: TextFindings


_judged: OrderedDict[tuple[object, ...], TextFindings] = OrderedDict()
_kinds: dict[int, str] = {}
_lock = threading.Lock()


def parsed(session: SparkSession, sql: str, known: Mapping[str, Size] = _NOTHING) -> ParsedQuery:
    """Parse a text and bound what it may cost. ``known``: sizes of the queries before it, by alias.

    Raises Invalid for what does more than ask or is too large, Spark's ParseException for what it cannot read.
    """
    key = sql, tuple((name, known[name]) for name in sorted(known))
    judgement = _judged.get(key)
    if judgement is not None:
        return ParsedQuery(_parse(session, sql), judgement)
    words = words_of(session, sql)
    check_depth(words)
    plan = _parse(session, sql)
    text = within_the_jvm(plan.toJSON)
    root = parse_plan(text)
    try:
        size = bounded_size(root, known, _named_windows(plan, text))
    except Refused as fault:
        fault.at = place_of(plan, root, fault.node) if fault.node is not None else None
        raise
    judgement = TextFindings(size, tuple(undated(words)))
    with _lock:
        _judged[key] = judgement
        while len(_judged) > _REMEMBERED:
            _judged.popitem(last=False)
    return ParsedQuery(plan, judgement)


def words_of(session: SparkSession, sql: str) -> list[Word]:
    """The words of a text. Raises Invalid for one that is too large."""
    if len(sql) > MAX_TEXT:
        raise Invalid(f"the query has {len(sql)} characters", rule="query-size", hint=f"at most {MAX_TEXT}")
    return read_words(_tokens_of(session, sql), sql, lambda kind: _name_of(session, kind))


def analysed(session: SparkSession, query: ParsedQuery) -> Any:
    """The analysed plan (a JVM object); nothing of it is run. Raises Spark's AnalysisException, and Invalid."""
    skip = skip_commands(session)
    return within_the_jvm(lambda: faults.analyse(session, query.plan, skip))


def within_the_jvm(work: Callable[[], Answer]) -> Answer:
    """What the JVM answers about a query. Raises Invalid where it fails in a way of its own that no query should meet:
    its stack was too small, or Spark has a fault. What Spark says of a query passes through.
    """
    try:
        return work()
    except Py4JJavaError as fault:
        name = str(fault.java_exception.getClass().getName())
        if name == "java.lang.StackOverflowError":
            raise Invalid("the query nests too deeply to be analysed", rule=TOO_LARGE, hint=_SPLIT) from fault
        said = " ".join(str(fault.java_exception.getMessage() or "").split())
        told = _CONDITION.match(said)
        raise Invalid(
            said[:MAX_SAID] if told is not None else f"Spark fails on this query: {name.rpartition('.')[2]} in it",
            rule=told[1].partition(".")[0].lower().replace("_", "-") if told is not None else "spark-fault",
            hint="write it another way, or split it to find the part that Spark fails on",
        ) from fault


def as_json(plan: Any) -> str:
    """An analysed plan as ``analysis.tree`` reads it. Raises Invalid."""
    return within_the_jvm(lambda: json_of(plan))


def _parse(session: SparkSession, sql: str) -> Any:
    return within_the_jvm(lambda: faults.parse(session, sql))


def _tokens_of(session: SparkSession, sql: str) -> str:
    """The tokens of Spark's lexer, as a Java list shows them."""
    characters = jvm_object(session, "org.antlr.v4.runtime.CharStreams.fromString")(sql)
    text = jvm_object(session, f"{_PARSER}.UpperCaseCharStream")(characters)

    def cut() -> str:
        lexer = jvm_object(session, f"{_PARSER}.SqlBaseLexer")(text)
        lexer.removeErrorListeners()
        return str(lexer.getAllTokens().toString())

    return within_the_jvm(cut)


def _name_of(session: SparkSession, kind: int) -> str:
    """Of a token type; they stay as they are for as long as Spark does."""
    if kind not in _kinds:
        lexer = jvm_object(session, f"{_PARSER}.SqlBaseLexer")
        _kinds[kind] = str(lexer.VOCABULARY.getSymbolicName(kind))
    return _kinds[kind]


def _named_windows(plan: Any, text: str) -> list[Node]:
    """Definitions of ``WINDOW w AS (...)``, which a plan's JSON leaves out. Raises Invalid if one is not found."""
    wanted = text.count(_WINDOWS)
    found: list[Node] = []
    for node in _operators(plan) if wanted else ():
        if node.getClass().getSimpleName() == "WithWindowDefinition":
            wanted -= 1
            definitions = node.windowDefinitions().values().toList()
            found += [parse_plan(within_the_jvm(each.toJSON)) for each in items(definitions)]
    if wanted:
        raise Invalid("a named window in a place where it is not known", rule="not-a-query", hint="write it at OVER")
    return found


def _operators(plan: Any) -> Iterator[Any]:
    """All of a parsed plan, with those of common table expressions and of queries inside expressions."""
    stack = [plan]
    while stack:
        node = stack.pop()
        yield node
        inner = items(node.innerChildren()) if node.getClass().getSimpleName() == "UnresolvedWith" else []
        stack += [*items(node.children()), *inner, *items(node.subqueries())]
