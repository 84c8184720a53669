"""Updates a changing table: computes its rows at every tick, and the corrections from one tick to the next.

Over inputs that only grow, the row last written for a key is an accumulator, or its bare aggregates are, if the query
computes something from them: new rows are aggregated and merged with it. Over changelogs the rows that stand are kept,
and those of a changed key are evaluated anew. Either way the user's query runs once for many ticks, with the round as
one more column to group by. Spec: docs/spec/engine-semantics.md#table-mode.

Rows that all count in this transaction need not pass through Python: Spark reads their slices and computes the round of
each row. Whether they do is known of a slice from what planning read of it, or from its times where ticks are points of
a grid. Small slices do pass through Python, which is faster than one more scan.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from chain.data.evolution import as_in_force
from chain.data.operations import CORRECT_FROM, RETRACT
from chain.errors import Invalid
from engines.contract import Vocab
from engines.spark.analysis.lexical import quote_name
from engines.spark.analysis.tables import BARE_KEY, LISTS, TableShape
from engines.spark.catalyst.partial_aggregates import Partials
from engines.spark.catalyst.plans import HIDDEN_ROUND, HIDDEN_ROW
from engines.spark.planning.slice_facts import Closing, InputWindows
from engines.spark.planning.table_transaction import TableStep
from engines.spark.planning.transaction import BlockFacts, SliceRead
from engines.spark.rows.changelog import LONG_AGO, NEVER, cancelled_by, data_of, key_codes, positive, row_codes
from engines.spark.rows.tables import arrow_columns, event_times, frame_of_rows, read_rows
from engines.spark.rows.ticks import Rounds, differences, rounds_in_force, rounds_of, stretches
from engines.spark.sql.views import slices_view
from engines.spark.state.files import BucketedTable, Kept, Tables, hashes_of

SCANNED: Final = 1 << 20
"""Bytes from which on a slice is worth a scan of its own."""
MAX_TICKS: Final = 64
"""Most ticks, about, between the rows of a slice: each is a comparison in the query."""


class Scanned(Protocol):
    """The properties of an input whose slices are scanned."""

    @property
    def schema(self) -> st.StructType: ...
    @property
    def vocab(self) -> Vocab: ...
    @property
    def log(self) -> bool:
        """Whether the query sees every statement as an event, so that operations do not matter."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A slice that only adds rows, all of which count in this transaction."""

    path: str
    moments: np.ndarray
    """Times from which the rows count, microseconds; only the least and the greatest unless all were asked for."""
    round: str = ""
    """SQL expression for the number of a row's round; empty until the ticks are known."""


def scan_of(block: BlockFacts, counts_from: int, until: int, source: Scanned, *, every: bool) -> Scan | None:
    """Returns the scan of a block, or ``None`` if its rows must be read in Python.

    Rows count from ``counts_from`` at the earliest, and in this transaction if before ``until``. ``every``: all moments
    are needed. Raises Invalid, Environment.
    """
    if block.path is None or Path(block.path).stat().st_size < SCANNED:
        return None
    if every or block.changes is None:
        return _looked_at(block.path, counts_from, until, source)
    if block.first is None or block.last is None or (block.changes and not source.log):
        return None
    moments = np.maximum(np.array([block.first, block.last], np.int64), counts_from)
    return Scan(block.path, moments) if moments[1] < until else None


def _looked_at(path: str, counts_from: int, until: int, source: Scanned) -> Scan | None:
    """Makes the scan as ``scan_of`` does, but from the times of all rows; ``None`` if it has to be read in Python."""
    schema, vocab, log = source.schema, source.vocab, source.log
    names = {vocab.event_time, vocab.operation_type}
    rows = read_rows([path], st.StructType([field for field in schema if field.name in names]))
    if not log and np.any(np.asarray(rows.column(vocab.operation_type))):
        return None
    times, timed = event_times(rows, vocab)
    moments = np.maximum(times[timed], counts_from)
    return Scan(path, moments) if len(moments) and moments.max() < until else None


