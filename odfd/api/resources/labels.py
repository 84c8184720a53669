"""Computes the labels of resources: those that a type's controller contributes, and those that people set by hand.

``datasetKind`` and ``did`` of datasets are derived each time and not stored with others, so that no manifest carries
them to another node, where the dataset may be another. People select by them as by their own labels; a label set by
people that contradicts one of them is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.events import Seed
from chain.store.sqlite import SqliteChains
from odfd.control import wire
from odfd.resources.label_schemas import DATASET_KIND, by_short_name
from odfd.resources.plan import LABEL
from odfd.resources.resource import Resource

DID: Final = "did"
KEYS: Final = frozenset((DATASET_KIND, DID))
"""Labels that are derived."""
UNINDEXED: Final = frozenset((DID,))
"""Those of them that are in no index of labels: a dataset is found by its did anyway."""
MAX_KINDS: Final = 100_000
"""Datasets whose kind is remembered, since it is read from a chain once; takes some 10 MB."""


class SystemLabels:
    """Derives the system labels of resources from the chains of a node."""

    def __init__(self, chains: SqliteChains) -> None:
        self._chains = chains
        self._kinds: dict[str, str] = {}

    def of(self, resource: Resource) -> dict[str, str]:
        """Returns the labels that the controller contributes. Blocking."""
        if resource.type != "Dataset":
            return {}
        kind = self._kind(resource)
        labels = {} if kind is None else {DATASET_KIND: kind}
        return labels if resource.did is None else {**labels, DID: resource.did}

    def all_of(self, resource: Resource) -> Mapping[str, Any]:
        """Returns the labels that the controller contributes and those that people set. Blocking."""
        return {**resource.labels, **self.of(resource)}

    def _kind(self, resource: Resource) -> str | None:
        """Returns the declared kind, or that of the chain's Seed; ``None`` for a mirror without blocks yet."""
        if resource.spec is not None:
            return str(resource.spec["kind"])
        if resource.did is None:
            return None
        if resource.did not in self._kinds:
            chain = self._chains.chain(DatasetId.parse(resource.did))
            if chain.head() is None:
                return None
            event = chain.block_at(0).event
            assert isinstance(event, Seed)
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            self._kinds[resource.did] = event.dataset_kind.value
        return self._kinds[resource.did]


def contradictions(resource: Resource, system: Mapping[str, str], place: Callable[[str], str]) -> Iterator[Invalid]:
    """Yields a fault for each label set by people that differs from the controller's.

    ``place`` returns where a path of the headers was written.
    """
    if resource.type != "Dataset":
        return
    for key in sorted(KEYS & resource.labels.keys()):
        if resource.labels[key] == system.get(key):
            continue
        is_so = f"and this one is {system[key]}" if key in system else "and this one has none yet"
        yield Invalid(
            f"labels.{key} of {resource.name} is {str(resource.labels[key])[:80]!r}: the node sets it, {is_so}",
            rule="system-label",
            hint=f"leave {key} out: it can be selected by without being written",
            place=place(f"headers.labels.{key}"),
        )


def labelled(before: Resource, request: wire.LabelRequest) -> Resource:
    """Returns a resource with labels and annotations set by hand; their manager is ``LABEL``."""
    managers = dict(before.managers)
    parts: dict[str, dict[str, Any]] = {}
    for part, said in (("labels", by_short_name(request.labels)), ("annotations", request.annotations)):
        values = dict(getattr(before, part))
        for key, value in said.items():
            if value is None:
                values.pop(key, None)
                managers.pop(f"{part}.{key}", None)
            elif values.get(key) != value:
                values[key] = value
                managers[f"{part}.{key}"] = LABEL
        parts[part] = values
    return msgspec.structs.replace(before, managers=managers, **parts)
