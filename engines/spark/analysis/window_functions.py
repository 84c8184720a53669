"""Finds which rows a window function reads in event time, and whether their order is fully determined. Pure.

Spec: docs/spec/engine-semantics.md#influence, #shapes, #determinism.

``sum(v) over (partition by k order by event_time)`` needs every earlier row of a key, so no bound of event time says
which input rows are needed again. But its rows come in order: a row is settled when the watermark has passed it, and
then all rows before it are known. So the state has what each key's settled rows add up to, or the key's last few rows,
and history is not read again. Spec: docs/spec/engine-semantics.md#running.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engines.spark.analysis.determinism import QueryFinding, is_float
from engines.spark.analysis.influence import (
    FieldInfluences,
    Influence,
    Scope,
    Value,
    constant_span,
    influence,
    widen_to_key,
)
from engines.spark.analysis.joins import conjuncts, kind_of
from engines.spark.analysis.monotone import Shift
from engines.spark.analysis.refusals import EARLIER_ROWS, LATER_ROWS, UNBOUNDED_FRAME, OperatorRefusal
from engines.spark.analysis.relation import QueryRelation, columns_of, copies_of, floats_of, path_of, time_of
from engines.spark.analysis.tables import Core, down_to, merged_by
from engines.spark.analysis.tree import PASSING, PlanNode

ORDERED: Final = frozenset({"RowNumber", "NTile", "Lag", "Lead", "First", "Last", "NthValue"})
"""Functions whose result depends on the order of rows that tie in ORDER BY."""
LIMITS: Final = frozenset({"GlobalLimit", "LocalLimit", "Offset"})


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows that one function reads, relative to its own."""

    function: str
    by_range: bool
    low: int | None
    """Bounds relative to the current row, microseconds; ``None``: unbounded."""
    high: int | None
    node: PlanNode
    """The expression with OVER."""


def relation_of(window: PlanNode, below: QueryRelation) -> QueryRelation | None:
    """Returns the relation of a window operator; ``None`` when its frame has no bound in event time."""
    made = window.expressions("windowExpressions")
    keys = window.expressions("partitionSpec")
    times = [time for key in keys if (time := time_of(influence(key, below.scope)))]
    if times:
        scope = _by_partition(below.scope, times[0], {key.id for key in keys})
    else:
        ordered = _by_range(window, below)
        if ordered is None:
            return None
        scope = ordered
    return QueryRelation(
        scope, below.columns + columns_of(made), below.floats | floats_of(made), linear=False, origins=below.origins,
        rows_of=below.rows_of,
    )  # fmt: skip


def _by_partition(scope: Scope, time: Influence, keys: set[int | None]) -> dict[int, Value]:
    """Returns the scope if partitions have a time: a row can change only rows of its own partition."""
    found: dict[int, Value] = {}
    for identity, value in scope.items():
        if identity in keys:
            found[identity] = value
        elif isinstance(value, FieldInfluences):
            found[identity] = FieldInfluences(tuple(widen_to_key(part, time) if part else None for part in value.of))
        elif path_of(value):
            found[identity] = widen_to_key(path_of(value), time)
    return found


def _by_range(window: PlanNode, below: QueryRelation) -> dict[int, Value] | None:
    """Returns the scope for frames by RANGE: a row can change the rows whose frames contain it; ``None``: unbounded."""
    order = window.expressions("orderSpec")
    frames = list(frames_of(window))
    if len(order) != 1 or not str(order[0].fields.get("direction")).find("Ascending") >= 0:
        return None
    time = path_of(influence(order[0].only, below.scope))
    lows, highs = [frame.low for frame in frames], [frame.high for frame in frames]
    if not time or order[0].only.id is None or not all(frame.by_range for frame in frames):
        return None
    if any(bound is None for bound in (*lows, *highs)):
        return None
    low = min(bound for bound in lows if bound is not None)
    high = max(bound for bound in highs if bound is not None)
    wide = {path: interval.then((Shift(min(-high, 0)),), (Shift(max(-low, 0)),)) for path, interval in time.items()}
    return dict.fromkeys(copies_of(order[0].only.id, below), wide)


def frames_of(window: PlanNode) -> Iterator[Frame]:
    for expression in window.expressions("windowExpressions"):
        for node in expression.preorder():
            if node.kind != "WindowExpression":
                continue
            function = node.children[0]
            if function.kind == "AggregateExpression":
                function = function.only
            frame = node.children[1].children[-1]
            by_range = "RangeFrame" in str(frame.fields.get("frameType"))
            low, high = (_frame_end(child) for child in frame.children)
            yield Frame(function.kind, by_range, low, high, node)


