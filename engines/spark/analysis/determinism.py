"""Refuses expressions whose value could differ between two honest nodes.

Examines one expression tree at a time, against the closed lists of ``functions``. Positions are found later by the
place of the expression among nodes of its kind, since the plan's JSON has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from engines.spark.analysis.exact import MEANS, MOMENTS, ROOM, is_exact, may_overflow
from engines.spark.analysis.functions import (
    ALLOWED,
    BY_ORDER,
    BYTES,
    DENIALS,
    HOLDS_ITS_ARGUMENTS,
    INTEGER_IN_DOUBLE,
    MAKES_FLOAT,
    MAKES_MAP,
    NESTED,
    NEVER_FLOAT,
    ORDER_FREE,
    PASSES_BYTES,
    SUBQUERIES,
    Use,
)
from engines.spark.analysis.lexical import reads_todays_time
from engines.spark.analysis.tree import PlanNode, same

_INTEGERS: Final = {"byte", "short", "integer", "long"}
_WRITTEN: Final = {
    "Average": "avg", "SparkVersion": "version", "VarianceSamp": "variance", "StddevSamp": "stddev",
    "VariancePop": "var_pop", "CovPopulation": "covar_pop", "CovSample": "covar_samp", "RegrAvgX": "regr_avgx",
    "RegrAvgY": "regr_avgy", "LocalTimestamp": "localtimestamp", "CurrentTimeZone": "current_timezone",
    "TypeOf": "typeof", "ListAgg": "listagg", "RandStr": "randstr", "ToDegrees": "degrees", "ToRadians": "radians",
    "Logarithm": "log", "CallMethodViaReflection": "reflect", "ApproximatePercentile": "approx_percentile",
}  # fmt: skip
"""Functions whose Catalyst class is not named as in SQL, with their SQL name."""


_DOCUMENTS: Final = frozenset({"JsonToStructs", "CsvToStructs"})
"""Functions whose result has the type that is given as an argument."""
_TYPED: Final = _DOCUMENTS | {"AttributeReference"}
_COMPARISON: Final = [
    *("If", "And", "IsNull", "left", "IsNull", "right", "0"),
    *("If", "IsNull", "left", "1"),
    *("If", "IsNull", "right", "-1"),
    *("If", "LessThan", "left", "right", "-1"),
    *("If", "GreaterThan", "left", "right", "1", "0"),
]
"""Spark's own comparison function of ``array_sort``, in preorder."""
_A_PATTERN: Final = "give the pattern: to_timestamp(k, 'yyyy-MM-dd HH:mm:ss'), of JSON and CSV over the text"
_TRUNCATED: Final = frozenset({"year", "yyyy", "yy", "quarter", "month", "mon", "mm", "week"})
"""Units of ``trunc``, which gives a date."""
_OF_TIMES: Final = frozenset({"day", "dd", "hour", "minute", "second", "millisecond", "microsecond"})
"""Further units, which only ``date_trunc`` has."""
_UNITS_OF: Final = {"TruncDate": _TRUNCATED, "TruncTimestamp": _TRUNCATED | _OF_TIMES}
_A_CONSTANT: Final = "write the day itself, like date'2024-05-01', or use a column"


@dataclass(frozen=True, slots=True)
class QueryFinding:
    """A fault of a query, with a remedy and the node at fault."""

    code: str
    message: str
    replace: str | None = None
    node: PlanNode | None = None
    """The node whose place in the text is reported."""
    place: tuple[int, int] | None = None
    """(line, column), counted from 1, if there is no node."""


def literals(undated: Iterable[tuple[str, int, int]]) -> list[QueryFinding]:
    """Returns findings for typed literals of a time without a day (text, line, column): after parsing
    they are constants."""
    return [
        QueryFinding(
            "not-data", f"'{text}' is another time whenever the query runs, not data", _A_CONSTANT, place=(line, at)
        )
        for text, line, at in undated
    ]


