"""How much larger than its data a value may become: bounded before a query runs, since no heap can be. Pure.

``repeat(k, v)`` asks for as much memory as a row says. So a length must be a constant, or have one: ``least(v, 1000)``;
what grows within what grows is multiplied, through all steps of a query. A query that fails in a row fails for ever, so
it is refused when it is judged, and not when it meets the row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engines.spark.analysis.functions import FUNCTIONS
from engines.spark.analysis.refusals import Refused
from engines.spark.analysis.tree import Node

MAX_TIMES: Final = 4096
"""How many times as large as the columns that it is made of."""
MAX_CHARACTERS: Final = 1 << 22
"""Of what is made of constants."""
MAX_SEQUENCE: Final = 1 << 21
"""Numbers, days or instants of a sequence; calendars and tallies are made of them."""
MAX_WIDTH: Final = 65_536
"""Of a field in a format."""
RULE: Final = "length-not-bounded"
_REPEATS: Final = {"repeat": 1, "array_repeat": 1}
"""Functions that hold an argument as often as another one says; which."""
_PADS: Final = {"lpad": 1, "rpad": 1, "space": 0}
"""Functions that make a text as long as one argument says; which."""
_JOINS: Final = frozenset({
    "concat", "concat_ws", "format_string", "printf", "overlay", "array", "struct", "named_struct", "map", "map_concat",
    "array_union", "array_append", "array_prepend", "array_insert", "arrays_zip", "Concat", "CreateNamedStruct",
    "Overlay",
})  # fmt: skip
"""Functions whose value holds all of their arguments."""
_REPLACES: Final = {"replace": 2, "regexp_replace": 2, "array_join": 1}
"""Functions that put one argument, which, into another many times."""
_FOLDS: Final = frozenset({"aggregate", "reduce"})
_DAY: Final = 86_400_000_000.0
_FIELD: Final = re.compile(r"%[^a-zA-Z%]*?(\d{5,})")


@dataclass(frozen=True, slots=True)
class Growth:
    """An upper bound of a value's size: so many times that of the largest column, and so many characters."""

    times: float
    characters: float

    def __add__(self, other: Growth) -> Growth:
        return Growth(self.times + other.times, self.characters + other.characters)

    def __or__(self, other: Growth) -> Growth:
        return Growth(max(self.times, other.times), max(self.characters, other.characters))

    def by(self, number: float) -> Growth:
        return Growth(self.times * number, self.characters * number)


COLUMN: Final = Growth(1, 0)
NOTHING: Final = Growth(0, 0)
_SMALL_RESULTS: Final = frozenset({"boolean", "whole", "decimal", "double", "same", "time", "interval"})
_ARITHMETIC: Final = frozenset({"Add", "Subtract", "Multiply", "Divide", "Remainder", "IntegralDivide", "UnaryMinus"})
_GOES_THROUGH: Final = frozenset({"aggregate", "reduce", "transform", "zip_with", "filter"})


def growth_of(node: Node, name: str, below: Sequence[Growth], columns: Growth, known: Mapping[str, Growth]) -> Growth:
    """Of an expression. ``name``: of the function that it calls, if any; ``below``: of its arguments; ``columns``: of a
    column; ``known``: of variables of lambda functions, by name. Raises Refused.
    """
    found = _made(node, name, below, columns, known)
    if found.times > MAX_TIMES or found.characters > MAX_CHARACTERS:
        raise _unbounded(
            node, f"{name or 'this'}: a value up to {found.times:.0f} times as large as a column, and of "
            f"{found.characters:.0f} characters", f"at most {MAX_TIMES} times and {MAX_CHARACTERS} characters: shorter",
        )  # fmt: skip
    return found


def _made(node: Node, name: str, below: Sequence[Growth], columns: Growth, known: Mapping[str, Growth]) -> Growth:
    if node.kind == "Literal":
        return Growth(0, len(str(node.fields.get("value"))))
    if node.kind == "UnresolvedNamedLambdaVariable":
        return known.get(str(node.fields.get("nameParts"))[1:-1], columns)
    if node.kind.startswith("Unresolved") and not below:
        return columns
    arguments = [part.children[0] if part.kind == "NamedArgumentExpression" else part for part in node.children]
    if name in _REPEATS and len(below) > 1:
        return below[0].by(_length(node, name, arguments[_REPEATS[name]]))
    if name in _PADS and len(below) > _PADS[name]:
        return Growth(below[0].times, _length(node, name, arguments[_PADS[name]]))
    if name == "sequence" and len(below) > 1:
        return Growth(0, _sequence(node, arguments))
    if name in _REPLACES and len(below) > _REPLACES[name]:
        inserted = arguments[_REPLACES[name]]
        return below[0].by(max(1, len(str(inserted.fields.get("value"))))) if inserted.kind == "Literal" else below[0]
    if name in ("format_string", "printf") and arguments and arguments[0].kind == "Literal":
        wide = [int(digits) for digits in _FIELD.findall(str(arguments[0].fields.get("value")))]
        if any(each > MAX_WIDTH for each in wide):
            raise _unbounded(node, f"{name}: a field that is {max(wide)} wide", f"at most {MAX_WIDTH}")
    if node.kind in _ARITHMETIC or (name in FUNCTIONS and _is_small(FUNCTIONS[name].results)):
        return NOTHING
    if name in _JOINS or node.kind in _JOINS:
        return sum(below, NOTHING)
    if name in _GOES_THROUGH and len(below) > 1:
        return below[0] | sum(below[1:], NOTHING).by(max(1, below[0].characters))
    total = NOTHING
    for each in below:
        total |= each
    return total


