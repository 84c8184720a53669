"""Sets aside records that cannot be read: finds or makes their dataset, and builds its commit. Blocking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from chain.data.parquet import OFFSET
from chain.data.quarantine import SCHEMA
from chain.errors import Refused
from chain.ids import DatasetId
from chain.model.read_options import quarantine_of, read_options
from chain.model.source import traits
from chain.state import ChainState
from chain.store.base import ObjectStore
from engines.contract import IngestBatchRequest, RowCounts, Success
from odfd.datasets.commit import CommitPart
from odfd.ingest.plan import IngestPlan, QuarantineDataset, SourceInForce
from odfd.ingest.settlement import beside
from odfd.ingest.slices import keep_slice

_OF_RECORDS: Final = frozenset({"read-value", "read-json", "read-geojson"})
"""Rules that single records break."""
Load = Callable[[DatasetId], ChainState]


class Quarantines(Protocol):
    """The port of quarantine datasets. Synchronous."""

    def find(self, dataset: DatasetId) -> DatasetId | None:
        """Returns the quarantine of ``dataset``, if it exists."""

    def make(self, dataset: DatasetId) -> DatasetId:
        """Makes a new quarantine without rows. Raises Invalid when its name is taken."""


def standing(
    quarantines: Quarantines | None, source: SourceInForce, dataset: DatasetId, objects: ObjectStore, load: Load
) -> QuarantineDataset | None:
    """Returns the current quarantine; ``None``: the source refuses unreadable records. Raises Refused."""
    if quarantine_of(source.read.schema) is None:
        return None
    if quarantines is None:
        raise Refused(
            "there is no quarantine dataset for records that cannot be read", rule="on-error", hint="leave out onError"
        )
    found = quarantines.find(dataset)
    path = objects.stage()
    return (
        QuarantineDataset(path=path)
        if found is None
        else QuarantineDataset(path=path, dataset=found, state=load(found))
    )


def way_on(request: IngestBatchRequest, rule: str | None) -> str:
    """Returns the advice for a record that cannot be read, which in a queue of messages nobody can correct."""
    read = request.read
    can = bool(read.schema is not None or read.ddl_schema) and read_options(read.schema).format is None
    if rule not in _OF_RECORDS or request.quarantine is not None or not can or traits(request.merge).whole_state:
        return ""
    return "onError: quarantine of the read step writes such records to the quarantine dataset"


def set_aside(
    plan: IngestPlan, answer: Success, quarantines: Quarantines | None, objects: ObjectStore, load: Load
) -> CommitPart | None:
    """Builds the commit of unreadable records to the quarantine, which is made if absent.

    Raises Invalid if the engine's file contradicts its answer, or the name of a new dataset is taken.
    """
    counts, into = answer.rows or RowCounts(), plan.quarantine
    if not counts.quarantined or into is None:
        return beside(plan, counts, None)
    assert plan.state.dataset is not None
    if into.dataset is None:
        assert quarantines is not None
        made = quarantines.make(plan.state.dataset)
        plan = msgspec.structs.replace(plan, quarantine=msgspec.structs.replace(into, dataset=made, state=load(made)))
    return beside(plan, counts, keep_slice(objects, into.path, SCHEMA, OFFSET))
