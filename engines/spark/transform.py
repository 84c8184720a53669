"""Executes one transaction of a transform: judge, plan, query, order, write, and say what was done.

One call of ``run_transform`` is one request and leaves nothing behind but its two files. A transaction in which
nothing becomes settled runs no query. Engine semantics, sections 2 to 5, 7 and 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chain.data.arrow_schema import from_arrow
from chain.data.parquet import open_slice, write_slice
from chain.errors import Environment, Invalid
from chain.instant import Instant, from_millis
from chain.model.events import OffsetInterval
from chain.multihash import Multihash
from engines.contract import InputBlock, InvalidQuery, Success, TransformInput, TransformOutcome, TransformRequest
from engines.spark.analysis.classify import Classification, Mode
from engines.spark.analysis.monotone import MILLISECOND
from engines.spark.checkpoint import MAX_CHECKPOINT, Checkpoint, decode_checkpoint, encode_checkpoint
from engines.spark.declarations import Declarations, Late, Query, read_query
from engines.spark.facts import SliceReader, count_before
from engines.spark.incremental import BlockFacts, InputFacts, Step, next_checkpoint, plan_step
from engines.spark.output import ADDED, final_rows, log_rows, schema_in_force, slice_of
from engines.spark.plans import carried, frame_of
from engines.spark.queries import Analysis, Analyst, InputView, as_text, blames_query, first_lines, run_queries
from engines.spark.sessions import Sessions
from engines.spark.views import name_view, slices_view, view_schema

_NANOS: Final = 1_000_000
"""In a millisecond."""


class Control(Protocol):
    """What is used here of a request's control."""

    def check(self) -> None: ...

    def progress(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Workbench:
    """What transactions share within a process: memories, no state."""

    analyst: Analyst
    slices: SliceReader


def run_transform(
    session: SparkSession, request: TransformRequest, control: Control, bench: Workbench
) -> TransformOutcome:
    """``session`` is this request's alone. Raises Environment, and what Spark raises when the fault is the engine's."""
    try:
        return _Transaction(session, request, control, bench).run()
    except Invalid as fault:
        hint = f" ({fault.hint})" if fault.hint else ""
        return InvalidQuery(message=f"{fault} [{fault.rule}]{hint}")
    except PySparkException as fault:
        if not blames_query(fault):
            raise
        return InvalidQuery(message=first_lines(fault))


class _Transaction:
    def __init__(self, session: SparkSession, request: TransformRequest, control: Control, bench: Workbench) -> None:
        self._session = session
        self._request = request
        self._control = control
        self._bench = bench
        self._schemas = {given.query_alias: _input_schema(given) for given in request.query_inputs}
        self._vocabs = {given.query_alias: given.vocab for given in request.query_inputs}

    def run(self) -> TransformOutcome:
        request = self._request
        query = read_query(request.transform)
        analysis = self._analyse(query)
        if analysis.classification is None or analysis.columns is None:
            return InvalidQuery(message=as_text(analysis.diagnostics, len(query.steps)))
        schema = schema_in_force(analysis.columns, request.vocab, request.output_schema)
        identity = str(Multihash.sha3_256(msgspec.json.encode(request.transform, order="sorted")))
        previous = self._previous(identity, analysis.classification)
        inputs = tuple(self._facts(given, analysis.classification, query.declarations, previous)
                       for given in request.query_inputs)  # fmt: skip
        step = plan_step(analysis.classification, inputs, previous, Sessions(self._vocabs).oldest)
        late = self._late(step, query.declarations)
        self._control.check()
        rows = None if step.idle else self._rows(query, analysis.classification, step, schema)
        self._control.check()
        checkpoint = next_checkpoint(analysis.classification, identity, step, late, previous)
        self._check_open(checkpoint)
        _write(Path(request.new_checkpoint_path), encode_checkpoint(checkpoint))
        interval = None
        if rows is not None and rows.num_rows:
            write_slice(rows, Path(request.new_data_path))
            start = request.next_offset
            interval = OffsetInterval(start=start, end=start + rows.num_rows - 1)
        watermark = None if step.watermark is None else from_millis(step.watermark // MILLISECOND)
        return Success(
            new_offset_interval=interval, new_watermark=watermark, schema=from_arrow(schema), late=sum(late.values())
        )

    def _analyse(self, query: Query) -> Analysis:
        views = [
            InputView(alias, view_schema(schema, self._vocabs[alias]), self._vocabs[alias].event_time_column)
            for alias, schema in self._schemas.items()
        ]
        return self._bench.analyst.analyse(self._session, query.steps, views, self._request.vocab)

    def _previous(self, identity: str, query: Classification) -> Checkpoint | None:
        path = self._request.prev_checkpoint_path
        if path is None:
            return None
        previous = decode_checkpoint(_read(Path(path)))
        if previous.transform != identity or previous.mode != query.mode.value:
            raise Invalid(
                "the checkpoint is of another query", rule="checkpoint-transform",
                hint="start the transform anew after a change of its query",
            )  # fmt: skip
        return previous

    def _facts(
        self, given: TransformInput, query: Classification, declared: Declarations, previous: Checkpoint | None
    ) -> InputFacts:
        blocks = given.blocks if given.blocks is not None else _foreign_blocks(given, query, previous)
        facts = tuple(self._block(block, given, query) for block in blocks)
        return InputFacts(str(given.dataset_id), given.query_alias, facts, declared.lateness_of(given.query_alias))

    def _block(self, block: InputBlock, given: TransformInput, query: Classification) -> BlockFacts:
        name = str(Multihash.from_bytes(block.block_hash)) if block.block_hash else ""
        before, after = _micros(block.watermark_before), _micros(block.watermark_after)
        reopened = bool(block.reopened)
        if block.data_path is None:
            return BlockFacts(name, None, before, after, reopened=reopened)
        path = Path(block.data_path)
        if query.mode is Mode.LOG:
            with open_slice(path) as source:
                return BlockFacts(name, block.data_path, before, after, rows=source.rows, reopened=reopened)
        facts = self._bench.slices.facts(path, given.vocab)
        if facts.changes:
            raise Invalid(
                f"input {given.query_alias} holds corrections or retractions, and this engine cannot yet window those",
                rule="shape-not-supported",
                hint="map or filter it only, or window a dataset that is merged by append or ledger",
            )
        return BlockFacts(
            name, block.data_path, before, after, facts.rows, facts.untimed, facts.first, facts.last, reopened
        )

    def _late(self, step: Step, declared: Declarations) -> dict[str, int]:
        late: dict[str, int] = {}
        for check in step.late_checks:
            vocab = self._vocabs[check.alias]
            count = count_before(Path(check.path), vocab.event_time_column, check.threshold)
            if count and declared.late_of(check.alias) is Late.FAIL:
                raise Invalid(
                    f"input {check.alias}: {count} rows of a block came later than its watermark allows",
                    rule="late",
                    hint="SET odf.late = 'drop' to go on without such rows",
                )
            late[check.alias] = late.get(check.alias, 0) + count
        return late

    def _rows(self, query: Query, shape: Classification, step: Step, schema: pa.Schema) -> pa.Table:
        for number, (alias, reads) in enumerate(step.reads.items()):
            vocab = self._vocabs[alias]
            view = slices_view(self._session, reads, view_schema(self._schemas[alias], vocab), vocab, number)
            name_view(view, alias)
        plan = run_queries(self._session, query.steps)
        frame = carried(self._session, plan) if shape.mode is Mode.LOG else frame_of(self._session, plan)
        self._control.progress()
        result = frame.toArrow()
        request = self._request
        if shape.mode is Mode.LOG:
            rows, ops = log_rows(result.drop_columns(list(shape.dropped)))
        elif step.emit_until is None:
            raise AssertionError("a query ran though nothing is settled")
        else:
            rows = final_rows(result, request.vocab, step.emit_from, step.emit_until)
            ops = pa.repeat(pa.scalar(ADDED, pa.int32()), rows.num_rows)
        return slice_of(rows, ops, schema, request.vocab, request.system_time, request.next_offset)

    def _check_open(self, checkpoint: Checkpoint) -> None:
        for item in checkpoint.inputs:
            if any("" in run for run in item.open):
                raise Invalid(
                    f"input {item.alias}: rows must be kept, and their blocks were given without hashes",
                    rule="open-blocks",
                    hint="the coordinator must state block_hash",
                )


def _input_schema(given: TransformInput) -> pa.Schema:
    """Schema of an input's slices: from the file that states it, else from a slice. Raises Invalid."""
    slices = [block.data_path for block in given.blocks or () if block.data_path is not None]
    sources = [given.schema_file, *reversed(slices), *reversed(given.data_paths)]
    for source in sources:
        if source:
            with open_slice(Path(source)) as file:
                return file.schema.remove_metadata()
    raise Invalid(
        f"input {given.query_alias} has neither data nor a schema", rule="input-schema",
        hint="run the transform when the input has its first data",
    )  # fmt: skip


def _foreign_blocks(
    given: TransformInput, query: Classification, previous: Checkpoint | None
) -> tuple[InputBlock, ...]:
    """Slices of a coordinator that does not speak of blocks: enough where rows speak for themselves."""
    if query.mode is not Mode.LOG:
        raise Invalid(
            f"input {given.query_alias}: a window needs the watermark of every block, and blocks were not given",
            rule="input-blocks",
            hint="use a coordinator that sends blocks",
        )
    stated = max((mark.event_time for mark in given.explicit_watermarks), default=None)
    known = {item.alias: item.w for item in previous.inputs} if previous is not None else {}
    before = known.get(given.query_alias)
    first = None if before is None else from_millis(before)
    blocks = [InputBlock(data_path=path, watermark_before=first, watermark_after=first) for path in given.data_paths]
    return (*blocks, InputBlock(watermark_before=first, watermark_after=stated if stated is not None else first))


def _micros(instant: Instant | None) -> int | None:
    """Whole milliseconds, rounded towards the past: an earlier watermark promises less, so it is always true."""
    return None if instant is None else instant // _NANOS * MILLISECOND


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_CHECKPOINT:
            raise Invalid(f"the checkpoint {path.name} is too large", rule="checkpoint-size")
        return path.read_bytes()
    except OSError as error:
        raise Environment(f"cannot read checkpoint {path}: {error.strerror}", rule="disk") from error


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Environment(f"cannot write checkpoint {path}: {error.strerror}", rule="disk") from error
