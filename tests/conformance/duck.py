"""DuckDB in place of Spark below the engine's own code: the same planning, judging, ordering, state, another SQL.

A small transaction takes Spark a tenth of a second and DuckDB a hundredth, so the law can be tried on thousands of
histories; and a second SQL engine that agrees with Spark on a shape's text is an oracle that shares nothing with it.

What is replaced is what the engine calls Spark for: making views of slices and tables, running the text of the
queries, taking them apart at a window over all history or at a grouping whose sums a table keeps, and the expressions
that merge accumulators; and opening an input's slice again, which is the larger part of so small a transaction.
Analysis stays Spark's. Hidden columns ride along in Spark's plan; here the text says where, as ``{h}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as st

import engines.spark.execution.inputs as inputs
import engines.spark.execution.running_aggregates as running
import engines.spark.execution.tables as tables
import engines.spark.execution.transform as transform
import engines.spark.planning.slice_facts as facts
import engines.spark.planning.slice_facts as sessions
import engines.spark.rows.tables as rows
from chain.data.parquet import open_slice
from chain.model.source import SqlQueryStep
from engines.contract import Vocab
from engines.spark.analysis.monotone import EARLIEST, LATEST
from engines.spark.analysis.tables import BARE_KEY, BARE_PART
from engines.spark.catalyst.plans import (
    HIDDEN,
    HIDDEN_BEFORE,
    HIDDEN_OFFSET,
    HIDDEN_OP,
    HIDDEN_ROUND,
    HIDDEN_ROW,
    HIDDEN_SOURCE,
)
from engines.spark.catalyst.running_windows import Stage, WindowPart
from engines.spark.catalyst.types import struct_type
from engines.spark.planning.transaction import SliceRead
from engines.spark.rows.tables import event_times, read_rows


@dataclass(frozen=True)
class Running:
    """A text with OVER over all history, as the engine takes it apart: what is below the window, and what is above."""

    below: str
    """With columns for keys, order, parts and what is read above, under the engine's names for them."""
    above: str
    """Over ``these``, the rows with what the functions of the window are."""
    parts: tuple[WindowPart, ...]
    directions: tuple[str, ...] = ("asc nulls first",)


@dataclass(frozen=True)
class Grouping:
    """A text with GROUP BY over inputs that grow, as the engine takes it apart: what a table keeps of each group, and
    what is above. Sums are kept in two halves, so that they are exact whatever is added on the way."""

    keys: Mapping[str, str]
    """Column -> what it groups by."""
    made: Mapping[str, str]
    """Column -> aggregate: sum, count, min or max."""
    rows: str = "a"
    around: str = "{}"
    """What is above, with ``{}`` for the groups in brackets."""

    @property
    def text(self) -> str:
        return self._above(self._grouped([*_named(self.keys), *_named(self.made)]))

    @property
    def below(self) -> str:
        """The groups' keys and parts, under the engine's names for them."""
        keys = [f"{key} as {BARE_KEY}{at}" for at, key in enumerate(self.keys.values())]
        return self._grouped(keys + [f"{part} as {BARE_PART}{at}" for at, (part, _) in enumerate(self._parts)])

    @property
    def merge(self) -> dict[str, str]:
        """The function that merges each part."""
        return {f"{BARE_PART}{at}": function for at, (_, function) in enumerate(self._parts)}

    @property
    def above(self) -> str:
        """Over ``these``, the merged parts."""
        kept, values = iter(self.merge), {}
        for name, aggregate in self.made.items():
            low, *high = (next(kept) for _ in _parts_of(aggregate))
            values[name] = f"({high[0]} + ({low} >> 32)) * 4294967296 + ({low} & 4294967295)" if high else low
        keys = {name: f"{BARE_KEY}{at}" for at, name in enumerate(self.keys)}
        return self._above(f"select {', '.join(_named({**keys, **values}))}{{h}} from these")

    @property
    def _parts(self) -> list[tuple[str, str]]:
        return [part for aggregate in self.made.values() for part in _parts_of(aggregate)]

    def _grouped(self, columns: Sequence[str]) -> str:
        by = ", ".join(str(at + 1) for at in range(len(self.keys)))
        return f"select {', '.join(columns)}{{h}} from {self.rows} group by {by}{{h}}"

    def _above(self, groups: str) -> str:
        return groups if self.around == "{}" else self.around.replace("{}", f"({groups})")


def _named(columns: Mapping[str, str]) -> list[str]:
    return [f"{text} as {name}" for name, text in columns.items()]


def _parts_of(aggregate: str) -> list[tuple[str, str]]:
    """(what is kept, the function that merges it) of an aggregate. A sum's low half comes before its high one."""
    function, value = aggregate.removesuffix(")").split("(", 1)
    if function == "sum":
        return [(f"sum({value} & 4294967295)", "sum"), (f"sum({value} >> 32)", "sum")]
    return [(aggregate, "sum" if function == "count" else function)]


