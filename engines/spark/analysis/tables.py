"""Decides, for a query whose result is a changing table, which columns are its key and how the table is maintained.

Accepts one ``GROUP BY``, ``DISTINCT`` or ranking per key over rows that stand for themselves, with projections and
filters above; or any query that is split by columns of its inputs, as joins of tables are. Refuses all others. Pure.
Spec: docs/spec/engine-semantics.md#table-mode, #shapes, #classification.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from engines.spark.analysis.determinism import QueryFinding, computed_exactly
from engines.spark.analysis.exact import may_overflow
from engines.spark.analysis.joins import conjuncts
from engines.spark.analysis.locality import Locality
from engines.spark.analysis.refusals import MIXED_MODE, NOT_KEY_LOCAL
from engines.spark.analysis.relation import QueryRelation, source_of
from engines.spark.analysis.tree import PASSING, PlanNode, same

MERGED_BY: Final[Mapping[str, str]] = {
    "Count": "sum", "CountIf": "sum", "Sum": "sum", "Min": "min", "Max": "max", "BoolAnd": "bool_and",
    "BoolOr": "bool_or", "BitAndAgg": "bit_and", "BitOrAgg": "bit_or", "BitXorAgg": "bit_xor",
}  # fmt: skip
"""Aggregates that can be computed from those of parts -> the function that merges these."""
EXACTLY: Final = "exactly"
"""Marks aggregates that are computed exactly: they are merged by their components, each with a function of its own."""
LISTS: Final = "lists"
"""Marks lists of numbers, which are merged into one, in order."""
BARE_KEY: Final = "__odf_key"
BARE_PART: Final = "__odf_part"
"""Prefixes of the state's columns for the keys and aggregates of an aggregation; their numbers follow."""
_UPPER: Final = {"LessThan": 1, "LessThanOrEqual": 1, "GreaterThan": -1, "GreaterThanOrEqual": -1, "EqualTo": 1}
"""Comparisons that can set an upper bound of a rank -> 1, or -1 if the sides have to be exchanged."""
RANKS: Final = frozenset({"RowNumber", "Rank", "DenseRank"})


@dataclass(frozen=True, slots=True)
class TableShape:
    """How a changing table is maintained."""

    keys: tuple[str, ...]
    """Output columns that identify a row, or a group of rows."""
    single: bool
    """Whether each key has at most one row."""
    merge: Mapping[str, str] | None
    """Other column -> function that merges a former value with a new one; ``None``: the table needs all live rows."""
    grouping: Mapping[str, tuple[str, ...]]
    """By alias the columns of an input that decide which keys a row can affect; not all need be there."""
    bare: bool = False
    """Whether ``merge`` is of the bare aggregates, named ``BARE_PART`` and a number, from which the query computes its
    result. How exact aggregates are merged is then up to their plan."""
    window: tuple[int, int] | None = None
    """Of windows with ``bare``: the position of the key that is the window, and of its field with the time."""
    first: bool = False
    """Whether it has the first rows of each key in some order: other rows never get into it unless rows
    are taken back."""


@dataclass(frozen=True, slots=True)
class Core:
    """The operator that makes a table, as the walk found it."""

    node: PlanNode
    below: QueryRelation
    blocker: QueryFinding
    """The reason why its result is never final."""


def table_shape(
    root: PlanNode,
    shared: Mapping[int, PlanNode],
    cores: Sequence[Core],
    relation: QueryRelation,
    paths: Sequence[str],
    temporal: Collection[str] = (),
    known: Mapping[int, str] | None = None,
) -> TableShape | QueryFinding:
    """Returns the shape of a whole plan, or why it has none. ``temporal``: inputs that are seen as versions.

    ``known``: for an operator whose keys are windows, by position of a key, the output column that is known to
    represent it.
    """
    core = cores[0]
    above = list(down_to(root, shared, core.node))
    if len(cores) == 1 and core.node.kind != "Join" and above[-1] is core.node and core.below.linear:
        return _of_one(above, core, relation, paths, shared, known)
    if known is not None:
        return QueryFinding(MIXED_MODE.code, MIXED_MODE.message, MIXED_MODE.replace, core.node)
    return _of_several(root, cores, relation, sorted(set(paths)), temporal)


