"""Traces records in table mode: finds the rows of the record's key in force at its tick, and the changes there.

A record of a changing table is a difference between two ticks of its key; windows that late rows correct are such a
table. The key's rows are read from the inputs' blocks and the query is run over them at every tick of the transaction.
The record's tick is the one whose differences contain the record; the query is then traced over the rows at that tick
and at the tick before. Spec: docs/spec/engine-semantics.md#table-mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from chain.errors import Invalid
from engines.contract import ProvenanceRow
from engines.spark.analysis.lexical import quote_name
from engines.spark.analysis.locality import Locality
from engines.spark.analysis.monotone import EARLIEST, LATEST
from engines.spark.analysis.tables import TableShape
from engines.spark.analysis.tree import parse_plan
from engines.spark.catalyst.plans import HIDDEN_ROUND, carry_hidden, frame_of, json_of
from engines.spark.catalyst.types import as_written
from engines.spark.output.slice import same_rows
from engines.spark.planning.table_transaction import TableStep, plan_table, plan_windows
from engines.spark.planning.transaction import InputFacts, TransactionStep
from engines.spark.provenance.question import (
    FoundLineage,
    ProvenanceContext,
    ShownInputs,
    microseconds_of,
    numbers,
    reaching,
)
from engines.spark.provenance.row_lineage import LINEAGE, ROWS, Traced, pick, trace
from engines.spark.rows.changelog import LONG_AGO, positive
from engines.spark.rows.tables import event_times, frame_of_rows, read_rows
from engines.spark.rows.ticks import (
    Lifetimes,
    Rounds,
    dating,
    differences,
    entering,
    lives,
    of_key,
    rounds_in_force,
    rounds_of,
)
from engines.spark.sql.queries import run_queries
from engines.spark.sql.views import name_view
from engines.spark.state.checkpoint import StateCheckpoint

MAX_LIVED: Final = 50_000_000
"""Most rows of a key, counted once at every tick of the transaction, that are evaluated to find the record's tick."""
_PAIR: Final = Rounds(np.array([0, 1]), np.array([0, 1]))
"""The rounds before and after, for ``differences``."""

_Place = tuple[int, int, int, int]
"""A row of an input: the input's number, its offset, the offset of the statement that ends it, and of the
one that dates that end."""


@dataclass(frozen=True, slots=True)
class _Change:
    round: int
    op: int
    row: pa.Table


