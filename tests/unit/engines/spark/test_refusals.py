"""What is wrong with a query or a row is told in parts: rule, place and hint are no part of the message."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from chain.model.source import SqlQueryStep, TransformSql
from engines.contract import Diagnostic, InvalidQuery, Severity
from engines.spark.sql.diagnostics import answer_faults, refusal

ONE = TransformSql(engine="spark", queries=(SqlQueryStep(query="select a / b as c from input"),))
TWO = TransformSql(
    engine="spark",
    queries=(SqlQueryStep(alias="x", query="select *\nfrom input"), SqlQueryStep(query="select 1,\n  a / b from x")),
)


class Fragment:
    def fragment(self) -> str:
        return "a / b"


class OfSpark(PySparkException):
    """As the JVM tells it."""

    def __init__(self, text: str, condition: str, state: str) -> None:
        super().__init__(text)
        self.said, self.condition, self.state = text, condition, state

    def __str__(self) -> str:
        return self.said

    def getCondition(self) -> str:
        return self.condition

    def getSqlState(self) -> str:
        return self.state

    def getQueryContext(self) -> list[Fragment]:  # type: ignore[override]
        return [Fragment()]


def by_zero(line: int, column: int) -> OfSpark:
    return OfSpark(
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. If "
        'necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012\n'
        f"== SQL (line {line}, position {column}) ==\nselect a / b\n       ^^^^^\n\nJVM stacktrace:\n\tat x.y(Z.java)",
        "DIVIDE_BY_ZERO",
        "22012",
    )


def told(fault: Exception, transform: TransformSql) -> InvalidQuery:
    def work() -> None:
        raise fault

    answer = answer_faults(work, transform)
    assert isinstance(answer, InvalidQuery)
    return answer


def test_a_row_that_an_expression_cannot_take() -> None:
    answer = told(by_zero(1, 8), ONE)
    assert (answer.message, answer.rule) == ("Division by zero in: a / b", "divide-by-zero")
    assert answer.place == "line 1, column 8"
    assert "try_divide(a, b)" in (answer.hint or "")


def test_of_several_queries_the_one_is_named() -> None:
    assert told(by_zero(2, 3), TWO).place == "query 1, line 2, column 3"
    assert told(by_zero(1, 8), TWO).place == "line 1, column 8"


def test_what_spark_cannot_analyse() -> None:
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;\n'Project"
    )
    answer = told(OfSpark(text, "UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703"), ONE)
    assert answer.message.startswith("A column `x` cannot be resolved")
    assert (answer.rule, answer.place) == ("unresolved-column", "line 1, column 8")


def test_a_fault_of_the_engine_is_no_answer() -> None:
    with pytest.raises(OfSpark):
        told(OfSpark("[INTERNAL_ERROR] oh", "INTERNAL_ERROR", "XX000"), ONE)


def finding(code: str, line: int | None = None, replace: str | None = None) -> Diagnostic:
    return Diagnostic(
        code=code, severity=Severity.ERROR, message=f"no {code}", query=1, line=line, column=line, replace=replace
    )


def test_one_finding_has_its_parts_and_several_a_line_each() -> None:
    one = refusal([finding("rand", 3, "leave it out")], 1)
    assert (one.message, one.rule, one.hint, one.place) == ("no rand", "rand", "leave it out", "line 3, column 3")
    assert refusal([finding("rand", 3)], 2).place == "query 1, line 3, column 3"
    both = refusal([finding("rand", 3, "leave it out"), finding("now", None, "say when")], 1)
    assert (both.message, both.rule) == ("line 3, column 3: no rand\nno now [now]", "rand")
    assert (both.hint, both.place) == ("leave it out; say when", "")
