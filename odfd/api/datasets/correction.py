"""Corrects a row of a ledger dataset by hand: gives it other values, or retracts it."""

from __future__ import annotations

from typing import Literal

from chain.errors import Refused
from odfd.api.views.views import rows_view
from odfd.control import wire
from odfd.datasets.catalog import DatasetEntry
from odfd.ingest.correction import Correction, CorrectionSpec, correct
from odfd.ingest.driver import IngestDependencies
from odfd.obs.events import EventLog
from odfd.runtime.subjects import about
from odfd.state.directory import StateDirectory


class CorrectionOperations:
    """Corrects rows of ledgers for the ingest service, which submits each request as a task."""

    def __init__(self, home: StateDirectory, deps: IngestDependencies, events: EventLog) -> None:
        self._home = home
        self._deps = deps
        self._events = events

    async def correct(self, entry: DatasetEntry, request: wire.CorrectRequest) -> wire.CorrectResult:
        """Appends the correction, or only plans it in a dry run. No other writer may write the dataset meanwhile.

        Raises Refused if this node does not own the dataset, and whatever ``odfd.ingest.correction.correct`` raises.
        """
        if not self._home.keys.has_dataset_key(entry.id):
            raise Refused(
                f"{entry.name} is not this node's own", rule="correct-owner", hint="ask its owner to correct it"
            )
        spec = CorrectionSpec(
            key=request.key,
            values=request.values,
            retract=request.retract,
            ahead=request.ahead,
            dry_run=request.dry_run,
        )
        done = await correct(self._deps, entry.id, spec)
        if done.head is not None:
            text = "1 record retracted" if done.after is None else "1 record corrected"
            self._events.emit(
                "dataset.appended", entry.name, text, about=about(entry.id), blocks=done.blocks, records=done.rows
            )
        return _result(entry, done, request)


def _result(entry: DatasetEntry, done: Correction, request: wire.CorrectRequest) -> wire.CorrectResult:
    what: Literal["corrected", "retracted", "unchanged"]
    what = "retracted" if done.after is None else "unchanged" if done.after == done.before else "corrected"
    return wire.CorrectResult(
        ref=entry.name,
        outcome=what,
        dry_run=request.dry_run,
        blocks=done.blocks,
        records=done.rows,
        head=None if done.head is None else str(done.head.hash),
        before=dict(done.before),
        after=None if done.after is None else dict(done.after),
        rows=rows_view(done.counts),
    )
