"""Reads what Spark says against a text from the JVM, with few round trips.

PySpark turns an error of the JVM into one of Python's with some fifty calls: it asks for its class in turn, for the
stacks of it and of its causes as texts, and for what it would log. A query that is judged is most often judged wrong,
so that these calls took longer than judging did.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from py4j import protocol
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.base import AnalysisException, ParseException
from pyspark.errors.exceptions.captured import UnknownException, convert_exception
from pyspark.sql import SparkSession

from engines.spark.catalyst.jvm_objects import jvm_object

_INTERNAL: Final = "INTERNAL_ERROR"
_SESSION: Final = "org.apache.spark.sql.classic.SparkSession.setActiveSession"
_PARSER: Final = "org.apache.spark.sql.execution.SparkSqlParser"
"""That of every session: one without extensions keeps nothing of its session."""
_UTILS: Final = "org.apache.spark.api.python.PythonErrorUtils."


class _Said(AnalysisException):  # type: ignore[misc]  # PySpark's errors have no types here
    """An error of Spark's with a condition. Its other parts are asked for when they are wanted."""

    def __init__(self, session: SparkSession, thrown: Any, condition: str) -> None:
        self._told = str(thrown.getMessage() or "")
        super().__init__(message=self._told)
        self._session = session
        self._thrown = thrown
        self._condition = condition

    def getCondition(self) -> str:  # noqa: N802  PySpark's name
        return self._condition

    def getSqlState(self) -> str | None:  # noqa: N802  PySpark's name
        state = self._asked("getSqlState")
        return None if state is None else str(state)

    def getQueryContext(self) -> list[Any]:  # noqa: N802  PySpark's name
        return self._contexts_of_sql

    def __str__(self) -> str:
        return self._told

    @cached_property
    def _contexts_of_sql(self) -> list[Any]:
        return list(self._asked("getQueryContext"))

    def _asked(self, name: str) -> Any:
        return jvm_object(self._session, _UTILS + name)(self._thrown)


class UnreadableText(_Said, ParseException):  # type: ignore[misc]  # see above
    """Spark's parser cannot read it."""


class WrongQuery(_Said):
    """Spark's analyser refuses it."""


def parse(session: SparkSession, sql: str) -> Any:
    """The parsed plan (a JVM object). Raises UnreadableText, Py4JJavaError.

    Spark's parser follows the settings of the session that is active in its thread, and defaults where there is none.
    """
    jvm_object(session, _SESSION)(session._jsparkSession)
    parser = jvm_object(session, _PARSER, lambda made: made())
    return _call(session, parser.parsePlan, UnreadableText, sql)


def analyse(session: SparkSession, plan: Any, skip: Any) -> Any:
    """The analysed plan of a parsed one; nothing of it is run. Raises WrongQuery, Py4JJavaError."""
    execution = _call(session, session._jsparkSession.sessionState().executePlan, WrongQuery, plan, skip)
    return _call(session, execution.analyzed, WrongQuery)


def _call(session: SparkSession, method: Any, kind: Callable[[SparkSession, Any, str], _Said], *given: Any) -> Any:
    """A method of an object of the JVM, as py4j calls it, and without what PySpark does with its errors."""
    words, passing = method._build_args(*given)
    answer = method.gateway_client.send_command(
        protocol.CALL_COMMAND_NAME + method.command_header + words + protocol.END_COMMAND_PART
    )
    try:
        return protocol.get_return_value(answer, method.gateway_client, method.target_id, method.name)
    except Py4JJavaError as fault:
        raise _told(session, fault, kind) from None
    finally:
        for each in passing:
            each._detach()


def _told(session: SparkSession, fault: Py4JJavaError, kind: Callable[[SparkSession, Any, str], _Said]) -> Exception:
    """The error in Python's words; itself where Spark meets what it does not expect."""
    condition = _condition_of(session, fault.java_exception)
    if condition is not None:
        return fault if condition.startswith(_INTERNAL) else kind(session, fault.java_exception, condition)
    converted: Exception = convert_exception(fault.java_exception)
    return fault if isinstance(converted, UnknownException) else converted


def _condition_of(session: SparkSession, thrown: Any) -> str | None:
    """``None`` for what is not Spark's own error, or names none."""
    try:
        condition = jvm_object(session, _UTILS + "getCondition")(thrown)
    except Py4JError:
        return None
    return None if condition is None else str(condition)