def is_crowded(scan: Scan, ticks: np.ndarray) -> bool:
    """Whether more than ``MAX_TICKS`` ticks occur between its rows."""
    return bool(np.diff(_ends(scan, ticks))[0] > MAX_TICKS)


def in_rounds(scan: Scan, ticks: np.ndarray, vocab: Vocab) -> Scan:
    """Adds the expression for a row's round: the number of ticks up to when the row counts."""
    low, high = _ends(scan, ticks).tolist()
    time = f"unix_micros(cast({quote_name(vocab.event_time)} as timestamp))"
    # No row counts before the least moment, so for ticks after it the row's own time decides.
    steps = [f"cast({time} >= {tick}L as bigint)" for tick in ticks[low:high].tolist()]
    return Scan(scan.path, scan.moments, " + ".join([f"{low}L", *steps]))


def scan_rows(session: SparkSession, scans: Sequence[Scan], schema: st.StructType, vocab: Vocab) -> list[DataFrame]:
    """Returns the rows of scans that have a time, with the column ``HIDDEN_ROUND``."""
    rounds = dict.fromkeys(scan.round for scan in scans)
    return [
        slices_view(session, [SliceRead(tuple(scan.path for scan in scans if scan.round == each))], schema, vocab, None)
        .where(f"{quote_name(vocab.event_time)} is not null")
        .selectExpr("*", f"{each} as {HIDDEN_ROUND}")
        for each in rounds
    ]


def _ends(scan: Scan, ticks: np.ndarray) -> np.ndarray:
    return np.searchsorted(ticks, [scan.moments.min(), scan.moments.max()], side="right")


def unite(frames: Sequence[DataFrame]) -> DataFrame:
    return functools.reduce(DataFrame.unionAll, frames)


ENTER: Final = "__odf_enter"
LEAVE: Final = "__odf_leave"
"""Columns with the time from which a row counts, and the time up to which: effective times, microseconds."""
WINDOW: Final = "__odf_window"
"""Column with a row's window, if the table is of windows."""
ROWS: Final = "rows"
"""Name of the state with the rows of inputs that stand."""
FIRST: Final = "first"
"""Name of the state with only those standing rows that rank among the first of their key; the others never will."""
WRITTEN: Final = "written"
WAITING: Final = "waiting"
MAX_ROUND_ROWS: Final = 1 << 20
"""Most rows, about, that are evaluated at once; a row counts once for every tick at which it is evaluated."""
Scans: TypeAlias = Mapping[str, Sequence[Scan]]
NO_SCANS: Final[Scans] = MappingProxyType({})


class Evaluate(Protocol):
    """Runs the query over rows of each input, which have a column ``HIDDEN_ROUND``; so has the result."""

    def __call__(self, rows: Mapping[str, pa.Table], scans: Scans = NO_SCANS) -> pa.Table: ...


class Split(Protocol):
    """Evaluates the query's bare aggregates, to be merged with kept ones before the rest of the query is computed."""

    def __call__(self, rows: Mapping[str, pa.Table], scans: Scans = NO_SCANS) -> Partials: ...


@dataclass(frozen=True, slots=True)
class TableInput:
    """How to read the rows of an input of a table."""

    schema: st.StructType
    vocab: Vocab
    log: bool = False
    """Whether every statement is an event, so that nothing is taken back."""
    windows: InputWindows | None = None
    """Windows of the rows, if the table is of windows: a row then counts once its window is settled."""


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """Changed rows in the types that Spark gave (``None``: none), their ops, and the tables of the new state."""

    rows: pa.Table | None
    ops: np.ndarray
    state: dict[str, Kept]


