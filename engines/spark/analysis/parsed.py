"""Checks a parsed query against an allow-list before it is analysed. Pure.

Spark's analyser acts on what it finds: it runs EXECUTE IMMEDIATE, evaluates IDENTIFIER(...) and other constants, looks
tables and functions up in catalogs, and expands common table expressions. So operators and expressions are allowed by
name, and all others are refused; constants that take long to compute are refused; and the size of the analysed plan is
bounded beforehand. The same holds for transforms, preprocess queries and raw queries.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from engines.spark.analysis.functions import DEPENDENCES, FUNCTIONS, TABLE_FUNCTIONS, Function, Use
from engines.spark.analysis.growth import (
    COLUMN,
    NOTHING,
    PER_ELEMENT,
    ValueGrowth,
    check_elements,
    check_fold,
    growth_of,
)
from engines.spark.analysis.lexical import MAX_TYPES, TOO_LARGE, type_depth
from engines.spark.analysis.refusals import QueryRefused
from engines.spark.analysis.tree import PlanNode, build

MAX_COST: Final = 20_000
"""Most operators and expressions of a plan with all its common table expressions expanded."""
MAX_WIDTH: Final = 4_000
"""Most columns of any operator in it."""
MAX_TYPE: Final = 4_000
"""Most fields in the type of any column in it."""
MAX_SETS: Final = 256
"""Most grouping sets of one GROUP BY."""
MAX_PANES: Final = 1_000
"""Most windows of ``window()`` that contain one row: each is one more projection."""
MAX_AMOUNT: Final = 1 << 16
"""Largest constant that says how long a text or list is to be."""
MAX_SEQUENCE: Final = 1 << 21
"""Largest bound of a constant sequence of numbers, of which calendars and tallies are made."""
_SPLIT: Final = "split the query: make an inner part a dataset of its own"
_COMMAND: Final = "write SELECT over the inputs; declarations SET odf.… come first"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPERATORS: Final = _words("""
    Project Filter SubqueryAlias UnresolvedRelation UnresolvedSubqueryColumnAliases UnresolvedInlineTable OneRowRelation
    UnresolvedWith Aggregate Join AsOfJoin LateralJoin Union Except Intersect Distinct Sort GlobalLimit LocalLimit
    LimitAll Offset Sample Generate Pivot Unpivot UnresolvedHaving UnresolvedQualify WithWindowDefinition PipeOperator
    UnresolvedHint UnresolvedTableValuedFunction UnresolvedTVFAliases
""")
"""Classes of parsed operators that only query. Each is known to cause no action when it is analysed."""
EXPRESSIONS: Final = _words("""
    Add Alias And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Coalesce Collate Concat CreateNamedStruct
    Cube CurrentDate CurrentPath CurrentRow$ CurrentTime CurrentTimestamp CurrentUser Divide EqualNullSafe EqualTo
    Exists GreaterThan GreaterThanOrEqual GroupingSets ILike In InSubquery IntegralDivide IsNotNull IsNull
    LambdaFunction LateralSubquery LessThan LessThanOrEqual Like LikeAll LikeAny ListQuery Literal Lower MultiAlias
    Multiply NamedArgumentExpression Not NotLikeAll NotLikeAny Or Overlay PipeExpression RLike Remainder Rollup
    ScalarSubquery SemiStructuredExtract ShiftLeft ShiftRight ShiftRightUnsigned SortOrder SpecifiedWindowFrame
    StringLocate StringTrim StringTrimLeft StringTrimRight Substring Subtract TimestampAdd TimestampDiff UnaryMinus
    UnaryPositive UnboundedFollowing$ UnboundedPreceding$ UnspecifiedFrame$ UnresolvedAlias UnresolvedAttribute
    UnresolvedCollation UnresolvedExtractValue UnresolvedFunction UnresolvedGenerator UnresolvedNamedLambdaVariable
    UnresolvedOrdinal
    UnresolvedPipeAggregateOrdinal UnresolvedStar UnresolvedStarExceptOrReplace UnresolvedWindowExpression
    WindowExpression WindowSpecDefinition WindowSpecReference AggregateExpression First Last AnyValue