def examine(expression: PlanNode, use: Use = Use.TRANSFORM) -> list[QueryFinding]:
    """Lists what is not permitted in an expression of a transform, or of an ingest's query.

    The difference is which functions the table permits in each, and that an ingest may have subqueries, since it reads
    all rows there are; their own operators are not looked at here.
    """
    found: list[QueryFinding] = []
    stack = [(expression, False)]
    while stack:
        node, ours = stack.pop()
        if node.kind in SUBQUERIES and use is Use.TRANSFORM:
            found.append(_subquery(node))
            continue
        if _sorted_at_once(node):
            stack.extend((argument, ours) for argument in node.children[0].only.children)
            continue
        if node.kind == "WindowExpression" and _unwrap_aggregate(node.children[0]).kind in BY_ORDER:
            # ``window_functions`` checks whether rows may tie.
            stack.extend((part, ours) for part in (*_unwrap_aggregate(node.children[0]).children, node.children[1]))
            continue
        finding = _function(node, ours, use) or _aggregate(node) or _cast(node) or _find_misuse(node)
        if finding is not None:
            found.append(finding)
            continue
        if "replacement" in node.fields:
            # Spark's replacement may use functions that a query may not; only its arguments are the query's.
            stack.extend((argument, ours) for argument in arguments(node))
            stack.extend((child, True) for child in node.children)
        else:
            stack.extend((child, ours) for child in reversed(node.children))
    return found


def find_misplaced(plan: PlanNode) -> list[QueryFinding]:
    """Lists what is not permitted anywhere in a person's own query. Others never repeat it, so it may read a clock, and
    add floating point in any order."""
    found = []
    for operator in plan.preorder():
        for expression in arguments(operator):
            found.extend(_misplaced_parts(expression))
    return found


def _misplaced_parts(expression: PlanNode) -> list[QueryFinding]:
    found = []
    stack = [(expression, False)]
    while stack:
        node, ours = stack.pop()
        uses, denial = DENIALS.get(node.kind, (Use.QUERY, None))
        if denial is not None and Use.QUERY not in uses and not (ours and node.kind.endswith("Invoke")):
            found.append(QueryFinding(denial.code, f"{_sql_name(node.kind)}: {denial.reason}", denial.instead, node))
        below = [*node.children, *arguments(node)]
        stack.extend((child, ours or "replacement" in node.fields) for child in below)
    return found


def is_float(node: PlanNode) -> bool:
    """Whether an expression's value is, or may hold, floating point numbers."""
    stack = [node]
    while stack:
        part = stack.pop()
        if part.kind in ("AttributeReference", "Cast", "Literal", "NamedLambdaVariable"):
            if _holds_float(part.fields.get("dataType")):
                return True
        elif part.kind in _DOCUMENTS:
            if _holds_float(part.fields.get("schema")):
                return True
        elif part.kind in MAKES_FLOAT:
            if part.kind != "Average" or not _decimal(part.only):
                return True
        elif part.kind == "GetStructField" and part.only.kind in _TYPED:
            if _holds_float(_field_type(part)):
                return True
        elif part.kind not in NEVER_FLOAT:
            stack.extend(part.children)
    return False


def is_map(node: PlanNode) -> bool:
    """Whether an expression's value is, or holds, a map."""
    if node.kind in ("AttributeReference", "Cast"):
        return '"map"' in json.dumps(node.fields.get("dataType"))
    if node.kind in _DOCUMENTS:
        return '"map"' in json.dumps(node.fields.get("schema"))
    if node.kind == "GetStructField" and node.only.kind in _TYPED:
        return '"map"' in json.dumps(_field_type(node))
    if node.kind in MAKES_MAP:
        return True
    return node.kind in HOLDS_ITS_ARGUMENTS and any(is_map(child) for child in node.children)


def _field_type(node: PlanNode) -> object:
    """Returns the type of ``s.f``, or the type of all of ``s`` if the field's is not stated."""
    stated = node.only.fields
    whole, ordinal = stated.get("schema" if node.only.kind in _DOCUMENTS else "dataType"), node.fields.get("ordinal")
    fields = whole.get("fields") if isinstance(whole, dict) else None
    return fields[ordinal].get("type") if isinstance(fields, list) and isinstance(ordinal, int) else whole


