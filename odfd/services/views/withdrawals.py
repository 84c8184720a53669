"""Tells when a dataset that is here was withdrawn by its publisher, for all views of it."""

from __future__ import annotations

from chain import instant
from chain.ids import DatasetId
from odfd.store.directory import StateDirectory
from odfd.store.ledger.cards import Cards


def withdrawn_at(home: StateDirectory, dataset: DatasetId) -> str | None:
    """Returns the time of a withdrawal; ``None``: there is none, or the dataset is this node's own."""
    if home.keys.has_dataset_key(dataset):
        return None
    with home.database.read() as connection:
        at = Cards(connection).withdrawn_at(dataset)
    return None if at is None else instant.render(at)
