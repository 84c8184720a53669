"""Finds root datasets that this node ingests itself: it has their keys, and so it may read their sources."""

from __future__ import annotations

from chain.errors import Refused
from chain.ids import DatasetId
from chain.model.events import DatasetKind
from chain.state import load_state
from odfd.store import mirror_specs
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory


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


def check_owner(home: StateDirectory, entry: DatasetEntry) -> None:
    """Raises Refused for a dataset whose key is at another node, which alone makes and signs its blocks."""
    if home.keys.has_dataset_key(entry.id):
        return
    with home.database.read() as connection:
        is_mirror = mirror_specs.of(connection, entry.id) is not None
    raise Refused(
        f"{entry.name} is a {'mirror' if is_mirror else 'copy'}: its owner feeds it",
        rule="ingest-owner",
        hint="ingest at the node that owns it, or into a dataset of your own (odfctl new)",
    )
