"""Reads manifests into what they wish for: snapshots of datasets, in the order in which they can be made, and flows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec

from chain.codec.bind import Mistake
from chain.codec.manifest import Manifest, parse_manifests
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.model.events import AddPushSource, DatasetSnapshot, SetPollingSource, SetTransform
from odfd.control import wire
from odfd.flows.manifest import WantedFlow, is_flow, read_flow


class WantedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot of an apply, and where it was written."""

    snapshot: DatasetSnapshot
    manifest: Manifest
    base: str
    """Folder that relative source paths start from."""

    @property
    def name(self) -> str:
        return self.snapshot.name

    def transform_place(self) -> str:
        """``file:line`` of the query."""
        number = next(i for i, event in enumerate(self.snapshot.metadata) if isinstance(event, SetTransform))
        return self.manifest.place(f"metadata[{number}].transform")

    def source_place(self, source: SetPollingSource | AddPushSource, part: str) -> str:
        """``file:line`` of a part of the source that stands in the end."""
        name = source.source_name if isinstance(source, AddPushSource) else None
        number = max(
            i
            for i, event in enumerate(self.snapshot.metadata)
            if type(event) is type(source) and getattr(event, "source_name", None) == name
        )
        return self.manifest.place(f"metadata[{number}].{part}")

    def input_place(self, ref: str) -> str:
        """``file:line`` of the input that names ``ref``."""
        for i, event in enumerate(self.snapshot.metadata):
            for j, each in enumerate(event.inputs if isinstance(event, SetTransform) else ()):
                if each.dataset_ref == ref:
                    return self.manifest.place(f"metadata[{i}].inputs[{j}].datasetRef")
        return self.manifest.place()

    def refs(self) -> list[str]:
        """What it derives from, itself aside."""
        transforms = [event for event in self.snapshot.metadata if isinstance(event, SetTransform)]
        refs = [each.dataset_ref.casefold() for event in transforms for each in event.inputs]
        return [ref for ref in refs if ref != self.name.casefold()]


def read_wishes(texts: Sequence[wire.ManifestText]) -> tuple[list[WantedSnapshot], list[WantedFlow]]:
    """All snapshots and flows of all texts. Raises Invalid."""
    wishes: list[WantedSnapshot] = []
    flows: list[WantedFlow] = []
    for each in texts:
        for manifest in parse_manifests(each.text, each.source, partial(_take_flow, each.source, flows)):
            if not isinstance(manifest.content, DatasetSnapshot):
                raise Invalid(
                    f"a {manifest.kind} cannot be applied",
                    rule="manifest-kind",
                    hint="write a DatasetSnapshot, or a Flow ($schema: Flow)",
                    place=manifest.place(),
                )
            wishes.append(WantedSnapshot(snapshot=manifest.content, manifest=manifest, base=each.base))
    if not wishes and not flows:
        raise Invalid("there is no manifest to apply", rule="manifest-empty", hint="a manifest begins with kind: …")
    for names in (Counter(each.name.casefold() for each in wishes), Counter(each.name.casefold() for each in flows)):
        if twice := sorted(name for name, count in names.items() if count > 1):
            raise Invalid(
                f"applied twice in one go: {', '.join(twice)}", rule="manifest-twice", hint="keep one of them"
            )
    return wishes, flows


def _take_flow(source: str, flows: list[WantedFlow], node: Node) -> Sequence[Mistake] | None:
    """``None`` for a document that is no resource; what is wrong with one, else."""
    if not is_flow(node):
        return None
    flow, mistakes = read_flow(node, source)
    flows += [flow] if flow is not None else []
    return mistakes


def in_order(wishes: Sequence[WantedSnapshot]) -> list[WantedSnapshot]:
    """Inputs before what derives from them; otherwise as written. A cycle stays as written and fails by name."""
    waiting = list(wishes)
    names = {wish.name.casefold() for wish in waiting}
    ordered: list[WantedSnapshot] = []
    done: set[str] = set()
    while waiting:
        ready = next(
            (each for each in waiting if all(ref in done or ref not in names for ref in each.refs())), waiting[0]
        )
        waiting.remove(ready)
        ordered.append(ready)
        done.add(ready.name.casefold())
    return ordered
