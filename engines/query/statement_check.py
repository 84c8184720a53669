"""Checks a statement by DuckDB's parse tree against lists of permitted nodes; refuses all others by name.

Permitted is one SELECT over tables, with functions that compute from their arguments. Which dataset a table is, is
decided elsewhere: the tables are returned with their places in the text. Names of common table expressions are
separated from tables by SQL's own scopes. How DuckDB resolves the remaining names is its own affair (scopes, catalogs,
macros, files by name): ``check_bound`` judges the operators that they became, by DuckDB's own plan (``EXPLAIN``).
Pure: the tree comes as JSON (``json_serialize_sql``).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeAlias

from chain.errors import Invalid
from engines.query.temporal import Clause, is_blank, name_end

_CLASSES: Final = frozenset(
    ("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "LAMBDA",
     "LAMBDA_REF", "OPERATOR", "PARAMETER", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "TYPE", "WINDOW")
)  # fmt: skip
"""Classes of expressions that are permitted."""
_NODES: Final = frozenset(
    ("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE",
     "BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EMPTY", "EXPRESSION_LIST",
     "ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER",
     "ORDER_DEFAULT", "ASCENDING", "DESCENDING")
)  # fmt: skip
"""Kinds of nodes that are permitted: queries, their sources, and how rows are ordered and limited."""
_INFO: Final = "_TYPE_INFO"
TABLE_FUNCTIONS: Final = frozenset(("unnest", "range", "generate_series", "json_each", "json_tree"))
"""Table functions that compute rows from their arguments alone."""
_WORDS: Final = {"SHOW_REF": "DESCRIBE, SHOW or SUMMARIZE", "PIVOT": "PIVOT", "COLUMN_DATA": "a set of rows"}
"""Refused nodes of the parse tree -> their SQL words."""
_HINT: Final = "a query is one SELECT over datasets of this node, and functions that compute from their arguments"
_NEAR: Final = 0.7
"""Similarity of names from which on one is taken for a typing error. At difflib's 0.6, reflect is near array_select."""
_KEYWORDS: Final = (
    "SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "QUALIFY", "LIMIT", "OFFSET", "JOIN", "USING", "UNION",
    "VALUES", "WITH", "DISTINCT", "BETWEEN",
)  # fmt: skip
"""Keywords that a misspelt word may stand for."""
_Names: TypeAlias = frozenset[tuple[str, ...]]
_MAX_DEPTH: Final = 200
"""Greatest depth of nested nodes: more than a person writes, and less than Python's stack."""
EXPLAINED: Final = "EXPLAIN (FORMAT json) "
"""Comes before a statement to have its plans."""
LOGICAL: Final = "logical_plan"
"""Key of the plan that is bound and not optimized, in which all is that a statement names."""
PHYSICAL: Final = "physical_plan"
"""Key of the plan that runs."""
_TABLE_SCAN: Final = "SEQ_SCAN"
_OPERATORS: Final = frozenset(
    ("AGGREGATE", "ANY_JOIN", "ASOF_JOIN", "CHUNK_GET", "COLUMN_DATA_SCAN", "COMPARISON_JOIN", "CROSS_PRODUCT", "CTE",
     "CTE_SCAN", "DELIM_GET", "DELIM_JOIN", "DEPENDENT_JOIN", "DISTINCT", "DUMMY_SCAN", "EMPTY_RESULT", "EXCEPT",
     "EXPRESSION_GET", "FILTER", "INTERSECT", "JOIN", "LIMIT", "ORDER_BY", "POSITIONAL_JOIN", "PROJECTION", "REC_CTE",
     "SAMPLE", "TOP_N", "UNION", "UNNEST", "WINDOW")
)  # fmt: skip
"""Operators that compute rows from those of others, or from constants."""


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table that a statement reads, with the bytes ``start <= n < end`` of its name."""

    path: tuple[str, ...]
    start: int
    end: int
    alias: str
    clauses: tuple[Clause, ...] = ()


@dataclass(slots=True)
class _Walk:
    tables: list[TableRef] = field(default_factory=list)
    depth: int = 0


@cache
def functions() -> frozenset[str]:
    """Returns the functions permitted in a query, by DuckDB's names in lower case."""
    text = files(__package__).joinpath("functions.tsv").read_text(encoding="utf-8")
    return frozenset(line.lower() for line in text.splitlines() if not line.startswith("# "))


def check_statement(tree: Mapping[str, Any], statement: bytes, clauses: Sequence[Clause]) -> list[TableRef]:
    """Returns the tables that a statement reads, in the order of the text. Raises Invalid, with the place.

    ``statement``: the text that was parsed, without its ``clauses``.
    """
    if tree.get("error"):
        raise _parse_fault(tree, statement)
    statements = tree["statements"]
    if not statements:
        raise Invalid("the query is empty", rule="query-statement", hint="write one SELECT; odfctl docs sql shows some")
    if len(statements) != 1:
        raise Invalid(
            f"a query is one statement, and here are {len(statements)}",
            rule="query-statement",
            hint="send them one by one",
        )
    walk = _Walk()
    _visit(walk, statements[0]["node"], statement, frozenset())
    walk.tables.sort(key=lambda table: table.start)
    return _with_clauses(walk.tables, statement, clauses)


