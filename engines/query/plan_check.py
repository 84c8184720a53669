"""Checks what DuckDB bound a statement to: the tables of the query, and table functions that compute from arguments.

How DuckDB resolves a name is its own affair: scopes, catalogs, macros, files by name. So the names are not judged here
but the operators that they became, by the plan that DuckDB itself makes of the statement (``EXPLAIN``, not optimized).
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from chain.errors import Invalid
from engines.query.statement_check import TABLE_FUNCTIONS, decode_document

EXPLAINED: Final = "EXPLAIN (FORMAT json) "
"""Comes before a statement to have its plans."""
LOGICAL: Final = "logical_plan"
"""Key of the plan that is bound and not optimized, in which all is that a statement names."""
PHYSICAL: Final = "physical_plan"
"""Key of the plan that runs."""
_TABLE: Final = "SEQ_SCAN"
_OPERATORS: Final = frozenset(
    ("AGGREGATE", "ANY_JOIN", "ASOF_JOIN", "CHUNK_GET", "COLUMN_DATA_SCAN", "COMPARISON_JOIN", "CROSS_PRODUCT", "CTE",
     "CTE_SCAN", "DELIM_GET", "DELIM_JOIN", "DEPENDENT_JOIN", "DISTINCT", "DUMMY_SCAN", "EMPTY_RESULT", "EXCEPT",
     "EXPRESSION_GET", "FILTER", "INTERSECT", "JOIN", "LIMIT", "ORDER_BY", "POSITIONAL_JOIN", "PROJECTION", "REC_CTE",
     "SAMPLE", "TOP_N", "UNION", "UNNEST", "WINDOW")
)  # fmt: skip
"""Operators that compute rows from those of others, or from constants."""


def check_bound(plan: str, tables: Collection[str]) -> None:
    """Raises Invalid for a plan with any other operator, table or table function, or one that is nested too deeply.

    ``plan``: DuckDB's logical plan as JSON; ``tables``: those of the query, by their full names as DuckDB writes them.
    """
    permitted = _OPERATORS | {name.upper() for name in TABLE_FUNCTIONS}
    for operator in _operators(decode_document(plan)):
        name = str(operator["name"])
        table = str(operator["extra_info"].get("Table", "")) if name == _TABLE else ""
        if name not in permitted and table not in tables:
            raise Invalid(
                f"a query reads datasets alone, and this one would read {(table or name).lower()}",
                rule="query-table", hint="a name in it is no dataset's, nor that of a table of its own WITH",
            )  # fmt: skip


def _operators(plan: Any) -> Iterator[Mapping[str, Any]]:
    waiting = list(plan)
    while waiting:
        each = waiting.pop()
        yield each
        waiting += each["children"]
