"""Handles requests to the Spark engine: each gets a Spark session and a job group of its own.

Made once per process around the one Spark session; holds caches (analyses, facts of slices), never state that an answer
could depend on. Whatever a request names in its session is dropped with it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chain.data.arrow_schema import from_arrow, to_arrow
from chain.data.parquet import open_slice, write_slice
from chain.errors import Environment, Invalid
from engines.contract import (
    STARTING,
    Diagnostic,
    EngineIdentity,
    IngestAnswer,
    IngestBatchRequest,
    MigrateOutcome,
    MigrateRequest,
    ProvenanceOutcome,
    ProvenanceRequest,
    RawQueryOutcome,
    RawQueryRequest,
    RawQuerySuccess,
    RawQueryView,
    SessionRequest,
    SessionState,
    Severity,
    TransformOutcome,
    TransformRequest,
    ValidateInput,
    ValidateRequest,
    ValidateResponse,
)
from engines.errors import EngineLost
from engines.request_control import RequestCancelled, RequestControl
from engines.spark.analysis.declarations import DeclaredQuery, Reading, read_query
from engines.spark.analysis.determinism import find_misplaced
from engines.spark.analysis.parsed import PlanSize
from engines.spark.analysis.tree import parse_plan
from engines.spark.catalyst.plans import frame_of
from engines.spark.catalyst.types import as_written, slice_types, struct_type
from engines.spark.execution.handover import run_migration
from engines.spark.execution.transform import SharedCaches, check_tick, run_transform
from engines.spark.ingest.preprocess import result_schema
from engines.spark.ingest.run import run_ingest
from engines.spark.output.slice import schema_in_force
from engines.spark.planning.lateness import rule
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.provenance.derive import derive
from engines.spark.runtime.jvm import REAPED_SECONDS, Jvm
from engines.spark.runtime.limits import DiskWatch, limit_met
from engines.spark.runtime.task_counts import LastSample, TaskCounts
from engines.spark.sql.diagnostics import answer_faults, blames_query, diagnostic_at, diagnostic_of, refusal
from engines.spark.sql.parsing import analyse_query, as_json, parse_query
from engines.spark.sql.queries import Analyst
from engines.spark.sql.views import QueryInput, name_view, view_schema

STOP_SECONDS: Final = 1.0
"""Seconds that tasks of a cancelled request get to end; in trials they took a tenth of a second."""
RAW_VIEW: Final = "input"
"""Name under which a raw query sees its files."""


class SparkHandler:
    """Implements ``engines.service.Handler``. Safe to use from several threads."""

    def __init__(
        self, spark: SparkSession | Jvm, identity: Callable[[], EngineIdentity], disk: DiskWatch | None = None
    ) -> None:
        """``spark``: a session that the caller keeps alive, or a ``Jvm`` that starts a new one after
        its JVM has ended."""
        self._source = spark
        self._identity = identity
        self._disk = disk
        self._caches = SharedCaches(Analyst(), SliceReader())
        self._sampler = ThreadPoolExecutor(1, thread_name_prefix="engine-progress")

    @property
    def _spark(self) -> SparkSession:
        """The root session; if there is a ``Jvm``, of a living one. Raises EngineLost."""
        return self._source.session() if isinstance(self._source, Jvm) else self._source

    def identity(self) -> EngineIdentity:
        return self._identity()

    def session(self, request: SessionRequest) -> SessionState:
        """Returns whether Java runs; starts it first if that is asked."""
        if not isinstance(self._source, Jvm):
            return SessionState(state="ready")
        if request.starts:
            with contextlib.suppress(EngineLost):  # the state says it
                self._source.session()
        return self._source.state

    def validate(self, request: ValidateRequest) -> ValidateResponse:
        """Describes what a query does, or lists its faults; reads no data."""
        if request.preprocess:
            return self._validate_preprocess(request)
        warnings: tuple[Diagnostic, ...] = ()
        try:
            query = read_query(request.transform)
            query.check_inputs([given.query_alias for given in request.inputs])
            views = [_view(given, query) for given in request.inputs]
            analyst = self._caches.analyst
            found = analyst.recall(query.steps, views, request.vocab) or analyst.analyse(
                self._spark.newSession(), query.steps, views, request.vocab
            )
            if found.classification is None or found.columns is None:
                return ValidateResponse(ok=False, determinism="no", diagnostics=found.diagnostics)
            warnings = found.diagnostics
            stated = from_arrow(schema_in_force(found.columns, request.vocab, None))
            can_change = {view.alias: False if view.log else view.changes for view in views}
            shape = rule(query, found.classification, can_change).shape
            check_tick(shape, query)
        except Invalid as fault:
            return ValidateResponse(ok=False, diagnostics=(_of_fault(fault), *warnings))
        return ValidateResponse(
            ok=True,
            mode=shape.mode.value,
            schema=stated,
            changelog=bool(shape.changelog(can_change.values())),
            determinism="strict",
            diagnostics=warnings,
        )

    def _validate_preprocess(self, request: ValidateRequest) -> ValidateResponse:
        columns = to_arrow(request.inputs[0].schema)
        try:
            made = result_schema(self._spark.newSession(), columns, request.transform)
        except Invalid as fault:
            return ValidateResponse(ok=False, diagnostics=(_of_fault(fault),))
        except PySparkException as fault:
            if not blames_query(fault):
                raise
            return ValidateResponse(ok=False, diagnostics=(diagnostic_of(fault, request.transform.query or "", 0),))
        return ValidateResponse(ok=True, schema=from_arrow(made))

    def transform(self, request: TransformRequest, control: RequestControl) -> TransformOutcome:
        with self._request(control) as opened:
            return run_transform(opened, request, control, self._caches)

    def migrate(self, request: MigrateRequest, control: RequestControl) -> MigrateOutcome:
        with self._session(control) as session:
            return run_migration(session, request, control, self._caches)

    def ingest(self, request: IngestBatchRequest, control: RequestControl) -> IngestAnswer:
        with self._request(control) as opened:
            spread = isinstance(self._source, Jvm) and self._source.on_cluster
            return run_ingest(opened, request, control, spread=spread)

    def raw_query(self, request: RawQueryRequest, control: RequestControl) -> RawQueryOutcome:
        """Runs a query for interactive use: it may be nondeterministic, but has no commands and no foreign code."""

        def run() -> RawQueryOutcome:
            with self._session(control) as session:
                return _raw_query(session, request)

        return answer_faults(run, request.transform)

    def derive_provenance(self, request: ProvenanceRequest, control: RequestControl) -> ProvenanceOutcome:
        with self._session(control) as session:
            return derive(session, request, control, self._caches)

    @contextlib.contextmanager
    def _session(self, control: RequestControl) -> Iterator[SparkSession]:
        """Opens a session for one request, whose jobs stop when the caller no longer waits."""
        with self._request(control) as opened:
            yield opened()

    @contextlib.contextmanager
    def _request(self, control: RequestControl) -> Iterator[Callable[[], SparkSession]]:
        """Yields a function that opens the session only when it is needed, since opening takes
        several round trips to the JVM."""
        group = uuid.uuid4().hex
        used: list[SparkSession] = []

        def open_session() -> SparkSession:
            with control.within(STARTING) if self.session(SessionRequest()).state != "ready" else nullcontext():
                root = self._spark
            used.append(root)
            root.sparkContext.setJobGroup(group, "request", interruptOnCancel=True)
            control.register_cancel(stop)
            control.count_tasks(LastSample(TaskCounts(root.sparkContext, group), self._sampler))
            return root.newSession()

        def stop() -> None:
            for root in used:
                # If the JVM is gone, its work has stopped already.
                with contextlib.suppress(Py4JError, OSError):
                    root.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)
            if used and isinstance(self._source, Jvm):
                self._source.end_if_busy(group, STOP_SECONDS)

        with self._disk.over(stop) if self._disk is not None else nullcontext() as watched:
            try:
                yield open_session
            except (PySparkException, Py4JError, OSError, EOFError, ValueError, Environment) as fault:
                if control.cancelled.is_set():
                    raise RequestCancelled("the request was cancelled") from fault
                if watched is not None and watched.over is not None:
                    raise watched.over from fault
                reason = self._reason(fault)
                if reason is fault:
                    raise
                raise reason from fault

    def _reason(self, fault: Exception) -> Exception:
        """Returns the cause of a failed request: the end of the JVM, a limit, or the failure itself."""
        if isinstance(self._source, Jvm):
            broke = isinstance(fault, Py4JError | ConnectionError | EOFError)
            lost = self._source.why_lost(REAPED_SECONDS if broke else 0.0)
            if lost is not None:
                return lost
        return limit_met(fault) or fault


def _view(given: ValidateInput, query: DeclaredQuery) -> QueryInput:
    schema = view_schema(to_arrow(given.schema), given.vocab)
    keys = query.temporal.get(given.query_alias, ())
    log = query.declarations.reading_of(given.query_alias) is Reading.LOG
    return QueryInput(
        given.query_alias, schema, given.vocab.event_time, keys, given.vocab.operation_type,
        given.changes, log, given.vocab.offset,
    )  # fmt: skip


def _raw_query(session: SparkSession, request: RawQueryRequest) -> RawQueryOutcome:
    views = request.views
    for view in (RawQueryView(name=RAW_VIEW, data_paths=request.input_data_paths),) if views is None else views:
        if not view.data_paths:
            raise Invalid("a query over no files", rule="input-schema", hint="name at least one slice")
        with open_slice(Path(view.data_paths[-1])) as newest:
            columns = struct_type(newest.schema)
        name_view(session.read.schema(columns).parquet(*view.data_paths), view.name)
    steps = read_query(request.transform).steps
    sizes: dict[str, PlanSize] = {}
    for number, step in enumerate(steps):
        query = parse_query(session, step.query, sizes)
        sizes[step.alias or ""] = query.judgement.size
        plan = analyse_query(session, query)
        root = parse_plan(as_json(plan))
        found = find_misplaced(root)
        if found:
            raise refusal([diagnostic_at(finding, plan, root, number) for finding in found], len(steps))
        frame = frame_of(session, plan)
        if step is not steps[-1]:
            name_view(frame, step.alias or "")
    table = as_written(frame.toArrow(), slice_types(frame.schema, finest="us"))
    write_slice(table, Path(request.output_data_path))
    return RawQuerySuccess(num_records=table.num_rows)


def _of_fault(fault: Invalid) -> Diagnostic:
    return Diagnostic(
        code=fault.rule or "invalid", severity=Severity.ERROR, message=fault.message, replace=fault.hint or None
    )
