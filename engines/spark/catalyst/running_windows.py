"""Splits a query with OVER over all history at each such window operator, as JVM plans.

The plan below the operator gives its rows. They are read here with what each row contributes to its key, its *parts*:
aggregates of one row, which can be merged, or the value that later rows look back to. The operator's result, which also
depends on what was kept of earlier rows, is computed in ``engines.spark.execution.running_aggregates`` and put in its
place. Aggregates are computed exactly throughout, so that their parts can be merged. Spec:
docs/spec/engine-semantics.md#running.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from engines.spark.analysis.tables import LISTS, MERGED_BY
from engines.spark.analysis.window_functions import PICKED
from engines.spark.catalyst.exact import complete_plan
from engines.spark.catalyst.expressions import Catalyst
from engines.spark.catalyst.plans import frame_of, inline_ctes, items, kind_of
from engines.spark.rows.tables import frame_of_rows

KEY: Final = "__odf_key"
"""Prefix of the columns by which rows are partitioned; a number follows, as in all these."""
ORDER: Final = "__odf_order"
"""Prefix of the columns by which rows are ordered; the first is the time in which rows come out."""
PART: Final = "__odf_part"
"""Prefix of the columns with what the row alone contributes to each function."""
DEFAULT: Final = "__odf_default"
"""Prefix of the columns with the default of ``lag`` for rows that do not exist, if there is one."""
COLUMN: Final = "__odf_column"
"""Prefix of the columns of the rows that the rest of the query reads."""
VALUE: Final = "__odf_value"
"""Prefix of the columns with the value of each function for the row."""
LAG: Final = "lag"
NTH: Final = "nth_value"
_ARGUMENT: Final = "__odf_argument"
_COUNTS: Final = frozenset({"Count", "CountIf"})


@dataclass(frozen=True, slots=True)
class WindowPart:
    """How the value of a window function is computed from the parts of rows."""

    function: str
    """The function that merges the parts, or that picks one."""
    kind: str
    """The type of the part and of the value, as SQL."""
    by_range: bool = True
    """Whether rows that tie in the order count for each other."""
    preceding: int | None = None
    """How many rows before the current one the frame begins; ``None``: it begins with the first row."""
    until: int = 0
    """How many rows before the current one the frame ends."""
    counts: bool = False
    """Whether the value is 0, not null, where no row counts."""
    passes_nulls: bool = False
    """Whether it has ``IGNORE NULLS``."""
    place: int = 0
    """For ``nth_value``: the n."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The rows below one window operator."""

    rows: pa.Table
    """Columns ``KEY``, ``ORDER``, ``PART``, ``DEFAULT`` and ``COLUMN``, each with a number."""
    parts: tuple[WindowPart, ...]
    directions: tuple[str, ...]
    """Direction of each order column, as SQL: ``ASC NULLS FIRST``."""


