"""Decides whether a query gives the same rows whenever and wherever it runs; refuses other queries, naming the reason.

The order of rows does not matter: the rows of a proven answer are ordered by all columns. Refused is what chooses rows
by an order that may have ties, what depends on time or chance, and what adds floating-point numbers in the order in
which they come; the message says what to write instead. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from chain.errors import Refused
from engines.query.statement_check import TABLE_FUNCTIONS, place_of

_BY_ORDER: Final = {
    "first": "min", "last": "max", "any_value": "min", "arbitrary": "min", "first_value": "min", "last_value": "max",
    "list": "list_sort(list(x))", "array_agg": "list_sort(list(x))", "string_agg": "array_to_string of a sorted list",
    "group_concat": "array_to_string of a sorted list", "listagg": "array_to_string of a sorted list",
    "arg_min": "min, joined back", "arg_max": "max, joined back", "argmin": "min, joined back",
    "argmax": "max, joined back", "min_by": "min, joined back", "max_by": "max, joined back",
    "arg_min_null": "min, joined back", "arg_max_null": "max, joined back",
    "arg_min_nulls_last": "min, joined back", "arg_max_nulls_last": "max, joined back", "lttb": "a list that is sorted",
    "entropy": "count(*), and compute it outside", "mode": "count(*), and rank()",
    "approx_quantile": "quantile_disc", "approx_top_k": "count(*), and rank()", "reservoir_quantile": "quantile_disc",
    "row_number": "rank()", "ntile": "percent_rank()", "lag": "a join", "lead": "a join", "nth_value": "a join",
    "json_group_array": "list_sort(list(x))", "json_group_object": "map_from_entries of a sorted list",
}  # fmt: skip
"""Functions whose value may depend on the order of equal rows, with their replacements."""
_SORTED: Final = frozenset(("list_sort", "array_sort", "list_reverse_sort", "array_reverse_sort"))
_LISTS: Final = frozenset(("list", "array_agg"))
_BY_MOMENT: Final = frozenset(
    ("now", "today", "current_date", "current_time", "current_timestamp", "get_current_time", "get_current_timestamp",
     "current_localtime", "current_localtimestamp", "localtime", "localtimestamp", "transaction_timestamp", "random",
     "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "setseed", "version", "txid_current", "nextval", "currval")
)  # fmt: skip
_BY_MACHINE: Final = frozenset(
    ("sin", "cos", "tan", "cot", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
     "exp", "ln", "log", "log2", "log10", "pow", "power", "cbrt", "gamma", "lgamma", "**", "^")
)  # fmt: skip
"""Functions whose last digit depends on the machine's mathematical library."""
_EXACT: Final = frozenset(
    ("min", "max", "count", "count_star", "count_if", "list", "array_agg", "histogram", "histogram_exact", "quantile",
     "quantile_disc", "quantile_cont", "median", "mad", "bool_and", "bool_or", "approx_count_distinct", "rank",
     "dense_rank", "percent_rank", "cume_dist")
)  # fmt: skip
"""Aggregates whose result over floating-point numbers does not depend on their order."""
_RANKS: Final = frozenset(("WINDOW_RANK", "WINDOW_RANK_DENSE", "WINDOW_PERCENT_RANK", "WINDOW_CUME_DIST"))
_FLOATS: Final = ("FLOAT", "DOUBLE")
_CALLS: Final = ("BOUND_FUNCTION", "BOUND_AGGREGATE", "BOUND_WINDOW")
_INNER: Final = (frozenset(_BY_ORDER) - _LISTS) | _BY_MOMENT | _BY_MACHINE
"""Functions that no other may be made of; lists are judged where they are written, as they may be sorted."""
_SOURCES: Final = TABLE_FUNCTIONS | {"seq_scan"}
"""Functions by which a plan has rows: of the tables of a query, and computed from arguments."""


def judge_text(tree: Mapping[str, Any], statement: bytes) -> None:
    """Raises Refused for a text that is visibly not repeatable. ``tree``: as for ``check_statement``."""
    _visit(tree["statements"][0]["node"], statement, is_sorted=False)


