"""Decides which aggregates are computed exactly, and with which grids of numbers. Pure; ADR 20 has the reasons.

``engines.spark.catalyst.exact`` makes the plans. Spec: docs/spec/engine-semantics.md#determinism.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from engines.spark.analysis.tree import PlanNode

SUMS: Final = frozenset({"Sum", "Average"})
"""Computed exactly over floating point and wide decimals; averages over all numbers."""
MOMENTS: Final = frozenset({
    "VariancePop", "VarianceSamp", "StddevPop", "StddevSamp", "Corr", "CovPopulation", "CovSample", "RegrSlope",
    "RegrIntercept", "RegrR2", "RegrSXX", "RegrSYY", "RegrSXY",
})  # fmt: skip
"""Made of sums of numbers and of products of two; they first convert their arguments to floating point."""
MEANS: Final = frozenset({"RegrAvgX", "RegrAvgY"})
"""Averages of one column over the rows in which another column is not null either."""
EXTREMES: Final = frozenset({"Min", "Max"})
"""Exact as Spark computes them, but for the choice among 0.0 and -0.0 and among NaN values: these are normalised."""
FLOATS: Final = ("double", "float")
SPREADS: Final = frozenset({"VariancePop", "VarianceSamp", "StddevPop", "StddevSamp"})
"""Moments of a single column."""


def is_exact(aggregate: PlanNode, floating: bool) -> bool:
    """Whether this aggregate is computed exactly. ``floating``: an argument is, or holds, floating point."""
    function = aggregate.children[0]
    if aggregate.fields.get("isDistinct") or not function.children:
        return False
    if function.kind in MOMENTS | MEANS:
        return True
    if function.kind == "Average":
        return (floating and _single(function.only)) or not floating
    return floating and function.kind in SUMS | EXTREMES and _single(function.only)


def _single(argument: PlanNode) -> bool:
    """Whether a value that holds floating point is a single number, not a structure or list."""
    stack = [argument]
    while stack:
        part = stack.pop()
        kind = part.fields.get("dataType")
        if part.kind == "GetStructField" and part.only.kind == "AttributeReference":
            whole, ordinal = part.only.fields.get("dataType"), part.fields.get("ordinal")
            fields = whole.get("fields") if isinstance(whole, dict) else None
            kind = fields[ordinal].get("type") if isinstance(fields, list) and isinstance(ordinal, int) else None
        else:
            stack.extend(part.children)
        if part.kind.startswith("Create") or (kind is not None and not isinstance(kind, str)):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Grid:
    """Multiples of ``2**low`` below ``2**(low + width * limbs)``, split into ``limbs`` whole numbers of ``width`` bits.

    In a group of up to ``2**(63 - width)`` rows each limb's sum fits into a BIGINT.
    """

    low: int
    width: int
    limbs: int

    @property
    def top(self) -> int:
        return self.low + self.width * self.limbs

    def holds(self, x: str) -> str:
        """Builds SQL that tests whether the double is on the grid."""
        scaled = f"{x} * {_power(-self.low)}"
        return f"(abs({x}) < {_power(self.top)} and rint({scaled}) = {scaled})"

    def limb(self, x: str, number: int) -> str:
        """Builds SQL for one limb of a double on the grid, lowest first.

        Limbs are signed, and exact: each is the difference of two roundings of the number, which fits in double
        precision.
        """
        at = self.low + self.width * number
        here = f"rint({x} * {_power(-at)})"
        if number + 1 < self.limbs:
            here = f"{here} - rint({x} * {_power(-at - self.width)}) * {_power(self.width)}"
        return f"cast({here} as bigint)"


def _power(exponent: int) -> str:
    return f"{2.0**exponent!r}D"


@dataclass(frozen=True, slots=True)
class Grids:
    """The grids for numbers and for products of two numbers."""

    numbers: Grid
    products: Grid


BOUNDED: Final = Grids(Grid(-68, 34, 3), Grid(-138, 34, 6))
"""For doubles in groups of up to half a million rows; smaller parts are bounded, not added."""
QUICK: Final = Grids(Grid(-96, 40, 4), Grid(-192, 40, 8))
"""For groups of up to 8 million rows."""
COMPLETE: Final = Grids(Grid(-96, 32, 5), Grid(-192, 32, 10))
"""For groups of up to two thousand million rows; numbers that are not on the grid are collected."""
_NARROW: Final = frozenset({"byte", "short", "integer"})
"""Types whose sums are BIGINT, with room for two thousand million rows."""
ROOM: Final = 28
"""Most digits of a decimal whose sum has ten more digits, enough for ten thousand million rows."""


def digits_of(data_type: object) -> int | None:
    found = re.match(r"decimal\((\d+),", data_type) if isinstance(data_type, str) else None
    return None if found is None else int(found[1])


def may_overflow(node: PlanNode) -> bool:
    """Whether an intermediate sum of values may leave the type of the sum though the sum fits: true unless the values
    are known to have room to spare."""
    kind = node.fields.get("dataType")
    digits = digits_of(kind)
    return digits > ROOM if digits is not None else kind not in _NARROW


FINEST: Final = -1074
"""All doubles are multiples of two to this power."""


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """The properties that determine how an aggregate is computed, and its place in column names."""

    number: int
    kind: str
    types: tuple[str, ...]
    """SQL types of its arguments."""
    filtered: bool
    """Whether it has a FILTER clause."""
    tries: bool
    """Whether it is ``try_sum`` or ``try_avg``, which give null, not an error, where the value does not fit."""
    result: str = ""
    """SQL type of the result, for decimals."""

    @property
    def floating(self) -> bool:
        return self.types[0] in FLOATS

    @property
    def digits(self) -> int | None:
        return None if self.kind in EXTREMES else digits_of(self.types[0])

    @property
    def wide(self) -> bool:
        """Whether a sum may not fit into a decimal."""
        return self.digits is not None and self.digits > ROOM

    @property
    def scale(self) -> int:
        return int(self.types[0].split(",")[1][:-1])

    @property
    def bounded(self) -> bool:
        """Whether a few sums and an error bound suffice to compute it (see ``certified``)."""
        return self.kind in SPREADS or (self.kind in ("Sum", "Average") and self.floating)

    def name(self, what: str) -> str:
        return f"__odf_{what}{self.number}"
