"""Reads and writes manifests, YAML documents of ``kind / version / content``.

Kinds are DatasetSnapshot, MetadataEvent (version 1) and MetadataBlock (its block's own version). All mistakes of a
file are reported at once, each with its line. A rendered block, parsed and encoded, gives the same bytes as the block.
Spec: Manifests; RFC-013 (text of schemas).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from chain.codec import yaml_tree
from chain.codec.bind import Binding, Mistake, found, node_of, plain_of
from chain.codec.blocks import CURRENT_VERSION, content_of
from chain.codec.layout import Kind, Table, Union, fields_of
from chain.codec.short_forms import MORE_FIELDS, MORE_KINDS, carrying_read_options
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.model.block import Block, MetadataBlock, UnknownEvent
from chain.model.events import DatasetSnapshot, MetadataEvent
from chain.yaml_text import render_yaml

_EVENT: Final[Kind] = next(each.kind for each in fields_of(MetadataBlock) if each.name == "event")
_KINDS: Final[Mapping[str, tuple[Kind, tuple[int, ...]]]] = {
    "DatasetSnapshot": (Table(DatasetSnapshot), (1,)),
    "MetadataBlock": (Table(MetadataBlock), (2, 3)),
    "MetadataEvent": (_EVENT, (1,)),
}
_ENVELOPE: Final = ("kind", "version", "content")
_BESIDE: Final = ("hash", "manifestVersion", "size")
"""Fields that ``odfctl block show`` adds to a block's manifest; ignored when read."""
_UNSHOWN: Final = "unknownFields"
"""The field that ``odfctl block show`` adds when the manifest does not hold the whole block."""
_NEWER: Final = "the block holds fields of a newer schema, which a manifest cannot say"
_NEWER_HINT: Final = "copy the block's file; a newer version may encode it"
Content: TypeAlias = DatasetSnapshot | MetadataBlock | MetadataEvent
T = TypeVar("T", bound=msgspec.Struct)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One document, with the line of each part of its content."""

    kind: str
    version: int
    content: Content
    source: str
    lines: Mapping[str, int]
    """Line of each part, by its path within the content (``metadata[1].transform``; empty for the whole)."""

    def place(self, path: str = "") -> str:
        """Returns ``file:line`` of a part of the content, or of the nearest enclosing part that has a line."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return f"{self.source}:{self.lines.get(path, 1)}"


class Mistakes(Invalid):
    """Several mistakes of one input; ``faults`` holds each of them, in the order of the text."""

    def __init__(self, source: str, faults: tuple[Invalid, ...]) -> None:
        lines = "".join(f"\n  {fault}" + (f" ({fault.hint})" if fault.hint else "") for fault in faults)
        super().__init__(f"{len(faults)} mistakes in {source}:{lines}", rule=faults[0].rule, hint=faults[0].hint)
        self.faults = faults


def parse_manifests(
    text: str,
    source: str,
    other: Callable[[Node], Sequence[Mistake] | None] = lambda _: None,
    further: Callable[[Manifest], Sequence[Invalid]] = lambda _: (),
) -> list[Manifest]:
    """Parses every document of ``text``; ``source`` is its name for people. Raises Invalid, or Mistakes when several.

    ``other`` is given each document first. It returns the mistakes of a document of its own kinds, or ``None`` to leave
    the document to this function. ``further`` returns more mistakes of a manifest that is parsed.
    """
    manifests = []
    faults: list[Invalid] = []
    for node in yaml_tree.parse(text, source):
        taken = other(node)
        if taken is not None:
            faults += [fault_of(mistake, source) for mistake in sorted(taken, key=lambda each: each.line)]
            continue
        binding = Binding(more_kinds=MORE_KINDS, more_fields=MORE_FIELDS)
        manifest = _manifest(node, source, binding)
        faults += [fault_of(mistake, source) for mistake in sorted(binding.mistakes, key=lambda each: each.line)]
        if manifest is not None:
            manifests.append(manifest)
            faults += further(manifest)
    if faults:
        raise faults[0] if len(faults) == 1 else Mistakes(source, tuple(faults))
    return manifests