def _frame_end(node: PlanNode) -> int | None:
    if node.kind == "CurrentRow$":
        return 0
    return constant_span(node)


def find_undecided(
    window: PlanNode, live: frozenset[int] | None, below: QueryRelation, offsets: Sequence[str | None]
) -> list[QueryFinding]:
    """Returns findings for functions that depend on the order of rows which ORDER BY leaves open.

    ``live``: columns below that anything above uses; rows equal in all of them are the same to the query. Floating
    point does not separate rows fully: 0.0 and -0.0 tie. ``offsets``: by path, the column whose values are unique in
    its input; so rows of inputs that are separated by these have a fixed order.
    """
    by = (*window.expressions("partitionSpec"), *window.expressions("orderSpec"))
    missing = _left_open(window, by, live, below, offsets)
    return [
        _partial_order(_sql_name(frame), missing, below, frame.node)
        for frame in frames_of(window)
        if missing and (frame.function in ORDERED or _by_rows(frame))
    ]


def undecided_limit(limit: PlanNode, below: QueryRelation, offsets: Sequence[str | None]) -> QueryFinding | None:
    """Returns a finding for a LIMIT or OFFSET unless it is directly over an ORDER BY that tells all rows apart."""
    inner = limit
    while inner.kind in LIMITS | PASSING | {"Project"} and inner.children:
        inner = inner.only
    if inner.kind != "Sort":
        return QueryFinding(
            "partial-order",
            "which rows LIMIT keeps depends on their order, and nothing decides it",
            "order by …, all columns, and LIMIT behind it",
            limit,
        )
    missing = _left_open(inner, inner.expressions("order"), None, below, offsets)
    return _partial_order("LIMIT", missing, below, limit) if missing else None


def _partial_order(called: str, missing: Sequence[str], below: QueryRelation, node: PlanNode) -> QueryFinding:
    names = ", ".join(dict.fromkeys(missing))
    floats = [name for name, identity in below.columns if identity in below.floats and name in missing]
    exact = "".join(f", over a query that selects cast({name} as decimal(38,12)) as {name}" for name in floats)
    return QueryFinding(
        "partial-order",
        f"{called} depends on the order of rows that ORDER BY does not distinguish",
        f"order by …, {names}{exact}",
        node,
    )


def _left_open(
    ordering: PlanNode,
    by: Iterable[PlanNode],
    live: frozenset[int] | None,
    below: QueryRelation,
    offsets: Sequence[str | None],
) -> list[str]:
    """Names the columns in which rows may still differ that are equal in all expressions ``by``."""
    parts = [each.only if each.kind == "SortOrder" else each for each in by]
    given = _decided_columns(ordering, {
        part.id for part in parts
        if part.kind == "AttributeReference" and part.id is not None and part.id not in below.floats
    })  # fmt: skip
    missing = [name for name, identity in below.columns if (live is None or identity in live) and identity not in given]
    return [] if missing and _decided_by_offsets(below, given, offsets) else missing


def _decided_by_offsets(below: QueryRelation, given: set[int], offsets: Sequence[str | None]) -> bool:
    """Whether the columns ``given`` include the offset of each input row that a row is made of."""
    known = {
        path
        for identity in given
        for path, name in below.origins.get(identity, {}).items()
        if len(below.origins[identity]) == 1 and name == offsets[path]
    }
    return below.rows_of is not None and below.rows_of <= known


def _decided_columns(window: PlanNode, given: set[int]) -> set[int]:
    """Returns the columns that are equal wherever those ``given`` are: computed from these alone, or
    other names of them."""
    made: dict[int, PlanNode] = {}
    shared: dict[int, set[int | None]] = {}
    pairs: list[tuple[int, int]] = []
    stack = [window.only]
    while stack:
        node = stack.pop()
        if node.kind == "Project":
            made.update({expression.id: expression.only for expression in node.expressions("projectList")
                         if expression.kind == "Alias" and expression.id is not None})  # fmt: skip
        if node.kind == "Window":
            shared.update(_shared_by_peers(node))
        kind = kind_of(node) if node.kind == "Join" else ""
        if node.kind == "Filter" or kind in ("Inner", "Cross"):
            pairs.extend(_equal_columns(node.expressions("condition")))
        if kind:
            sides = {"Inner": (0, 1), "Cross": (0, 1), "RightOuter": (1,), "FullOuter": ()}.get(kind, (0,))
            stack.extend(node.children[side] for side in sides)
        elif node.kind in PASSING | {"Project", "Filter", "Window"} and node.children:
            stack.append(node.only)
    known: set[int] = set()
    while known != given:
        known = set(given)
        for identity, source in made.items():
            columns = {part.id for part in source.preorder() if part.kind == "AttributeReference"}
            if columns <= known:
                given.add(identity)
            if source.kind == "AttributeReference" and identity in known and source.id is not None:
                given.add(source.id)
        given.update(identity for identity, columns in shared.items() if columns <= known)
        given.update(other for pair in pairs for one, other in (pair, pair[::-1]) if one in known)
    return given