def _fresh(
    step: TableStep, sources: Mapping[str, TableInput], former: Tables, scans: Scans = NO_SCANS
) -> dict[str, pa.Table]:
    """Returns by alias the rows that were waiting and the new rows, with effective times,
    but not those of ``scans``."""
    found = {}
    for alias, source in sources.items():
        schema = state_columns(source)
        old = former.get(f"{WAITING}:{alias}")
        parts = [] if old is None else [as_in_force(old, schema)]
        apart = {scan.path for scan in scans.get(alias, ())}
        for block in step.blocks[alias]:
            if block.path is not None and block.path not in apart:
                parts.append(_new(block.path, block.before, block.after, step.lateness[alias], source))
        found[alias] = pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])
    return found


def _scans(step: TableStep, sources: Mapping[str, TableInput]) -> dict[str, list[Scan]]:
    """Returns by alias the slices that Spark can read by itself. Raises Invalid, Environment."""
    found: dict[str, list[Scan]] = {alias: [] for alias in sources}
    for alias, source in sources.items():
        if source.windows is not None or step.until is None:
            continue
        for block in step.blocks[alias]:
            floor = -NEVER if block.before is None else block.before - step.lateness[alias]
            scan = scan_of(block, floor, step.until, source, every=step.grid is not None)
            if scan is not None:
                found[alias].append(scan)
    moments = [scan.moments for scans in found.values() for scan in scans]
    ticks = step.times(np.concatenate([np.empty(0, np.int64), *moments]))
    return {alias: [scan for scan in scans if not is_crowded(scan, ticks)] for alias, scans in found.items()}


def state_columns(source: TableInput) -> pa.Schema:
    """Returns the columns of rows in the state: those of the input, and when each row counts."""
    more = [ENTER, LEAVE] if source.windows is None else [ENTER, LEAVE, WINDOW]
    return pa.schema([*arrow_columns(source.schema), *(pa.field(name, pa.int64()) for name in more)])


def _new(path: str, before: int | None, after: int | None, lateness: int, source: TableInput) -> pa.Table:
    """Returns the rows of a slice that have a time, with the time from which each statement counts by itself."""
    rows = read_rows([path], source.schema)
    times, timed = event_times(rows, source.vocab)
    marks = [-NEVER if mark is None else mark - lateness for mark in (before, after)]
    ops = np.asarray(rows.column(source.vocab.operation_type)) * (not source.log)
    enter = np.maximum(times, marks[0])
    enter = np.where(ops == RETRACT, np.maximum(enter, marks[1]), enter)
    enter = np.where(ops == CORRECT_FROM, np.append(enter[1:], enter[-1:]), enter)
    if source.windows is not None:
        enter = np.maximum(enter, source.windows.last_instants(times))
        timed = timed & (times >= source.windows.accepted_from(before))
    rows = rows.append_column(ENTER, pa.array(enter)).append_column(LEAVE, pa.array(np.full(len(enter), NEVER)))
    if source.windows is not None:
        rows = rows.append_column(WINDOW, pa.array(source.windows.of(times)))
    return rows.filter(pa.array(timed))


def _taken_back(rows: pa.Table, vocab: Vocab) -> pa.Table:
    """Returns the rows asserted, each with the time at which it is taken back, if it is;
    leaves out those that never count."""
    order = np.argsort(np.asarray(rows.column(vocab.offset)), kind="stable")
    rows = rows.take(pa.array(order))
    ops = np.asarray(rows.column(vocab.operation_type)).astype(np.int64)
    enter, leave = (np.asarray(rows.column(name)).copy() for name in (ENTER, LEAVE))
    open_rows = np.flatnonzero(leave == NEVER)
    if not ops.any():
        return rows
    codes = row_codes(data_of(rows.drop_columns([ENTER, LEAVE]), vocab).take(pa.array(open_rows)))
    canceller, _ = cancelled_by(codes, ops[open_rows])
    ended = open_rows[canceller >= 0]
    leave[ended] = np.maximum(enter[open_rows[canceller[canceller >= 0]]], enter[ended])
    rows = rows.set_column(rows.column_names.index(LEAVE), LEAVE, pa.array(leave))
    return rows.filter(pa.array(positive(ops) & (enter < leave)))


