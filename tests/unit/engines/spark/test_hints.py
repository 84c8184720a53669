"""Whatever is found wrong with a query comes with what to do about it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from engines.spark.sql.diagnostics import hint_of, hint_of_data

ENGINE = Path(__file__).parents[4] / "engines" / "spark"
PARTS = ("analysis/*.py", "sql/*.py", "planning/lateness.py", "execution/transform.py")
FILES = sorted(path for part in PARTS for path in ENGINE.glob(part))
PLACES = {
    "QueryFinding": (2, "replace"),
    "OperatorRefusal": (2, "replace"),
    "QueryRefused": (9, "hint"),
    "Invalid": (9, "hint"),
}
"""Where the remedy stands among the arguments."""
OF_NO_QUERY = {
    ("functions.py", "functions"): "the table that belongs to the program",
    ("tree.py", "plan"): "what Spark shows of its own plan",
    ("lexical.py", "parse"): "what Spark's lexer shows of its own words",
}


def without_a_hint():
    for path in FILES:
        for call in ast.walk(ast.parse(path.read_text())):
            name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None
            if name not in PLACES:
                continue
            place, keyword = PLACES[name]
            named = {each.arg: each.value for each in call.keywords}
            spread = any(isinstance(each, ast.Starred) for each in call.args)
            rule = named.get("rule")
            told = named.get(keyword) or (call.args[place] if len(call.args) > place else None)
            empty = told is None or (isinstance(told, ast.Constant) and not told.value)
            if empty and not spread:
                yield path.name, rule.value if isinstance(rule, ast.Constant) else None, call.lineno


@pytest.mark.slow
def test_every_finding_and_refusal_has_one():
    assert [found for found in without_a_hint() if found[:2] not in OF_NO_QUERY] == []


@pytest.mark.parametrize(
    ("condition", "part"),
    [
        ("UNRESOLVED_COLUMN.WITH_SUGGESTION", "column that the input has"),
        ("DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES", "cast"),
        ("PARSE_SYNTAX_ERROR", "mend the query"),
        ("NOBODY_KNOWS.THIS", "what Spark says"),
        (None, "what Spark says"),
    ],
)
def test_conditions_of_spark_have_one(condition, part):
    assert part in hint_of(condition)


@pytest.mark.parametrize(
    ("condition", "part"),
    [
        ("DIVIDE_BY_ZERO", "try_divide(a, b)"),
        ("CAST_INVALID_INPUT", "try_cast(x as"),
        ("NUMERIC_VALUE_OUT_OF_RANGE.WITHOUT_SUGGESTION", "more digits"),
        ("NOBODY_KNOWS.THIS", "case when"),
        (None, "case when"),
    ],
)
def test_conditions_that_a_value_meets_have_one(condition, part):
    assert part in hint_of_data(condition)
