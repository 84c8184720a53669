"""Opens the inputs of one request: their columns, the facts of their blocks for planning, their rows as views.

Made for one request. Reads slices, writes nothing.

The versions of an input's keys, each with the time for which it is in force, are computed as rows that a query can
join. Their state is one table: versions that end at the bound or later, each with its effective time and its end as far
as it is known, made of the former state and new rows, in columns. Spec: docs/spec/engine-semantics.md#versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from chain.data.evolution import as_in_force
from chain.data.operations import CORRECT_FROM, RETRACT
from chain.data.parquet import open_slice
from chain.errors import Invalid
from chain.instant import Instant
from chain.multihash import Multihash
from engines.contract import InputBlock, TransformRequestInput, Vocab
from engines.spark.analysis.classify import Mode
from engines.spark.analysis.declarations import DeclaredQuery, Reading
from engines.spark.analysis.influence import VersionedInput
from engines.spark.analysis.monotone import EARLIEST, LATEST, MILLISECOND
from engines.spark.analysis.walk import VALID_FROM, VALID_TO
from engines.spark.catalyst.plans import HIDDEN, HIDDEN_OF_ADDITIONS, HIDDEN_OF_ONE
from engines.spark.planning.lateness import Ruling, check_late_stated, check_ledger
from engines.spark.planning.slice_facts import SliceFacts, SliceReader, only_adds
from engines.spark.planning.transaction import BlockFacts, InputFacts, SliceRead, VersionStep
from engines.spark.rows.changelog import (
    NEVER,
    cancelled_by,
    data_of,
    effective_times,
    key_codes,
    positive,
    row_codes,
    valid_until,
)
from engines.spark.rows.tables import arrow_columns, event_times, frame_of_rows, read_rows
from engines.spark.sql.views import FEW_ROWS, QueryInput, few_rows, slices_view, view_schema

_NANOS: Final = 1_000_000
"""Nanoseconds in a millisecond."""
MANY: Final = 1 << 20
"""Bytes of slices from which on it is cheaper to inspect all ops than to carry them through a query."""

LOCAL: Final = 1 << 24
"""Most bytes of rows that Spark is given in memory, below the 48 MiB from which it makes
tasks. Small slices expand much."""


class Inputs:
    """The inputs of one request, by alias: reads their columns, facts and rows."""

    def __init__(self, given: Sequence[TransformRequestInput], query: DeclaredQuery, slices: SliceReader) -> None:
        self._given = {each.query_alias: each for each in given}
        self._query = query
        self._slices = slices
        query.check_inputs(self._given)
        self.vocabs: dict[str, Vocab] = {alias: each.vocab for alias, each in self._given.items()}
        self.schemas: dict[str, st.StructType] = {
            alias: view_schema(_input_schema(each), each.vocab) for alias, each in self._given.items()
        }
        self._changes: set[str] = set()

    def views(self) -> list[QueryInput]:
        """Lists the views over which the query is analysed."""
        return [
            QueryInput(
                alias, schema, self.vocabs[alias].event_time, self._query.temporal.get(alias, ()),
                self.vocabs[alias].operation_type, self.changelog(alias), self.is_log(alias),
                self.vocabs[alias].offset,
            )
            for alias, schema in self.schemas.items()
        ]  # fmt: skip

    @property
    def changelogs(self) -> dict[str, bool | None]:
        """Whether rows can be retracted in the query's view of each input, by alias; ``None``: not known."""
        return {alias: self.can_change(alias) for alias in self._given}

    def changelog(self, alias: str) -> bool | None:
        return self._given[alias].changelog

    def ranks_by_time(self, alias: str) -> bool:
        """Whether event time ranks the rows of a key even if they can be retracted."""
        return bool(self._given[alias].by_time)

    @property
    def by_time(self) -> bool:
        """Whether event time ranks the rows of every input whose rows can be retracted."""
        return all(self.ranks_by_time(alias) for alias in self._given if self.changelog(alias) is not False)

    def is_log(self, alias: str) -> bool:
        """Whether the query sees every statement of the input, retractions included, as an event."""
        return self._query.declarations.reading_of(alias) is Reading.LOG

    def can_change(self, alias: str) -> bool | None:
        """Whether rows can be retracted in the query's view of the input; ``None``: not known."""
        return False if self.is_log(alias) else self.changelog(alias)

    def facts(self, ruling: Ruling, blocks: Mapping[str, Sequence[InputBlock]]) -> tuple[InputFacts, ...]:
        """Collects the facts of the given blocks for planning. Raises Invalid for an
        input that the query cannot take."""
        found = []
        for alias, given in self._given.items():
            facts = tuple(self._block(block, given, ruling) for block in blocks[alias])
            lateness = self._query.declarations.lateness_of(alias)
            only_late, reach = alias in ruling.only_late, ruling.reach.get(alias, 0)
            found.append(InputFacts(str(given.dataset_id), alias, facts, lateness, only_late, reach))
        return tuple(found)

    def _block(self, block: InputBlock, given: TransformRequestInput, ruling: Ruling) -> BlockFacts:
        name = str(Multihash.from_bytes(block.block_hash)) if block.block_hash else ""
        before, after = (
            None if mark is None else micros(mark) for mark in (block.watermark_before, block.watermark_after)
        )
        reopened = bool(block.reopened)
        if block.data_path is None:
            return BlockFacts(name, None, before, after, reopened=reopened)
        path = Path(block.data_path)
        log = ruling.shape.mode is Mode.LOG
        if log and given.query_alias not in ruling.only_late:
            with open_slice(path) as source:
                return BlockFacts(name, block.data_path, before, after, rows=source.rows, reopened=reopened)
        facts = self._slices.facts(path, given.vocab)
        if not log:
            self._check_changes(given, facts, ruling)
        return BlockFacts(
            name, block.data_path, before, after, facts.rows, facts.untimed, facts.first, facts.last, reopened,
            facts.changes,
        )  # fmt: skip

    def _check_changes(self, given: TransformRequestInput, facts: SliceFacts, ruling: Ruling) -> None:
        alias = given.query_alias
        if not facts.changes:
            return
        if given.changelog is False:
            raise Invalid(
                f"input {alias} holds corrections or retractions, though its chain says that it only grows",
                rule="append-only",
                hint="the input's merge strategy and its data disagree",
            )
        if self.is_log(alias):
            return
        lives = [path.life for path in ruling.shape.paths if path.input == alias]
        if ruling.shape.mode is Mode.FINAL and not any(isinstance(life, VersionedInput) for life in lives):
            check_late_stated(alias, self._query.declarations)
            if alias in ruling.reach:
                check_ledger(alias)
        self._changes.add(alias)

    def hidden_columns(self, reads: Mapping[str, Sequence[SliceRead]]) -> tuple[str, ...]:
        """Returns the hidden columns needed to order the rows of a log and to correct their ops; as few as possible, as
        every column costs time in the JVM.

        With a single input, rows have the same source and place; so they have the same op where many rows are all
        additions.
        """
        if len(reads) > 1:
            return HIDDEN
        paths = [(Path(path), alias) for alias, each in reads.items() for read in each for path in read.paths]
        many = sum(path.stat().st_size for path, _ in paths) >= MANY
        alike = many and all(only_adds(path, self.vocabs[alias]) for path, alias in paths)
        return HIDDEN_OF_ADDITIONS if alike else HIDDEN_OF_ONE

    def view(self, session: SparkSession, alias: str, reads: Sequence[SliceRead], number: int | None) -> DataFrame:
        """Returns the rows of an input for the query; of an input with changes, the rows that were not taken back.

        ``number``: of the input, if the rows are to carry their origin; else ``None``.
        """
        if alias not in self._changes:
            schema, vocab = self.schemas[alias], self.vocabs[alias]
            return slices_view(session, reads, schema, vocab, number, events=self.is_log(alias))
        return frame_of_rows(session, self._standing(alias, reads))

    def few(
        self, reads: Mapping[str, Sequence[SliceRead]], versions: Mapping[str, pa.Table], numbered: bool
    ) -> tuple[dict[str, pa.Table], dict[str, int]] | None:
        """Returns the rows of each input in memory, as ``view`` shows them, and those of versions; and how many of its
        columns the query sees. ``None``: an input is too large. ``numbered``: rows carry the number of their input."""
        found: dict[str, pa.Table] = {}
        for number, (alias, each) in enumerate(reads.items()):
            schema, vocab, place = self.schemas[alias], self.vocabs[alias], number if numbered else None
            rows = (
                self._standing(alias, each)
                if alias in self._changes
                else few_rows(each, schema, vocab, place, self.is_log(alias))
            )
            if rows is None:
                return None
            found[alias] = rows
        found |= versions
        widths = {
            alias: rows.num_columns if alias in versions else len(self.schemas[alias]) for alias, rows in found.items()
        }
        if any(rows.num_rows > FEW_ROWS or rows.nbytes > LOCAL for rows in found.values()):
            return None
        return found, widths

    def _standing(self, alias: str, reads: Sequence[SliceRead]) -> pa.Table:
        """Returns the rows of an input that were not taken back."""
        schema, vocab = self.schemas[alias], self.vocabs[alias]
        parts = []
        for read in reads:
            rows = read_rows(read.paths, schema)
            times, timed = event_times(rows, vocab)
            parts.append(rows.filter(pa.array(timed & (times >= read.low) & (times < read.high))))
        return net(pa.concat_tables(parts) if parts else read_rows((), schema), vocab)


