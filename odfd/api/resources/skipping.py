"""Decides which manifests of an apply are left out, so that they hold back no others, and on what terms it is done."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from chain.codec.manifest import Mistakes
from chain.errors import Invalid
from odfd.api.resources.reading import read_drafts
from odfd.control import wire
from odfd.resources.manifest import Draft
from odfd.resources.plan import APPLY, PlannedResource, Terms

MAX_PASSES: Final = 50
"""Most times that the remaining manifests are planned; more rounds of faults refuse the whole."""
_DOCUMENT: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
"""The beginning of a document of YAML, anywhere in a text."""
_MANAGER: Final = re.compile(r"[A-Za-z0-9][\w./-]{0,62}", re.ASCII)
Plan = Callable[[Sequence[Draft]], list[PlannedResource]]


class Possible(msgspec.Struct, frozen=True):
    """The manifests of an apply that can be applied, as far as can be told before anything is done."""

    drafts: Sequence[Draft]
    planned: Sequence[PlannedResource]
    failed: Sequence[wire.ApplyItem]
    """Items of the others, each with its fault."""


class _Part(msgspec.Struct, frozen=True, eq=False):
    """One document of an apply's texts."""

    text: wire.ManifestText
    kind: str = "manifest"
    name: str = ""

    def failed(self, fault: Invalid) -> wire.ApplyItem:
        return wire.ApplyItem(
            kind=self.kind, name=self.name or self.text.source, action="failed", fault=wire.Problem.of(fault)
        )


def possible(texts: Sequence[wire.ManifestText], plan: Plan) -> Possible:
    """Leaves out manifests until the rest can be planned. Blocking. Raises a fault that belongs to no manifest."""
    kept: list[_Part] = []
    failed: list[wire.ApplyItem] = []
    parts = list(_parts(texts))
    if len({each.text.source for each in parts}) < len(parts):
        raise Invalid("two texts have one name", rule="request", hint="name each source once")
    for part in parts:
        try:
            kept.append(_named(part, read_drafts([part.text])[0]))
        except Invalid as fault:
            if fault.rule != "manifest-empty":
                failed.append(part.failed(fault))
    if not kept and not failed:
        read_drafts(texts)
    for several in _twins(kept):
        twice = Invalid(f"{several[0].kind} {several[0].name} is written several times", rule="manifest-twice",
                        hint="keep one of them")  # fmt: skip
        failed += [each.failed(twice) for each in several]
        kept = [each for each in kept if each not in several]
    for left in reversed(range(MAX_PASSES)):
        if not kept:
            break
        try:
            drafts = read_drafts([each.text for each in kept])
            return Possible(drafts, plan(drafts), failed)
        except Invalid as told:
            faults = told.faults if isinstance(told, Mistakes) else (told,)
            by_source = {each.text.source: each for each in kept}
            wrong = {
                by_source[source]: fault
                for fault in reversed(faults)
                if (source := fault.place.rpartition(":")[0]) in by_source
            }
            if not wrong or not left:
                raise
            failed += [each.failed(wrong[each]) for each in kept if each in wrong]
            kept = [each for each in kept if each not in wrong]
    return Possible([], [], failed)


def _parts(texts: Sequence[wire.ManifestText]) -> Iterator[_Part]:
    """Splits texts into documents. Each of several in a text is numbered, and its lines are counted from its start."""
    for text in texts:
        starts = [0, *(found.start() for found in _DOCUMENT.finditer(text.text)), len(text.text)]
        found = [each for start, end in itertools.pairwise(starts) if (each := text.text[start:end]).strip()]
        for number, each in enumerate(found, 1):
            source = text.source if len(found) == 1 else f"{text.source}, document {number}"
            yield _Part(msgspec.structs.replace(text, text=each, source=source))


def _named(part: _Part, draft: Draft) -> _Part:
    return msgspec.structs.replace(part, kind=draft.type.name.lower(), name=draft.headers.name)


def _twins(parts: Sequence[_Part]) -> list[list[_Part]]:
    found = defaultdict(list)
    for each in parts:
        found[each.kind, each.name.casefold()].append(each)
    return [several for several in found.values() if len(several) > 1]


def terms_of(request: wire.ApplyRequest) -> Terms:
    """Returns the manager and the conditions of an apply.

    Raises Invalid for a bad name of a manager, or one that the node keeps for its own parts.
    """
    manager = APPLY if request.manager is None else request.manager
    if not _MANAGER.fullmatch(manager) or manager.startswith("controller/"):
        hint = "letters, digits and . _ - / up to 63 characters, not beginning with controller/"
        raise Invalid(f"{manager[:80]!r} is no name of a manager", rule="manager", hint=hint)
    return Terms(manager, request.force, request.generation)