""")
"""Classes of parsed expressions that are allowed. Functions are judged by their names."""
HINTS: Final = _words("""
    broadcast broadcastjoin mapjoin merge mergejoin shuffle_merge shuffle_hash shuffle_replicate_nl
    repartition repartition_by_range coalesce rebalance
""")
_GROWTH: Final = 3
"""Most times that an argument occurs in the expansion of a function by the analyser."""
AMOUNTS: Final[Mapping[str, int]] = {"repeat": 1, "space": 0, "lpad": 1, "rpad": 1, "array_repeat": 1}
"""Functions that make something as long as one argument says -> the position of that argument."""
_LIKES: Final = frozenset({"Like", "ILike", "RLike", "LikeAll", "LikeAny", "NotLikeAll", "NotLikeAny"})
_STRUCTURES: Final = _words("struct named_struct array map map_from_arrays arrays_zip zip_with transform array_append")
_SCHEMAS: Final = frozenset({"from_json", "from_csv", "from_xml"})
_STARS: Final = frozenset({"UnresolvedStar", "UnresolvedStarExceptOrReplace"})
_COLUMNS: Final = _STARS | {"UnresolvedAttribute", "UnresolvedNamedLambdaVariable", "UnresolvedOrdinal"}
_LISTS: Final = {"Project": "projectList", "Aggregate": "aggregateExpressions"}
_PLANS: Final = frozenset({"ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"})
_SPAN: Final = re.compile(
    r"(?:interval\s+)?((?:[+-]?\s*\d{1,12}(?:\.\d{1,9})?\s*[a-z]+\s*)+)\Z", re.IGNORECASE | re.ASCII
)
_PART: Final = re.compile(r"([+-]?)\s*(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
_MICROS: Final = {
    "microsecond": 1.0, "millisecond": 1e3, "second": 1e6, "minute": 6e7, "hour": 3.6e9, "day": 8.64e10,
    "week": 6.048e11,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanSize:
    """The size of a plan, as upper bounds."""

    cost: int
    """Number of operators and expressions."""
    width: int
    """Number of columns of its result."""
    fields: int = 1
    """Number of fields in the type of its largest column."""
    growth: ValueGrowth = COLUMN
    """Growth of its largest column over those of the inputs."""


INPUT: Final = PlanSize(1, 100, 100)
"""Size assumed for an input."""


def bounded_size(root: PlanNode, known: Mapping[str, PlanSize], windows: Sequence[PlanNode] = ()) -> PlanSize:
    """Bounds the size of a parsed query. ``known``: sizes of the queries before it, by alias.

    ``windows``: definitions of named windows, which are not part of the plan.

    Raises Invalid for a text that does more than query, or may become too large.
    """
    judging = _Judge()
    size = judging.operator(root, dict(known))
    beside = sum(judging.expression(window, dict(known), size.width) for window in windows)
    return _check_size(replace(size, cost=size.cost + beside))


class _Judge:
    """Judges one query. Recurses as deep as its text nests, which was bounded before."""

    def operator(self, node: PlanNode, scope: dict[str, PlanSize]) -> PlanSize:
        kind = node.kind
        if kind not in OPERATORS:
            with _at(node):
                raise _not_a_query(kind)
        if kind == "UnresolvedWith":
            return self._with(node, scope)
        if kind == "UnresolvedRelation":
            return _relation(node, scope)
        _check_operator(node)
        below = [self.operator(child, scope) for child in node.children]
        width = sum(size.width for size in below)
        fields = max((size.fields for size in below), default=1)
        cost = 1 + sum(size.cost for size in below)
        growth = columns = _greatest(size.growth for size in below)
        for tree in _trees_of(node):
            cost += self.expression(tree, scope, width)
            growth |= self._growth(tree, columns, {})
        if kind in _LISTS:
            items = [next(_trees(item)) for item in node.fields.get(_LISTS[kind]) or ()]
            fields *= max((_makes(item, width) for item in items), default=1)
            width = sum(width if _is_star(item) else 1 for item in items)
            cost += width
        elif kind in ("Union", "Except", "Intersect"):
            width = below[0].width
        elif kind == "UnresolvedInlineTable":
            width = str(node.fields.get("names", "")).count(",") + 1
        elif kind in ("Generate", "UnresolvedTableValuedFunction", "Unpivot"):
            width += 16
            fields *= 2
        elif kind == "Pivot":
            values, made = (len(node.fields.get(name) or ()) for name in ("pivotValues", "aggregates"))
            width += values * made
            cost += width * (1 + made)
        if kind == "Aggregate":
            cost *= _sets([next(_trees(item)) for item in node.fields.get("groupingExpressions") or ()])
        return _check_size(PlanSize(cost, width, fields, growth))

    def _with(self, node: PlanNode, scope: dict[str, PlanSize]) -> PlanSize:
        if node.fields.get("allowRecursion"):
            raise QueryRefused(
                "a recursive query has no end that its inputs set",
                rule="shape-not-supported",
                hint="write WITH without RECURSIVE, and as many steps as there are",
            )
        inner = dict(scope)
        cost = 0
        for entry in node.fields.get("cteRelations") or ():
            for plan in _trees(entry):
                size = self.operator(plan, inner)
                inner[str(entry.get("_1"))] = size
                cost += size.cost
        size = self.operator(node.only, inner)
        return _check_size(replace(size, cost=size.cost + cost))

    def expression(self, node: PlanNode, scope: dict[str, PlanSize], width: int) -> int:
        """Returns the cost of an expression. ``width``: the number of columns that a star stands for."""
        kind = node.kind
        if kind in _PLANS:
            return 1 + sum(self._inner(tree, scope, width) for tree in _trees_of(node)) + self._all(node, scope, width)
        if kind not in EXPRESSIONS:
            with _at(node):
                raise _unknown_expression(kind)
        if kind in _STARS:
            return width + sum(self.expression(tree, scope, width) for tree in _trees_of(node))
        cost = self._all(node, scope, width) + sum(self.expression(t, scope, width) for t in _trees_of(node))
        if kind == "Cast":
            with _at(node):
                _check_type(node.fields.get("dataType"))
        elif kind == "Literal":
            _check_literal(node)
        elif kind in _LIKES and _is_constant(node):
            with _at(node):
                raise _constant_refusal("LIKE")
        elif kind in ("UnresolvedFunction", "UnresolvedGenerator"):
            name = _function_name(node)
            with _at(node):
                _check_function(name, node)
            cost *= _GROWTH if "written-out" in FUNCTIONS[name].costs else 1
        if cost > MAX_COST:
            raise _too_large("expressions")
        return cost + 1

    def _growth(self, node: PlanNode, columns: ValueGrowth, known: Mapping[str, ValueGrowth]) -> ValueGrowth:
        """Returns how much larger than the columns an expression's value may become."""
        if node.kind in OPERATORS or node.kind in _PLANS:
            return columns
        name = _function_name(node) if node.kind in ("UnresolvedFunction", "UnresolvedGenerator") else ""
        if name in ("aggregate", "reduce") and len(node.children) > 2 and node.children[2].kind == "LambdaFunction":
            body, gathered, *_ = node.children[2].children
            once = {str(gathered.fields.get("nameParts"))[1:-1]: COLUMN}
            check_fold(node, name, self._growth(body, NOTHING, once).times)
        plain = [self._growth(child, columns, known) for child in node.children if child.kind != "LambdaFunction"]
        held = columns if any(each.times for each in plain) else NOTHING
        if plain and name in PER_ELEMENT:
            check_elements(node, name, plain[0], self._beside(node, columns, known))
        below = [*plain, *(self._growth(child.only, columns, {**known, **_variables(child, held)})
                           for child in node.children if child.kind == "LambdaFunction")]  # fmt: skip
        rest = [self._growth(tree, columns, known) for tree in _trees_of(node)]
        return _greatest((growth_of(node, name, below, columns, known), *rest))

    def _beside(self, node: PlanNode, columns: ValueGrowth, known: Mapping[str, ValueGrowth]) -> ValueGrowth:
        """Returns the growth of a lambda function's result by anything but its own variables."""
        made = next((child for child in node.children if child.kind == "LambdaFunction"), None)
        if made is None:
            return NOTHING
        return self._growth(made.only, columns, {**known, **_variables(made, NOTHING)})

    def _all(self, node: PlanNode, scope: dict[str, PlanSize], width: int) -> int:
        return sum(self.expression(child, scope, width) for child in node.children)

    def _inner(self, tree: PlanNode, scope: dict[str, PlanSize], width: int) -> int:
        """Returns the cost of a query inside an expression, or of an expression in one of its fields."""
        return self.operator(tree, scope).cost if tree.kind in OPERATORS else self.expression(tree, scope, width)


