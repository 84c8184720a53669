"""Explains Spark's errors of a query or a row to people: rule, place, remedy, and whether
query, data or engine is at fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from pyspark.errors import PySparkException

from chain.errors import Invalid
from chain.model.source import Transform
from engines.contract import InvalidQuery

_CONF_ADVICE: Final = re.compile(r" (If necessary set|To tolerate the error|If you did not qualify) .*?(?=SQLSTATE|$)")
"""Advice in Spark's messages that would not help: a query cannot change settings."""
_TRY_ADVICE: Final = re.compile(r" (Use|Try) [`']?(try_\w+|get)\b.*?(?= SQLSTATE|$)")
"""Advice in Spark's messages that our hint gives in fewer words."""
_LABELS: Final = re.compile(r"^\[[A-Z][A-Z0-9_.]+\] | SQLSTATE: \w{5}")
"""Names of the condition in a message, which the rule repeats."""
_POSITION: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_CONTEXT: Final = re.compile(r"== SQL.*\(line (\d+), position (\d+)\) ==")
_BLAME_QUERY: Final = ("0A", "21", "22", "23", "42", "46", "54")
"""Classes of SQLSTATE by which the query or its data is at fault; by the others the engine is."""
_DATA: Final = "22"
Answer = TypeVar("Answer")
NOT_DETERMINISTIC: Final = (
    "leave out what is drawn by chance or read from a clock: take event_time and the other columns of the inputs"
)
_COLUMN: Final = "select a column that the input has; `odfctl schema` lists them"
_TYPES: Final = "cast one side to the type of the other: cast(x as bigint)"
_VALUE: Final = "write a value that the function takes, as it says"
_CAST: Final = "try_cast(x as …) gives null where a value cannot be read as that type"
_HINTS: Final[Mapping[str, str]] = {
    "PARSE_SYNTAX_ERROR": "mend the query before or at this place: a comma, bracket or keyword is missing or too much",
    "PARSE_EMPTY_STATEMENT": "write a SELECT",
    "UNRESOLVED_COLUMN": _COLUMN,
    "UNRESOLVED_MAP_KEY": "write a key that is a text in single quotes",
    "UNRESOLVED_FIELD": "name a field that the structure has",
    "FIELD_NOT_FOUND": "name a field that the structure has",
    "UNRESOLVED_ROUTINE": "use a function that odfctl docs functions lists",
    "TABLE_OR_VIEW_NOT_FOUND": "select from an input, by the alias that the transform gives it",
    "AMBIGUOUS_REFERENCE": "write the table before the column: a.k",
    "AMBIGUOUS_COLUMN_OR_FIELD": "give each column a name of its own: x as y",
    "COLUMN_ALREADY_EXISTS": "give each column a name of its own: x as y",
    "DATATYPE_MISMATCH": _TYPES,
    "DATATYPE_MISMATCH.VALUE_OUT_OF_RANGE": _VALUE,
    "DATATYPE_MISMATCH.INPUT_SIZE_NOT_ONE": _VALUE,
    "DATATYPE_MISMATCH.INVALID_ARG_VALUE": _VALUE,
    "INVALID_FORMAT": "write digits as 9 or 0 and a point as '.': '999.99'",
    "INVALID_TIMESTAMP_PRECISION": "write timestamp without digits",
    "INCOMPATIBLE_COLUMN_TYPE": _TYPES,
    "CAST_INVALID_INPUT": _CAST,
    "NUM_COLUMNS_MISMATCH": "select as many columns on both sides",
    "WRONG_NUM_ARGS": "give the function the arguments that odfctl docs functions lists",
    "MISSING_AGGREGATION": "name the column in GROUP BY, or aggregate it: max(x)",
    "MISSING_GROUP_BY": "add a GROUP BY, or aggregate every column",
    "GROUP_BY_AGGREGATE": "group by columns, and aggregate in a query around this one",
    "GROUP_BY_POS_OUT_OF_RANGE": "number columns of the SELECT from one",
    "NESTED_AGGREGATE_FUNCTION": "aggregate once more in a query around this one",
    "INVALID_WHERE_CONDITION": "filter what is aggregated with HAVING",
    "WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE": "write OVER (partition by … order by …) behind the function",
    "INVALID_EXTRACT_BASE_FIELD_TYPE": "take fields of structures alone; a name in double quotes is a text: `a`.b",
    "UNSUPPORTED_TYPED_LITERAL": "write the text in single quotes, and a name in backticks",
    "INVALID_TYPED_LITERAL": "write it like date'2024-05-01', timestamp'2024-05-01 12:30:00' or interval '1' day",
}
_OVERFLOW: Final = "cast to a wider type first: cast(x as decimal(38, 0)); or try_add, try_multiply give null"
_OWN: Final = "__odf_"
_SUM: Final = f"{_OWN}hi"
"""In texts of the engine itself, which computes aggregates exactly in words of its own; so it is in no query."""
_WIDER: Final = "sum a wider type: sum(cast(x as decimal(38, 0))); or try_sum(x), which is null then"
_TIMESTAMP: Final = "try_to_timestamp(x, pattern) gives null where a text is not written so"
_OTHERWISE: Final = "change the words at this place; what Spark says names the part that it cannot take"
_DATA_HINTS: Final[Mapping[str, str]] = {
    "ARITHMETIC_OVERFLOW": _OVERFLOW,
    "BINARY_ARITHMETIC_OVERFLOW": _OVERFLOW,
    "CANNOT_PARSE_TIMESTAMP": _TIMESTAMP,
    "CANNOT_PARSE_TIME": "try_to_time(x, pattern) gives null where a text is not written so",
    "CAST_INVALID_INPUT": _CAST,
    "CAST_OVERFLOW": "try_cast(x as …) gives null where a value does not fit; a wider type holds it",
    "CONVERSION_INVALID_INPUT": "try_to_number, try_to_timestamp or try_to_binary gives null where it cannot be read",
    "DATETIME_FIELD_OUT_OF_BOUNDS": "try_make_timestamp gives null where there is no such day or time",
    "DIVIDE_BY_ZERO": "try_divide(a, b) gives null where b is zero; for whole numbers a div nullif(b, 0) does",
    "INTERVAL_DIVIDED_BY_ZERO": "try_divide(a, b) gives null where b is zero",
    "INTERVAL_ARITHMETIC_OVERFLOW": _OVERFLOW,
    "INVALID_ARRAY_INDEX": "get(array, index), which counts from zero, gives null where there is no such element",
    "INVALID_ARRAY_INDEX_IN_ELEMENT_AT": "try_element_at(array, index) gives null where there is no such element",
    "INVALID_PARAMETER_VALUE": "write a value that the function takes: of a regular expression with every ( and [ "
    r"closed, or a backslash before it, as in '\\('; of a charset 'UTF-8'",
    "INVALID_TIMEZONE": "write a zone like 'Europe/Vienna', or 'UTC'",
    "INVALID_FORMAT": r"end the pattern with no escape character, and have one before %, _ or itself alone: '100\\%'",
    "INVALID_URL": "try_parse_url gives null where a text is no address",
    "MALFORMED_RECORD_IN_PARSING": "try_parse_json gives null where a text is no JSON",
    "NUMERIC_VALUE_OUT_OF_RANGE": "cast to a type with more digits: decimal(38, 6); try_cast gives null instead",
    "REMAINDER_BY_ZERO": "try_mod(a, b) gives null where b is zero",
}
"""Hints for errors caused by a value of a row in a query that is right in itself, by condition."""
_DATA_OTHERWISE: Final = "keep such values from it: case when … then … end, or where before it"