def decode_document(document: str) -> Any:
    """Decodes what DuckDB says of a statement as JSON. Raises Invalid for a statement that is nested too deeply."""
    try:
        return json.loads(document)
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> Invalid:
    return Invalid("the query is nested too deeply", rule="query-depth", hint=f"at most {_MAX_DEPTH} levels")


def without_schemas(tree: Mapping[str, Any], statement: bytes, tables: Sequence[TableRef]) -> bytes:
    """Blanks the schema of columns written as ``current.weather.celsius``, where that table is read without an alias.

    Each table is replaced by a view whose name is the last part of the table's.
    """
    paths = {_fold_case(table.path) for table in tables if not table.alias and len(table.path) > 1}
    lengths = sorted({len(path) for path in paths})
    left = bytearray(statement)
    for node in _column_refs(tree["statements"][0]["node"]) if paths else ():
        names, start = _fold_case(node["column_names"]), node.get("query_location")
        length = next((length for length in lengths if len(names) > length and names[:length] in paths), None)
        if length is None or not isinstance(start, int):
            continue
        end = name_end(statement, start, names[: length - 1])
        if end is not None:
            end = statement.index(b".", end) + 1
            left[start:end] = b" " * (end - start)
    return bytes(left)


def _fold_case(path: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(part).lower() for part in path)


