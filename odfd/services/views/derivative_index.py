"""Finds the datasets of a node that are derived from a given one, by an index that follows the writes to the database.

A question costs in proportion to what was written since the last one, not to the number of datasets: statements of
strangers ask it too. Safe to use from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from chain.errors import Environment, Invalid
from chain.ids import DatasetId
from chain.model.events import SetTransform
from chain.state import transform_of
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.store.visibility import PublicOf

_TRANSFORM: Final = SetTransform.__name__


class DerivativeIndex:
    """An index of the derived datasets of a node by their inputs."""

    def __init__(self, home: StateDirectory) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._since = -1
        """The write of the database up to which the index is current; -1 before the first question."""
        self._inputs: dict[DatasetId, frozenset[str]] = {}
        """References to the inputs of each derived dataset, as its transform names them."""
        self._derived: dict[str, set[DatasetId]] = {}
        """Derived datasets by a reference to an input."""
        self._damaged: set[DatasetId] = set()
        """Datasets whose transform could not be read; each question reads them again."""

    def of(self, source: DatasetId) -> Sequence[DatasetEntry]:
        """Lists datasets here that are derived from ``source``, by name. Raises Environment for a damaged block."""
        with self._lock:
            self._bring_up_to_date()
            found = self._derived_from(source)
        with self._home.catalog() as catalog:
            entries = [entry for each in found if (entry := catalog.find(each)) is not None]
        return sorted(entries, key=lambda entry: entry.name)

    def has_any(self, source: DatasetId) -> bool:
        """Whether any dataset here is derived from ``source``. Raises Environment for a damaged block."""
        with self._lock:
            self._bring_up_to_date()
            return bool(self._derived_from(source))

    def inputs(self, some_of: PublicOf) -> set[DatasetId]:
        """Returns the inputs of the derived datasets that ``some_of`` selects. Raises Environment for a bad block."""
        with self._lock:
            self._bring_up_to_date()
            known = dict(self._inputs)
        found = set()
        for ref in {ref for each in some_of(list(known)) for ref in known[each]}:
            with suppress(Invalid):  # a reference that is no id
                found.add(DatasetId.parse(ref))
        return found

    def own(self, source: DatasetId) -> str | None:
        """Returns the name of one of this node's own datasets derived from ``source``; ``None`` if there is none."""
        return next((entry.name for entry in self.of(source) if self._home.keys.has_dataset_key(entry.id)), None)

    def _derived_from(self, source: DatasetId) -> set[DatasetId]:
        return self._derived.get(str(source), set()) - {source}

    def _bring_up_to_date(self) -> None:
        """Reads the transforms of datasets that were written since, or of all. Raises Environment."""
        database = self._home.database
        now = database.writes
        touched = None if self._since < 0 else database.changed_since(self._since)
        if touched is None:
            there = self._home.chains.having(_TRANSFORM)
            self._update({*there, *self._inputs})
        else:
            self._update(_datasets(touched))
        self._since = now
        if self._damaged:
            self._read(next(iter(self._damaged)))

    def _update(self, datasets: Iterable[DatasetId]) -> None:
        for dataset in {*datasets, *self._damaged}:
            try:
                inputs = self._read(dataset)
            except Environment:
                self._damaged.add(dataset)
                continue
            self._damaged.discard(dataset)
            for ref in self._inputs.pop(dataset, frozenset()) - inputs:
                self._derived[ref].discard(dataset)
                if not self._derived[ref]:
                    del self._derived[ref]
            if inputs:
                self._inputs[dataset] = inputs
            for ref in inputs:
                self._derived.setdefault(ref, set()).add(dataset)

    def _read(self, dataset: DatasetId) -> frozenset[str]:
        """Returns references to the inputs of a dataset; none for one without a transform. Raises Environment."""
        transform = transform_of(self._home.chains.chain(dataset))
        return frozenset() if transform is None else frozenset(str(input_.dataset_ref) for input_ in transform.inputs)


def _datasets(keys: Iterable[bytes]) -> Iterable[DatasetId]:
    """Yields the datasets among the keys of ``Database.changed_since``."""
    for key in keys:
        with suppress(Invalid):  # the names of all datasets, or a key of another kind
            yield DatasetId.from_bytes(key)