def accumulate(
    session: SparkSession, shape: TableShape, step: TableStep, sources: Mapping[str, TableInput], former: Tables,
    evaluate: Evaluate, split: Split,
) -> TableOutcome:  # fmt: skip
    """Advances a table over inputs that only grow. Raises Invalid, Environment."""
    scans = _scans(step, sources)
    rows = _fresh(step, sources, former, scans)
    for alias, table in rows.items():
        source = sources[alias]
        if not source.log and np.any(np.asarray(table.column(source.vocab.operation_type))):
            raise Invalid(
                f"input {alias} holds corrections or retractions, though it is said only to grow",
                rule="append-only",
                hint="the coordinator must state that the input is a changelog",
            )
    moments = [np.asarray(table.column(ENTER)) for table in rows.values()]
    moments += [scan.moments for each in scans.values() for scan in each]
    times = step.times(np.concatenate(moments))
    scans = {alias: [in_rounds(scan, times, sources[alias].vocab) for scan in each] for alias, each in scans.items()}
    ready: dict[str, pa.Table] = {}
    state: dict[str, Kept] = {}
    for alias, table in rows.items():
        enter = np.asarray(table.column(ENTER))
        due = np.full(len(enter), False) if step.until is None else enter < step.until
        state[f"{WAITING}:{alias}"] = table.filter(pa.array(~due))
        now = plain(table.filter(pa.array(due)))
        ready[alias] = now.append_column(HIDDEN_ROUND, pa.array(np.searchsorted(times, enter[due], side="right")))
    if not any(table.num_rows for table in ready.values()) and not any(scans.values()):
        untouched: dict[str, Kept] = {n: each for n, each in former.stored.items() if n.startswith(f"{WRITTEN}/")}
        if untouched and step.closing is not None:
            untouched = _without_closed(shape, former, step.closing)
        return TableOutcome(None, np.empty(0, np.int32), {**untouched, **state})
    bare = split(ready, scans) if shape.bare else None
    parts = evaluate(ready, scans) if bare is None else bare.parts()
    by = _keys_of(shape, parts)
    written = parts.drop_columns([HIDDEN_ROUND]).schema
    bucketed = BucketedTable(WRITTEN, written, former.stored)
    opened = bucketed.take(_hashes(parts, by)) if step.closing is None else bucketed.take_all()
    olds = [_kept_before(each, written) for each in opened]
    old = pa.concat_tables([written.empty_table(), *olds])
    old = old.append_column(HIDDEN_ROUND, pa.array(np.zeros(old.num_rows, np.int64))).select(parts.column_names)
    both = pa.concat_tables([old.cast(parts.schema), parts])
    keys = row_codes(both.select(by))
    touched = np.isin(keys, keys[old.num_rows :])
    functions = (shape.merge or {}) if bare is None else bare.merge()
    merged = _summed_up(session, functions, by, both.filter(pa.array(touched)), keys[touched])
    keys, ticks = row_codes(merged.select(by)), np.asarray(merged.column(HIDDEN_ROUND)).astype(np.int64)
    rounds = rounds_of(keys, ticks, times)
    at = np.searchsorted(rounds.places, keys * len(times) + ticks)
    visible = merged.select(written.names)
    if bare is None:
        changed, ops = differences(visible, at, rounds, shape.keys, single=True)
    else:
        result = bare.whole(visible.append_column(HIDDEN_ROUND, pa.array(at)))
        of = np.asarray(result.column(HIDDEN_ROUND)).astype(np.int64)
        changed, ops = differences(result.drop_columns([HIDDEN_ROUND]), of, rounds, shape.keys, single=True)
    # Marks each key's last round; there may be no key, if the query passes on none of the new rows.
    last = np.append(rounds.first[1:], True)[: len(rounds.first)]
    still = both.select(written.names).filter(pa.array(~touched))
    rows_now = pa.concat_tables([still, visible.filter(pa.array(last[at]))])
    if step.closing is not None:
        rows_now = _still_open(shape, rows_now, step.closing)
    return TableOutcome(changed, ops, {**state, **bucketed.keep(rows_now, partial(_hashes, names=by))})