def _is_small(results: frozenset[str]) -> bool:
    return bool(results) and results <= _SMALL_RESULTS


def check_fold(node: Node, name: str, grown: float) -> None:
    """Of ``aggregate``: how many times its accumulator is held in what becomes of it after one element. Raises
    Refused where it would grow with each.
    """
    if name in _FOLDS and grown > 1:
        raise _unbounded(
            node, f"{name}: what is gathered becomes {grown:.0f} times as large with each element",
            "hold it once: concat(acc, x)",
        )  # fmt: skip


def _length(node: Node, name: str, amount: Node) -> int:
    found = _greatest(amount)
    if found is None:
        raise _unbounded(
            node, f"{name}: how long its result is, a row decides", f"give it a bound: {name}(…, least(n, 1000))"
        )
    return max(0, found)


def _greatest(amount: Node) -> int | None:
    """The greatest value of a number that has a bound."""
    if amount.kind == "UnaryMinus":
        return 0 if _number(amount.only) is not None else None
    if amount.kind == "Cast":
        return _greatest(amount.only)
    if _called(amount) == "least":
        bounds = [bound for each in amount.children if (bound := _greatest(each)) is not None]
        return min(bounds) if bounds else None
    return _number(amount)


def _number(node: Node) -> int | None:
    value = str(node.fields.get("value"))
    return int(value) if node.kind == "Literal" and value.isdecimal() and len(value) < 19 else None


def _sequence(node: Node, arguments: Sequence[Node]) -> int:
    """How many elements: from constants, or from a start to so far after it."""
    start, stop, *steps = arguments
    stops = stop.children if _called(stop) == "least" else (stop,)
    spans = [found for each in stops if (found := _distance(start, each)) is not None]
    step = _span(steps[0], least=True) if steps else (1.0, False)
    if spans and step is not None and step[0]:
        span, timed = min(spans)
        length, by_time = step
        if timed != by_time:  # days are counted by one, and a step in time may go through them
            span, length = (span, length * _DAY) if timed else (span * _DAY, length)
        if span / length <= MAX_SEQUENCE:
            return int(span / length) + 1
    raise _unbounded(
        node, "sequence: how many elements it has, a row decides, or too many",
        f"sequence(a, least(b, a + 1000)), and a constant step: up to {MAX_SEQUENCE} elements",
    )  # fmt: skip


def _distance(start: Node, stop: Node) -> tuple[float, bool] | None:
    """From a start to ``start + constant``, or between constants: a number, or microseconds (then true)."""
    first, last = _span(start), _span(stop)
    if first is not None and last is not None:
        return abs(last[0] - first[0]) + abs(min(first[0], 0)) * 2, False
    if (stop.kind in ("Add", "Subtract") or _called(stop) in ("date_add", "date_sub")) and len(stop.children) == 2:
        return _span(stop.children[1]) if _alike(start, stop.children[0]) else None
    return None


def _span(node: Node, least: bool = False) -> tuple[float, bool] | None:
    """A constant number, or a constant time in microseconds (then true), without its sign."""
    inner = node.only if node.kind == "UnaryMinus" else node
    value, kind = str(inner.fields.get("value")), str(inner.fields.get("dataType"))
    if inner.kind != "Literal" or re.fullmatch(r"-?\d{1,18}", value) is None:
        return None
    if kind.startswith("interval") and "second" not in kind and "day" not in kind:
        return abs(int(value)) * (28 if least else 31) * _DAY, True  # months
    return float(abs(int(value))), kind.startswith("interval")


def _called(node: Node) -> str:
    return str(node.fields.get("nameParts"))[1:-1].lower() if node.kind == "UnresolvedFunction" else ""


def _alike(one: Node, other: Node) -> bool:
    """Whether two parsed expressions are written alike."""
    here, there = ([(part.kind, str(part.fields.get("nameParts")), str(part.fields.get("value")))
                    for part in node.preorder()] for node in (one, other))  # fmt: skip
    return here == there


def _unbounded(node: Node, message: str, hint: str) -> Refused:
    fault = Refused(message, rule=RULE, hint=hint)
    fault.node = node
    return fault
