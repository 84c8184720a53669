"""Bounds before a query runs how much larger than its data a value may become, since no heap is unlimited. Pure.

``repeat(k, v)`` needs as much memory as a row says. So a length must be a constant or have one as its bound: ``least(v,
1000)``; growth within growth is multiplied, through all steps of a query. ``replace(k, 'a', j)`` needs the product of
two cells, so a text that is inserted many times must have a bound too: ``left(j, 100)``. A query that fails in a row
would fail for ever, so it is refused when it is judged, not when it meets the row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engines.spark.analysis.functions import FUNCTIONS
from engines.spark.analysis.refusals import QueryRefused
from engines.spark.analysis.tree import PlanNode

MAX_TIMES: Final = 4096
"""Most times that a value may be as large as the columns it is made of."""
MAX_CHARACTERS: Final = 1 << 22
"""Most characters of a value's part that does not depend on columns."""
MAX_SEQUENCE: Final = 1 << 21
"""Most numbers, days or instants of a sequence; calendars and tallies are made of them."""
MAX_WIDTH: Final = 65_536
"""Greatest width of a field in a format."""
RULE: Final = "length-not-bounded"
_REPEATS: Final = {"repeat": 1, "array_repeat": 1}
"""Functions that repeat an argument as often as another says -> the position of the latter."""
_PADS: Final = {"lpad": 1, "rpad": 1, "space": 0, "format_number": 1}
"""Functions that make a text as long as an argument says -> its position."""
_CUTS: Final = {"left": 1, "right": 1, "substr": 2, "substring": 2}
"""Functions whose value is no longer than an argument says -> its position."""
_JOINS: Final = frozenset({
    "concat", "overlay", "array", "struct", "named_struct", "map", "map_concat", "array_union", "array_append",
    "array_prepend", "arrays_zip", "Concat", "CreateNamedStruct", "Overlay",
})  # fmt: skip
"""Functions whose value contains all of their arguments."""
_INSERTS: Final[Mapping[str, tuple[int, ...]]] = {"replace": (2,), "regexp_replace": (2,), "array_join": (1, 2)}
"""Functions that insert arguments many times into the first one -> the positions of these."""
_FORMATS: Final = frozenset({"format_string", "printf"})
_ESCAPES: Final = {
    "hex": 2, "base64": 2, "to_base32": 2, "quote": 2, "to_csv": 2, "url_encode": 3, "encode": 4, "to_json": 6,
    "to_xml": 6,
}  # fmt: skip
"""Functions that write a character as several -> how many at most."""
_AROUND: Final = re.compile(r"\(\?<?[=!]")
"""A lookaround in a pattern: a group in it may hold the same characters for every match."""
_FOLDS: Final = frozenset({"aggregate", "reduce"})
_DAY: Final = 86_400_000_000.0
_FIELD: Final = re.compile(r"%[^a-zA-Z%]*?(\d{5,})")


@dataclass(frozen=True, slots=True)
class ValueGrowth:
    """An upper bound of a value's size: ``times`` that of the largest column, plus ``characters``."""

    times: float
    characters: float

    def __add__(self, other: ValueGrowth) -> ValueGrowth:
        return ValueGrowth(self.times + other.times, self.characters + other.characters)

    def __or__(self, other: ValueGrowth) -> ValueGrowth:
        return ValueGrowth(max(self.times, other.times), max(self.characters, other.characters))

    def by(self, number: float) -> ValueGrowth:
        return ValueGrowth(self.times * number, self.characters * number)


COLUMN: Final = ValueGrowth(1, 0)
NOTHING: Final = ValueGrowth(0, 0)
_SMALL_KINDS: Final = frozenset({
    "Add", "Subtract", "Multiply", "Divide", "Remainder", "IntegralDivide", "UnaryMinus", "EqualTo", "EqualNullSafe",
    "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "And", "Or", "Not", "IsNull", "IsNotNull", "In",
    "Like", "ILike", "RLike", "LikeAll", "LikeAny", "NotLikeAll", "NotLikeAny", "Between",
})  # fmt: skip
"""Operators whose value is a number, a time or a truth value."""
_LARGE_TYPES: Final = ("string", "binary", "char", "varchar", "variant")
_SMALL_RESULTS: Final = frozenset({"boolean", "whole", "decimal", "double", "same", "time", "interval"})
PER_ELEMENT: Final = frozenset({
    "aggregate", "reduce", "transform", "zip_with", "transform_values", "transform_keys", "map_zip_with",
})  # fmt: skip
"""Functions whose value contains the result of a lambda function for each element."""