def _kept_before(rows: pa.Table, written: pa.Schema) -> pa.Table:
    """Returns rows of the state with the columns that it has now. Raises Invalid."""
    if not set(written.names) <= set(rows.column_names):
        raise Invalid(
            "another engine kept the rows of this table in another form",
            rule="checkpoint",
            hint="replay the transform from its start, as `odfctl engine prove` does",
        )
    return rows.select(written.names).cast(written)


def _still_open(shape: TableShape, written: pa.Table, closing: Closing) -> pa.Table:
    if shape.window is None:
        return closing.open_rows(written)
    place, field = shape.window
    return closing.open_groups(written, f"{BARE_KEY}{place}", field)


def _keys_of(shape: TableShape, written: pa.Table) -> tuple[str, ...]:
    """Returns the columns of the state by which its rows are told apart."""
    return shape.keys if not shape.bare else tuple(name for name in written.column_names if name.startswith(BARE_KEY))


def _without_closed(shape: TableShape, former: Tables, closing: Closing) -> dict[str, Kept]:
    """Returns what was written for windows that something can still change."""
    rows = pa.concat_tables([each.table() for name, each in former.stored.items() if name.startswith(f"{WRITTEN}/")])
    bucketed = BucketedTable(WRITTEN, rows.schema, former.stored)
    bucketed.take_all()
    return bucketed.keep(_still_open(shape, rows, closing), partial(_hashes, names=_keys_of(shape, rows)))


def _hashes(rows: pa.Table, names: Sequence[str]) -> np.ndarray:
    return hashes_of(rows.select(names))


def _summed_up(
    session: SparkSession, merge: Mapping[str, str], keys: Sequence[str], parts: pa.Table, codes: np.ndarray
) -> pa.Table:
    """Adds up what was kept and what each tick adds, from tick to tick. ``codes``: a number for the key of each part.

    A key's only part is its sum already, so only the parts of keys with several are added up. A single list may still
    have to be sorted.
    """
    meets = np.bincount(codes)[codes] > 1 if len(codes) else np.zeros(0, bool)
    for name, function in merge.items():
        if function == LISTS:
            lengths = pc.list_value_length(parts.column(name).combine_chunks())
            meets |= np.asarray(pc.fill_null(lengths, 2)) > 1
    alone = parts.filter(pa.array(~meets))
    if not meets.any():
        return alone
    return pa.concat_tables([alone, _merge_parts(session, merge, keys, parts.filter(pa.array(meets)))])


def _merge_parts(session: SparkSession, merge: Mapping[str, str], keys: Sequence[str], parts: pa.Table) -> pa.Table:
    """Adds up the parts of keys that have several, by the function for each column."""
    frame = frame_of_rows(session, parts)
    quoted = {name: quote_name(name) for name in parts.column_names}
    partition = f"partition by {', '.join(quoted[key] for key in keys)} " if keys else ""
    by = f"{partition}order by {HIDDEN_ROUND}"
    made = []
    for field in frame.schema:
        name = quoted[field.name]
        function = merge.get(field.name)
        called = f"{'collect_list' if function == LISTS else function}({name})"
        over = f"{called} over ({by} rows between unbounded preceding and current row)"
        over = f"array_sort(flatten({over}))" if function == LISTS else over
        made.append(name if function is None else f"cast({over} as {field.dataType.simpleString()}) as {name}")
    return frame.selectExpr(*made).toArrow().cast(parts.schema)