def _holds_float(data_type: object) -> bool:
    if isinstance(data_type, dict):
        return any(
            _holds_float(data_type.get(part)) for part in ("type", "elementType", "keyType", "valueType", "fields")
        )
    if isinstance(data_type, list):
        return any(_holds_float(field) for field in data_type)
    return data_type in ("double", "float")


def _decimal(node: PlanNode) -> bool:
    stated = [str(part.fields.get("dataType", "")) for part in node.preorder() if "dataType" in part.fields]
    return bool(stated) and stated[0].startswith("decimal")


def _function(node: PlanNode, ours: bool, use: Use) -> QueryFinding | None:
    uses, denial = DENIALS.get(node.kind, (use, None))
    if node.kind == "ListAgg" and _ordered_by_itself(node):
        return None
    if denial is not None and use not in uses and not (ours and node.kind in ("StaticInvoke", "Invoke")):
        return QueryFinding(denial.code, f"{_sql_name(node.kind)}: {denial.reason}", denial.instead, node)
    if ours or denial is not None or node.kind in ALLOWED[use] or node.kind in SUBQUERIES:
        return None
    return QueryFinding(
        "unknown-function",
        f"{_sql_name(node.kind)} is not among the functions known to give every node the same answer",
        "use another function, or compute it where it is displayed",
        node,
    )


def _aggregate(node: PlanNode) -> QueryFinding | None:
    if node.kind != "AggregateExpression":
        return None
    function = node.children[0]
    if function.kind in ORDER_FREE or function.kind in DENIALS or not function.children:
        return None
    name, distinct = _sql_name(function.kind), "distinct " if node.fields.get("isDistinct") else ""
    if computed_exactly(node):
        return None
    if function.kind in MOMENTS | MEANS or function.kind == "RegrReplacement":
        return QueryFinding(
            "float-aggregate",
            f"{name}({distinct}…) adds in floating point, whatever it is given: the result depends on the order of the "
            "rows",
            "sum(x * y), sum(x), sum(y) and count(x), over decimals, and compute from them",
            function,
        )
    if any(is_float(child) for child in function.children):
        return QueryFinding(
            "float-aggregate",
            f"{name} over floating point: the result depends on the order of the rows",
            f"{name}({distinct}cast(x as decimal({28 if distinct else 38},12)))",
            function,
        )
    if function.kind in INTEGER_IN_DOUBLE and _integer(function.children[0]):
        return QueryFinding(
            "float-aggregate",
            f"{name} over whole numbers adds them in floating point, inexactly beyond 2^53",
            f"{name}({distinct}cast(x as decimal(20,0)))",
            function,
        )
    if distinct and function.kind in ("Sum", "Average") and may_overflow(function.only):
        return QueryFinding(
            "overflow-by-order",
            f"{name}(distinct …) may leave its type on the way, or not, as the order of the rows has it",
            f"{name}(distinct cast(x as decimal({ROOM},0)))",
            function,
        )
    return None


def computed_exactly(node: PlanNode) -> bool:
    """Whether an expression is an aggregate that is computed exactly (over floating point, or an
    average), in any row order."""
    if node.kind != "AggregateExpression":
        return False
    return is_exact(node, any(is_float(child) for child in node.children[0].children))


def _integer(node: PlanNode) -> bool:
    """Whether a value may be an integer: it is not provably a decimal or an interval, whose averages are exact."""
    stated = [part.fields.get("dataType") for part in node.preorder() if part.fields.get("dataType") is not None]
    first = stated[0] if stated else None
    return not (isinstance(first, str) and first.startswith(("decimal", "interval")))


def _cast(node: PlanNode) -> QueryFinding | None:
    if not reads_todays_time(node):
        return None
    constant = not any(part.kind == "AttributeReference" for part in node.preorder())
    return QueryFinding(
        "not-data",
        "a text read as a time has the day on which the query runs, where it states none of its own",
        _A_CONSTANT if constant else _A_PATTERN,
        node,
    )