def net(rows: pa.Table, vocab: Vocab) -> pa.Table:
    """Returns the rows asserted and not taken back, in chain order; a retraction cancels a row of equal data."""
    order = np.argsort(np.asarray(rows.column(vocab.offset)), kind="stable")
    rows = rows.take(pa.array(order))
    ops = np.asarray(rows.column(vocab.operation_type)).astype(np.int64)
    canceller, _ = cancelled_by(row_codes(data_of(rows, vocab)), ops)
    return rows.filter(pa.array(positive(ops) & (canceller < 0)))


def _input_schema(given: TransformRequestInput) -> pa.Schema:
    """Returns the schema of an input's slices: from the file that states it, else from a slice.
    Raises Invalid if neither."""
    slices = [block.data_path for block in given.blocks or () if block.data_path is not None]
    sources = [given.schema_file, *reversed(slices), *reversed(given.data_paths)]
    for source in sources:
        if source:
            with open_slice(Path(source)) as file:
                return file.schema.remove_metadata()
    raise Invalid(
        f"input {given.query_alias} has neither data nor a schema",
        rule="input-schema",
        hint="run the transform when the input has its first data",
    )


def micros(instant: Instant) -> int:
    """Converts to whole milliseconds, rounded down: an earlier watermark promises less, so it is always true.

    A time further away than any row can be placed at is the furthest that can: bounds made of it stay within 64 bits.
    """
    millis = min(max(instant // _NANOS, -(-EARLIEST // MILLISECOND)), LATEST // MILLISECOND)
    return millis * MILLISECOND


TAU: Final = "__odf_tau"
UNTIL: Final = "__odf_until"
ERA: Final = "__odf_era"
LATEST_ERA: Final = "__odf_latest_era"
"""Columns of an input that may or may not be a changelog: how often the row's key had been taken back
before the row, and by now."""
_UNKNOWN: Final = -1
_FAR: Final = 253_370_764_800_000_000
"""The year 9999, which SQL can still write: shown as the end of a version that nothing supersedes."""


@dataclass(frozen=True, slots=True)
class VersionRows:
    """The versions after a transaction."""

    seen: pa.Table
    """Versions that the query sees: the input's columns, and ``valid_from`` and ``valid_to`` if it asked for them."""
    kept: pa.Table
    """Versions for the state: the input's columns, effective time (tau) and end (until)."""


def advance(
    step: VersionStep, former: pa.Table | None, schema: st.StructType, vocab: Vocab, changelog: bool | None,
    by_time: bool = False,
) -> VersionRows:  # fmt: skip
    """Advances versions. A ``changelog``'s are ranked in chain order, others by event time; ``None``: see ``_eras``.

    ``by_time``: event time ranks also the versions of a changelog, as in a ledger that was corrected, where a
    correction takes the place of what it corrects. Raises Invalid.
    """
    columns = arrow_columns(schema)
    fresh, before, after = _statements(step, schema, vocab)
    state = as_in_force(former, columns) if former is not None else columns.empty_table()
    known = _column(former, TAU)
    limits = np.append(_column(former, UNTIL), np.full(fresh.num_rows, NEVER))
    rows = pa.concat_tables([state, fresh])
    by_offset = np.argsort(np.asarray(rows.column(vocab.offset)), kind="stable")
    rows, limits = rows.take(pa.array(by_offset)), limits[by_offset]
    ops = np.asarray(rows.column(vocab.operation_type)).astype(np.int64)
    if changelog is False and ops.any():
        raise Invalid("an input that only grows holds corrections or retractions", rule="append-only")
    times, _ = event_times(rows, vocab)
    old = len(known)
    taus = np.append(known, np.full(fresh.num_rows, NEVER))[by_offset]
    since, then = (np.append(np.full(old, -NEVER), side)[by_offset] for side in (before, after))
    keys = key_codes(rows.select(step.life.keys))
    fresh_ops = np.where(taus == NEVER, ops, 0)
    taus = effective_times(ops, times, since, then, keys, taus)
    if by_time:
        _check_stays(ops, times)
        # A retraction by hand repeats the time of its row, but counts from when it was stated.
        taus = np.where(fresh_ops == RETRACT, np.maximum(np.maximum(times, since), then), taus)
    offsets = np.asarray(rows.column(vocab.offset)).astype(np.int64)
    ranks, eras = offsets, []
    if changelog is None:
        eras = _eras(
            keys,
            ops,
            [
                np.append(_column(former, name), np.full(fresh.num_rows, _UNKNOWN))[by_offset]
                for name in (ERA, LATEST_ERA)
            ],
        )
        ranks = np.argsort(np.lexsort((offsets, np.where(positive(ops), times, -NEVER), eras[0])))
    elif by_time or not changelog:
        ranks = np.argsort(np.lexsort((offsets, times)))
    speaks = ops != CORRECT_FROM
    until = np.full(len(taus), NEVER, np.int64)
    until[speaks] = valid_until(keys[speaks], ranks[speaks], taus[speaks], limits[speaks])
    standing = taus < until
    version = positive(ops) & standing
    # Ranked by time, a retraction is an empty version too: an older row that comes later must not replace it.
    kept = (version | (by_time & (ops == RETRACT) & standing)) & (until >= step.kept_from)
    seen = version & (until >= step.seen_from) & (taus < step.seen_until)
    state = rows.append_column(TAU, pa.array(taus)).append_column(UNTIL, pa.array(until))
    view = _view(state.filter(pa.array(seen)), step.life.clamped)
    for name, column in zip((ERA, LATEST_ERA), eras, strict=False):
        state = state.append_column(name, pa.array(column))
    return VersionRows(view, state.filter(pa.array(kept)))


def _check_stays(ops: np.ndarray, times: np.ndarray) -> None:
    """Raises Invalid for a row that was corrected to another event time: its place among the versions would change."""
    before = np.flatnonzero(ops == CORRECT_FROM)
    if np.any(times[before] != times[np.minimum(before + 1, len(times) - 1)]):
        raise Invalid(
            "a row of the ledger strategy was corrected to another event time, which versions in the "
            "order of time do not follow",
            rule="versions-moved",
            hint="make a table of the ledger in a dataset of its own, as by  group by  its key with  "
            "max(struct(event_time, value)),  and join with that",
        )


def _eras(keys: np.ndarray, ops: np.ndarray, former: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns how often the key of each row was taken back before the row, and has been by now; rows are in chain
    order.

    A coordinator may not say whether an input is a changelog. Versions of a key that follow each other without being
    taken back are ranked by event time, as for inputs that only grow; a version after a retraction or correction ranks
    after all before it, as for changelogs. So a valid chain of either kind gets the ranks of its kind.
    """
    era, latest = former
    count = int(keys.max(initial=-1)) + 1
    before = np.zeros(count, np.int64)
    known = era != _UNKNOWN
    np.maximum.at(before, keys[known], latest[known])
    negative = ~positive(ops) & ~known
    order = np.argsort(keys, kind="stable")
    counted = np.cumsum(negative[order])
    starts = np.append(True, keys[order][1:] != keys[order][:-1]) if len(order) else np.empty(0, bool)
    base = np.where(starts, counted - negative[order], 0)
    within = np.empty(len(order), np.int64)
    within[order] = counted - np.maximum.accumulate(base)
    era = np.where(known, era, before[keys] + within)
    last = before.copy()
    np.maximum.at(last, keys, era)
    return [era, last[keys]]


def _view(versions: pa.Table, dated: bool) -> pa.Table:
    plain = versions.drop_columns([TAU, UNTIL])
    if not dated:
        return plain
    ends = pc.min_element_wise(versions.column(UNTIL), _FAR)
    stamp = pa.timestamp("us", "UTC")
    return plain.append_column(VALID_FROM, versions.column(TAU).cast(stamp)).append_column(VALID_TO, ends.cast(stamp))


def _column(table: pa.Table | None, name: str) -> np.ndarray:
    if table is None:
        return np.empty(0, np.int64)
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    return np.asarray(table.column(name)).astype(np.int64)


def _statements(step: VersionStep, schema: st.StructType, vocab: Vocab) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Returns the new rows that are accepted, and the watermarks before and after the block of each."""
    tables = [arrow_columns(schema).empty_table()]
    befores: list[np.ndarray] = []
    afters: list[np.ndarray] = []
    for block, threshold in step.blocks:
        if block.path is None:
            continue
        rows = read_rows([block.path], schema)
        times, timed = event_times(rows, vocab)
        rows = rows.filter(pa.array(timed & (times >= threshold)))
        tables.append(rows)
        for marks, mark in ((befores, block.before), (afters, block.after)):
            marks.append(np.full(rows.num_rows, -NEVER if mark is None else mark - step.lateness, np.int64))
    empty = np.empty(0, np.int64)
    return pa.concat_tables(tables), np.concatenate([empty, *befores]), np.concatenate([empty, *afters])
