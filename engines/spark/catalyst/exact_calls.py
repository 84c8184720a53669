"""Decides how an aggregate is computed exactly. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engines.spark.analysis.exact import EXTREMES, ROOM, digits_of

FLOATS: Final = ("double", "float")
SPREADS: Final = frozenset({"VariancePop", "VarianceSamp", "StddevPop", "StddevSamp"})
"""Moments of one column."""


@dataclass(frozen=True, slots=True)
class Call:
    """What decides how an aggregate is computed, and its place in names of columns."""

    number: int
    kind: str
    types: tuple[str, ...]
    """Of its arguments."""
    filtered: bool
    """Whether it stands under FILTER."""
    tries: bool
    """``try_sum``, ``try_avg``: null, and no error, where the value does not fit."""
    result: str = ""
    """The type of what comes out, over decimals."""

    @property
    def floating(self) -> bool:
        return self.types[0] in FLOATS

    @property
    def digits(self) -> int | None:
        """Of the decimals that are summed."""
        return None if self.kind in EXTREMES else digits_of(self.types[0])

    @property
    def wide(self) -> bool:
        """Whether a sum of them may not fit into a decimal."""
        return self.digits is not None and self.digits > ROOM

    @property
    def scale(self) -> int:
        return int(self.types[0].split(",")[1][:-1])

    @property
    def bounded(self) -> bool:
        """Whether a few sums and a bound of their error can do (``certified``)."""
        return self.kind in SPREADS or (self.kind in ("Sum", "Average") and self.floating)

    def name(self, what: str) -> str:
        return f"__odf_{what}{self.number}"