class TableTracer:
    """Traces records of a changing table."""

    def __init__(self, context: ProvenanceContext, shape: TableShape) -> None:
        self._context = context
        self._shape = shape
        self._step = self._plan_step()
        plan = run_queries(context.session, context.query.steps) if self._name_empty() else None
        self._columns = key_columns(context, shape, json_of(plan) if plan is not None else "")

    def _plan_step(self) -> TableStep:
        context, previous = self._context, None
        earlier = context.before()
        if any(given.blocks for given in earlier):
            step, _, waiting = self._plan(earlier, None, context.reached[0])
            previous = context.checkpoint(step, waiting)
        return self._plan(context.facts, previous, context.reached[1])[1]

    def _plan(
        self, inputs: tuple[InputFacts, ...], previous: StateCheckpoint | None, limit: int | None
    ) -> tuple[TransactionStep, TableStep, tuple[int, ...]]:
        """Plans as the transaction was planned; a transaction that corrects windows is never held back."""
        context, grid = self._context, self._context.query.declarations.tick
        if context.windows:
            return plan_windows(context.shape, inputs, context.windows, previous, context.request.vocab, grid)
        return plan_table(inputs, previous, grid, limit)

    def _name_empty(self) -> bool:
        for alias, schema in self._context.inputs.schemas.items():
            name_view(frame_of_rows(self._context.session, read_rows((), schema)), alias)
        return True

    def find(self, place: int) -> FoundLineage:
        context = self._context
        key = {name: context.data.column(name)[place] for name in self._shape.keys}
        times = self._span(place)
        known = {given.alias: self._lives(given.alias, key, times) for given in context.facts}
        rounds = self._rounds(known)
        if rounds is None:
            raise context.unlike(place)
        change = self._change(place, known, rounds, key)
        now, then = change.round, change.round - 1
        says = bool(positive(np.array([change.op]))[0])
        at, other = (now, then) if says else (then, now)
        traced, rows, shown, places = self._trace(known, rounds, at, key)
        same = np.flatnonzero(context.matching(rows, place))
        if not len(same):
            raise context.unlike(place)
        mine = [numbers(rows.column(LINEAGE))[row] for row in same]
        chosen = mine[pick([each.tolist() for each in mine], min(self._equal(place), len(mine) - 1))]
        here = self._all(rows, places)
        _, others, _, places_there = self._trace(known, rounds, other, key)
        there = self._all(others, places_there)
        after, before = (here, there) if says else (there, here)
        came = frozenset((source, offset) for source, offset, *_ in after - before)
        gone = {
            (source, said)
            for source, offset, *ended in before - after
            if ended[0] >= 0 and self._leaving_tick(known, source, offset, rounds.times) == rounds.ticks[now]
            for said in ended
        }
        told = set(zip(shown.sources[chosen % ROWS].tolist(), shown.offsets[chosen % ROWS].tolist(), strict=True))
        others = tuple(
            ProvenanceRow(input=source, offset=offset, role="change", cause=True)
            for source, offset in sorted((gone | came) - told)
        )
        return FoundLineage(traced, chosen, shown, causes=came, others=others)

    def _equal(self, place: int) -> int:
        """Counts the records of the slice directly before the one at ``place`` that equal it, and so
        are of the same tick."""
        count, context = 0, self._context
        one = context.data.slice(place, 1)
        while count < place and context.ops[place - count - 1] == context.ops[place]:
            if not same_rows(context.data.slice(place - count - 1, 1), one)[0]:
                break
            count += 1
        return count

    def _span(self, place: int) -> dict[str, tuple[int, int]]:
        """Returns by alias the range of event times whose rows can affect the record, if it is of a window."""
        context = self._context
        if not context.windows:
            return {}
        at = microseconds_of(context.data.column(context.request.vocab.event_time)[place])
        paths = context.shape.paths
        return {alias: reaching([path for path in paths if path.input == alias], at) for alias in context.windows}

    def _lives(self, alias: str, key: dict[str, pa.Scalar], spans: Mapping[str, tuple[int, int]]) -> Lifetimes:
        """Returns the lifetimes of the key's rows, from all statements about it from the first block to the cut."""
        context = self._context
        given = next(fact for fact in context.facts if fact.alias == alias)
        schema, vocab = context.inputs.schemas[alias], context.inputs.vocabs[alias]
        windows, (low, high) = context.windows.get(alias), spans.get(alias, (EARLIEST, LATEST))
        wanted = {column: key[name] for name, column in self._columns.get(alias, {}).items()}
        parts = [read_rows((), schema)]
        enters, dates = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for block in given.blocks:
            if block.path is None or block.first is None or block.last is None:
                continue
            if block.first >= high or block.last < low:
                continue
            rows = read_rows([block.path], schema)
            times, timed = event_times(rows, vocab)
            ops = self._ops(rows, alias)
            marks = [None if mark is None else mark - given.lateness for mark in (block.before, block.after)]
            enter = entering(ops, times, *marks)
            dated = dating(ops, np.asarray(rows.column(vocab.offset)).astype(np.int64))
            if windows is not None:
                enter = np.maximum(enter, windows.last_instants(times))
                timed = timed & (times >= max(low, windows.accepted_from(block.before))) & (times < high)
            chosen = timed & of_key(rows, wanted)
            parts.append(rows.filter(pa.array(chosen)))
            enters.append(enter[chosen])
            dates.append(dated[chosen])
        whole = pa.concat_tables(parts)
        return lives(whole, self._ops(whole, alias), np.concatenate(enters), np.concatenate(dates), vocab)

    def _ops(self, rows: pa.Table, alias: str) -> np.ndarray:
        """Returns the ops of statements; all are additions where every statement is an event."""
        said = np.asarray(rows.column(self._context.inputs.vocabs[alias].operation_type)).astype(np.int64)
        return np.zeros_like(said) if self._context.inputs.is_log(alias) else said

    def _rounds(self, known: dict[str, Lifetimes]) -> Rounds | None:
        """Returns the ticks of this transaction at which something happens to the key, and the one before."""
        step = self._step
        if step.until is None:
            return None
        since = LONG_AGO if step.since is None else step.since
        moments = np.concatenate([part for each in known.values() for part in (each.enter, each.leave)])
        times = step.times(moments)
        moments = moments[(moments >= since) & (moments < step.until)]
        if not len(moments):
            return None
        return rounds_of(np.zeros(len(moments), np.int64), np.searchsorted(times, moments, side="right"), times)

    def _change(self, place: int, known: dict[str, Lifetimes], rounds: Rounds, key: dict[str, pa.Scalar]) -> _Change:
        """Returns the change that is the record, found by the record's number among the records of its key."""
        context, total = self._context, 0
        for alias, each in known.items():
            rows, of = rounds_in_force(rounds, np.zeros(each.rows.num_rows, np.int64), each.enter, each.leave)
            total += len(rows)
            if total > MAX_LIVED:
                raise Invalid(
                    f"the rows of this key count {total:,} times at the ticks of one transaction",
                    rule="provenance-size",
                    hint="group by a window of event time, or by more columns",
                )
            table = each.rows.take(pa.array(rows)).append_column(HIDDEN_ROUND, pa.array(of.astype(np.int64)))
            visible = [quote_name(name) for name in each.rows.column_names]
            name_view(frame_of_rows(context.session, table).selectExpr(*visible), alias)
        plan = context.plan()
        result = carry_hidden(context.session, plan, (HIDDEN_ROUND,)).toArrow()
        of = np.asarray(result.column(HIDDEN_ROUND)).astype(np.int64)
        mine = self._of_key(result, key)
        result, of = (
            as_written(result.drop_columns([HIDDEN_ROUND]), context.data.schema).filter(pa.array(mine)),
            of[mine],
        )
        number = int(np.sum(self._of_key(context.data.slice(0, place), key)))
        for change in self._changes(result, of, rounds):
            if number == 0:
                same = same_rows(change.row.select(context.data.column_names), context.data.slice(place, 1))
                if change.op != context.ops[place] or not same[0]:
                    break
                return change
            number -= 1
        raise context.unlike(place)

    def _changes(self, result: pa.Table, of: np.ndarray, rounds: Rounds) -> list[_Change]:
        found = []
        for number in np.flatnonzero(~rounds.first):
            two = (of == number) | (of == number - 1)
            rows, ops = differences(
                result.filter(pa.array(two)), of[two] - (number - 1), _PAIR, self._shape.keys, self._shape.single
            )
            found += [_Change(int(number), int(op), rows.slice(at, 1)) for at, op in enumerate(ops)]
        return found

    def _trace(
        self, known: dict[str, Lifetimes], rounds: Rounds, number: int, key: dict[str, pa.Scalar]
    ) -> tuple[Traced, pa.Table, ShownInputs, list[_Place]]:
        """Runs the query over the rows at one tick; returns its rows of the key with lineage, and the
        place of each input row."""
        context, shown = self._context, ShownInputs(self._context)
        places: list[_Place] = []
        for alias, each in known.items():
            rows, of = rounds_in_force(rounds, np.zeros(each.rows.num_rows, np.int64), each.enter, each.leave)
            now = rows[of == number]
            shown.show(alias, each.rows.take(pa.array(now)))
            offsets = np.asarray(each.rows.column(context.inputs.vocabs[alias].offset))[now]
            source = context.aliases.index(alias)
            ended, dated = each.ended_by[now], each.dated_by[now]
            places += [(source, int(o), int(e), int(d)) for o, e, d in zip(offsets, ended, dated, strict=True)]
        plan = context.plan()
        traced = trace(context.session, plan, context.step_numbers, context.request.column)
        result = frame_of(context.session, traced.plan).toArrow()
        return traced, result.filter(pa.array(self._of_key(result, key))), shown, places

    def _all(self, rows: pa.Table, places: list[_Place]) -> frozenset[_Place]:
        """Returns all input rows from which the key's rows were made."""
        of = np.unique(np.concatenate([np.empty(0, np.int64), *numbers(rows.column(LINEAGE))]) % ROWS)
        return frozenset(places[each] for each in of)

    def _leaving_tick(self, known: dict[str, Lifetimes], source: int, offset: int, times: np.ndarray) -> int:
        """Returns the number of the tick at which a row was taken back; a row may also leave only
        because others displace it."""
        alias = self._context.aliases[source]
        offsets = np.asarray(known[alias].rows.column(self._context.inputs.vocabs[alias].offset))
        return int(np.searchsorted(times, known[alias].leave[offsets == offset][0], side="right"))

    def _of_key(self, rows: pa.Table, key: dict[str, pa.Scalar]) -> np.ndarray:
        """Marks the rows of a result, or of the slice, that have the key."""
        if not key or not rows.num_rows:
            return np.ones(rows.num_rows, bool)
        names = list(key)
        mine = as_written(rows.select(names), self._context.data.schema)
        return same_rows(mine, pa.table({name: pa.repeat(value, rows.num_rows) for name, value in key.items()}))


def key_columns(context: ProvenanceContext, shape: TableShape, plan: str) -> dict[str, dict[str, str]]:
    """Maps alias and key column to the input column that it repeats, where the query is partitioned by it.

    These narrow the rows to be read; a computed key narrows nothing.
    """
    walk = Locality(context.aliases)
    local = walk.of(parse_plan(plan))
    names = dict(zip(local.columns, context.shape.columns, strict=True))
    found: dict[str, dict[str, str]] = {alias: {} for alias in context.aliases}
    for identity, part in local.sources.items():
        if names.get(identity) not in shape.keys or part not in (local.parts or ()):
            continue
        for alias in found:
            columns = {column for path, column in part if walk.paths[path] == alias}
            if len(columns) == 1:
                found[alias][names[identity]] = columns.pop()
    return found
