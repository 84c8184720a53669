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
from engines.spark.analysis.classify import Mode
from engines.spark.execution.transform import Control, Workbench
from engines.spark.provenance.answers import Found, path_views, record_of
from engines.spark.provenance.final_mode import Settled
from engines.spark.provenance.log_mode import Spoken
from engines.spark.provenance.question import Ground
from engines.spark.provenance.table_mode import Changing
from engines.spark.sql.queries import answered


class _Finder(Protocol):
    def find(self, place: int) -> Found: ...


def derive(session: SparkSession, request: ProvenanceRequest, control: Control, bench: Workbench) -> ProvenanceOutcome:
    """``session`` is this request's alone. Raises Environment, and what Spark raises when the fault is the engine's."""
    return answered(lambda: _derive(session, request, control, bench))


def _derive(session: SparkSession, request: ProvenanceRequest, control: Control, bench: Workbench) -> ProvenanceSuccess:
    ground = Ground(session, request, bench.analyst, bench.slices)
    if request.column is not None and request.column not in ground.data.column_names:
        raise Invalid(
            f"the records have no column {request.column!r} that a query made", rule="provenance-column",
            hint=f"columns: {', '.join(ground.data.column_names)}",
        )  # fmt: skip
    places = [ground.place_of(offset) for offset in request.offsets]
    finder = _finder(ground)
    records: list[RecordProvenance] = []
    paths: tuple[ProvenancePath, ...] = ()
    inputs = {alias: number for number, alias in enumerate(ground.aliases)}
    for offset, place in zip(request.offsets, places, strict=True):
        control.check()
        control.progress()
        found = finder.find(place)
        records.append(record_of(found, offset, int(ground.ops[place]), min(request.limit, MAX_WITNESSES)))
        paths = path_views(found.traced, inputs, len(ground.query.steps) - 1)
    return ProvenanceSuccess(mode=ground.shape.mode.value, paths=paths, records=tuple(records))


def _finder(ground: Ground) -> _Finder:
    if ground.shape.mode is Mode.LOG:
        return Spoken(ground)
    if ground.shape.table is not None:
        return Changing(ground, ground.shape.table)
    return Settled(ground)
