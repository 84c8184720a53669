"""Parses SQL texts to analysed plans; a text is never analysed unchecked.

Spark's analyser runs some statements while it analyses them, and evaluates constants. So a text is first cut into words
by Spark's lexer, bounded in size and parsed, and its plan judged by ``analysis.parsed``; only a ``ParsedQuery`` can be
analysed. Nothing is executed for the check. All texts that a person or a peer wrote reach Spark through this module.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, TypeVar

from py4j import protocol
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.base import AnalysisException, ParseException
from pyspark.errors.exceptions.captured import UnknownException, convert_exception
from pyspark.sql import SparkSession

from chain.errors import Invalid
from engines.spark.analysis.declarations import MAX_TEXT
from engines.spark.analysis.lexical import TOO_LARGE, Word, check_depth, find_undated, read_words
from engines.spark.analysis.parsed import PlanSize, bounded_size
from engines.spark.analysis.refusals import QueryRefused
from engines.spark.analysis.tree import PlanNode, parse_plan
from engines.spark.catalyst.expressions import skip_commands
from engines.spark.catalyst.plans import items, json_of, jvm_object, place_of

Answer = TypeVar("Answer")
_REMEMBERED: Final = 1024
"""Most texts whose judgement is kept; a judgement depends on nothing but the text."""
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ")
"""Start of the message of Spark's own errors, also where PySpark does not know the class."""
_PARSER: Final = "org.apache.spark.sql.catalyst.parser"
MAX_SAID: Final = 1000
"""Most characters of Spark's message that are passed on; it may repeat queries and plans."""
_WINDOWS: Final = '"class":"org.apache.spark.sql.catalyst.plans.logical.WithWindowDefinition"'
_SPLIT: Final = "split the query: make an inner part a dataset of its own"
_NOTHING: Final[Mapping[str, PlanSize]] = MappingProxyType({})
_INTERNAL: Final = "INTERNAL_ERROR"
_SESSION: Final = "org.apache.spark.sql.classic.SparkSession.setActiveSession"
_SQL_PARSER: Final = "org.apache.spark.sql.execution.SparkSqlParser"
"""Spark's parser class, the same in every session; without extensions it keeps nothing of its session."""
_UTILS: Final = "org.apache.spark.api.python.PythonErrorUtils."


@dataclass(frozen=True, slots=True)
class TextFindings:
    """The findings about a text that may be analysed."""

    size: PlanSize
    undated: tuple[tuple[str, int, int], ...]
    """Typed literals of a time that does not state its day: text, line, column."""


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query that was checked but is not analysed yet."""

    plan: Any
    """The parsed plan, an object of the JVM."""
    judgement: TextFindings


_judged: OrderedDict[tuple[object, ...], TextFindings] = OrderedDict()
_kinds: dict[int, str] = {}
_lock = threading.Lock()


def parse_query(session: SparkSession, sql: str, known: Mapping[str, PlanSize] = _NOTHING) -> ParsedQuery:
    """Parses a text and bounds its cost. ``known``: sizes of the queries before it, by alias.

    Raises Invalid for a text that is not only a query, or is too large; Spark's ParseException for one that it cannot
    read.
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
    except QueryRefused as fault:
        fault.at = place_of(plan, root, fault.node) if fault.node is not None else None
        raise
    judgement = TextFindings(size, tuple(find_undated(words)))
    with _lock:
        _judged[key] = judgement
        while len(_judged) > _REMEMBERED:
            _judged.popitem(last=False)
    return ParsedQuery(plan, judgement)


def words_of(session: SparkSession, sql: str) -> list[Word]:
    """Returns the tokens of a text. Raises Invalid for one that is too large."""
    if len(sql) > MAX_TEXT:
        raise Invalid(f"the query has {len(sql)} characters", rule="query-size", hint=f"at most {MAX_TEXT}")
    return read_words(_tokens_of(session, sql), sql, lambda kind: _name_of(session, kind))


def analyse_query(session: SparkSession, query: ParsedQuery) -> Any:
    """Returns the analysed plan (a JVM object); executes nothing. Raises Spark's AnalysisException, and Invalid."""
    skip = skip_commands(session)
    return within_the_jvm(lambda: analyse(session, query.plan, skip))


def within_the_jvm(work: Callable[[], Answer]) -> Answer:
    """Calls ``work``, which uses the JVM, and returns its result.

    Raises Invalid for failures that no query should cause: a stack overflow, or a fault of Spark. Spark's errors of a
    query pass through.
    """
    try:
        return work()
    except Py4JJavaError as fault:
        name = str(fault.java_exception.getClass().getName())
        # Catalyst recurses over a plan, so that a text within all limits may still be too deep for its stack.
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
    """Encodes an analysed plan as ``analysis.tree`` reads it. Raises Invalid."""
    return within_the_jvm(lambda: json_of(plan))


def _parse(session: SparkSession, sql: str) -> Any:
    return within_the_jvm(lambda: parse(session, sql))


def _tokens_of(session: SparkSession, sql: str) -> str:
    """Returns the tokens of Spark's lexer, as the text of a Java list."""
    characters = jvm_object(session, "org.antlr.v4.runtime.CharStreams.fromString")(sql)
    text = jvm_object(session, f"{_PARSER}.UpperCaseCharStream")(characters)

    def cut() -> str:
        lexer = jvm_object(session, f"{_PARSER}.SqlBaseLexer")(text)
        # ANTLR's own listener prints on standard error; what is no word the parser tells of, with its place.
        lexer.removeErrorListeners()
        return str(lexer.getAllTokens().toString())

    return within_the_jvm(cut)