MICROS = pa.timestamp("us", "UTC")
_MACROS = """
create macro from_utc_timestamp(t, zone) as timezone(zone, timezone('UTC', t));
create macro to_utc_timestamp(t, zone) as timezone('UTC', timezone(zone, t));
"""


class Duck:
    """Named tables and a connection; stands where a Spark session stands."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(config={"threads": 1})
        self._connection.execute("set TimeZone = 'UTC'")
        self._connection.execute(_MACROS)
        self.texts: Mapping[str, str] = {}
        """What to run for each text of Spark's that is not the same here."""
        self.running: Running | None = None
        """Of the shape at hand, if it looks at all history."""
        self.grouping: Grouping | None = None
        """Of the shape at hand, if a table keeps parts of its aggregates."""
        self.before_query: Callable[[], None] = lambda: None
        self._views: dict[str, pa.Table] = {}

    def newSession(self) -> Duck:
        self._views = {}
        return self

    def name(self, alias: str, table: pa.Table) -> None:
        self._views[alias] = table

    def query(self, texts: Sequence[tuple[str, str]], hidden: Sequence[str] = ()) -> pa.Table:
        """Run the last of (alias, text) over those before it and the named tables."""
        self.before_query()
        for alias, table in self._views.items():
            unseen = [
                name
                for name in (*HIDDEN, HIDDEN_ROUND, HIDDEN_ROW)
                if name in table.column_names and name not in hidden
            ]
            self._connection.register(alias, _plain(table.drop_columns(unseen)))
        together = "".join(f", {name}" for name in hidden if name != HIDDEN_ROW)
        row = f", {HIDDEN_ROW}" if HIDDEN_ROW in hidden else ""
        told = [self.texts.get(text.strip(), text).replace("{h}", together).replace("{r}", row) for _, text in texts]
        steps = [f'"{alias}" as ({text})' for (alias, _), text in zip(texts[:-1], told[:-1], strict=True)]
        last = f"with {', '.join(steps)} select * from ({told[-1]})" if steps else told[-1]
        return _as_sparks(self._connection.sql(last).to_arrow_table())

    def expressions(self, table: pa.Table, texts: Sequence[str]) -> pa.Table:
        self._connection.register("these", _plain(table))
        told = [text.replace("`", '"').replace(", true)", " ignore nulls)") for text in texts]
        told = [text.replace(") ignore nulls over", " ignore nulls) over") for text in told]
        return _as_sparks(self._connection.sql(f"select {', '.join(told)} from these").to_arrow_table())


class Frame:
    """What the engine uses of a DataFrame. ``table`` has the hidden columns, whatever is selected."""

    def __init__(self, duck: Duck, table: pa.Table, texts: Sequence[str] = ()) -> None:
        self.duck = duck
        self.table = table
        self._texts = texts

    def selectExpr(self, *texts: str) -> Frame:
        return Frame(self.duck, self.table, texts)

    @property
    def schema(self) -> st.StructType:
        return struct_type(self.table.schema)

    def toArrow(self) -> pa.Table:
        return self.duck.expressions(self.table, self._texts) if self._texts else self.table


@dataclass(frozen=True)
class RunningTexts:
    """Stands where a ``RunningQuery`` stands."""

    duck: Duck

    @classmethod
    def of(cls, duck: Duck, *_: object) -> RunningTexts:
        return cls(duck)

    @property
    def _texts(self) -> Running:
        assert self.duck.running is not None
        return self.duck.running

    def stage(self) -> Stage:
        return Stage(self.duck.query([("", self._texts.below)]), self._texts.parts, self._texts.directions)

    def fill(self, rows: pa.Table) -> RunningTexts:
        self.duck.name("these", rows)
        return self

    def result(self) -> pa.Table:
        return self.duck.query([("", self._texts.above)])


@dataclass(frozen=True)
class PartialTexts:
    """Stands where a ``Partials`` stands."""

    duck: Duck

    @classmethod
    def of(cls, duck: Duck, *_: object) -> PartialTexts:
        return cls(duck)

    @property
    def _grouping(self) -> Grouping:
        assert self.duck.grouping is not None
        return self.duck.grouping

    def merge(self) -> dict[str, str]:
        return self._grouping.merge

    def parts(self) -> pa.Table:
        return self.duck.query([("", self._grouping.below)], (HIDDEN_ROUND,))

    def whole(self, parts: pa.Table) -> pa.Table:
        self.duck.name("these", parts)
        return self.duck.query([("", self._grouping.above)], (HIDDEN_ROUND,))


