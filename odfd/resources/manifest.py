"""Reads resources from manifests: ``$schema``, ``headers``, ``spec``. Every mistake has its line. Pure.

Rules for a ``spec`` beyond its fields and their types are checked by the package of its type. ``status``, and headers
that only the node writes, are permitted and ignored with a warning, so that printed resources can be applied.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, TypeVar

import msgspec

from chain.codec.bind import Binding, Mistake, found, plain_of
from chain.codec.layout import Table
from chain.codec.short_forms import MORE_FIELDS, MORE_KINDS
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.ids import parse_own_name
from chain.model.wire import Extra
from odfd.resources.label_schemas import by_short_name, twice, wrong_values
from odfd.resources.references import in_short_form
from odfd.resources.registry import OURS
from odfd.resources.resource import UUID
from odfd.resources.selectors import parse_target
from odfd.resources.types import RFC_018, RFC_019, SUFFIX, UNSUPPORTED, Remarks, ResourceType, TypeRegistry, beyond

SCHEMA: Final = "$schema"
PARTS: Final = (SCHEMA, "headers", "spec", "status")
GIVEN: Final = ("generation", "createdAt", "updatedAt", "deletedAt", "ownerReferences", "did")
"""Headers that only the node writes."""
_UNKNOWN: Final = frozenset({"unknown-field", "unknown-kind", "enum-member"})
"""The rules of words that a manifest has and its type has not."""
MAX_NAME: Final = 100
MAX_LABELS: Final = 64
MAX_LABEL_BYTES: Final = 1024
MAX_ANNOTATION_BYTES: Final = 256 * 1024
_KEY: Final = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,62}|https?://[^\s#]{1,500})\Z", re.ASCII)
T = TypeVar("T")


def describe(text: str) -> msgspec.Meta:
    """Describes a field, for schemas and ``odfctl explain``."""
    return msgspec.Meta(description=text)


_ACCOUNT_FORMS: Final = msgspec.Meta(
    extra_json_schema={
        "type": ["string", "object"],
        "properties": {key: {"type": "string"} for key in ("type", "id", "did", "name")},
        "additionalProperties": False,
    }
)


class ResourceHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a resource, with its labels and annotations."""

    name: Annotated[str, describe("Unique among resources of its type, ignoring case. It can be changed.")]
    id: (
        Annotated[str, describe("Id of an existing resource; together with another name it renames the resource.")]
        | None
    ) = None
    account: (
        Annotated[
            str,
            describe("Name, id or did of the Account that owns it. Default: the account that applies it."),
            _ACCOUNT_FORMS,
        ]
        | None
    ) = None
    labels: Annotated[Extra, describe("Values to select resources by: at most 64, of 1 KiB each.")] | None = None
    annotations: (
        Annotated[Extra, describe("Further values. Each type understands those that its reference lists.")] | None
    ) = None


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """One resource as written, with its parts bound to their classes."""

    type: ResourceType
    headers: ResourceHeaders
    spec: Any
    """The spec, an instance of ``type.spec``."""
    typed: Mapping[str, Any]
    """The annotations that the type understands, bound to their types, by their short keys."""
    binding: Binding
    """Has the line of each part, and takes further mistakes."""
    source: str
    base: str = ""
    """The folder in which relative paths begin."""
    warnings: tuple[str, ...] = ()
    is_partial: bool = False
    """Whether what it does not state stays as it is: other headers than the name, and other fields of the spec."""

    @property
    def lines(self) -> Mapping[str, int]:
        return self.binding.lines

    def line(self, path: str = "") -> int:
        """Returns the line of a part, or of its nearest parent in the text."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, 1)

    def place(self, path: str = "") -> str:
        """Returns ``file:line`` of a part, or of the whole resource."""
        return f"{self.source}:{self.line(path)}"

    def note(self, path: str, message: str, rule: str, hint: str = "") -> None:
        """Adds a mistake at a part."""
        self.binding.mistakes.append(Mistake(path, self.line(path), message, rule, hint))

    def refuse(self, path: str, text: str, clause: str, instead: str) -> None:
        """Adds the mistake of what RFC-018 has and this node has not. ``instead``: the words to use."""
        self.note(path, beyond(text, clause), UNSUPPORTED, instead)

    def attempt(self, path: str, read: Callable[[str], T], text: str | None) -> T | None:
        """Returns ``read`` of a text; if that raises Invalid, adds a mistake at ``path`` and returns ``None``."""
        try:
            return None if text is None else read(text)
        except Invalid as fault:
            self.note(path, fault.message, fault.rule, fault.hint)
            return None

    def check_targets(self, path: str, targets: Sequence[str]) -> None:
        """Adds the mistakes in a field of ``Targets``."""
        for at, each in enumerate(targets):
            self.attempt(f"{path}[{at}]", parse_target, each)


def is_resource(node: Node) -> bool:
    """Whether a document is a resource, which has its type under ``$schema``."""
    return isinstance(node.value, dict) and SCHEMA in node.value


def read_resource(node: Node, source: str, registry: TypeRegistry) -> tuple[Draft | None, list[Mistake]]:
    """Reads a document that ``is_resource`` accepts. Returns no draft if there are mistakes."""
    binding = Binding(more_kinds=MORE_KINDS, more_fields=MORE_FIELDS)
    binding.lines[""] = node.line
    parts = dict(node.value) if isinstance(node.value, dict) else {}
    kind = _type(parts.pop(SCHEMA), registry, binding)
    for key, child in parts.items():
        if key not in PARTS:
            binding.mistakes.append(Mistake(key, child.line, f"unknown field {key!r}", "unknown-field", _near(key)))
    for key in ("headers", "spec"):
        if key not in parts:
            binding.mistakes.append(Mistake("", node.line, f"{key} is missing", "required-field"))
    warnings = ["status is passed over: the node writes it"] if "status" in parts else []
    if kind is not None and kind.converts is not None:
        parts = kind.converts(parts, Remarks(binding.mistakes, warnings))
    if kind is not None and "headers" in parts:
        parts["headers"] = _in_short_form(kind, parts["headers"], Remarks(binding.mistakes, warnings))
    headers = _headers(parts.get("headers"), binding, warnings)
    spec = None
    if kind is not None and kind.spec is not None and "spec" in parts:
        remarks, written = Remarks(binding.mistakes, warnings), parts["spec"]
        if kind.prepare is not None:
            written = kind.prepare(written, remarks)
        spec = binding.bind(kind.layout, in_short_form(kind.layout, written, "spec", remarks), "spec")
    typed = {} if kind is None else _bind_types(kind, parts.get("headers"), binding)
    if isinstance(headers, ResourceHeaders) and headers.labels is not None:
        if (name := twice(headers.labels)) is not None:
            text = f"{name} is given twice, by its short name and by its URI"
            line = binding.lines[f"headers.labels.{name}"]
            binding.mistakes.append(Mistake(f"headers.labels.{name}", line, text, "label-twice", "remove one of them"))
        headers = msgspec.structs.replace(headers, labels=by_short_name(headers.labels))
    if kind is not None:
        binding.mistakes[:] = [_with_clause(kind, each) for each in binding.mistakes]
    if binding.mistakes or kind is None or spec is None or not isinstance(headers, ResourceHeaders):
        return None, binding.mistakes
    named = str(node.value[SCHEMA].value).removesuffix(SUFFIX) if isinstance(node.value, dict) else ""
    if named == kind.uri != kind.own_uri and kind.schema_of(plain_of(spec)) == kind.own_uri:
        warnings.append(f"it is not valid by {kind.uri}, which has fewer fields: $schema: {kind.own_uri} has all")
    draft = Draft(
        type=kind, headers=headers, spec=spec, typed=typed, binding=binding, source=source, warnings=tuple(warnings)
    )
    check_headers(draft)
    return (None if binding.mistakes else draft), binding.mistakes


def _with_clause(kind: ResourceType, mistake: Mistake) -> Mistake:
    """Returns a mistake about a word that the format does not know with the clause that has the known ones."""
    part = mistake.path.partition(".")[0]
    is_ours = kind.names.base == OURS or mistake.path.startswith("headers.annotations")
    if mistake.rule not in _UNKNOWN or is_ours or "RFC-" in mistake.hint:
        return mistake
    of_spec, of_headers = f"{kind.context}/{kind.name}", "resource/ResourceHeaders"
    clause = {"spec": of_spec, "headers": of_headers}.get(part, "resource/Resource")
    rfc = RFC_019 if clause.startswith("flow/") else RFC_018
    return dataclasses.replace(mistake, message=f"{mistake.message} ({rfc}, {clause})")


def _type(node: Node, registry: TypeRegistry, binding: Binding) -> ResourceType | None:
    try:
        if not isinstance(node.value, str):
            raise Invalid(f"expected text, found {found(node.value)}", rule="manifest-type")
        return registry.find_schema(node.value)
    except Invalid as fault:
        binding.mistakes.append(Mistake(SCHEMA, node.line, fault.message, fault.rule, fault.hint))
        return None


def _in_short_form(kind: ResourceType, headers: Node, remarks: Remarks) -> Node:
    """Returns headers in which the annotations that the type understands have no objects for what is a text."""
    written = headers.value.get("annotations") if isinstance(headers.value, dict) else None
    if not isinstance(headers.value, dict) or written is None or not isinstance(written.value, dict):
        return headers
    made = dict(written.value)
    for key in kind.annotations:
        for name in {key, *kind.annotation_uris(key)} & made.keys():
            made[name] = in_short_form(kind.annotation_layout(key), made[name], f"headers.annotations.{key}", remarks)
    return Node(headers.line, {**headers.value, "annotations": Node(written.line, made)})


def _headers(node: Node | None, binding: Binding, warnings: list[str]) -> Any:
    """Binds the headers, without those that only the node writes."""
    if node is None:
        return None
    if isinstance(node.value, dict):
        given = [key for key in GIVEN if key in node.value]
        warnings += [f"headers.{key} is passed over: the node writes it" for key in given]
        kept = {key: child for key, child in node.value.items() if key not in given}
        node = Node(node.line, kept | _account(kept.get("account"), binding))
        _note_lines(node, "headers", binding)
    return binding.bind(Table(ResourceHeaders), node, "headers")


def _account(node: Node | None, binding: Binding) -> dict[str, Node]:
    """Returns an account that is written as an object, ``{id, did, name}``, in its short form: the first of them."""
    if node is None or not isinstance(node.value, dict):
        return {}
    texts = [child.value for key in ("id", "did", "name") if (child := node.value.get(key)) is not None]
    if (
        node.value.keys() - {"type", "id", "did", "name"}
        or not texts
        or not all(isinstance(text, str) for text in texts)
    ):
        text = beyond("an account is {id, did, name}, or one of them alone", "Multi-tenancy")
        binding.mistakes.append(Mistake("headers.account", node.line, text, "account", "account: NAME"))
        return {"account": Node(node.line, "none")}
    return {"account": Node(node.line, texts[0])}


def _note_lines(headers: Node, path: str, binding: Binding) -> None:
    """Notes the lines of labels and annotations, since their values are bound as plain JSON without lines."""
    assert isinstance(headers.value, dict)
    for part in ("labels", "annotations"):
        entries = headers.value.get(part)
        if entries is not None and isinstance(entries.value, dict):
            binding.lines |= {f"{path}.{part}.{key}": child.line for key, child in entries.value.items()}


def _bind_types(kind: ResourceType, headers: Node | None, binding: Binding) -> dict[str, Any]:
    """Binds the annotations that the type understands to their types."""
    written = headers.value.get("annotations") if headers is not None and isinstance(headers.value, dict) else None
    if written is None or not isinstance(written.value, dict):
        return {}
    values: dict[str, Any] = {}
    for key in kind.annotations:
        found = [node for name in (key, *kind.annotation_uris(key)) if (node := written.value.get(name)) is not None]
        path = f"headers.annotations.{key}"
        if len(found) > 1:
            text = f"{key} is given twice, by its short name and by its URI"
            binding.mistakes.append(Mistake(path, found[-1].line, text, "annotation-twice", "remove one of them"))
        elif found and found[0].value is not None:
            values[key] = binding.bind(kind.annotation_layout(key), found[0], path)
    return values


def check_headers(draft: Draft) -> None:
    """Adds a mistake for each header with a forbidden value."""
    draft.attempt("headers.name", partial(check_name, draft.type.name), draft.headers.name)
    if draft.headers.id is not None and not UUID.match(draft.headers.id):
        draft.note("headers.id", "not an id of a resource", "resource-id", "leave it out: the node gives one")
    parts = draft.headers.labels or {}, draft.headers.annotations or {}
    for path, message, rule, hint in wrong_entries(draft.type.name, *parts):
        draft.note(f"headers.{path}", message, rule, hint)


def check_name(type_: str, name: str) -> None:
    """Raises Invalid for what is no name of a resource of the type."""
    # A reference takes such a text for an id (``reference_key``), and would never find the name.
    if UUID.match(name):
        hint = "write a name that is no id"
        raise Invalid("a name that looks like an id", rule="resource-name", hint=hint)
    parse_own_name(name, type_[0].lower() + type_[1:])
    if len(name) > MAX_NAME:
        raise Invalid(f"a name of {len(name)} characters", rule="resource-name", hint=f"at most {MAX_NAME}")


def wrong_entries(
    type_: str, labels: Mapping[str, Any], annotations: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    """Yields path, message, rule and hint of invalid labels and annotations of a resource of the type."""
    yield from wrong_values(type_, labels, annotations)
    for part, entries in (("labels", labels), ("annotations", annotations)):
        for key in entries:
            if not _KEY.match(key):
                text = beyond(f"{key[:60]!r} is no key", "Labels & Annotations")
                yield f"{part}.{key}", text, "label-key", "a short name, or a URI"
    if len(labels) > MAX_LABELS:
        yield "labels", f"{len(labels)} labels", "label-limit", f"at most {MAX_LABELS}; use annotations"
    for key, value in labels.items():
        if len(json.dumps(value).encode()) > MAX_LABEL_BYTES:
            yield f"labels.{key}", "too large for a label", "label-limit", "annotations may be larger"
    if len(json.dumps(annotations).encode()) > MAX_ANNOTATION_BYTES:
        yield "annotations", "larger than 256 KiB in all", "annotation-limit", "keep it elsewhere"


def _near(key: str) -> str:
    near = difflib.get_close_matches(key[:40], PARTS[1:], n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(PARTS)}"


VARIABLE: Final = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
"""The pattern of ``${{ NAME }}`` in texts of resources; each kind defines the names."""
SIZE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(B|[kKMGTP]i?B)\Z")
_POWERS: Final = "kMGTP"


def parse_size(text: str) -> int:
    """Returns the bytes that a text such as ``10GiB``, ``1.5GB`` or ``500B`` states. Raises Invalid."""
    found = SIZE.match(text)
    if found is None:
        raise Invalid(f"{text[:60]!r} is not a size", rule="size", hint="write it like 500MB or 10GiB")
    unit = found[2]
    power = 0 if unit == "B" else _POWERS.index(unit[0].replace("K", "k")) + 1
    return int(float(found[1]) * (1024 if "i" in unit else 1000) ** power)
