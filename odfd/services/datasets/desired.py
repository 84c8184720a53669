"""Describes a dataset as a manifest declares it, with where each part was written, and orders several."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import msgspec

from chain.errors import Fault
from chain.ids import DatasetId
from chain.model.events import AddPushSource, DatasetSnapshot, MetadataEvent, SetPollingSource, SetTransform
from odfd.datasets.manifest import ShardsSpec
from odfd.resources.controller import ApplyBatch
from odfd.resources.manifest import Draft
from odfd.resources.plan import PlannedResource
from odfd.resources.references import dids_of
from odfd.resources.sets import names_in


class DesiredSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One declared dataset of an apply."""

    snapshot: DatasetSnapshot
    draft: Draft
    variables: frozenset[str]
    """Names of values, in sets of the same apply, that its sources may read."""
    meant: Mapping[str, str]
    """Dids of the inputs that are resolved already, by the keys of references."""
    account: str | None
    """Id of the account that owns it; ``None``: the node's owner."""
    held: DatasetId | None
    """The dataset that its resource stands for, whatever the names and accounts of both are now; ``None`` for none."""

    @property
    def name(self) -> str:
        return self.snapshot.name

    @property
    def key(self) -> tuple[str | None, str]:
        """Its account, and its name in lower case."""
        return self.account, self.name.casefold()

    @property
    def did(self) -> DatasetId | None:
        """The id of the dataset, if the manifest states it."""
        return None if self.draft.spec.did is None else DatasetId.parse(self.draft.spec.did)

    @property
    def shards(self) -> ShardsSpec | None:
        """The shards of a new root, if the manifest states them."""
        shards: ShardsSpec | None = self.draft.spec.shards
        return shards

    def place(self, path: str = "") -> str:
        """Returns ``file:line`` of a part of the spec, or of the whole manifest."""
        return self.draft.place(f"spec.{path}" if path else "")

    def transform_place(self) -> str:
        """Returns ``file:line`` of the query."""
        number = next(i for i, event in enumerate(self.snapshot.metadata) if isinstance(event, SetTransform))
        return self.place(f"metadata[{number}].transform")

    def source_place(self, source: SetPollingSource | AddPushSource, part: str) -> str:
        """Returns ``file:line`` of a part of the last declaration of this source, which is the one in force."""
        name = source.source_name if isinstance(source, AddPushSource) else None
        number = max(
            i
            for i, event in enumerate(self.snapshot.metadata)
            if type(event) is type(source) and getattr(event, "source_name", None) == name
        )
        return self.place(f"metadata[{number}].{part}")

    def place_of(self, fault: Fault) -> str:
        """Returns the place of a fault as a line of the manifest. That of a column is told within its read step."""
        if not fault.place.startswith("ddlSchema"):
            return fault.place or self.place()
        found = [
            (number, event.read.ddl_schema)
            for number, event in enumerate(self.snapshot.metadata)
            if isinstance(event, SetPollingSource | AddPushSource) and event.read.ddl_schema
        ]
        named = [number for number, columns in found if any(column in fault.message for column in columns)]
        first = next(iter([*named, *(number for number, _ in found)]), None)
        return self.place("" if first is None else f"metadata[{first}].read.{fault.place}")

    def input_place(self, ref: str) -> str:
        """Returns ``file:line`` of the input that names ``ref``."""
        for i, event in enumerate(self.snapshot.metadata):
            for j, each in enumerate(event.inputs if isinstance(event, SetTransform) else ()):
                if each.dataset_ref == ref:
                    return self.place(f"metadata[{i}].inputs[{j}].datasetRef")
        return self.place()


def desired_of(planned: PlannedResource, batch: ApplyBatch) -> DesiredSnapshot | None:
    """Returns the dataset that a manifest declares; ``None`` for what is only named by its did, or renamed."""
    draft, own = batch.drafts.get(planned.after.id), planned.after
    if draft is None or not draft.spec.is_declared:
        return None
    beside = batch.find_named(own.account, own.key)
    did = None if planned.before is None else planned.before.did
    return DesiredSnapshot(
        snapshot=DatasetSnapshot(name=own.name, kind=draft.spec.kind, metadata=draft.spec.metadata or ()),
        draft=draft,
        variables=frozenset(key for each in beside for key in names_in(each.type, each.spec)),
        meant=dids_of(own.references),
        account=own.account,
        held=None if did is None else DatasetId.parse(did),
    )


def inputs_of(name: str, metadata: Sequence[MetadataEvent]) -> set[str]:
    """Returns the names of what a dataset derives from, except itself, in lower case."""
    transforms = [event for event in metadata if isinstance(event, SetTransform)]
    refs = {input_.dataset_ref.removeprefix("Dataset:").casefold() for event in transforms for input_ in event.inputs}
    return refs - {name.casefold()}


def in_order(datasets: Sequence[tuple[str, Collection[str]]]) -> list[int]:
    """Orders datasets, each by its name and inputs: inputs before what derives from them, otherwise as written.

    Returns their places. A cycle stays as written, and then fails by name.
    """
    names = {name.casefold() for name, _ in datasets}
    missing = [names.intersection(refs) for _, refs in datasets]
    readers: dict[str, list[int]] = defaultdict(list)
    for place, refs in enumerate(missing):
        for ref in refs:
            readers[ref].append(place)
    ready = [place for place, refs in enumerate(missing) if not refs]  # ascending, so it is a heap
    as_written = iter(range(len(datasets)))
    ordered: dict[int, None] = {}
    while len(ordered) < len(datasets):
        place = heapq.heappop(ready) if ready else next(as_written)
        if place in ordered:
            continue
        ordered[place] = None
        name = datasets[place][0].casefold()
        for reader in readers.pop(name, ()):
            missing[reader].discard(name)
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return list(ordered)