def render_manifest(value: Content | Block) -> str:
    """Renders YAML that ``parse_manifests`` reads as an equal value. Raises Invalid for content of a newer schema."""
    version = 1
    if isinstance(value, Block):
        if value.unknown_fields:
            raise Invalid(f"{_NEWER}: {', '.join(value.unknown_fields)}", rule="unknown-field", hint=_NEWER_HINT)
        version, value = value.version, content_of(value)
    elif isinstance(value, MetadataBlock):
        version = CURRENT_VERSION
    kind = type(value).__name__ if isinstance(value, DatasetSnapshot | MetadataBlock) else "MetadataEvent"
    return render_yaml({"kind": kind, "version": version, "content": to_builtins(value)})


def to_builtins(value: msgspec.Struct) -> dict[str, Any]:
    """Converts a value of the model to ODF's JSON: camelCase, hashes and identities as text, times in RFC 3339."""
    if isinstance(value, UnknownEvent):
        return {"kind": "UnknownEvent", "variant": value.variant}
    return plain_of(value)


def block_to_builtins(block: Block) -> dict[str, Any]:
    """Returns the content of a block's manifest; of an unknown event it has only the variant's number."""
    if isinstance(block.event, UnknownEvent):
        return {"sequenceNumber": block.sequence_number, "event": to_builtins(block.event)}
    return to_builtins(content_of(block))


def from_builtins(cls: type[T], plain: object) -> T:
    """Makes a value of ``cls`` from decoded JSON: reverses ``to_builtins``. Raises Invalid, or Mistakes if several."""
    binding = Binding()
    shape = Table(cls) if cls.__struct_config__.tag is None else Union((cls,))
    value = binding.bind(shape, node_of(plain))
    faults = tuple(fault_of(mistake, cls.__name__) for mistake in binding.mistakes)
    if faults:
        raise faults[0] if len(faults) == 1 else Mistakes(cls.__name__, faults)
    made: T = value
    return made


def _manifest(node: Node, source: str, binding: Binding) -> Manifest | None:
    """Reads one document; returns ``None`` when mistakes were recorded."""
    parts = node.value
    if not isinstance(parts, dict) or not all(name in parts for name in _ENVELOPE):
        binding.mistakes.append(
            Mistake("", node.line, "not a manifest", "manifest", "at its top are $schema, or kind, version and content")
        )
        return None
    kind, version = parts["kind"].value, parts["version"].value
    if not isinstance(kind, str) or kind not in _KINDS:
        known = f"known are {', '.join(_KINDS)}"
        message = f"unknown kind {kind!r}" if isinstance(kind, str) else f"expected text, found {found(kind)}"
        binding.mistakes.append(Mistake("kind", parts["kind"].line, message, "manifest-kind", known))
        return None
    shape, versions = _KINDS[kind]
    if type(version) is not int or version not in versions:
        known = f"version {' or '.join(str(version) for version in versions)} of {kind} is read"
        said = "a list" if isinstance(version, list) else "fields" if isinstance(version, dict) else repr(version)
        binding.mistakes.append(
            Mistake("version", parts["version"].line, f"unknown version {said}", "manifest-version", known)
        )
    beside = _BESIDE if kind == "MetadataBlock" else ()
    for key, child in parts.items():
        if key == _UNSHOWN and beside:
            binding.mistakes.append(Mistake(key, child.line, _NEWER, "unknown-field", _NEWER_HINT))
        elif key not in _ENVELOPE and key not in beside:
            binding.mistakes.append(Mistake(key, child.line, f"unknown field {key!r} of a manifest", "unknown-field"))
    written = parts["content"]
    if not beside:
        written = carrying_read_options(written, binding.mistakes)
    content = binding.bind(shape, written)
    if binding.mistakes or type(version) is not int:
        return None
    return Manifest(kind=kind, version=version, content=content, source=source, lines=binding.lines)


def fault_of(mistake: Mistake, source: str) -> Invalid:
    """Returns a mistake as a fault at ``source:line``."""
    message = f"{mistake.path}: {mistake.message}" if mistake.path else mistake.message
    place = f"{source}:{mistake.line}" if mistake.line else source
    return Invalid(message, rule=mistake.rule, hint=mistake.hint, place=place)
