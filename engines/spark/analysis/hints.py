"""What to do about an error of Spark's own, by its condition. Pure.

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
    "INCOMPATIBLE_COLUMN_TYPE": _TYPES,
    "CAST_INVALID_INPUT": "try_cast(x as …) gives null where a text cannot be read",
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
_OTHERWISE: Final = "change the words at this place; what Spark says names the part that it cannot take"


def hint_of(condition: str | None) -> str:
    """For a condition as Spark names it: ``UNRESOLVED_COLUMN.WITH_SUGGESTION``."""
    parts = (condition or "").split(".")
    while parts:
        known = _HINTS.get(".".join(parts))
        if known is not None:
            return known
        parts.pop()
    return _OTHERWISE
