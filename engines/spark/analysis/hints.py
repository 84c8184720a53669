"""Says what to do about an error of Spark's own, by its condition. Pure.

Spark names what is wrong and where, and seldom what to write. A condition is looked up with fewer and fewer of its
parts, so each has an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
    "UNRESOLVED_ROUTINE": "use a function that docs/functions.md lists",
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
    "WRONG_NUM_ARGS": "give the function the arguments that docs/functions.md lists",
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
"""Of what a value of a row does to a query that is right in itself."""
_DATA_OTHERWISE: Final = "keep such values from it: case when … then … end, or where before it"


def hint_of(condition: str | None) -> str:
    """For a condition as Spark names it: ``UNRESOLVED_COLUMN.WITH_SUGGESTION``."""
    return _found(_HINTS, condition) or _OTHERWISE


def hint_of_data(condition: str | None) -> str:
    """For a condition that a value of a row met while the query ran."""
    return _found(_DATA_HINTS, condition) or _DATA_OTHERWISE


def _found(hints: Mapping[str, str], condition: str | None) -> str | None:
    parts = (condition or "").split(".")
    while parts:
        known = hints.get(".".join(parts))
        if known is not None:
            return known
        parts.pop()
    return None
