"""Opens the inputs of one request: their columns, the facts of their blocks for planning, their rows as views.

Made for one request. Reads slices, writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from chain.data.parquet import open_slice
from chain.errors import Invalid
from chain.instant import Instant
from chain.multihash import Multihash
from engines.contract import InputBlock, TransformRequestInput, Vocab
from engines.spark.analysis.classify import Mode
from engines.spark.analysis.declarations import DeclaredQuery, Reading
from engines.spark.analysis.influence import VersionedInput
from engines.spark.analysis.monotone import EARLIEST, LATEST, MILLISECOND
from engines.spark.catalyst.plans import HIDDEN, HIDDEN_OF_ADDITIONS, HIDDEN_OF_ONE
from engines.spark.planning.lateness import Ruling, check_late_stated, check_ledger
from engines.spark.planning.slice_facts import SliceFacts, SliceReader, only_adds
from engines.spark.planning.transaction import BlockFacts, InputFacts, SliceRead
from engines.spark.rows.changelog import cancelled_by, data_of, positive, row_codes
from engines.spark.rows.tables import event_times, frame_of_rows, read_rows
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
