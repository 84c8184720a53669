"""Encodes the found rows in the contract's form: rows up to the limit, paths with their steps, missing rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from engines.contract import ProvenanceAbsence, ProvenancePath, ProvenanceRow, ProvenanceStep, RecordProvenance
from engines.spark.provenance.question import ShownInputs
from engines.spark.provenance.reasons import PathOperator
from engines.spark.provenance.row_lineage import Traced
from engines.spark.provenance.row_numbers import PATH, RowWitness, witnesses

_MAY_MISS: Final = frozenset({"left outer join", "right outer join", "full outer join", "left anti join", "asof join"})
"""Joins that can give a row even if one side has none."""


@dataclass(frozen=True, slots=True)
class FoundLineage:
    """The rows found for one record, before they are encoded."""

    traced: Traced
    lineage: np.ndarray
    shown: ShownInputs
    causes: frozenset[tuple[int, int]] = frozenset()
    """(number of the input, offset) of rows whose arrival caused a changing table to write the record."""
    others: tuple[ProvenanceRow, ...] = ()
    """Rows that contributed to the record without being on any path to it."""


def record_of(found: FoundLineage, offset: int, op: int, limit: int) -> RecordProvenance:
    """Encodes the provenance of a record, with at most ``limit`` rows."""
    told, count = witnesses(found.lineage, found.shown.sources, found.shown.offsets, limit)
    rows = [*(_row(each, found.causes) for each in told), *found.others]
    rows.sort(key=lambda row: (row.input, row.offset, -1 if row.path is None else row.path))
    return RecordProvenance(
        offset=offset,
        op=op,
        rows=tuple(rows[:limit]),
        count=count + len(found.others),
        absences=tuple(ProvenanceAbsence(path=path) for path in absent(found.traced.paths, found.lineage)),
    )


def _row(witness: RowWitness, causes: frozenset[tuple[int, int]]) -> ProvenanceRow:
    return ProvenanceRow(
        input=witness.source,
        offset=witness.offset,
        role="decides" if witness.decides else "value",
        path=witness.path,
        cause=(witness.source, witness.offset) in causes,
    )


def absent(paths: Sequence[Sequence[PathOperator]], lineage: np.ndarray) -> tuple[int, ...]:
    """Returns the paths without a row that meet a path with rows in a join that allows one side to be missing."""
    present = set(np.unique(lineage // PATH).tolist())
    met = {step.number for path in present for step in paths[path] if step.operator in _MAY_MISS}
    return tuple(
        number
        for number, steps in enumerate(paths)
        if number not in present and any(step.number in met for step in steps)
    )


def path_views(traced: Traced, inputs: Mapping[str, int], last: int) -> tuple[ProvenancePath, ...]:
    """Returns the paths; ``inputs``: number of each input by alias; ``last``: number of the last query."""
    return tuple(
        ProvenancePath(input=inputs[alias], steps=tuple(_step(reason, last) for reason in steps))
        for alias, steps in zip(traced.inputs, traced.paths, strict=True)
    )


def _step(reason: PathOperator, last: int) -> ProvenanceStep:
    return msgspec.convert(
        {
            "number": reason.number,
            "operator": reason.operator,
            "detail": reason.detail,
            "query": last if reason.query is None else reason.query,
            "line": reason.line,
            "column": reason.column,
            "hides": reason.hides,
        },
        ProvenanceStep,
    )