def reevaluate(
    shape: TableShape, step: TableStep, sources: Mapping[str, TableInput], former: Tables, evaluate: Evaluate,
    first: bool = False,
) -> TableOutcome:  # fmt: skip
    """Updates a table over changelogs: evaluates all rows in force anew, for the affected keys. Raises Invalid,
    Environment.

    ``first``: the inputs only grow, and only the first rows of a key are kept.
    """
    name = FIRST if first else ROWS
    shelves = {
        alias: BucketedTable(f"{name}:{alias}", state_columns(source), former.stored)
        for alias, source in sources.items()
    }
    by = {
        alias: (*shape.grouping.get(alias, ()), *(() if source.windows is None else (WINDOW,)))
        for alias, source in sources.items()
    }
    since = LONG_AGO if step.since is None else step.since
    until = since if step.until is None else step.until
    rows = _with_standing(_fresh(step, sources, former), sources, shelves, by, (since, until), step.closing is not None)
    if first:
        rows = {alias: _by_offset(table, sources[alias].vocab) for alias, table in rows.items()}
    outrun = OutrankedRows(rows)
    keys = _common_codes([table.select(by[alias]) for alias, table in rows.items()])
    enter = [np.asarray(table.column(ENTER)) for table in rows.values()]
    leave = [np.asarray(table.column(LEAVE)) for table in rows.values()]
    moments = np.concatenate([*enter, *leave])
    moved = (moments >= since) & (moments < until)
    times = step.times(moments)
    happening = np.concatenate([*keys, *keys])[moved], np.searchsorted(times, moments[moved], side="right")
    state: dict[str, Kept] = {}
    standing, waits = {}, {}
    for (alias, table), entered, left in zip(rows.items(), enter, leave, strict=True):
        stands = (entered < until) & (left == NEVER)
        waits[alias] = table.filter(pa.array((left >= until) & ~stands))
        state[f"{WAITING}:{alias}"] = waits[alias]
        standing[alias] = stands
    spans = list(zip(keys, enter, leave, strict=True))
    changed, ops = [], []
    for begin, end in _stretches(happening, times, spans):
        here = (happening[1] > begin) & (happening[1] <= end)
        rounds = rounds_of(happening[0][here], happening[1][here] - begin, times[begin : end + 1])
        places = {alias: rounds_in_force(rounds, *span) for alias, span in zip(rows, spans, strict=True)}
        ready = {alias: _take_rows(table, *places[alias]) for alias, table in rows.items()}
        if first:
            ready = {alias: outrun.number_rows(alias, table, places[alias][0]) for alias, table in ready.items()}
        result = evaluate(ready)
        of = np.asarray(result.column(HIDDEN_ROUND)).astype(np.int64)
        if first:
            outrun.learn(places, rounds, np.asarray(result.column(HIDDEN_ROW)).astype(np.int64), of)
            result = result.drop_columns([HIDDEN_ROW])
        difference = differences(result.drop_columns([HIDDEN_ROUND]), of, rounds, shape.keys, shape.single)
        changed.append(difference[0])
        ops.append(difference[1])
    if first:
        standing = {alias: stands & ~outrun.rows[alias] for alias, stands in standing.items()}
    kept = {alias: table.filter(pa.array(standing[alias])) for alias, table in rows.items()}
    if (closing := step.closing) is not None:
        waiting = [np.asarray(waits[alias].column(WINDOW)) for alias in rows]
        kept = {
            alias: each.filter(pa.array(closing.open_windows(np.asarray(each.column(WINDOW)), np.concatenate(waiting))))
            for alias, each in kept.items()
        }
    for alias, each in kept.items():
        state.update(shelves[alias].keep(each, partial(_hashes, names=by[alias])))
    if not changed:
        return TableOutcome(None, np.empty(0, np.int32), state)
    return TableOutcome(pa.concat_tables(changed), np.concatenate(ops), state)


