"""Finds imports that a crash cut off after all was verified, and before they were named and recorded as checked."""

from __future__ import annotations

from chain.errors import Environment
from chain.ids import DatasetId
from chain.model.events import Seed
from chain.store.base import BlockDamaged
from odfd.datasets.catalog import Catalog
from odfd.state.directory import StateDirectory
from odfd.trust.ledger.log import Ledger


def suspects(home: StateDirectory) -> list[DatasetId]:
    """Lists datasets that may be unsettled, with a few queries for all; all of them if the names are damaged."""
    heads = home.chains.heads()
    with home.database.read() as connection:
        settled = Ledger(connection).sizes()
        try:
            named = {entry.id for entry in Catalog(connection).chains()}
        except Environment:
            named = set()
    whole = {each for each, head in heads.items() if head is not None and settled.get(each) == head.size}
    return [each for each in heads if each not in named or each not in whole]


def is_unsettled(home: StateDirectory, dataset: DatasetId) -> bool:
    """Whether an import of the dataset was cut off before it was named and recorded as checked.

    Raises Environment for a chain that is damaged, or stored under another id than its own.
    """
    chain = home.chains.chain(dataset)
    head = chain.head()
    with home.database.read() as connection:
        settled = Ledger(connection).chain(dataset).frontier.size
        is_named = Catalog(connection).find(dataset) is not None
    if head is None or (settled >= head.size and is_named):
        return False
    seed = chain.block_at(0).event
    if not isinstance(seed, Seed) or seed.dataset_id != dataset:
        raise BlockDamaged(dataset, 0, "the chain lies under an id that its Seed does not name")
    return True
