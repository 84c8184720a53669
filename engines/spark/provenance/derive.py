"""Answers where records of a transform's output came from. See ``docs/provenance.md`` for what the answer means.

One call of ``derive`` is one question; it reads slices, runs queries over some of their rows and writes nothing.
"""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import SparkSession

from chain.errors import Invalid
from engines.contract import (
    MAX_WITNESSES,
    ProvenanceOutcome,
    ProvenancePath,
    ProvenanceRequest,
    ProvenanceSuccess,
    RecordProvenance,
)
from engines.request_control import RequestControl
from engines.spark.analysis.classify import Mode
from engines.spark.execution.transform import SharedCaches
from engines.spark.provenance.answers import FoundLineage, path_views, record_of
from engines.spark.provenance.final_mode import FinalTracer
from engines.spark.provenance.log_mode import LogTracer
from engines.spark.provenance.question import ProvenanceContext
from engines.spark.provenance.table_mode import TableTracer
from engines.spark.sql.spark_errors import answered


class _Finder(Protocol):
    def find(self, place: int) -> FoundLineage: ...


def derive(
    session: SparkSession, request: ProvenanceRequest, control: RequestControl, caches: SharedCaches
) -> ProvenanceOutcome:
    """``session`` is this request's alone. Raises Environment, and what Spark raises when the fault is the engine's."""
    return answered(lambda: _derive(session, request, control, caches), request.transform)


def _derive(
    session: SparkSession, request: ProvenanceRequest, control: RequestControl, caches: SharedCaches
) -> ProvenanceSuccess:
    context = ProvenanceContext(session, request, caches.analyst, caches.slices)
    if request.column is not None and request.column not in context.data.column_names:
        raise Invalid(
            f"the records have no column {request.column!r} that a query made", rule="provenance-column",
            hint=f"columns: {', '.join(context.data.column_names)}",
        )  # fmt: skip
    places = [context.place_of(offset) for offset in request.offsets]
    finder = _finder(context)
    records: list[RecordProvenance] = []
    paths: tuple[ProvenancePath, ...] = ()
    inputs = {alias: number for number, alias in enumerate(context.aliases)}
    for offset, place in zip(request.offsets, places, strict=True):
        control.check()
        control.progress()
        found = finder.find(place)
        records.append(record_of(found, offset, int(context.ops[place]), min(request.limit, MAX_WITNESSES)))
        paths = path_views(found.traced, inputs, len(context.query.steps) - 1)
    return ProvenanceSuccess(mode=context.shape.mode.value, paths=paths, records=tuple(records))


def _finder(context: ProvenanceContext) -> _Finder:
    if context.shape.mode is Mode.LOG:
        return LogTracer(context)
    if context.shape.table is not None:
        return TableTracer(context, context.shape.table)
    return FinalTracer(context)