def _name_of(session: SparkSession, kind: int) -> str:
    """Returns the name of a token type, which is fixed for a version of Spark."""
    if kind not in _kinds:
        lexer = jvm_object(session, f"{_PARSER}.SqlBaseLexer")
        _kinds[kind] = str(lexer.VOCABULARY.getSymbolicName(kind))
    return _kinds[kind]


def _named_windows(plan: Any, text: str) -> list[PlanNode]:
    """Returns definitions of ``WINDOW w AS (...)``, which a plan's JSON leaves out.
    Raises Invalid if one is not found."""
    wanted = text.count(_WINDOWS)
    found: list[PlanNode] = []
    for node in _operators(plan) if wanted else ():
        if node.getClass().getSimpleName() == "WithWindowDefinition":
            wanted -= 1
            definitions = node.windowDefinitions().values().toList()
            found += [parse_plan(within_the_jvm(item.toJSON)) for item in items(definitions)]
    if wanted:
        raise Invalid("a named window in a place where it is not known", rule="not-a-query", hint="write it at OVER")
    return found


def _operators(plan: Any) -> Iterator[Any]:
    """Yields all operators of a parsed plan, also in common table expressions and in queries inside expressions."""
    stack = [plan]
    while stack:
        node = stack.pop()
        yield node
        inner = items(node.innerChildren()) if node.getClass().getSimpleName() == "UnresolvedWith" else []
        stack += [*items(node.children()), *inner, *items(node.subqueries())]


class _SparkError(AnalysisException):  # type: ignore[misc]  # PySpark's errors have no types here
    """An error of Spark's with a condition; its other parts are read from the JVM only when they are needed.

    PySpark converts an error of the JVM by some fifty calls: for its class, for the stacks of it and of its causes as
    texts, and for what it would log. Most queries that are judged are wrong, so these calls took longer than the
    judging.
    """

    def __init__(self, session: SparkSession, thrown: Any, condition: str) -> None:
        self._python_error = str(thrown.getMessage() or "")
        super().__init__(message=self._python_error)
        self._session = session
        self._thrown = thrown
        self._condition = condition

    def getCondition(self) -> str:  # noqa: N802  PySpark's name
        return self._condition

    def getSqlState(self) -> str | None:  # noqa: N802  PySpark's name
        state = self._ask("getSqlState")
        return None if state is None else str(state)

    def getQueryContext(self) -> list[Any]:  # noqa: N802  PySpark's name
        return self._contexts_of_sql

    def __str__(self) -> str:
        return self._python_error

    @cached_property
    def _contexts_of_sql(self) -> list[Any]:
        return list(self._ask("getQueryContext"))

    def _ask(self, name: str) -> Any:
        return jvm_object(self._session, _UTILS + name)(self._thrown)


class UnreadableText(_SparkError, ParseException):  # type: ignore[misc]  # see above
    """Raised if Spark's parser cannot read a text."""


class WrongQuery(_SparkError):
    """Raised if Spark's analyser refuses a query."""


def parse(session: SparkSession, sql: str) -> Any:
    """Returns the parsed plan (a JVM object). Raises UnreadableText, Py4JJavaError.

    Spark's parser follows the settings of the session that is active in its thread, and defaults where there is none.
    """
    jvm_object(session, _SESSION)(session._jsparkSession)
    parser = jvm_object(session, _SQL_PARSER, lambda made: made())
    return _call(session, parser.parsePlan, UnreadableText, sql)


def analyse(session: SparkSession, plan: Any, skip: Any) -> Any:
    """Returns the analysed plan of a parsed one; executes nothing. Raises WrongQuery, Py4JJavaError."""
    execution = _call(session, session._jsparkSession.sessionState().executePlan, WrongQuery, plan, skip)
    return _call(session, execution.analyzed, WrongQuery)


def _call(
    session: SparkSession, method: Any, kind: Callable[[SparkSession, Any, str], _SparkError], *given: Any
) -> Any:
    """Calls a method of a JVM object as py4j does, without PySpark's costly conversion of errors."""
    words, passing = method._build_args(*given)
    answer = method.gateway_client.send_command(
        protocol.CALL_COMMAND_NAME + method.command_header + words + protocol.END_COMMAND_PART
    )
    try:
        return protocol.get_return_value(answer, method.gateway_client, method.target_id, method.name)
    except Py4JJavaError as fault:
        raise _python_error(session, fault, kind) from None
    finally:
        for each in passing:
            # As Py4J's own calls do: else what was passed stays in the JVM.
            each._detach()


def _python_error(
    session: SparkSession, fault: Py4JJavaError, kind: Callable[[SparkSession, Any, str], _SparkError]
) -> Exception:
    """Converts an error of the JVM to an exception of Python; returns it as it is if it
    is internal to Spark or unknown."""
    condition = _condition_of(session, fault.java_exception)
    if condition is not None:
        return fault if condition.startswith(_INTERNAL) else kind(session, fault.java_exception, condition)
    converted: Exception = convert_exception(fault.java_exception)
    return fault if isinstance(converted, UnknownException) else converted


def _condition_of(session: SparkSession, thrown: Any) -> str | None:
    """Returns the condition that an error of Spark names; ``None`` for other errors."""
    try:
        condition = jvm_object(session, _UTILS + "getCondition")(thrown)
    except Py4JError:
        return None
    return None if condition is None else str(condition)
