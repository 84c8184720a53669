"""Checks the query of an ingest as the walk checks that of a transform, with the differences declared here. Pure.

The same bytes of a source have to give the same rows, whoever reads them and however they are cut into parts. So what
depends on a clock, on chance, on the machine or on the order of rows is refused, by the same code and lists as in a
transform. What differs: an ingest has all of its rows, so nothing is refused because of rows that are still to come;
and it may use the functions that the table of functions permits in ``preprocess``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from engines.spark.analysis.determinism import QueryFinding, arguments, examine
from engines.spark.analysis.functions import SUBQUERIES, Use
from engines.spark.analysis.refusals import (
    GROUPING_SET_TIME,
    HISTORY,
    MIXED_MODE,
    NO_WINDOW,
    NOT_KEY_LOCAL,
    OUTER_TIME,
    UNBOUNDED_FRAME,
    UNBOUNDED_JOIN,
)
from engines.spark.analysis.relation import QueryRelation, columns_of, floats_of
from engines.spark.analysis.tree import PlanNode
from engines.spark.analysis.walk import Walk
from engines.spark.analysis.window_functions import undecided_limit

_OF_TIME: Final = frozenset(
    refusal.code
    for refusal in (
        UNBOUNDED_JOIN, UNBOUNDED_FRAME, NO_WINDOW, GROUPING_SET_TIME, NOT_KEY_LOCAL, MIXED_MODE, HISTORY, OUTER_TIME,
    )
)  # fmt: skip
"""Findings about rows that are still to come."""
_ONE_ZERO: Final = "float-key"
"""The finding about keys in floating point: Spark groups all rows at once, and makes one zero and one NaN of them."""


def walk_of_ingest(plan: PlanNode, view: str) -> list[QueryFinding]:
    """Lists what is not permitted in an analysed query over the rows in ``view``."""
    walk = _WalkOfIngest({view: ""})
    walk.of(plan)
    return [each for each in walk.findings if each.code not in _OF_TIME | {_ONE_ZERO}]


@dataclass(slots=True)
class _WalkOfIngest(Walk):
    def _rule(self, kind: str) -> Callable[[Walk, PlanNode], QueryRelation] | None:
        return _MORE.get(kind) or Walk._rule(self, kind)

    def _examine(self, expression: PlanNode) -> None:
        self.findings.extend(examine(expression, Use.PREPROCESS))
        for part in expression.preorder():
            for plan in part.expressions("plan") if part.kind in SUBQUERIES else ():
                self.go(plan)

    def _sessions(self, _node: PlanNode, _keys: tuple[PlanNode, ...], below: QueryRelation) -> QueryRelation:
        return below  # their ends need not be known


def _more(walk: Walk, node: PlanNode) -> QueryRelation:
    for expression in arguments(node):
        walk._examine(expression)
    return walk._opaque(node)


def _sort(walk: Walk, node: PlanNode) -> QueryRelation:
    for expression in node.expressions("order"):
        walk._examine(expression)
    return walk.go(node.only)


def _limit(walk: Walk, node: PlanNode) -> QueryRelation:
    below = walk.go(node.only)
    finding = undecided_limit(node, below, [walk.readings.offsets.get(alias) for alias in walk.paths])
    if finding is not None:
        walk.findings.append(finding)
    return below


def _constant(_: Walk, node: PlanNode) -> QueryRelation:
    attributes = node.expressions("output")
    return QueryRelation({}, columns_of(attributes), floats_of(attributes))


_MORE: Final[Mapping[str, Callable[[Walk, PlanNode], QueryRelation]]] = {
    "Sort": _sort,
    **dict.fromkeys(("GlobalLimit", "Offset"), _limit),
    "LocalLimit": Walk._pass,
    **dict.fromkeys(("Except", "Intersect", "LateralJoin"), _more),
    **dict.fromkeys(("LogicalRDD", "LocalRelation", "LogicalRelation", "OneRowRelation", "Range"), _constant),
}
"""Operators that an ingest may have and a transform may not."""