def _column_refs(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the column references anywhere below a node, which was checked, and so is not too deep."""
    if isinstance(node, dict) and node.get("class") == "COLUMN_REF":
        yield node
    for each in node.values() if isinstance(node, dict) else node:
        if isinstance(each, dict | list):
            yield from _column_refs(each)


def place_of(statement: bytes, at: int) -> str:
    """Formats a position as ``line 2, column 7``, counted from 1 in characters."""
    before = statement[:at].decode("utf-8", "replace")
    return f"line {before.count(chr(10)) + 1}, column {len(before) - (before.rfind(chr(10)) + 1) + 1}"


def _parse_fault(tree: Mapping[str, Any], statement: bytes) -> Invalid:
    message = str(tree.get("error_message", "it cannot be read"))
    if tree.get("error_type") == "not implemented" and "SELECT" in message:
        word = statement.split(None, 1)[0].decode("utf-8", "replace").upper() if statement.strip() else "nothing"
        return Invalid(f"{word[:40]} is not a query", rule="query-statement", hint=_HINT)
    at = str(tree.get("position", ""))
    place = place_of(statement, int(at)) if at.isdecimal() else ""
    meant = _keyword(statement, int(at)) if at.isdecimal() else ""
    hint = f"did you mean {meant}?" if meant else "odfctl docs sql shows what a query may say"
    return Invalid(message, rule="query-syntax", place=place, hint=hint)


def _keyword(statement: bytes, at: int) -> str:
    """Returns the keyword that the word at a place stands for, or the word before it; empty if neither does."""
    before, after = (each.decode("utf-8", "replace").split() for each in (statement[:at], statement[at:]))
    for word in (*after[:1], *before[-1:]):
        near = difflib.get_close_matches(word.upper(), _KEYWORDS, n=1, cutoff=_NEAR)
        if near and near[0] != word.upper():
            return near[0]
    return ""


def _visit(walk: _Walk, node: Any, statement: bytes, known: _Names) -> None:
    """Checks all nodes below a node. ``known``: names of common table expressions in scope."""
    walk.depth += 1
    if walk.depth > _MAX_DEPTH:
        raise _too_deep()
    if isinstance(node, list):
        for each in node:
            _visit(walk, each, statement, known)
    elif isinstance(node, dict):
        _check(node, statement)
        if "cte_map" in node:
            known = _common_tables(walk, node, statement, known)
        if node.get("type") == "BASE_TABLE":
            _table(walk, node, statement, known)
        for name, each in node.items():
            if name != "cte_map" and isinstance(each, dict | list):
                repeated = node.get("type") == "RECURSIVE_CTE_NODE" and name == "right"
                # The rows it begins with are read before it has a name; the step that repeats has the name.
                _visit(walk, each, statement, known | _recurring(node["cte_name"]) if repeated else known)
    walk.depth -= 1


def _common_tables(walk: _Walk, node: dict[str, Any], statement: bytes, known: _Names) -> _Names:
    """Checks common table expressions, each of which sees those before it; returns the names in scope after them.

    An expression that refers to itself is a node of another kind.
    """
    for each in node["cte_map"]["map"]:
        _visit(walk, each["value"], statement, known)
        known = known | {(_ascii_lower(each["key"]),)}
    return known


def _recurring(name: str) -> _Names:
    """Returns the names by which a recursive expression reads the rows of its last step, and all rows so far."""
    own = _ascii_lower(name)
    return frozenset(((own,), ("recurring", own)))


def _ascii_lower(name: str) -> str:
    """Lowers the letters that DuckDB does: those of ASCII. Python would take KELVIN SIGN for a ``k`` too."""
    return name.encode().lower().decode()


def _check(node: Mapping[str, Any], statement: bytes) -> None:
    kind, group = node.get("type"), node.get("class")
    if isinstance(group, str):
        if group not in _CLASSES:
            raise _refusal(_WORDS.get(group, group), node, statement)
    elif isinstance(kind, str) and kind not in _NODES and not kind.endswith(_INFO) and "id" not in node:
        raise _refusal(_WORDS.get(kind, kind), node, statement)
    if kind == "TABLE_FUNCTION":
        name = _function_name(node["function"])
        if name not in TABLE_FUNCTIONS:
            raise _no_function(name, node, statement, TABLE_FUNCTIONS)
    elif "function_name" in node and _function_name(node) not in functions() | TABLE_FUNCTIONS:
        raise _no_function(_function_name(node), node, statement, functions())


def _function_name(node: Mapping[str, Any]) -> str:
    """Returns the function's name in lower case; a name with a schema or catalog keeps these, and so is
    not permitted."""
    parts = (str(node.get("catalog") or ""), str(node.get("schema") or ""), str(node.get("function_name", "")))
    return ".".join(part for part in parts if part).lower()


def _no_function(name: str, node: Mapping[str, Any], statement: bytes, known: frozenset[str]) -> Invalid:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=_NEAR)
    hint = f"did you mean {near[0]}?  {_HINT}" if near else _HINT
    return Invalid(f"a query may not call {name}", rule="query-function", hint=hint, place=_place(node, statement))


def _refusal(what: str, node: Mapping[str, Any], statement: bytes) -> Invalid:
    return Invalid(f"a query may not say {what}", rule="query-statement", hint=_HINT, place=_place(node, statement))


def _place(node: Mapping[str, Any], statement: bytes) -> str:
    at = node.get("query_location")
    return place_of(statement, at) if isinstance(at, int) and at <= len(statement) else ""


def _table(walk: _Walk, node: Mapping[str, Any], statement: bytes, known: _Names) -> None:
    path = tuple(str(part) for part in node["qualified_name"]["path"])
    if node.get("at_clause") is not None:
        hint = "write FOR SYSTEM_TIME AS OF '2024-05-01', or AT BLOCK '#12'"
        raise Invalid("AT (…) is not understood", rule="query-time", hint=hint, place=_place(node, statement))
    if tuple(map(_ascii_lower, path)) in known:
        return
    start = int(node["query_location"])
    end = name_end(statement, start, path)
    if end is None:
        hint = "write its name as DuckDB does, without escapes, and FROM in place of TABLE"
        raise Invalid(f"the place of {'.'.join(path)} is not known", rule="query-table", hint=hint)
    walk.tables.append(TableRef(path, start, end, str(node["alias"])))


def _with_clauses(tables: Sequence[TableRef], statement: bytes, clauses: Sequence[Clause]) -> list[TableRef]:
    """Assigns each time clause to the table directly before it. Raises Invalid if there is none."""
    given: dict[int, list[Clause]] = {}
    for clause in clauses:
        owner = next((n for n, table in reversed(list(enumerate(tables))) if table.end <= clause.start), None)
        if owner is None or not is_blank(statement[tables[owner].end : clause.start]):
            raise Invalid(
                "a time clause is not behind a dataset's name",
                rule="query-time",
                place=place_of(statement, clause.start),
                hint="write it right after the name: FROM weather FOR SYSTEM_TIME AS OF '2024-05-01' AS w",
            )
        if any(other.kind == clause.kind for other in given.setdefault(owner, [])):
            raise Invalid("a dataset has two time clauses", rule="query-time", place=place_of(statement, clause.start))
        given[owner].append(clause)
    return [
        TableRef(table.path, table.start, table.end, table.alias, tuple(given.get(number, ())))
        for number, table in enumerate(tables)
    ]


def check_bound(plan: str, tables: Collection[str]) -> None:
    """Raises Invalid for a plan with any other operator, table or table function, or one that is nested too deeply.

    ``plan``: DuckDB's logical plan as JSON; ``tables``: those of the query, by their full names as DuckDB writes them.
    """
    permitted = _OPERATORS | {name.upper() for name in TABLE_FUNCTIONS}
    for operator in _operators(decode_document(plan)):
        name = str(operator["name"])
        table = str(operator["extra_info"].get("Table", "")) if name == _TABLE_SCAN else ""
        if name not in permitted and table not in tables:
            raise Invalid(
                f"a query reads datasets alone, and this one would read {(table or name).lower()}",
                rule="query-table",
                hint="a name in it is no dataset's, nor that of a table of its own WITH",
            )


def _operators(plan: Any) -> Iterator[Mapping[str, Any]]:
    waiting = list(plan)
    while waiting:
        each = waiting.pop()
        yield each
        waiting += each["children"]
