"""Reads manifests into drafts of resources, and tells the mistakes of all texts together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from chain.codec.bind import Mistake, plain_of
from chain.codec.manifest import Manifest, Mistakes, fault_of, parse_manifests
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from odfd.api.resources.types import TYPES
from odfd.control import wire
from odfd.resources.manifest import Draft, is_resource, read_resource
from odfd.resources.references import reference_key, references_of
from odfd.resources.types import TypeRegistry


def read_drafts(texts: Sequence[wire.ManifestText], registry: TypeRegistry = TYPES) -> list[Draft]:
    """Reads all manifests of an apply. Raises Invalid; with every mistake of every text if there are several."""
    drafts: list[Draft] = []
    faults: list[Invalid] = []
    for each in texts:
        reading = _Reading(each, registry, drafts)
        try:
            parse_manifests(each.text, each.source, reading.resource, reading.other)
        except Mistakes as several:
            faults += several.faults
        except Invalid as fault:
            faults.append(fault)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        places = {(fault.place or "").rpartition(":")[0] for fault in faults}
        (source,) = places if len(places) == 1 else (f"{len(places)} files",)
        raise Mistakes(source or "the manifests", tuple(faults))
    if not drafts:
        place = texts[0].source if len(texts) == 1 else f"any of {len(texts)} files"
        hint = "a manifest begins with $schema: … or kind: …"
        raise Invalid(f"there is no manifest in {place}", rule="manifest-empty", hint=hint)
    return drafts


class _Reading:
    """Reads the documents of one text."""

    def __init__(self, text: wire.ManifestText, registry: TypeRegistry, drafts: list[Draft]) -> None:
        self._text, self._registry, self._drafts = text, registry, drafts

    def resource(self, node: Node) -> Sequence[Mistake] | None:
        """Reads a document; returns its mistakes, or ``None`` if it is no resource."""
        if not is_resource(node):
            return None
        draft, mistakes = read_resource(node, self._text.source, self._registry)
        if draft is None:
            return mistakes
        for each in references_of(type(draft.spec), plain_of(draft.spec)):
            draft.attempt(each.path, partial(reference_key, type_=each.type), each.text)
        if not draft.binding.mistakes:
            self._add(draft)
        return draft.binding.mistakes

    def other(self, manifest: Manifest) -> Sequence[Invalid]:
        """Reads a document that is written as one of the format's own kinds; returns its mistakes."""
        readers = (each.reads for each in self._registry if each.reads is not None)
        draft = next((made for read in readers if (made := read(manifest)) is not None), None)
        if draft is None:
            hint = "write a DatasetSnapshot, or a resource ($schema: Dataset)"
            what = f"a {manifest.kind} cannot be applied"
            return [Invalid(what, rule="manifest-kind", hint=hint, place=manifest.place())]
        self._add(draft)
        return [fault_of(each, self._text.source) for each in draft.binding.mistakes]

    def _add(self, draft: Draft) -> None:
        """Checks a resource by the rules of its type, and adds it to the others."""
        if draft.type.check is not None:
            draft.type.check(draft)
        if (kept := draft.type.kept) is not None:
            draft.attempt(draft.type.judged_at, lambda name: kept(name, draft.spec, None), draft.headers.name)
        self._drafts.append(msgspec.structs.replace(draft, base=self._text.base))