def growth_of(
    node: PlanNode, name: str, below: Sequence[ValueGrowth], columns: ValueGrowth, known: Mapping[str, ValueGrowth]
) -> ValueGrowth:
    """Bounds the growth of an expression. ``name``: of its function, if any; ``below``: bounds of its
    arguments; ``columns``: bound of a column; ``known``: bounds of lambda variables by name. Raises
    Refused if it may be too large."""
    found = _growth_of(node, name, below, columns, known)
    if found.times > MAX_TIMES or found.characters > MAX_CHARACTERS:
        raise _refusal(
            node,
            f"{name or 'this'}: a value up to {found.times:.0f} times as large as a column, and of "
            f"{found.characters:.0f} characters",
            f"at most {MAX_TIMES} times and {MAX_CHARACTERS} characters: shorter",
        )
    return found


def _growth_of(
    node: PlanNode, name: str, below: Sequence[ValueGrowth], columns: ValueGrowth, known: Mapping[str, ValueGrowth]
) -> ValueGrowth:
    if node.kind == "Literal":
        return ValueGrowth(0, len(str(node.fields.get("value"))))
    if node.kind == "UnresolvedNamedLambdaVariable":
        return known.get(str(node.fields.get("nameParts"))[1:-1], columns)
    if node.kind.startswith("Unresolved") and not below:
        return columns
    arguments = [part.children[0] if part.kind == "NamedArgumentExpression" else part for part in node.children]
    if name in _REPEATS and len(below) > 1:
        return below[0].by(_length(node, name, arguments[_REPEATS[name]]))
    if name in _PADS and len(below) > _PADS[name] and not _is_text(arguments[_PADS[name]]):
        return ValueGrowth(below[0].times, _length(node, name, arguments[_PADS[name]]))
    at = 2 if node.kind == "Substring" else _CUTS.get(name)
    if at is not None and len(below) > at:
        longest = _greatest(arguments[at])
        return below[0] if longest is None or not below[0].times else ValueGrowth(0, max(0, longest))
    if name == "sequence" and len(below) > 1:
        return ValueGrowth(0, _sequence(node, arguments))
    if name in ("regexp_replace", "regexp_extract_all") and len(below) > 1:
        _check_pattern(node, name, arguments)
    if name in _INSERTS:
        return below[0].by(_insertion_length(node, name, [below[at] for at in _INSERTS[name] if at < len(below)]))
    if name == "concat_ws" and below:
        return sum(below[1:], NOTHING).by(_insertion_length(node, name, below[:1]))
    if name == "array_insert" and len(below) > 1:
        return sum(below, ValueGrowth(0, _position(node, name, arguments[1])))
    if name in _FORMATS and arguments:
        return _format_growth(node, name, arguments[0], below)
    if node.kind in _SMALL_KINDS or (name in FUNCTIONS and _is_small(FUNCTIONS[name].results)) or _is_small_cast(node):
        return NOTHING
    if name in _JOINS or node.kind in _JOINS:
        return sum(below, NOTHING)
    if name in _ESCAPES:
        return sum(below, NOTHING).by(_ESCAPES[name])
    if name in PER_ELEMENT and len(below) > 1:
        return below[0] | sum(below[1:], NOTHING).by(max(1, below[0].characters, _count_listed(node)))
    total = NOTHING
    for each in below:
        total |= each
    return total


def _is_small(results: frozenset[str]) -> bool:
    return bool(results) and results <= _SMALL_RESULTS


