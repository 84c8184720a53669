"""Finds root datasets that this node ingests itself: it has their keys, and so it may read their sources."""

from __future__ import annotations

from chain.errors import Refused
from chain.ids import DatasetId
from chain.model.events import DatasetKind
from chain.state import load_state
from odfd.datasets.catalog import DatasetEntry
from odfd.state.directory import StateDirectory


def own_root(home: StateDirectory, ref: str, hint: str) -> DatasetEntry:
    """Returns a root dataset that this node ingests. Raises NotFound, and Refused with ``hint``."""
    entry = home.resolve(ref)
    check_own_root(home, entry.id, entry.name, hint)
    return entry


def check_own_root(home: StateDirectory, dataset: DatasetId, name: str, hint: str) -> None:
    """Raises Refused with ``hint`` if this node does not ingest a dataset."""
    kind = load_state(home.chains.chain(dataset)).kind
    if kind is not DatasetKind.ROOT or not home.keys.has_dataset_key(dataset):
        raise Refused(f"{name} is not ingested by this node", rule="raw-owner", hint=hint)
