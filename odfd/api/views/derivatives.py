"""Finds the datasets that are derived from a dataset, without reading datasets that have no transform.

Called from worker threads. Holds what each transform reads, as long as nothing writes to its chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.events import SetTransform
from odfd.datasets.catalog import DatasetEntry
from odfd.datasets.visibility import PublicOf
from odfd.state.directory import StateDirectory

_TRANSFORM: Final = SetTransform.__name__


class _Kept(NamedTuple):
    """Ids of inputs, as the transform names them, and the writes up to which they are known."""

    since: int
    inputs: frozenset[str]


class DerivativeIndex:
    """An index of the derived datasets of a node by their inputs."""

    def __init__(self, home: StateDirectory) -> None:
        self._home = home
        self._kept: dict[DatasetId, _Kept] = {}

    def of(self, source: DatasetId) -> Sequence[DatasetEntry]:
        """Datasets here that are derived from ``source``, by name. Raises Environment for a damaged block."""
        there = self._home.chains.having(_TRANSFORM)
        found = [each for each in there if each != source and str(source) in self._inputs(each)]
        self._kept = {each: self._kept[each] for each in there if each in self._kept}
        with self._home.catalog() as catalog:
            entries = [entry for each in found if (entry := catalog.find(each)) is not None]
        return sorted(entries, key=lambda entry: entry.name)

    def has_any(self, source: DatasetId) -> bool:
        """Whether any dataset here is derived from ``source``. Raises Environment for a damaged block."""
        return any(str(source) in self._inputs(each) for each in self._home.chains.having(_TRANSFORM) if each != source)

    def inputs(self, some_of: PublicOf) -> set[DatasetId]:
        """What ``some_of`` the datasets here are derived from. Raises Environment for a damaged block."""
        found = set()
        for name in {name for each in some_of(self._home.chains.having(_TRANSFORM)) for name in self._inputs(each)}:
            with suppress(Invalid):  # a name that is no id
                found.add(DatasetId.parse(name))
        return found

    def own(self, source: DatasetId) -> str | None:
        """The name of one of this node's own that is derived from ``source``; ``None`` when there is none."""
        return next((entry.name for entry in self.of(source) if self._home.keys.has_dataset_key(entry.id)), None)

    def _inputs(self, dataset: DatasetId) -> frozenset[str]:
        kept = self._kept.get(dataset)
        if kept is None or self._home.database.has_changed(dataset, kept.since):
            since = self._home.database.writes
            block = self._home.chains.chain(dataset).last_of((_TRANSFORM,))
            inputs = block.event.inputs if block is not None and isinstance(block.event, SetTransform) else ()
            kept = self._kept[dataset] = _Kept(since, frozenset(str(each.dataset_ref) for each in inputs))
        return kept.inputs
