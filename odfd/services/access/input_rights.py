"""Judges whether a dataset may take from others, by the present rights of the account that has it."""

from __future__ import annotations

from collections.abc import Iterable

from chain.ids import DatasetId
from odfd.store.catalog import Catalog
from odfd.store.directory import StateDirectory


def check_inputs(home: StateDirectory, dataset: DatasetId, inputs: Iterable[DatasetId]) -> None:
    """Raises Refused if the account of a dataset may not read one of the datasets that it takes from. Blocking."""
    with home.database.read() as connection:
        home.uses.check_inputs(Catalog(connection), dataset, inputs)
