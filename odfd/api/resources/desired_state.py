"""Reads manifests into the desired state: datasets, in the order in which they can be made, flows and resources."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec

from chain.codec.bind import Mistake, plain_of
from chain.codec.manifest import Manifest, Mistakes, fault_of, parse_manifests
from chain.codec.yaml_tree import Node
from chain.errors import Fault, Invalid
from chain.ids import DatasetId
from chain.model.events import AddPushSource, DatasetSnapshot, SetPollingSource, SetTransform
from odfd.api.resources.types import TYPES
from odfd.control import wire
from odfd.datasets.manifest import DATASET_TYPE, ShardsSpec, did_of, draft_of, snapshot_of
from odfd.resources.manifest import Draft, is_resource, read_resource
from odfd.resources.references import reference_key, references_of
from odfd.resources.types import TypeRegistry


class DesiredSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One declared dataset of an apply, and where it was written."""

    snapshot: DatasetSnapshot
    manifest: Manifest
    base: str
    """The folder in which relative source paths begin."""
    did: DatasetId | None = None
    """The id of the dataset, if the manifest states it."""
    shards: ShardsSpec | None = None
    """The shards of a new root, if the manifest states them."""
    variables: frozenset[str] = frozenset()
    """Names of values, in sets of the same apply, that its sources may read."""
    meant: Mapping[str, str] = {}
    """Dids of the inputs that are resolved already, by the keys of references."""
    account: str | None = None
    """Id of the account that owns it; ``None``: the node's owner."""
    held: DatasetId | None = None
    """The dataset that its resource stands for, whatever the names and accounts of both are now; ``None`` for none."""
    draft: int
    """Its place among the resources of the apply."""

    @property
    def name(self) -> str:
        return self.snapshot.name

    @property
    def key(self) -> tuple[str | None, str]:
        """Its account, and its name in lower case."""
        return self.account, self.name.casefold()

    def transform_place(self) -> str:
        """Returns ``file:line`` of the query."""
        number = next(i for i, event in enumerate(self.snapshot.metadata) if isinstance(event, SetTransform))
        return self.manifest.place(f"metadata[{number}].transform")

    def source_place(self, source: SetPollingSource | AddPushSource, part: str) -> str:
        """Returns ``file:line`` of a part of the last declaration of this source, which is the one in force."""
        name = source.source_name if isinstance(source, AddPushSource) else None
        number = max(
            i
            for i, event in enumerate(self.snapshot.metadata)
            if type(event) is type(source) and getattr(event, "source_name", None) == name
        )
        return self.manifest.place(f"metadata[{number}].{part}")

    def located(self, fault: Fault) -> str:
        """Returns the place of a fault as a line of the manifest. That of a column is told within its read step."""
        if not fault.place.startswith("ddlSchema"):
            return fault.place or self.manifest.place()
        found = [
            (number, event.read.ddl_schema)
            for number, event in enumerate(self.snapshot.metadata)
            if isinstance(event, SetPollingSource | AddPushSource) and event.read.ddl_schema
        ]
        named = [number for number, columns in found if any(each in fault.message for each in columns)]
        first = next(iter([*named, *(number for number, _ in found)]), None)
        return self.manifest.place("" if first is None else f"metadata[{first}].read.{fault.place}")

    def input_place(self, ref: str) -> str:
        """Returns ``file:line`` of the input that names ``ref``."""
        for i, event in enumerate(self.snapshot.metadata):
            for j, each in enumerate(event.inputs if isinstance(event, SetTransform) else ()):
                if each.dataset_ref == ref:
                    return self.manifest.place(f"metadata[{i}].inputs[{j}].datasetRef")
        return self.manifest.place()

    def refs(self) -> list[str]:
        """Lists the inputs of the dataset, except itself."""
        transforms = [event for event in self.snapshot.metadata if isinstance(event, SetTransform)]
        refs = [each.dataset_ref.removeprefix("Dataset:").casefold() for event in transforms for each in event.inputs]
        return [ref for ref in refs if ref != self.name.casefold()]


class DesiredState(msgspec.Struct, frozen=True):
    """The desired state that all manifests of an apply declare."""

    snapshots: list[DesiredSnapshot]
    warnings: dict[tuple[str, str], tuple[str, ...]]
    """Warnings about resources, by kind and name in lower case."""
    drafts: list[Draft]
    """All resources, including datasets and flows."""


def read_desired_state(texts: Sequence[wire.ManifestText], registry: TypeRegistry = TYPES) -> DesiredState:
    """Reads all manifests of an apply. Raises Invalid; with every mistake of every text if there are several."""
    reading = _Reading(registry)
    for each in texts:
        reading.text(each)
    return reading.wanted([each.source for each in texts])