def _find_misuse(node: PlanNode) -> QueryFinding | None:
    """Returns a finding for functions whose value is the same everywhere only for some arguments, and
    is not for these."""
    if node.kind == "FormatString":
        template = node.children[0]
        hashes = template.kind != "Literal" or re.search(r"%[^a-zA-Z%]*[hH]", str(template.fields.get("value")))
        if hashes or any(_is_nested(argument) for argument in node.children[1:]):
            return QueryFinding(
                "object-identity",
                "format_string prints where lists, structures and bytes lie in memory, and %h numbers like them",
                "to_json(x), array_join(x, ',') or hex(x), and a constant format without %h",
                node,
            )
    if node.kind in _UNITS_OF and (unit := _unit_of(node)) not in (None, *_UNITS_OF[node.kind]):
        finer = unit if unit in _OF_TIMES else "day" if node.kind == "TruncDate" else "year"
        named = f"trunc(…, '{unit}')" if node.kind == "TruncDate" else f"date_trunc('{unit}', …)"
        return QueryFinding("always-null", f"{named} is null for every row", f"date_trunc('{finer}', x)", node)
    return None


def _unit_of(node: PlanNode) -> str | None:
    """Returns the constant unit to which a date or time is cut; ``None`` if it is a column."""
    unit = node.children[node.kind == "TruncDate"]
    return str(unit.fields.get("value")).lower()[:40] if unit.kind == "Literal" else None


def _is_nested(node: PlanNode) -> bool:
    """Whether a value is, or may be, a list, a structure, a map or bytes."""
    stated = node.fields.get("dataType")
    if stated is not None:
        return not isinstance(stated, str) or stated == "binary"
    if node.kind in NESTED or node.kind in BYTES:
        return True
    if node.kind in ("GetStructField", "GetArrayItem", "ElementAt", "Get", "TryElementAt", "GetMapValue"):
        inner = json.dumps(
            _field_type(node) if node.kind == "GetStructField" else node.children[0].fields.get("dataType")
        )
        return "binary" in inner or inner.count('"type"') > (node.kind != "GetStructField")
    return node.kind in HOLDS_ITS_ARGUMENTS | PASSES_BYTES and any(_is_nested(child) for child in node.children)


def _unwrap_aggregate(node: PlanNode) -> PlanNode:
    return node.only if node.kind == "AggregateExpression" else node


def _sorted_at_once(node: PlanNode) -> bool:
    """Whether this is ``array_sort(collect_list(x))``, sorted by all of x, where equal elements cannot differ."""
    if node.kind != "ArraySort" or node.children[0].kind != "AggregateExpression":
        return False
    collecting, comparing = node.children[0].only, node.children[1]
    return collecting.kind in ("CollectList", "CollectSet") and _by_value(comparing) and not is_float(collecting)


def _by_value(comparing: PlanNode) -> bool:
    """Whether this is the comparison of ``array_sort(x)``; one written by a person may call any two elements equal."""
    body, *arguments = comparing.children
    names = {argument.id: name for argument, name in zip(arguments, ("left", "right"), strict=False)}
    words = (str(part.fields.get("value")) if part.kind == "Literal" else part.kind for part in body.preorder())
    return [names.get(part.id, word) for part, word in zip(body.preorder(), words, strict=True)] == _COMPARISON


def _ordered_by_itself(node: PlanNode) -> bool:
    listed, _, *orders = node.children
    return any(same(listed, order.only) for order in orders) and not is_float(listed)


def arguments(node: PlanNode) -> list[PlanNode]:
    """Lists the expressions in a node's fields, besides its children."""
    return [tree for field, value in node.fields.items() if isinstance(value, list) for tree in _trees(node, field)]


def _trees(node: PlanNode, field: str) -> tuple[PlanNode, ...]:
    """Returns the expressions in a field of any kind; none if it holds something else."""
    value = node.fields[field]
    first = value[0] if value else None
    first = first[0] if isinstance(first, list) and first else first
    return node.expressions(field) if isinstance(first, dict) and "class" in first else ()


def _subquery(node: PlanNode) -> QueryFinding:
    return QueryFinding(
        "subquery-expression",
        "a query inside an expression looks at all of its table, whenever it runs",
        "write it as a join with bounds on event time, or make it a dataset of its own",
        node,
    )


def _sql_name(kind: str) -> str:
    """Returns a function's name as written in SQL: ``CurrentTimestamp`` -> ``current_timestamp``."""
    if kind in _WRITTEN:
        return _WRITTEN[kind]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()