def _of_one(
    above: list[PlanNode], core: Core, relation: QueryRelation, paths: Sequence[str], shared: Mapping[int, PlanNode],
    known: Mapping[int, str] | None,
) -> TableShape | QueryFinding:  # fmt: skip
    """Returns the shape for one operator that combines rows, over rows that stand for themselves."""
    keys, ids = _keys(core.node, core.below)
    carried = _carried_up(above[:-1], ids, relation, shared)
    names = [(known or {}).get(place, name) for place, name in enumerate(carried)]
    if any(name is None for name in names):
        return _not_selected(core.node)
    selected = tuple(dict.fromkeys(name for name in names if name is not None))
    merge = _merge(above, relation, selected, shared)
    bare = _bare(core.node) if merge is None else None
    single = core.node.kind != "Window"
    grouping = _grouping(keys, core.below, paths)
    first = core.node.kind == "Window" and _are_first(above[:-1], core.node)
    return TableShape(selected, single, merge if bare is None else bare, grouping, bare is not None, first=first)


def _of_several(
    root: PlanNode, cores: Sequence[Core], relation: QueryRelation, aliases: Sequence[str], temporal: Collection[str]
) -> TableShape | QueryFinding:
    """Returns the shape for any query that columns split into independent parts."""
    inner = cores[0].node
    walk = Locality(aliases)
    local = walk.of(root)
    grouping = walk.grouping(local)
    if not any(grouping.values()) or set(aliases) & set(temporal):
        only_joins = all(core.node.kind == "Join" for core in cores)
        refusal = NOT_KEY_LOCAL if only_joins else MIXED_MODE
        return QueryFinding(refusal.code, refusal.message, refusal.replace, inner)
    names = {identity: name for name, identity in relation.columns}
    if local.unique is not None:
        keys = [names.get(identity) for identity in local.unique]
    else:
        shown = {part: names[identity] for identity, part in local.sources.items() if identity in names}
        keys = [shown.get(part) for part in sorted(local.parts or (), key=sorted)]
    if local.lost or None in keys:
        return _not_selected(inner)
    known = tuple(dict.fromkeys(name for name in keys if name is not None))
    return TableShape(known, local.unique is not None, None, grouping)


def _are_first(above: Sequence[PlanNode], window: PlanNode) -> bool:
    """Whether the rows shown are selected by upper bounds of the only rank, and nothing else."""
    made = window.expressions("windowExpressions")
    if len(made) != 1 or made[0].kind != "Alias" or made[0].only.kind != "WindowExpression":
        return False
    conditions = [part for each in above if each.kind == "Filter"
                  for whole in each.expressions("condition") for part in conjuncts(whole)]  # fmt: skip
    return bool(conditions) and all(_bounds(part, made[0].id) for part in conditions)


def _bounds(condition: PlanNode, rank: int | None) -> bool:
    """Whether a condition is like ``rank <= 3``, ``3 >= rank`` or ``rank = 1``."""
    if len(condition.children) != 2 or condition.kind not in _UPPER:
        return False
    sides = condition.children[:: _UPPER[condition.kind]]
    if condition.kind == "EqualTo" and sides[0].kind == "Literal":
        sides = sides[::-1]
    column, number = sides
    plain = column.kind == "AttributeReference" and column.id == rank and number.type_name == "integer"
    value = number.fields.get("value") if plain and number.kind == "Literal" else None
    return value is not None and (condition.kind != "EqualTo" or str(value) == "1")


def _not_selected(node: PlanNode) -> QueryFinding:
    return QueryFinding(
        "key-not-selected",
        "what rows are grouped or joined by must be selected: it is the key of the result",
        "select the grouping columns too",
        node,
    )


def down_to(
    root: PlanNode, shared: Mapping[int, PlanNode], core: PlanNode, through: Set[str] = PASSING | {"Project", "Filter"}
) -> Iterator[PlanNode]:
    """Yields the operators from the root down to the core, as long as they are of kinds ``through`` (by
    default row by row)."""
    node = root
    while True:
        if node.kind != "WithCTE":
            yield node
        if node is core:
            return
        if node.kind == "WithCTE":
            node = node.children[-1]
        elif node.kind == "CTERelationRef":
            node = shared[node.fields["cteId"]]
        elif node.kind in through and node.children:
            node = node.only
        else:
            return


def _keys(core: PlanNode, below: QueryRelation) -> tuple[list[PlanNode], list[int | None]]:
    """Returns the expressions that make the key, and their ids in the operator's output."""
    if core.kind == "Distinct":
        return [], [identity for _, identity in below.columns]
    if core.kind == "Window":
        keys = list(core.expressions("partitionSpec"))
        return keys, [key.id for key in keys]
    keys = list(core.expressions("groupingExpressions"))
    made = core.expressions("aggregateExpressions")
    return keys, [next((each.id for each in made if _is_key(each, key)), None) for key in keys]