class _Reading:
    """Reads texts one after the other and collects the mistakes of all. Lives for one apply."""

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        self._faults: list[Invalid] = []
        self._desired = DesiredState([], {}, [])

    def text(self, text: wire.ManifestText) -> None:
        with self._collected():
            parse_manifests(text.text, text.source, partial(self._take, text), partial(self._snapshot, text))

    def wanted(self, sources: Sequence[str]) -> DesiredState:
        """Returns the desired state. Raises Invalid for the mistakes, or if there is no manifest in any source."""
        if len(self._faults) == 1:
            raise self._faults[0]
        if self._faults:
            places = {(fault.place or "").rpartition(":")[0] for fault in self._faults}
            (source,) = places if len(places) == 1 else (f"{len(places)} files",)
            raise Mistakes(source or "the manifests", tuple(self._faults))
        if not self._desired.drafts:
            hint = "a manifest begins with $schema: … or kind: …"
            place = sources[0] if len(sources) == 1 else f"any of {len(sources)} files"
            raise Invalid(f"there is no manifest in {place}", rule="manifest-empty", hint=hint)
        return self._desired

    @contextmanager
    def _collected(self) -> Iterator[None]:
        try:
            yield
        except Mistakes as several:
            self._faults += several.faults
        except Invalid as fault:
            self._faults.append(fault)

    def _snapshot(self, text: wire.ManifestText, manifest: Manifest) -> Sequence[Invalid]:
        """Reads a dataset that is written as the format's own kind: a resource that states no headers but its name."""
        if not isinstance(manifest.content, DatasetSnapshot):
            what, hint = (
                f"a {manifest.kind} cannot be applied",
                "write a DatasetSnapshot, or a resource ($schema: Dataset)",
            )
            return [Invalid(what, rule="manifest-kind", hint=hint, place=manifest.place())]
        draft = draft_of(manifest, manifest.content)
        self._add(draft, text)
        return [fault_of(each, text.source) for each in draft.binding.mistakes]

    def _take(self, text: wire.ManifestText, node: Node) -> Sequence[Mistake] | None:
        """Reads a document; returns its mistakes, or ``None`` if it is no resource."""
        if not is_resource(node):
            return None
        draft, mistakes = read_resource(node, text.source, self._registry)
        if draft is None:
            return mistakes
        for each in references_of(type(draft.spec), plain_of(draft.spec)):
            draft.attempt(each.path, partial(reference_key, type_=each.type), each.text)
        if not draft.binding.mistakes:
            self._add(draft, text)
        return draft.binding.mistakes

    def _add(self, draft: Draft, text: wire.ManifestText) -> None:
        """Checks a resource by the rules of its type, and adds it to the desired state."""
        if draft.type.check is not None:
            draft.type.check(draft)
        if draft.type is DATASET_TYPE and draft.spec.is_declared and not draft.binding.mistakes:
            manifest = snapshot_of(draft)
            assert isinstance(manifest.content, DatasetSnapshot)
            self._desired.snapshots.append(
                DesiredSnapshot(
                    snapshot=manifest.content,
                    manifest=manifest,
                    base=text.base,
                    did=did_of(draft),
                    shards=draft.spec.shards,
                    draft=len(self._desired.drafts),
                )
            )
        if (kept := draft.type.kept) is not None:
            draft.attempt(draft.type.judged_at, lambda name: kept(name, draft.spec, None), draft.headers.name)
        self._desired.drafts.append(draft)
        self._desired.warnings[draft.type.name.lower(), draft.headers.name.casefold()] = draft.warnings


def in_order(snapshots: Sequence[DesiredSnapshot]) -> list[DesiredSnapshot]:
    """Orders datasets: inputs before what derives from them, otherwise as written.

    A cycle stays as written, and then fails by name.
    """
    names = {snapshot.name.casefold() for snapshot in snapshots}
    missing = [names.intersection(snapshot.refs()) for snapshot in snapshots]
    readers: dict[str, list[int]] = defaultdict(list)
    for place, refs in enumerate(missing):
        for ref in refs:
            readers[ref].append(place)
    ready = [place for place, refs in enumerate(missing) if not refs]  # ascending, so it is a heap
    as_written = iter(range(len(snapshots)))
    ordered: dict[int, DesiredSnapshot] = {}
    while len(ordered) < len(snapshots):
        place = heapq.heappop(ready) if ready else next(as_written)
        if place in ordered:
            continue
        ordered[place] = snapshots[place]
        name = snapshots[place].name.casefold()
        for reader in readers.pop(name, ()):
            missing[reader].discard(name)
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return list(ordered.values())


def _anything(_: DesiredState) -> None:
    """Allows everything, as for the node's owner."""


class ApplyTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one apply: on whose behalf it is, and what it may declare."""

    account: str | None = None
    """Id of the account that gets new resources that name no account; ``None`` for the node's owner."""
    judge: Callable[[DesiredState], None] = _anything
    """Raises a fault if the desired state may not be applied. Called in worker threads."""


OWNERS: Final = ApplyTerms()