def _is_small_cast(node: PlanNode) -> bool:
    kind = node.fields.get("dataType")
    return node.kind == "Cast" and isinstance(kind, str) and not kind.startswith(_LARGE_TYPES)


def _is_text(node: PlanNode) -> bool:
    return node.kind == "Literal" and node.fields.get("dataType") == "string"


def _count_listed(node: PlanNode) -> int:
    """Returns the number of elements of a list that is written out; 0 for other expressions."""
    first = node.children[0]
    return len(first.children) if _function_name(first) == "array" else 0


def check_elements(node: PlanNode, name: str, held: ValueGrowth, outside: ValueGrowth) -> None:
    """Checks a function in ``PER_ELEMENT``. ``held``: growth of its list; ``outside``: growth of the lambda function's
    result by other columns. Raises QueryRefused for the product of two columns."""
    if name in PER_ELEMENT and held.times and outside.times and not _count_listed(node):
        raise _refusal(
            node,
            f"{name}: each element becomes as large as a column is, and a row decides how many there are",
            "give the value beside the element a bound: left(k, 100) of a text, cast(v as bigint) of a number",
        )


def _check_pattern(node: PlanNode, name: str, arguments: Sequence[PlanNode]) -> None:
    """Raises QueryRefused for a lookaround in a pattern: for each character of the text a group in it may be
    as long as the text."""
    if name == "regexp_replace":
        *_, inserted = arguments[:3]
        if inserted.kind == "Literal" and "$" not in str(inserted.fields.get("value")):
            return
    if arguments[1].kind != "Literal" or _AROUND.search(str(arguments[1].fields.get("value"))):
        raise _refusal(
            node,
            f"{name}: a group that looks around a match may hold all of a text, for each of its characters",
            "write the pattern as a constant without (?= and (?<=, or a replacement without $",
        )


def _insertion_length(node: PlanNode, name: str, given: Sequence[ValueGrowth]) -> float:
    """Returns how many characters are inserted at each place. Raises QueryRefused if a row decides."""
    if any(each.times for each in given):
        raise _refusal(
            node,
            f"{name}: what it puts in many times is as long as a row says",
            f"give what is put in a bound: {name}(…, left(j, 100))",
        )
    return max(1, *(each.characters for each in given)) if given else 1


def _position(node: PlanNode, name: str, at: PlanNode) -> int:
    """Returns up to which position, from either end, a list is filled. Raises QueryRefused if a row decides."""
    low, high = _bounds(at)
    if low is None or high is None:
        raise _refusal(
            node,
            f"{name}: up to where its list is filled, a row decides",
            f"give the position bounds: {name}(…, greatest(-1000, least(n, 1000)), …)",
        )
    return max(abs(low), abs(high))


def _format_growth(node: PlanNode, name: str, template: PlanNode, below: Sequence[ValueGrowth]) -> ValueGrowth:
    if template.kind != "Literal":
        raise _refusal(node, f"{name}: how often it shows its arguments, a row decides", "write the format itself")
    text = str(template.fields.get("value"))
    wide = [int(digits) for digits in _FIELD.findall(text)]
    if any(each > MAX_WIDTH for each in wide):
        raise _refusal(node, f"{name}: a field that is {max(wide)} wide", f"at most {MAX_WIDTH}")
    largest = NOTHING
    for each in below[1:]:
        largest |= each
    return ValueGrowth(0, len(text) + sum(wide)) + largest.by(text.count("%"))


def check_fold(node: PlanNode, name: str, grown: float) -> None:
    """Checks ``aggregate``; ``grown``: how often the accumulator is in the next one. Raises QueryRefused if
    more than once."""
    if name in _FOLDS and grown > 1:
        raise _refusal(
            node,
            f"{name}: what is gathered becomes {grown:.0f} times as large with each element",
            "hold it once: concat(acc, x)",
        )


def _length(node: PlanNode, name: str, amount: PlanNode) -> int:
    found = _greatest(amount)
    if found is None:
        raise _refusal(
            node, f"{name}: how long its result is, a row decides", f"give it a bound: {name}(…, least(n, 1000))"
        )
    return max(0, found)