def _variables(function: PlanNode, held: ValueGrowth) -> dict[str, ValueGrowth]:
    """Bounds the variables of a lambda function: an element is no larger than the list that holds it."""
    return {str(child.fields.get("nameParts"))[1:-1]: held for child in function.children[1:]}


def _greatest(sizes: Iterable[ValueGrowth]) -> ValueGrowth:
    return functools.reduce(operator.or_, sizes, NOTHING)


@contextlib.contextmanager
def _at(node: PlanNode) -> Iterator[None]:
    try:
        yield
    except QueryRefused as fault:
        fault.node = fault.node or node
        raise


def _check_size(size: PlanSize) -> PlanSize:
    if size.cost > MAX_COST:
        raise _too_large("operators and expressions")
    if size.width > MAX_WIDTH:
        raise _too_large("columns")
    if size.fields > MAX_TYPE:
        raise _too_large("fields in one column")
    return size


def _too_large(what: str) -> QueryRefused:
    return QueryRefused(f"written out in full, the query has too many {what}", rule=TOO_LARGE, hint=_SPLIT)


def _not_a_query(kind: str) -> QueryRefused:
    if kind == "RelationTimeTravel":
        return QueryRefused(
            "a dataset cannot be asked for its past by name",
            rule="not-a-query",
            hint="declare a temporal table and join on valid_from and valid_to",
        )
    if kind == "PlanWithUnresolvedIdentifier":
        return _identifier()
    said = {
        "UnresolvedExecuteImmediate": "EXECUTE IMMEDIATE",
        "ScriptTransformation": "TRANSFORM … USING a program",
        "CompoundBody": "a script BEGIN … END",
        "NamedStreamingRelation": "STREAM",
    }.get(kind)
    what = f"a statement that is not a query: {said or _display_name(kind)}"
    return QueryRefused(what, rule="not-a-query", hint=_COMMAND)