def answer_faults(work: Callable[[], Answer], transform: Transform) -> Answer | InvalidQuery:
    """Returns the result of ``work``, or as an answer its faults in ``transform``'s
    queries or data. Raises engine faults."""
    try:
        return work()
    except Invalid as fault:
        return InvalidQuery.of(fault)
    except PySparkException as fault:
        if not blames_query(fault):
            raise
        return InvalidQuery.of(fault_of(fault, transform))


def blames_query(fault: PySparkException) -> bool:
    """Whether an error of Spark is a fault of the query or the data, and not of the engine."""
    return (fault.getSqlState() or "XX").startswith(_BLAME_QUERY)


def blames_data(fault: PySparkException) -> bool:
    """Whether an error is a fault of the data, with a valid query."""
    return (fault.getSqlState() or "XX").startswith(_DATA)


def fault_of(fault: PySparkException, transform: Transform) -> Invalid:
    """Converts Spark's error of a query, or of a row that one of its expressions cannot take. The condition's name
    becomes the rule; place and text of the expression are given where Spark knows them, with a remedy."""
    condition = fault.getCondition()
    context, position = _CONTEXT.search(str(fault)), place_in(fault)
    place, named, text = "", "", _fragment(fault)
    if _SUM in text:
        return Invalid("a sum does not fit its type, BIGINT", rule=rule_of(condition), hint=_WIDER)
    if context is not None and _OWN not in text:
        line, column = int(context[1]), int(context[2])
        place = f"{_query_with(text, line, column, transform)}line {line}, column {column}"
        named = _in(text)
    elif position is not None:
        place = f"line {position[0]}, column {position[1]}"
    hint = hint_of_data(condition) if blames_data(fault) else hint_of(condition)
    return Invalid(f"{message_of(fault)}{named}", rule=rule_of(condition), place=place, hint=hint)


