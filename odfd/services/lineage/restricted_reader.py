"""Reads chains for readers with limited rights, to whom any other dataset appears not to be on this node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from chain.ids import DatasetId
from chain.store.base import ChainReader
from odfd.store.directory import StateDirectory

MayRead: TypeAlias = Callable[[Sequence[DatasetId]], Collection[DatasetId]]
"""Returns those of the given datasets that the reader may read. Blocking."""
_NOBODYS: Final = DatasetId.from_public_key(bytes(32))
"""The id of a dataset without a chain."""


class RestrictedChains:
    """Reads the chains of a node that a reader may read. Blocking."""

    def __init__(self, home: StateDirectory, may_read: MayRead | None = None) -> None:
        """``may_read``: the rights of an account; ``None`` permits all datasets."""
        self._home, self._may_read = home, may_read

    def chain(self, dataset: DatasetId) -> ChainReader:
        """Returns the chain of a dataset; an empty one if it may not be read."""
        return self._home.chains.chain(dataset if self.are_shown([dataset]) else _NOBODYS)

    def are_shown(self, datasets: Sequence[DatasetId]) -> Collection[DatasetId]:
        """Returns those of the given datasets that the reader may read."""
        return datasets if self._may_read is None else self._may_read(datasets)

    def name_of(self, dataset: DatasetId) -> str:
        """Returns the name that a dataset has here, or its shortened did."""
        return self._home.name_of(dataset) if self.are_shown([dataset]) else dataset.short