def _shared_by_peers(window: PlanNode) -> Iterator[tuple[int, set[int | None]]]:
    """Yields functions over RANGE, each with the columns that decide its value: rows equal in them have the same."""
    by = {
        part.id
        for field in ("partitionSpec", "orderSpec")
        for expression in window.expressions(field)
        for part in expression.preorder()
        if part.kind == "AttributeReference"
    }
    for each in window.expressions("windowExpressions"):
        frames = [part for part in each.preorder() if part.kind == "SpecifiedWindowFrame"]
        if each.id is not None and frames and all("RangeFrame" in str(part.fields.get("frameType")) for part in frames):
            yield each.id, by


def _equal_columns(condition: tuple[PlanNode, ...]) -> Iterator[tuple[int, int]]:
    for comparison in (part for whole in condition for part in conjuncts(whole)):
        ids = [side.id for side in comparison.children if side.kind == "AttributeReference" and not is_float(side)]
        if (
            comparison.kind in ("EqualTo", "EqualNullSafe")
            and len(ids) == 2
            and ids[0] is not None
            and ids[1] is not None
        ):
            yield ids[0], ids[1]


def _by_rows(frame: Frame) -> bool:
    """Whether a frame counts rows; not for the whole partition, and not for ranks, which have a frame of their own."""
    whole = frame.low is None and frame.high is None
    return not frame.by_range and not whole and frame.function not in ("Rank", "DenseRank", "PercentRank", "CumeDist")


def _sql_name(frame: Frame) -> str:
    words = {
        "RowNumber": "row_number", "NTile": "ntile", "Lag": "lag", "Lead": "lead", "First": "first_value",
        "Last": "last_value", "NthValue": "nth_value",
    }  # fmt: skip
    return words.get(frame.function, f"{frame.function.lower()} over ROWS")


def live_columns(root: PlanNode) -> dict[int, frozenset[int] | None]:
    """Returns by ``id()`` of each ``Window`` operator the expression ids needed from below; ``None``: all of them."""
    found: dict[int, frozenset[int] | None] = {}
    stack: list[tuple[PlanNode, frozenset[int] | None]] = [(root, None)]
    while stack:
        node, wanted = stack.pop()
        below = _below(node, wanted)
        if node.kind == "Window":
            found[id(node)] = below
        stack.extend((child, below) for child in node.children)
    return found


def _below(node: PlanNode, wanted: frozenset[int] | None) -> frozenset[int] | None:
    """Returns the ids that an operator needs from its children to give those that are wanted of it; ``None``: all."""
    match node.kind:
        case "Project":
            return _used_columns(_select_wanted(node.expressions("projectList"), wanted))
        case "Aggregate":
            keys = node.expressions("groupingExpressions")
            return _used_columns((*keys, *_select_wanted(node.expressions("aggregateExpressions"), wanted)))
        case "Filter" | "Join":
            return None if wanted is None else wanted | _used_columns(node.expressions("condition"))
        case "Window":
            made = node.expressions("windowExpressions")
            own = _used_columns(
                (*_select_wanted(made, wanted), *node.expressions("partitionSpec"), *node.expressions("orderSpec"))
            )
            return None if wanted is None else (wanted - {each.id for each in made}) | own
    return wanted if node.kind in PASSING else None


def _select_wanted(expressions: Iterable[PlanNode], wanted: frozenset[int] | None) -> list[PlanNode]:
    return [expression for expression in expressions if wanted is None or expression.id in wanted]


def _used_columns(expressions: Iterable[PlanNode]) -> frozenset[int]:
    return frozenset(
        part.id
        for expression in expressions
        for part in expression.preorder()
        if part.kind == "AttributeReference" and part.id is not None
    )


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