class Staged(Protocol):
    """A query whose windows over all history are evaluated one by one, from the inputs up."""

    def stage(self) -> Stage:
        """Returns the rows below the lowest window; runs everything below it."""
        ...

    def fill(self, rows: pa.Table) -> Staged:
        """Returns the query with that window replaced by its rows, which have columns ``COLUMN`` and ``VALUE``."""
        ...

    def result(self) -> pa.Table:
        """Returns the result, once no such window is left."""
        ...


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """Implements ``Staged`` over an analysed plan."""

    session: SparkSession
    plan: Any
    """The plan with exact aggregates, and with common table expressions expanded where they are used."""
    windows: int
    """Number of window operators still to be evaluated, counted from the root down."""

    @classmethod
    def of(cls, session: SparkSession, plan: Any, windows: int) -> RunningQuery:
        return cls(session, inline_ctes(session, complete_plan(session, plan)), windows)

    def stage(self) -> Stage:
        window, catalyst = self._window(), Catalyst(self.session)
        functions = [_function(item.child()) for item in items(window.windowExpressions())]
        arguments = [
            catalyst.alias(argument, f"{_ARGUMENT}{number}_{place}")
            for number, function in enumerate(functions)
            for place, argument in enumerate(_arguments(function))
        ]
        below = catalyst.project([*items(window.child().output()), *arguments], window.child())
        order = items(window.orderSpec())
        given = (
            (KEY, items(window.partitionSpec())),
            (ORDER, [each.child() for each in order]),
            (COLUMN, self._needed_columns(window)),
        )
        made = [catalyst.alias(each, f"{name}{at}") for name, some in given for at, each in enumerate(some)]
        made += [
            catalyst.read(f"{_alone(function, number)} as {PART}{number}") for number, function in enumerate(functions)
        ]
        made += [
            catalyst.read(f"{_ARGUMENT}{number}_1 as {DEFAULT}{number}")
            for number, function in enumerate(functions)
            if kind_of(function) == "Lag" and len(_arguments(function)) > 1
        ]
        frames = [item.child().windowSpec().frameSpecification() for item in items(window.windowExpressions())]
        parts = [_part(function, frame) for function, frame in zip(functions, frames, strict=True)]
        directions = tuple(f"{each.direction().sql()} {each.nullOrdering().sql()}" for each in order)
        rows = frame_of(self.session, catalyst.project(made, below)).toArrow()
        return Stage(rows, tuple(parts), directions)

    def fill(self, rows: pa.Table) -> RunningQuery:
        window, catalyst = self._window(), Catalyst(self.session)
        source = frame_of_rows(self.session, rows)._jdf.queryExecution().analyzed()
        columns = {item.name(): item for item in items(source.output())}
        wanted = ((COLUMN, self._needed_columns(window)), (VALUE, items(window.windowExpressions())))
        made = [catalyst.under(columns[f"{name}{at}"], like) for name, some in wanted for at, like in enumerate(some)]
        plan = self._replace(self.plan, self.windows, catalyst.project(made, source))
        return RunningQuery(self.session, plan, self.windows - 1)

    def result(self) -> pa.Table:
        return frame_of(self.session, self.plan).toArrow()

    def _down(self) -> Iterator[Any]:
        """Yields the operators from the root to the lowest window."""
        node, left = self.plan, self.windows
        while left:
            left -= kind_of(node) == "Window"
            yield node
            node = node.children().apply(0)

    def _window(self) -> Any:
        return list(self._down())[-1]

    def _needed_columns(self, window: Any) -> list[Any]:
        """Returns the columns of the rows below that something above the window reads."""
        *above, _ = self._down()
        read = {item.exprId().id() for node in above for item in items(node.references().toSeq())}
        read |= {item.exprId().id() for item in items(self.plan.output())}
        return [item for item in items(window.child().output()) if item.exprId().id() in read]

    def _replace(self, node: Any, left: int, source: Any) -> Any:
        left -= kind_of(node) == "Window"
        if not left:
            return source
        children = node.children()
        return node.withNewChildren(children.updated(0, self._replace(children.apply(0), left, source)))


def _function(window: Any) -> Any:
    function = window.windowFunction()
    return function.aggregateFunction() if kind_of(function) == "AggregateExpression" else function


def _arguments(function: Any) -> list[Any]:
    """Returns the arguments to compute for each row; of ``lag`` its value and, unless that is null, its default."""
    given = items(function.children())
    if kind_of(function) == "NthValue":
        return given[:1]
    if kind_of(function) != "Lag":
        return given
    value, _, default = given
    return [value] if kind_of(default) == "Literal" and default.value() is None else [value, default]


def _alone(function: Any, number: int) -> str:
    """Returns SQL for a function's value over one row alone, from its arguments."""
    kind, first = kind_of(function), f"{_ARGUMENT}{number}_0"
    if kind == "Count":
        places = range(function.children().size())
        return f"if({' and '.join(f'{_ARGUMENT}{number}_{at} is not null' for at in places)}, 1L, 0L)"
    if kind == "CountIf":
        return f"if({first}, 1L, 0L)"
    if kind == "CollectList":
        return f"if({first} is null, array(), array({first}))"
    return f"cast({first} as {function.dataType().sql()})" if kind == "Sum" else first


def _part(function: Any, frame: Any) -> WindowPart:
    kind, written = kind_of(function), str(function.dataType().sql())
    low, high = frame.lower(), frame.upper()
    preceding = None if kind_of(low).startswith("Unbounded") else -int(low.eval(None))
    until = 0 if kind_of(high).startswith("CurrentRow") else -int(high.eval(None))
    by_range = kind_of(frame.frameType()).startswith("Range")
    if kind == "Lag":
        return WindowPart(LAG, written, by_range, preceding, until, passes_nulls=bool(function.ignoreNulls()))
    if kind == "NthValue":
        place, passes = int(function.offset().eval(None)), bool(function.ignoreNulls())
        return WindowPart(NTH, written, by_range, preceding, until, passes_nulls=passes, place=place)
    if kind in PICKED:
        return WindowPart(PICKED[kind], written, by_range, preceding, until, passes_nulls=bool(function.ignoreNulls()))
    merge = LISTS if kind == "CollectList" else MERGED_BY[kind]
    if merge == "sum" and str(function).startswith("try_"):
        merge = "try_sum"
    return WindowPart(merge, written, by_range, preceding, until, counts=kind in _COUNTS)