class OutrankedRows:
    """Finds the rows that no longer rank among the first of their key, and never will again."""

    def __init__(self, rows: Mapping[str, pa.Table]) -> None:
        sizes = [table.num_rows for table in rows.values()]
        self._begins = dict(zip(rows, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        self.rows = {alias: np.zeros(table.num_rows, bool) for alias, table in rows.items()}

    def number_rows(self, alias: str, table: pa.Table, rows: np.ndarray) -> pa.Table:
        """Adds a column with the number of each row, unique over all inputs."""
        return table.append_column(HIDDEN_ROW, pa.array((rows + self._begins[alias]).astype(np.int64)))

    def learn(
        self, places: Mapping[str, tuple[np.ndarray, np.ndarray]], rounds: Rounds, shown: np.ndarray, of: np.ndarray
    ) -> None:
        """Records results; ``places``: (row, round) evaluated by input; ``shown``: numbers of rows with output."""
        last = np.append(rounds.first[1:], True)[: len(rounds.first)]
        still = shown[last[of]]
        for alias, (rows, at) in places.items():
            asked = rows[last[at]]
            self.rows[alias][asked] = ~np.isin(asked + self._begins[alias], still)


def _by_offset(table: pa.Table, vocab: Vocab) -> pa.Table:
    return table.take(pa.array(np.argsort(np.asarray(table.column(vocab.offset)), kind="stable")))


def _with_standing(
    fresh: Mapping[str, pa.Table], sources: Mapping[str, TableInput], shelves: Mapping[str, BucketedTable],
    by: Mapping[str, Sequence[str]], between: tuple[int, int], everything: bool,
) -> dict[str, pa.Table]:  # fmt: skip
    """Adds the rows that stand, for all keys to which something happens or of which something is taken back."""
    concerned = []
    for alias, table in fresh.items():
        ops = np.asarray(table.column(sources[alias].vocab.operation_type))
        happens = np.zeros(len(ops), bool) if sources[alias].log else ~positive(ops)
        for name in (ENTER, LEAVE):
            moments = np.asarray(table.column(name))
            happens |= (moments >= between[0]) & (moments < between[1])
        concerned.append(_hashes(table.filter(pa.array(happens)), by[alias]))
    hashes = np.concatenate(concerned)
    found = {}
    for alias, table in fresh.items():
        opened = shelves[alias].take_all() if everything else shelves[alias].take(hashes)
        standing = [as_in_force(each, table.schema) for each in opened]
        whole = pa.concat_tables([*standing, table])
        found[alias] = whole if sources[alias].log else _taken_back(whole, sources[alias].vocab)
    return found


def _stretches(
    happening: tuple[np.ndarray, np.ndarray],
    times: np.ndarray,
    spans: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> list[tuple[int, int]]:
    """Returns (first, last) ticks to evaluate at once: a catch-up over years must not be evaluated as a whole."""
    if not len(happening[0]):
        return []
    cuts = stretches(rounds_of(*happening, times), spans, MAX_ROUND_ROWS)
    return [(int(first), int(last)) for first, last in itertools.pairwise(cuts)]


def _take_rows(table: pa.Table, rows: np.ndarray, of: np.ndarray) -> pa.Table:
    return plain(table).take(pa.array(rows)).append_column(HIDDEN_ROUND, pa.array(of.astype(np.int64)))


def plain(table: pa.Table) -> pa.Table:
    """Drops the columns of effective times and windows, which the input does not have."""
    return table.drop_columns([name for name in (ENTER, LEAVE, WINDOW) if name in table.column_names])


def _common_codes(keys: Sequence[pa.Table]) -> list[np.ndarray]:
    """Returns numbers of keys, equal for equal keys in all tables; columns correspond by position."""
    sizes = [table.num_rows for table in keys]
    renamed = [table.rename_columns([str(at) for at in range(table.num_columns)]) for table in keys]
    if not renamed[0].num_columns:
        return [np.zeros(size, np.int64) for size in sizes]
    codes = key_codes(pa.concat_tables(renamed, promote_options="permissive"))
    return np.split(codes, np.cumsum(sizes)[:-1])
