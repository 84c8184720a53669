"""Refuses operators that a transform cannot have, each with the reason and the alternative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chain.errors import Invalid
from engines.spark.analysis.determinism import QueryFinding
from engines.spark.analysis.tree import PlanNode


class QueryRefused(Invalid):
    """Raised for a query that must not be analysed; names the faulty part, if there is one."""

    node: PlanNode | None = None
    at: tuple[int, int] | None = None
    """(line, column) of the faulty part in the text, both counted from 1; ``None`` until it is determined."""


@dataclass(frozen=True, slots=True)
class OperatorRefusal:
    """Why a known operator cannot be used, and the alternative."""

    code: str
    message: str
    replace: str


NOT_YET: Final = "shape-not-supported"
_LIMIT: Final = OperatorRefusal(
    "limit-on-stream",
    "LIMIT counts rows of a result that never ends",
    "row_number() over (partition by <window> order by …) <= n",
)
_SETS: Final = OperatorRefusal(
    NOT_YET, "this engine cannot subtract or intersect queries yet", "use a left anti or left semi join"
)
_HINT: Final = OperatorRefusal("hint", "the engine decides how to spread rows", "leave the hint out")
REFUSED: Final[Mapping[str, OperatorRefusal]] = {
    "GlobalLimit": _LIMIT,
    "LocalLimit": _LIMIT,
    "Offset": _LIMIT,
    "Tail": _LIMIT,
    "Sample": OperatorRefusal(
        "limit-on-stream", "a sample depends on how rows are stored", "where hash(columns) % 10 = 0"
    ),
    "Sort": OperatorRefusal(
        "order-is-fixed", "the order of a dataset's rows is fixed by the format", "leave ORDER BY out"
    ),
    "LateralJoin": OperatorRefusal(
        NOT_YET, "this engine cannot join laterally", "use LATERAL VIEW, or a join with bounds"
    ),
    "Except": _SETS,
    "Intersect": _SETS,
    "Deduplicate": _SETS,
    "Range": OperatorRefusal("not-data", "range() makes rows that are in no input", "select from an input"),
    "OneRowRelation": OperatorRefusal("not-data", "a SELECT without FROM has no input", "select from an input"),
    "RepartitionByExpression": _HINT,
    "Repartition": _HINT,
}
UNBOUNDED_JOIN: Final = OperatorRefusal(
    "join-unbounded",
    "rows of one side may meet rows of the other however far apart in time they are",
    "and b.event_time between a.event_time - interval '1' day and a.event_time",
)
UNBOUNDED_FRAME: Final = OperatorRefusal(
    "unbounded-frame",
    "OVER looks at rows without a bound in event time",
    "partition by a window of event time, or order by event_time range between interval '1' day preceding and "
    "current row; of aggregates, order by event_time range between unbounded preceding and current row",
)
EARLIER_ROWS: Final = OperatorRefusal(
    "unbounded-frame",
    "OVER looks at earlier rows however far back they are, and its functions, or their frames, cannot be kept up row "
    "by row",
    "use sum, avg, count, min, max or another aggregate that can be merged, first_value, last_value or nth_value, over "
    "rows between unbounded preceding and current row, or rows between 10 preceding and current row (at most 10,000, "
    "before AND and behind it); or lag; or over range between interval '1' day preceding and current row",
)
LATER_ROWS: Final = OperatorRefusal(
    "unbounded-frame",
    "lead looks at a row that is still to come, and nothing says by when: no record could be written before it",
    "partition by a window of event time too, as in partition by time_bucket(interval '1' day, event_time); or write "
    "each pair with its later row, by lag in place of lead",
)
HOP_CALENDAR: Final = OperatorRefusal(
    "hop-calendar",
    "window() counts in days, hours and shorter: months and years are not of one length",
    "time_bucket(interval '1' month, event_time); where windows overlap, a join with a dataset of their ends: on "
    "a.event_time >= b.event_time - interval '1' month and a.event_time < b.event_time",
)
NO_WINDOW: Final = OperatorRefusal(
    "table-shape",
    "GROUP BY without a window of event time makes a table that changes for ever",
    "group by time_bucket(interval '1' day, event_time) too, or keep the query to one GROUP BY",
)
NO_TIME: Final = OperatorRefusal(
    "table-shape", "DISTINCT without event time in the rows makes a table that changes for ever", "select event_time"
)
GROUPING_SET_TIME: Final = OperatorRefusal(
    "grouping-set-time",
    "a grouping set without a window of event time is never complete",
    "group by time_bucket(interval '1' day, event_time), rollup (k)",
)
NOT_KEY_LOCAL: Final = OperatorRefusal(
    "not-key-local",
    "the tables are not joined on equal columns of the inputs, so any row may change any other",
    "join on a.k = b.k, columns of one type as inputs have them, and group, rank and join by the same ones throughout",
)
MIXED_MODE: Final = OperatorRefusal(
    "mixed-mode",
    "a table that changes for ever is part of a larger query, which is not split by the same columns",
    "make the inner query a dataset of its own, or keep its key in every GROUP BY, PARTITION BY and join above it",
)
HISTORY: Final = OperatorRefusal(
    "history-per-key",
    "a table over inputs that only grow needs all rows of a key for ever, unless it is one GROUP BY, or DISTINCT, of "
    "aggregates that can be merged, or the first rows of each key by a rank",
    "use count, sum, avg, min, max, bool_and, bool_or or bit_*, or a window of event time; of a ranking qualify "
    "row_number() over (partition by k order by v) <= 10, with no other condition on ranked rows",
)
OUTER_TIME: Final = OperatorRefusal(
    "outer-null-time",
    "a full outer join has rows without a time of one side",
    "join on equal windows and select coalesce(a.event_time, b.event_time) as event_time",
)
VALID_TO_USED: Final = OperatorRefusal(
    "valid-to-used",
    "valid_to is a guess about the future: it can only say up to when a version is joined",
    "on a.k = b.k and a.event_time >= b.valid_from and a.event_time < b.valid_to",
)
OPERATION: Final = (
    "op is no column of facts: rows that were taken back are not there, and the engine says what becomes of the others",
    "SET odf.read = 'log' sees every statement as an event, with its op; else leave op out",
)
"""Message and remedy of the finding ``op-not-available``."""
AS_OF: Final = OperatorRefusal(
    NOT_YET,
    "an as-of join needs an input itself on its right side, equal columns, and no other use of that input",
    "declare the input in temporalTables, and join on valid_from and valid_to",
)


def as_of_changes(alias: str, keys: Sequence[str]) -> OperatorRefusal:
    """Refuses an as-of join by time onto an input whose rows can be retracted."""
    return OperatorRefusal(
        "as-of-changelog",
        f"input {alias} is a changelog: an as-of join would match its retractions",
        f"temporalTables: [{{name: {alias}, primaryKey: [{', '.join(keys)}]}}], and match by {alias}.valid_from",
    )


def as_of_unsaid(alias: str, keys: Sequence[str]) -> OperatorRefusal:
    """Refuses an as-of join as long as the chain does not state whether the input's rows can be retracted."""
    return OperatorRefusal(
        "as-of-unsaid",
        f"the chain of input {alias} does not say whether its rows can be taken back: when one is, a pull refuses the "
        "as-of join",
        as_of_changes(alias, keys).replace,
    )


def node_to_show(key: PlanNode, operator: PlanNode) -> PlanNode:
    """Returns the node whose place to show: Spark reports another place for a bare column."""
    return operator if key.kind == "AttributeReference" else key


def map_key(node: PlanNode, name: str) -> QueryFinding:
    return QueryFinding(
        "map-key",
        f"{name or 'a key'} is a map: which of two equal ones represents a group depends on the order of the rows",
        "array_sort(map_entries(x))",
        node,
    )


def float_key(node: PlanNode, name: str) -> QueryFinding:
    shown = name or "a key"
    return QueryFinding(
        "float-key",
        f"{shown} is floating point: which of 0.0 and -0.0 represents a group depends on the order of the rows",
        "cast(x as decimal(38,12))",
        node,
    )