def _greatest(amount: PlanNode) -> int | None:
    """Returns the greatest value of a number; ``None`` if it has no bound."""
    return _bounds(amount)[1]


def _bounds(amount: PlanNode) -> tuple[int | None, int | None]:
    """Returns the least and the greatest value of a number; ``None`` where it has no bound."""
    if amount.kind == "UnaryMinus":
        number = _number(amount.only)
        return (None, None) if number is None else (-number, -number)
    if amount.kind == "Cast":
        return _bounds(amount.only)
    called = _function_name(amount)
    if called not in ("least", "greatest") or not amount.children:
        return (_number(amount),) * 2
    lows, highs = zip(*map(_bounds, amount.children), strict=True)
    low, high = ([each for each in side if each is not None] for side in (lows, highs))
    if called == "least":
        return min(low) if len(low) == len(lows) else None, min(high, default=None)
    return max(low, default=None), max(high) if len(high) == len(highs) else None


def _number(node: PlanNode) -> int | None:
    value = str(node.fields.get("value"))
    return int(value) if node.kind == "Literal" and re.fullmatch(r"-?\d{1,18}", value) else None


def _sequence(node: PlanNode, arguments: Sequence[PlanNode]) -> int:
    """Returns the greatest number of elements: between constants, or from a start to a constant distance after it."""
    start, stop, *steps = arguments
    stops = stop.children if _function_name(stop) == "least" else (stop,)
    spans = [found for stop in stops if (found := _distance(start, stop)) is not None]
    step = _span(steps[0], least=True) if steps else (1.0, False)
    if spans and step is not None and step[0]:
        span, timed = min(spans)
        length, by_time = step
        if timed != by_time:  # days are counted by one, and a step in time may go through them
            span, length = (span, length * _DAY) if timed else (span * _DAY, length)
        if span / length <= MAX_SEQUENCE:
            return int(span / length) + 1
    raise _refusal(
        node,
        "sequence: how many elements it has, a row decides, or too many",
        f"sequence(a, least(b, a + 1000)), and a constant step: up to {MAX_SEQUENCE} elements",
    )


def _distance(start: PlanNode, stop: PlanNode) -> tuple[float, bool] | None:
    """Returns the distance from a start to ``start + constant``, or between constants; true with it: in
    microseconds."""
    first, last = _span(start), _span(stop)
    if first is not None and last is not None:
        return abs(last[0] - first[0]) + abs(min(first[0], 0)) * 2, False
    if (stop.kind in ("Add", "Subtract") or _function_name(stop) in ("date_add", "date_sub")) and len(
        stop.children
    ) == 2:
        return _span(stop.children[1]) if _alike(start, stop.children[0]) else None
    return None


def _span(node: PlanNode, least: bool = False) -> tuple[float, bool] | None:
    """Returns a constant number, or a constant time in microseconds (then with true), without its sign."""
    inner = node.only if node.kind == "UnaryMinus" else node
    value, kind = str(inner.fields.get("value")), str(inner.fields.get("dataType"))
    if inner.kind != "Literal" or re.fullmatch(r"-?\d{1,18}", value) is None:
        return None
    if kind.startswith("interval") and "second" not in kind and "day" not in kind:
        return abs(int(value)) * (28 if least else 31) * _DAY, True  # months
    return float(abs(int(value))), kind.startswith("interval")


def _function_name(node: PlanNode) -> str:
    return str(node.fields.get("nameParts"))[1:-1].lower() if node.kind == "UnresolvedFunction" else ""


def _alike(one: PlanNode, other: PlanNode) -> bool:
    """Whether two parsed expressions are written alike."""
    here, there = (
        [(part.kind, str(part.fields.get("nameParts")), str(part.fields.get("value"))) for part in node.preorder()]
        for node in (one, other)
    )
    return here == there


def _refusal(node: PlanNode, message: str, hint: str) -> QueryRefused:
    fault = QueryRefused(message, rule=RULE, hint=hint)
    fault.node = node
    return fault
