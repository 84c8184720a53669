"""Reads manifests into drafts of resources; tells the mistakes of all texts together, or leaves out what has some."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from chain.codec.bind import Mistake, plain_of
from chain.codec.manifest import Manifest, Mistakes, fault_of, parse_manifests
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from odfd.control import wire
from odfd.resources.manifest import Draft, is_resource, read_resource
from odfd.resources.plan import PlannedResource
from odfd.resources.references import reference_key, references_of
from odfd.resources.types import TypeRegistry
from odfd.services.resources.types import TYPES

MAX_PASSES: Final = 50
"""Most times that the remaining manifests are planned; more rounds of faults refuse the whole."""
_DOCUMENT: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
"""The beginning of a document of YAML, anywhere in a text."""
Plan = Callable[[Sequence[Draft]], list[PlannedResource]]


def read_drafts(texts: Sequence[wire.ManifestText], registry: TypeRegistry = TYPES) -> list[Draft]:
    """Reads all manifests of an apply. Raises Invalid; with every mistake of every text if there are several."""
    drafts: list[Draft] = []
    faults: list[Invalid] = []
    for text in texts:
        reading = _Reading(text, registry, drafts)
        try:
            parse_manifests(text.text, text.source, reading.resource, reading.other)
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
            hint = "write a resource ($schema: Dataset), or a DatasetSnapshot"
            what = f"a {manifest.kind} cannot be applied"
            return [Invalid(what, rule="manifest-kind", hint=hint, place=manifest.place())]
        self._add(draft)
        return [fault_of(mistake, self._text.source) for mistake in draft.binding.mistakes]

    def _add(self, draft: Draft) -> None:
        """Checks a resource by the rules of its type, and adds it to the others."""
        if draft.type.check is not None:
            draft.type.check(draft)
        if (kept := draft.type.kept) is not None:
            draft.attempt(draft.type.judged_at, lambda name: kept(name, draft.spec, None), draft.headers.name)
        self._drafts.append(msgspec.structs.replace(draft, base=self._text.base) if self._text.base else draft)


class Possible(msgspec.Struct, frozen=True):
    """The manifests of an apply that can be applied, as far as can be told before anything is done."""

    drafts: Sequence[Draft]
    planned: Sequence[PlannedResource]
    others: Sequence[wire.ApplyItem]
    """Items of the others: each with its fault, or of what is here as it is written."""


def possible(texts: Sequence[wire.ManifestText], plan: Plan) -> Possible:
    """Leaves out manifests until the rest can be planned. Blocking. Raises a fault that belongs to no manifest."""
    documents = list(_documents(texts))
    kept = {document.source: document for document in documents}
    if len(kept) < len(documents):
        raise Invalid("two texts have one name", rule="request", hint="name each source once")
    named: dict[str, tuple[str, str]] = {}
    failed: list[wire.ApplyItem] = []

    def leave_out(source: str, fault: Invalid) -> None:
        kind, name = named.get(source, ("manifest", source))
        failed.append(wire.ApplyItem(kind=kind, name=name, action="failed", fault=wire.Problem.of(fault)))
        del kept[source]

    for document in documents:
        try:
            draft = read_drafts([document])[0]
            named[document.source] = draft.type.name.lower(), draft.headers.name
        except Invalid as fault:
            if fault.rule == "manifest-empty":
                del kept[document.source]
            else:
                leave_out(document.source, fault)
    if not kept and not failed:
        read_drafts(texts)
    for left in reversed(range(MAX_PASSES)):
        if not kept:
            break
        try:
            drafts = read_drafts(list(kept.values()))
            return Possible(drafts, plan(drafts), failed)
        except Invalid as told:
            faults = told.faults if isinstance(told, Mistakes) else (told,)
            wrong = {source: fault for fault in reversed(faults) if (source := fault.place.rpartition(":")[0]) in kept}
            if not wrong or not left:
                raise
            for source in [source for source in kept if source in wrong]:
                leave_out(source, wrong[source])
    return Possible([], [], failed)


def _documents(texts: Sequence[wire.ManifestText]) -> Iterator[wire.ManifestText]:
    """Splits texts into documents. Each of several in a text is numbered, and its lines are counted from its start."""
    for text in texts:
        starts = [0, *(found.start() for found in _DOCUMENT.finditer(text.text)), len(text.text)]
        found = [each for start, end in itertools.pairwise(starts) if (each := text.text[start:end]).strip()]
        for number, each in enumerate(found, 1):
            source = text.source if len(found) == 1 else f"{text.source}, document {number}"
            yield msgspec.structs.replace(text, text=each, source=source)