def judge_plan(plan: Mapping[str, Any]) -> None:
    """Raises Refused for sums of floating-point numbers, rows from anywhere but tables and arguments, and functions
    that a permitted one is made of, as ``json_group_structure`` is of ``string_agg``.

    ``plan``: result of ``json_serialize_plan``, which has types.
    """
    if plan.get("error"):
        raise Refused(
            f"it is not known whether the answer repeats: {str(plan.get('error_message'))[:200]}",
            rule="query-prove",
            hint="ask without --prove, or more plainly",
        )
    for node in _nodes(plan):
        if node.get("type") == "LOGICAL_GET" and (source := node["qname"]["path"][-1]) not in _SOURCES:
            raise Refused(
                f"a proven answer may not read {source}, which is another on each machine",
                rule="query-prove",
                hint="read datasets alone",
            )
        name = str((node.get("qname") or {}).get("path", [""])[-1])
        if node.get("expression_class") in _CALLS and name in _INNER:
            raise Refused(
                f"a proven answer may not use what is computed by {name}",
                rule="query-prove",
                hint="compute it outside of what is proven",
            )
        if node.get("expression_class") in ("BOUND_AGGREGATE", "BOUND_WINDOW"):
            kinds = [each.get("id") for each in (node.get("arguments") or []) if isinstance(each, dict)]
            if name and name not in _EXACT and any(kind in _FLOATS for kind in kinds):
                raise Refused(
                    f"{name} over floating-point numbers depends on the order in which they are added",
                    rule="query-prove",
                    hint=f"say {name}(CAST(x AS DECIMAL(18, 6)))",
                )


def _visit(node: Any, statement: bytes, *, is_sorted: bool) -> None:
    if isinstance(node, list):
        for each in node:
            _visit(each, statement, is_sorted=is_sorted)
    if not isinstance(node, dict):
        return
    _check_choice(node, statement)
    name = _name(node)
    if name and not (is_sorted and name in _LISTS):
        _check_name(name, node, statement)
    if node.get("class") == "WINDOW":
        _check_window(node, statement)
    for part, each in node.items():
        _visit(each, statement, is_sorted=name in _SORTED or (is_sorted and part in ("arguments", "expression")))


def _name(node: Mapping[str, Any]) -> str:
    return str(node.get("function_name", "")).lower()


def _check_name(name: str, node: Mapping[str, Any], statement: bytes) -> None:
    if name in _BY_ORDER:
        raise _refusal(f"{name}, which depends on the order of rows", f"say {_BY_ORDER[name]}", node, statement)
    if name in _BY_MOMENT or (name == "age" and len(node.get("arguments", ())) == 1):
        raise _refusal(
            f"{name}, which is another each time",
            "write the value itself, as TIMESTAMP '2024-05-01 12:00:00'",
            node,
            statement,
        )
    if name in _BY_MACHINE:
        raise _refusal(
            f"{name}, whose last digit depends on the machine", "compute it outside of what is proven", node, statement
        )


def _check_choice(node: Mapping[str, Any], statement: bytes) -> None:
    modifiers: Sequence[Any] = node.get("modifiers") or ()
    kinds = [modifier.get("type") for modifier in modifiers if isinstance(modifier, dict)]
    if any(kind in ("LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER") for kind in kinds) and not _is_by_all(modifiers):
        raise _refusal(
            "LIMIT and OFFSET, where rows may be equal in their order",
            "say ORDER BY ALL LIMIT …, or QUALIFY rank() OVER (ORDER BY …) <= …",
            node,
            statement,
        )
    if any(modifier.get("distinct_on_targets") for modifier in modifiers if isinstance(modifier, dict)):
        raise _refusal("DISTINCT ON", "say QUALIFY rank() OVER (PARTITION BY … ORDER BY …) = 1", node, statement)
    if node.get("ref_type") in ("POSITIONAL", "ASOF"):
        raise _refusal(
            f"a {node['ref_type']} join", "join by what rows say, with rank() for the nearest", node, statement
        )
    if node.get("class") == "COLLATE":
        raise _refusal("COLLATE, where other texts count as equal", "compare lower(x)", node, statement)
    if node.get("sample"):
        raise _refusal("a sample", "take rows by what they say, like hash(key) % 100 = 0", node, statement)


def _is_by_all(modifiers: Sequence[Any]) -> bool:
    return any(
        (order.get("expression") or {}).get("class") == "STAR"
        for modifier in modifiers
        if modifier.get("type") == "ORDER_MODIFIER"
        for order in modifier.get("orders", ())
    )


def _check_window(node: Mapping[str, Any], statement: bytes) -> None:
    edges = f"{node.get('start')} {node.get('end')}"
    if node.get("type") not in _RANKS and "ROWS" in edges:
        raise _refusal(
            "a window of ROWS, where rows may be equal in their order", "say RANGE in place of ROWS", node, statement
        )


def _refusal(what: str, instead: str, node: Mapping[str, Any], statement: bytes) -> Refused:
    at = node.get("query_location")
    place = place_of(statement, at) if isinstance(at, int) and at <= len(statement) else ""
    return Refused(f"a proven answer may not use {what}", rule="query-prove", hint=instead, place=place)


def _nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