def _is_key(made: PlanNode, key: PlanNode) -> bool:
    inner = made.only if made.kind == "Alias" else made
    return same(inner, key)


def _carried_up(
    above: list[PlanNode], ids: list[int | None], relation: QueryRelation, shared: Mapping[int, PlanNode]
) -> list[str | None]:
    """Returns the names under which columns come out at the root; ``None`` for those that do not."""
    for operator in reversed(above):
        if operator.kind == "CTERelationRef":
            outside = [expression.id for expression in operator.expressions("output")]
            moved = dict(zip(_output(shared[operator.fields["cteId"]]), outside, strict=False))
            ids = [moved.get(identity) for identity in ids]
        if operator.kind == "Project":
            renamed: dict[int | None, int | None] = {}
            for expression in operator.expressions("projectList"):
                inner = expression.only if expression.kind == "Alias" else expression
                if inner.kind == "AttributeReference":
                    renamed.setdefault(inner.id, expression.id)
            ids = [renamed.get(identity) if identity is not None else None for identity in ids]
    names = {identity: name for name, identity in relation.columns}
    return [names.get(identity) if identity is not None else None for identity in ids]


def _output(node: PlanNode) -> list[int | None]:
    """Returns the ids of an operator's columns, in order; none for operators that do not name them."""
    while node.kind in PASSING | {"Filter"} and node.children:
        node = node.only
    field = {"Project": "projectList", "Aggregate": "aggregateExpressions"}.get(node.kind, "output")
    return [expression.id for expression in node.expressions(field)]


def _merge(
    above: list[PlanNode], relation: QueryRelation, keys: tuple[str, ...], shared: Mapping[int, PlanNode]
) -> Mapping[str, str] | None:
    """Returns the merge functions if only projections of plain names are between the aggregates and the
    result, else ``None``."""
    core = above[-1]
    if core.kind == "Window" or not all(_only_names(each) for each in above[:-1]):
        return None
    if core.kind == "Distinct":
        return {}
    made = {expression.id: expression for expression in core.expressions("aggregateExpressions")}
    found = {}
    for identity, each in made.items():
        names = _carried_up(above[:-1], [identity], relation, shared)
        if names[0] is None or names[0] in keys:
            continue
        inner = each.only if each.kind == "Alias" else each
        function = MERGED_BY.get(inner.children[0].kind) if inner.kind == "AggregateExpression" else None
        if function is None or inner.fields.get("isDistinct"):
            return None
        if merged_by(inner) == EXACTLY and function not in ("min", "max"):
            return None  # the whole cannot be computed from a part's value, which is rounded or may not fit
        found[names[0]] = function
    return found if set(found) | set(keys) == {name for name, _ in relation.columns} else None


def _bare(core: PlanNode) -> Mapping[str, str] | None:
    """Returns the functions that merge the bare aggregates of a query; ``None`` if one of them cannot be merged."""
    if core.kind != "Aggregate":
        return None
    found = [part for expression in core.expressions("aggregateExpressions") for part in expression.preorder()
             if part.kind == "AggregateExpression"]  # fmt: skip
    functions = [None if part.fields.get("isDistinct") else merged_by(part) for part in found]
    known = {f"{BARE_PART}{number}": name for number, name in enumerate(functions) if name is not None}
    return known if len(known) == len(functions) else None


def merged_by(part: PlanNode) -> str | None:
    """Returns the function that merges an aggregate over parts; ``None`` if there is none."""
    function = part.children[0]
    wide = function.kind == "Sum" and may_overflow(function.only)
    return EXACTLY if wide or computed_exactly(part) else MERGED_BY.get(function.kind)


def _only_names(operator: PlanNode) -> bool:
    if operator.kind != "Project":
        return operator.kind in PASSING | {"CTERelationRef"}
    return all(
        (expression.only if expression.kind == "Alias" else expression).kind == "AttributeReference"
        for expression in operator.expressions("projectList")
    )


def _grouping(keys: list[PlanNode], below: QueryRelation, paths: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Returns by alias the columns that every occurrence of the input has for the same part of the key."""
    found: dict[str, list[str]] = {alias: [] for alias in paths}
    for key in keys:
        sources = source_of(key, below) or {}
        by_alias = {alias: {sources.get(at) for at, other in enumerate(paths) if other == alias} for alias in found}
        if all(len(names) == 1 and None not in names for names in by_alias.values()):
            for alias, names in by_alias.items():
                found[alias].append(next(str(name) for name in names))
    return {alias: tuple(names) for alias, names in found.items()}
