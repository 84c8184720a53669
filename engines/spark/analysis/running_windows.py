"""Recognises OVER all history of a key in event time order: running sums, and the last rows of each key.

``sum(v) over (partition by k order by event_time)`` needs every earlier row of a key, so no bound of event time says
which input rows are needed again. But its rows come in order: a row is settled when the watermark has passed it, and
then all rows before it are known. So the state has what each key's settled rows add up to, or the key's last few rows,
and history is not read again. Pure. Spec: docs/spec/engine-semantics.md#running, #shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from engines.spark.analysis.determinism import QueryFinding, is_float
from engines.spark.analysis.influence import Influence, influence
from engines.spark.analysis.refusals import EARLIER_ROWS, LATER_ROWS, UNBOUNDED_FRAME, OperatorRefusal
from engines.spark.analysis.relation import QueryRelation, columns_of, copies_of, floats_of, path_of
from engines.spark.analysis.tables import Core, down_to, merged_by
from engines.spark.analysis.tree import PASSING, PlanNode

MAX_ROWS: Final = 10_000
"""Most rows kept for each key, for ``rows n preceding`` (before or after AND), ``lag(x, n)`` and
``nth_value(x, n)``."""
PICKED: Final[Mapping[str, str]] = {"First": "first_value", "Last": "last_value"}
"""Functions that give the value of one row -> their SQL names."""


def judge_window(window: PlanNode, below: QueryRelation) -> QueryRelation | QueryFinding:
    """Returns the relation of a window operator if all its functions can be maintained in order of
    event time, else a finding."""
    order = window.expressions("orderSpec")
    time = path_of(influence(order[0].only, below.scope)) if order else {}
    identity = order[0].only.id if order else None
    if not time or identity is None or "Ascending" not in str(order[0].fields.get("direction")):
        return _finding(UNBOUNDED_FRAME, window)
    for key in window.expressions("partitionSpec"):
        if is_float(key):
            return QueryFinding(
                "float-key",
                f"{key.name or 'a key'} is floating point: 0.0 and -0.0 are one key with two values",
                "partition by cast(x as decimal(38,12))",
                _node_to_show(window),
            )
    made = window.expressions("windowExpressions")
    for each in made:
        if not _is_kept(each):
            later = any(part.kind == "Lead" for part in each.preorder())
            return _finding(LATER_ROWS if later else EARLIER_ROWS, window, each)
    columns = below.columns + columns_of(made)
    scope = dict.fromkeys(copies_of(identity, below), time)
    return QueryRelation(
        scope, columns, below.floats | floats_of(made), linear=False, origins=below.origins,
        rows_of=below.rows_of,
    )  # fmt: skip


def _finding(refusal: OperatorRefusal, window: PlanNode, made: PlanNode | None = None) -> QueryFinding:
    return QueryFinding(refusal.code, refusal.message, refusal.replace, _node_to_show(window, made))


def _node_to_show(window: PlanNode, made: PlanNode | None = None) -> PlanNode:
    """Returns the node to report: the function with its OVER; the first one if none is at fault."""
    named = window.expressions("windowExpressions")[0] if made is None else made
    return named.only if named.kind == "Alias" else named


def _is_kept(made: PlanNode) -> bool:
    """Whether a function can be maintained: it adds up all rows of its key so far, or looks at a
    limited number before it."""
    window = made.only if made.kind == "Alias" else made
    if window.kind != "WindowExpression":
        return False
    function, frame = window.children[0], window.children[1].children[-1]
    if frame.kind != "SpecifiedWindowFrame":
        return False
    low, high = frame.children
    near = (_rows(low) or MAX_ROWS + 1) <= MAX_ROWS
    if function.kind == "Lag":
        return near
    if not (_is_nth(function) or _adds_up(function)):
        return False
    by_rows = "RowFrame" in str(frame.fields.get("frameType"))
    if low.kind == "UnboundedPreceding$":
        return high.kind == "CurrentRow$" or (by_rows and (_rows(high) or MAX_ROWS + 1) <= MAX_ROWS)
    return by_rows and near and (high.kind == "CurrentRow$" or _rows(high) is not None)


def _adds_up(function: PlanNode) -> bool:
    if function.kind != "AggregateExpression" or function.fields.get("isDistinct"):
        return False
    return merged_by(function) is not None or function.children[0].kind in PICKED


def _is_nth(function: PlanNode) -> bool:
    if function.kind != "NthValue" or function.children[1].kind != "Literal":
        return False
    return 0 < int(function.children[1].fields.get("value") or 0) <= MAX_ROWS


def _rows(bound: PlanNode) -> int | None:
    """Returns how many rows before the current one a frame begins or ends; ``None`` if it is not a positive number."""
    sign = 1
    if bound.kind == "UnaryMinus":
        bound, sign = bound.only, -1
    value = bound.fields.get("value") if bound.kind == "Literal" and bound.type_name == "integer" else None
    count = 0 if value is None else -sign * int(value)
    return count if count > 0 else None


def find_misplaced_windows(
    root: PlanNode, shared: Mapping[int, PlanNode], cores: Sequence[Core], time: Influence, column: str
) -> list[QueryFinding]:
    """Returns findings for windows over all history that cannot be maintained at their place in the whole plan.

    ``time``: influence of the output's event time column ``column``.
    """
    above = down_to(root, shared, cores[0].node, PASSING | {"Project", "Filter", "Window"})
    met = [node for node in above if node.kind == "Window"]
    if len(met) != len(cores) or any(node is not core.node for node, core in zip(met, cores[::-1], strict=True)):
        return [QueryFinding(
            UNBOUNDED_FRAME.code, "OVER looks at all history, and its result is joined, grouped or ranked again",
            "make the query with this OVER a dataset of its own", _node_to_show(cores[0].node),
        )]  # fmt: skip
    return [
        QueryFinding(
            UNBOUNDED_FRAME.code,
            f"OVER looks at all history in another order than that of {column}, in which rows come out",
            f"select the time by which OVER orders as {column}, as it is",
            _node_to_show(core.node),
        )
        for core in cores
        if path_of(influence(core.node.expressions("orderSpec")[0].only, core.below.scope)) != time
    ]