def _unknown_expression(kind: str) -> QueryRefused:
    if kind == "ExpressionWithUnresolvedIdentifier":
        return _identifier()
    return QueryRefused(
        f"{_display_name(kind)} is not among what a query may hold",
        rule="unknown-function",
        hint="use functions and operators of SQL over the columns of the inputs",
    )


def _identifier() -> QueryRefused:
    return QueryRefused("IDENTIFIER(…) computes a name", rule="not-a-query", hint="write the name itself, in backticks")


def _display_name(kind: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", kind.rstrip("$")).upper()


def _relation(node: PlanNode, scope: Mapping[str, PlanSize]) -> PlanSize:
    parts = str(node.fields.get("multipartIdentifier"))[1:-1]
    if ", " in parts:
        raise QueryRefused(
            f"{parts.replace(', ', '.')}: a query sees its inputs alone, by one name each",
            rule="not-an-input",
            hint="write the alias of an input, in backticks if it has a point in it",
        )
    if node.fields.get("isStreaming"):
        raise QueryRefused("STREAM: inputs are no streams of Spark", rule="not-a-query", hint="leave STREAM out")
    return scope.get(parts, INPUT)


def _check_operator(node: PlanNode) -> None:
    if node.kind == "UnresolvedTableValuedFunction":
        name = str(node.fields.get("name"))[1:-1].lower()
        row = TABLE_FUNCTIONS.get(name)
        if row is None or not row.uses:
            raise QueryRefused(
                f"{name}(…) is not among the functions that a query may select from",
                rule="unknown-function",
                hint="select from the inputs; LATERAL VIEW explode(…) makes rows of lists",
            )
    if node.kind == "UnresolvedHint" and str(node.fields.get("name")).lower() not in HINTS:
        raise QueryRefused(f"unknown hint {str(node.fields.get('name'))[:80]}", rule="hint", hint="leave the hint out")


def _function_name(node: PlanNode) -> str:
    if node.kind == "UnresolvedGenerator":
        name = node.fields.get("name")
        return str(name.get("funcName", "")).lower() if isinstance(name, dict) else ""
    return str(node.fields.get("nameParts"))[1:-1].lower()


def _check_function(name: str, node: PlanNode) -> None:
    row = _row_of(name)
    arguments = node.children
    if name in AMOUNTS and len(arguments) > AMOUNTS[name]:
        amount = arguments[AMOUNTS[name]]
        if _is_constant(amount) and not _is_small(amount):
            raise QueryRefused(
                f"{name}(…) of a constant length that is not from 0 to {MAX_AMOUNT}",
                rule="constant-too-large",
                hint=f"write a number up to {MAX_AMOUNT}",
            )
    if name == "window":
        _check_window(arguments)
    if name in _SCHEMAS and len(arguments) > 1 and arguments[1].kind != "Literal":
        raise QueryRefused(
            f"{name}(…): its schema is computed", rule="constant-too-large", hint="write the schema itself"
        )
    if "heavy" in row.costs and arguments and _is_constant(node) and not _is_short(name, arguments):
        raise _constant_refusal(name)


def _row_of(name: str) -> Function:
    """Returns a function's row of the table. Raises QueryRefused for an unknown or forbidden function."""
    row = FUNCTIONS.get(name)
    if row is None and ", " not in name:
        raise QueryRefused(
            f"{name[:80]}: there is no such function, or its determinism is not established",
            rule="unknown-function",
            hint="use a function that odfctl docs functions lists",
        )
    denial = DEPENDENCES["code"].denial if row is None else row.denial
    if denial is not None and (row is None or row.uses is Use.NOWHERE):
        raise QueryRefused(f"{name.replace(', ', '.')}: {denial.reason}", rule=denial.code, hint=denial.instead)
    assert row is not None
    return row


def _constant_refusal(name: str) -> QueryRefused:
    return QueryRefused(f"{name} over nothing but constants", rule="constant-too-large", hint="write the value itself")


def _is_short(name: str, arguments: tuple[PlanNode, ...]) -> bool:
    """Whether a constant may be computed after all: a literal whose length a small number gives."""
    if name == "sequence":
        return len(arguments) >= 2 and all(_is_small(argument, MAX_SEQUENCE) for argument in arguments)
    return (name in AMOUNTS or name == "date_format") and all(argument.kind == "Literal" for argument in arguments)


def _is_small(node: PlanNode, most: int = MAX_AMOUNT) -> bool:
    inner = node.only if node.kind == "UnaryMinus" else node
    value = str(inner.fields.get("value"))
    return inner.kind == "Literal" and value.isdecimal() and int(value) <= most


def _is_constant(node: PlanNode) -> bool:
    return not any(part.kind in _COLUMNS or part.kind in _PLANS for part in node.preorder())


def _check_window(arguments: tuple[PlanNode, ...]) -> None:
    """Raises QueryRefused if a row is in too many overlapping windows, for each of which it would be projected once."""
    spans = [_span(argument) for argument in arguments[1:3]]
    if len(spans) == 2 and spans[0] is not None and spans[1] is not None:
        panes = abs(spans[0]) / max(abs(spans[1]), 1.0)
        if panes > MAX_PANES:
            raise QueryRefused(
                f"window(…): a row is in {panes:.0f} windows, and {MAX_PANES} are allowed",
                rule=TOO_LARGE,
                hint="a longer slide, or windows over windows",
            )


def _span(argument: PlanNode) -> float | None:
    """Returns a duration in microseconds; ``None`` for calendar units, which Spark refuses itself. Raises Invalid."""
    node = argument.children[0] if argument.kind == "NamedArgumentExpression" else argument
    text = str(node.fields.get("value", ""))
    if node.kind == "Literal" and str(node.fields.get("dataType", "")).startswith("interval"):
        return float(text) if re.fullmatch(r"-?\d+", text) else None
    found = _SPAN.match(text.strip()) if node.kind == "Literal" and node.fields.get("dataType") == "string" else None
    if found is None:
        raise QueryRefused(
            "window(…): a duration that is not written out", rule="window-duration", hint="write it like '6 hours'"
        )
    total = 0.0
    for sign, number, unit in _PART.findall(found[1]):
        size = _MICROS.get(unit.lower().removesuffix("s"))
        if size is None:
            return None
        total += -float(number) * size if sign == "-" else float(number) * size
    return total


def _sets(keys: list[PlanNode]) -> int:
    """Returns the number of grouping sets, each of which is one more projection of every row. Raises
    Refused if too many."""
    number = 1
    for key in keys:
        if key.kind == "Cube":
            number *= 1 << min(len(key.children), 30)
        elif key.kind == "Rollup":
            number *= 1 + len(key.children)
        elif key.kind == "GroupingSets":
            listed = key.fields.get("userGivenGroupByExprs") or key.fields.get("groupingSetIndexes") or key.children
            inner = [part for part in key.preorder() if part.kind in ("Cube", "Rollup")]
            number *= max(1, len(listed), len(key.children)) * _sets(inner)
        if number > MAX_SETS:
            raise QueryRefused(
                f"more than {MAX_SETS} grouping sets", rule=TOO_LARGE, hint="name those that are wanted: GROUPING SETS"
            )
    return number


def _check_type(data_type: Any) -> None:
    text = data_type if isinstance(data_type, str) else repr(data_type)
    if "collate" in text:
        raise QueryRefused(
            "a collation: which texts it takes for equal changes with its tables", rule="collation", hint="use lower(x)"
        )


def _check_literal(node: PlanNode) -> None:
    value = node.fields.get("value")
    if isinstance(value, str) and type_depth(value) > 4 * MAX_TYPES and node.fields.get("dataType") == "string":
        raise QueryRefused(
            f"a constant in which brackets nest deeper than {4 * MAX_TYPES} levels", rule=TOO_LARGE, hint=_SPLIT
        )


def _makes(item: PlanNode, width: int) -> int:
    """Returns how many columns an expression joins into one, if it makes a structure; else 1."""
    parts = list(item.preorder())
    if not any(
        part.kind == "CreateNamedStruct" or _function_name(part) in _STRUCTURES
        for part in parts
        if part.kind in ("CreateNamedStruct", "UnresolvedFunction")
    ):
        return 1
    return max(1, sum(width if part.kind in _STARS else 1 for part in parts if part.kind in _COLUMNS))


def _is_star(item: PlanNode) -> bool:
    return item.kind in _STARS or (item.kind == "UnresolvedAlias" and item.only.kind in _STARS)


def _trees_of(node: PlanNode) -> Iterator[PlanNode]:
    """Yields expressions and plans in a node's fields, however they are wrapped, but not its children."""
    for value in node.fields.values():
        yield from _trees(value)


def _trees(value: Any) -> Iterator[PlanNode]:
    if isinstance(value, list):
        if value and isinstance(value[0], dict) and "num-children" in value[0]:
            yield build(value)
        else:
            for item in value:
                yield from _trees(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _trees(item)