def place_in(fault: PySparkException) -> tuple[int, int] | None:
    """Returns the (line, column) in the query that an error names, both counted from 1, or ``None``."""
    found = _POSITION.search(str(fault))
    return (int(found[1]), int(found[2]) + 1) if found is not None else None


def message_of(fault: PySparkException) -> str:
    """Returns Spark's message, without the rule and the hint."""
    return _LABELS.sub("", _TRY_ADVICE.sub("", _plain_words(fault))).strip().removesuffix(".")


def _query_with(fragment: str, line: int, column: int, transform: Transform) -> str:
    """Returns ``query N, `` if exactly one of several queries has the fragment at this place, else an empty text."""
    steps = transform.queries or ()
    first = fragment.partition("\n")[0]
    lines = [[*step.query.split("\n"), *[""] * line][line - 1] for step in steps]
    found = [number for number, text in enumerate(lines) if first and text[column - 1 :].startswith(first)]
    return f"query {found[0]}, " if len(steps) > 1 and len(found) == 1 else ""


def rule_of(condition: str | None) -> str:
    """Converts a condition of Spark's, as ``DIVIDE_BY_ZERO``, to the form of rules, without its subcondition."""
    return (condition or "parse").partition(".")[0].lower().replace("_", "-")


def first_lines(fault: PySparkException) -> str:
    place = _CONTEXT.search(str(fault))
    where = f" (line {place[1]}, column {int(place[2])}{_in(_fragment(fault))})" if place is not None else ""
    return _plain_words(fault) + where


def _plain_words(fault: PySparkException) -> str:
    text = str(fault).split("JVM stacktrace:")[0].split("\n== ")[0].split(";\n")[0]
    return _CONF_ADVICE.sub(" ", " ".join(text.split()))[:1000]


def _fragment(fault: PySparkException) -> str:
    """Returns the text of the expression that failed on some row, or an empty text if Spark does not know it."""
    fragments = [context.fragment().strip() for context in fault.getQueryContext() or ()]
    return next((text for text in fragments if text), "")


def _in(fragment: str) -> str:
    return f" in: {' '.join(fragment.split())[:300]}" if fragment else ""


def hint_of(condition: str | None) -> str:
    """Returns the hint for a condition of Spark's, like ``UNRESOLVED_COLUMN.WITH_SUGGESTION``."""
    return _find_hint(_HINTS, condition) or _OTHERWISE


def hint_of_data(condition: str | None) -> str:
    """Returns the hint for a condition that a value of a row caused while the query ran."""
    return _find_hint(_DATA_HINTS, condition) or _DATA_OTHERWISE


def _find_hint(hints: Mapping[str, str], condition: str | None) -> str | None:
    """Looks up the hint of a condition, or else of the same with fewer and fewer of its parts;
    ``None``: none is known."""
    parts = (condition or "").split(".")
    while parts:
        known = hints.get(".".join(parts))
        if known is not None:
            return known
        parts.pop()
    return None