class OpenedBefore:
    """A slice in memory: what the engine uses of a ``SliceFile``."""

    def __init__(self, path: Path, table: pa.Table) -> None:
        self.path = path
        self.schema = table.schema
        self.rows = table.num_rows
        self._batches = table.combine_chunks().to_batches()

    def __enter__(self) -> OpenedBefore:
        return self

    def __exit__(self, *_: object) -> None: ...

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        chosen = [name for name in self.schema.names if name in columns]
        return (batch.select(chosen) for batch in self._batches)


class Slices:
    """Files of slices, each read once: they never change, and a transaction of a few rows is over before one opens."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, int, int], OpenedBefore] = {}

    def open(self, path: Path) -> OpenedBefore:
        found = path.stat()
        key = (path, found.st_ino, found.st_mtime_ns)
        if key not in self._known:
            with open_slice(path) as source:
                self._known[key] = OpenedBefore(path, source.read())
        return self._known[key]


def in_place_of_spark(patch: pytest.MonkeyPatch) -> None:
    """From here on the engine takes a ``Duck`` for a session."""
    slices = Slices()
    for module in (facts, inputs, rows, sessions):
        patch.setattr(module, "open_slice", slices.open)
    patch.setattr(transform, "name_view", lambda frame, alias: frame.duck.name(alias, frame.table))
    patch.setattr(transform, "name_input", lambda frame, _, alias: frame.duck.name(alias, frame.table))
    patch.setattr(transform, "run_queries", lambda session, steps: steps)
    patch.setattr(transform, "frame_of", lambda session, steps: Frame(session, session.query(_texts(steps))))
    patch.setattr(
        transform, "carry_hidden", lambda session, steps, names: Frame(session, session.query(_texts(steps), names))
    )
    patch.setattr(transform, "run_exactly", lambda session, steps, run, exact=True: run(steps))
    patch.setattr(transform, "RunningQuery", RunningTexts)
    patch.setattr(transform, "Partials", PartialTexts)
    for module in (transform, inputs, tables, running):
        patch.setattr(module, "frame_of_rows", Frame)
    patch.setattr(inputs, "slices_view", _slices)
    patch.setattr(inputs.Inputs, "few", lambda *_: None)


def _texts(steps: Sequence[SqlQueryStep]) -> list[tuple[str, str]]:
    return [(step.alias or "", step.query) for step in steps]


def _slices(
    duck: Duck,
    reads: Sequence[SliceRead],
    schema: st.StructType,
    vocab: Vocab,
    number: int | None = 0,
    events: bool = False,
) -> Frame:
    """As ``views.slices_view``. ``None``: without hidden columns. ``events``: every row is an addition there."""
    parts = [_with_hidden(read_rows((), schema), vocab, number, 0)]
    for read in reads:
        rows = read_rows(read.paths, schema)
        times, timed = event_times(rows, vocab)
        bounded = (read.low, read.high) != (EARLIEST, LATEST)
        inside = (timed & (times >= read.low) & (times < read.high)) if bounded else np.ones(len(times), bool)
        parts.append(_with_hidden(rows.filter(pa.array(inside)), vocab, number, read.before))
    whole = pa.concat_tables(parts)
    if events and number is not None:
        at = whole.column_names.index(HIDDEN_OP)
        whole = whole.set_column(at, HIDDEN_OP, pa.array(np.zeros(whole.num_rows, np.int32)))
    return Frame(duck, whole)


def _with_hidden(rows: pa.Table, vocab: Vocab, number: int | None, before: int) -> pa.Table:
    if number is None:
        return rows
    found: dict[str, Any] = {
        HIDDEN_OFFSET: rows.column(vocab.offset).cast(pa.int64()),
        HIDDEN_OP: rows.column(vocab.operation_type).cast(pa.int32()),
        HIDDEN_SOURCE: pa.array(np.full(rows.num_rows, number, np.int32)),
        HIDDEN_BEFORE: pa.array(np.full(rows.num_rows, before, np.int64)),
    }
    for name, column in found.items():
        rows = rows.append_column(name, column)
    return rows


def _plain(table: pa.Table) -> pa.Table:
    """Times without a zone, so that DuckDB's functions of time take them as they are."""
    return table.cast(
        pa.schema([field.with_type(pa.timestamp("us")) if field.type == MICROS else field for field in table.schema])
    )


def _as_sparks(table: pa.Table) -> pa.Table:
    """Types as Spark would have given them, as far as the engine asks."""
    kinds = {pa.timestamp("us"): MICROS, pa.date32(): MICROS, pa.decimal128(38, 0): pa.int64()}
    return table.cast(pa.schema([pa.field(f.name, kinds.get(f.type, f.type)) for f in table.schema]))
