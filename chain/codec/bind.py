"""Converts trees of plain values to values of the model and back; reports every mistake with its place.

Serves manifests (YAML, with lines) and JSON alike. Spellings are those that the reference accepts: names of kinds and
enum members in any case, ``type: String`` short for ``type: {kind: String}``. Names of fields are exact. Layouts come
from the classes; nothing here is about any one class. Spec: Manifests; RFC-013.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import enum
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from chain import instant
from chain.codec import layout
from chain.codec.layout import Choice, Flag, JsonObject, Kind, Moment, Number, Octets, Table, Text, Union, Vector
from chain.codec.yaml_tree import MAX_DEPTH, Node
from chain.errors import Invalid

TAG: Final = "kind"
_WRONG: Final = object()
"""Stands for a value that could not be made; the mistake was already recorded."""


@dataclass(frozen=True, slots=True)
class Mistake:
    path: str
    """Path of the wrong part within the tree, such as ``metadata[2].read.separator``."""
    line: int
    message: str
    rule: str
    hint: str = ""


@dataclass(slots=True)
class Binding:
    """Converts one document, and collects its mistakes and the line of each of its parts. Lives for one document."""

    mistakes: list[Mistake] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    more_kinds: Mapping[type[msgspec.Struct], Iterable[str]] = field(default_factory=dict)
    """Further kinds that manifests accept in a variant's union, for messages; they were replaced before binding."""
    more_fields: Mapping[type[msgspec.Struct], Iterable[str]] = field(default_factory=dict)
    """Further fields that manifests accept in a table, to list in messages; they were replaced before binding."""

    def bind(self, kind: Kind, node: Node, path: str = "") -> Any:
        """Returns a value of ``kind``. If mistakes were added the value means nothing: check ``mistakes`` first."""
        self.lines.setdefault(path, node.line)
        match kind:
            case Table(of):
                return self._table(of, node, path)
            case Union(variants):
                return self._union(variants, node, path)
            case Vector(item):
                return self._vector(item, node, path)
            case JsonObject():
                return self._json_object(node, path)
            case Number() | Flag() | Text() | Choice() | Octets() | Moment():
                try:
                    return _scalar(kind, node.value)
                except Invalid as fault:
                    return self._wrong(node, path, fault.message, fault.rule, fault.hint)

    def _wrong(self, node: Node, path: str, message: str, rule: str, hint: str = "") -> Any:
        self.mistakes.append(Mistake(path, node.line, message, rule, hint))
        return _WRONG

    def _table(self, cls: type[msgspec.Struct], node: Node, path: str, tagged: bool = False) -> Any:
        if not isinstance(node.value, dict):
            return self._wrong(node, path, f"expected fields, found {found(node.value)}", "manifest-type")
        fields = {each.key: each for each in layout.fields_of(cls)}
        values: dict[str, Any] = {}
        for key, child in node.value.items():
            place = f"{path}.{key}" if path else key
            if each := fields.get(key):
                if other := _with_suggestion(each, child, fields):
                    hint = f"a list of texts goes under {other!r}"
                    self._wrong(child, place, f"expected fields, found {found(child.value)}", "manifest-type", hint)
                elif child.value is not None:
                    values[each.name] = self.bind(each.kind, child, place)
                elif each.required:
                    self._wrong(child, place, "is empty, and must be given", "required-field")
            elif not (tagged and key == TAG):
                known = [*fields, *self.more_fields.get(cls, ())]
                self._wrong(child, place, f"unknown field {key!r}", "unknown-field", known_names(key, known))
        for key, each in fields.items():
            if each.required and key not in node.value:
                self._wrong(node, path, f"{key} is missing", "required-field")
        if any(value is _WRONG for value in values.values()) or any(
            each.required and each.name not in values for each in fields.values()
        ):
            return _WRONG
        return cls(**values)

    def _union(self, variants: tuple[type[msgspec.Struct], ...], node: Node, path: str) -> Any:
        if isinstance(node.value, str):
            name, fields = node.value, Node(node.line, {})
        elif isinstance(node.value, dict) and TAG in node.value and isinstance(node.value[TAG].value, str):
            name, fields = str(node.value[TAG].value), node
        else:
            what = "fields without it" if isinstance(node.value, dict) else found(node.value)
            hint = f"kinds are {', '.join(self._kinds(variants))}"
            return self._wrong(node, path, f"expected fields with a {TAG!r}, found {what}", "manifest-type", hint)
        variant = _by_name(variants).get(name.casefold())
        if variant is None:
            hint = known_names(name, self._kinds(variants))
            return self._wrong(node, path, f"unknown kind {name!r}", "unknown-kind", hint)
        return self._table(variant, fields, path, tagged=True)

    def _kinds(self, variants: tuple[type[msgspec.Struct], ...]) -> list[str]:
        """Lists the names of kinds that a manifest may use here: those of the variants and the further ones."""
        beside = [kind for variant in variants for kind in self.more_kinds.get(variant, ())]
        return [*(str(variant.__struct_config__.tag) for variant in variants), *beside]

    def _vector(self, item: Kind, node: Node, path: str) -> Any:
        if not isinstance(node.value, list):
            return self._wrong(node, path, f"expected a list, found {found(node.value)}", "manifest-type")
        values = [self.bind(item, child, f"{path}[{index}]") for index, child in enumerate(node.value)]
        return _WRONG if any(value is _WRONG for value in values) else tuple(values)

    def _json_object(self, node: Node, path: str) -> Any:
        if not isinstance(node.value, dict):
            return self._wrong(node, path, f"expected fields, found {found(node.value)}", "manifest-type")
        return plain(node)


def _with_suggestion(field: layout.Field, node: Node, fields: Mapping[str, layout.Field]) -> str:
    """Returns the field that a list of texts was probably meant for, judged by its name (``schema``, ``ddlSchema``)."""
    texts = isinstance(node.value, list) and node.value and all(isinstance(each.value, str) for each in node.value)
    if not texts or not isinstance(field.kind, Table):
        return ""
    lists = (key for key, each in fields.items() if isinstance(each.kind, Vector) and isinstance(each.kind.item, Text))
    return next((key for key in lists if field.key.casefold() in key.casefold()), "")


def _scalar(kind: Kind, value: object) -> Any:
    """Converts a plain value to a scalar of ``kind``. Raises Invalid."""
    if isinstance(kind, Number):
        if isinstance(value, int) and not isinstance(value, bool):
            if kind.low <= value <= kind.high:
                return value
            raise Invalid(f"{value} is out of range", rule="number-range", hint=f"{kind.low} to {kind.high}")
        raise _mismatch("a whole number", value)
    if isinstance(kind, Flag):
        if isinstance(value, bool):
            return value
        raise _mismatch("true or false", value)
    if not isinstance(value, str):
        raise _mismatch("text", value, hint="put it in quotes" if isinstance(value, int | float) else "")
    match kind:
        case Choice(options):
            return _member(options, value)
        case Octets(of):
            return _octets(of, value)
        case Moment():
            return instant.parse(value)
        case _:
            return value


def _member(options: type[enum.Enum], text: str) -> enum.Enum:
    for option in options:
        if option.value.casefold() == text.casefold():
            return option
    names = {option.value: option.value for option in options}
    raise Invalid(f"unknown {options.__name__} {text!r}", rule="enum-member", hint=known_names(text, names))


def _octets(of: type[bytes], text: str) -> bytes:
    if of is not bytes:
        parse: Callable[[str], bytes] = getattr(of, "parse")  # noqa: B009
        return parse(text)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid("not base64", rule="base64") from error


def _mismatch(expected: str, value: object, hint: str = "") -> Invalid:
    return Invalid(f"expected {expected}, found {found(value)}", rule="manifest-type", hint=hint)


def found(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {value[:40]!r}"
        case list():
            return "a list"
        case _:
            return "fields"


def known_names(word: str, names: Collection[str]) -> str:
    """Words a hint for an unknown ``word``: the nearest of ``names``, or all of them."""
    near = difflib.get_close_matches(word[:80], names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names) or 'none'}"


@functools.cache
def _by_name(variants: tuple[type[msgspec.Struct], ...]) -> dict[str, type[msgspec.Struct]]:
    return {str(variant.__struct_config__.tag).casefold(): variant for variant in variants}


def plain(node: Node) -> Any:
    match node.value:
        case list() as items:
            return [plain(item) for item in items]
        case dict() as members:
            return {key: plain(member) for key, member in members.items()}
        case value:
            return value


def node_of(value: object, depth: int = 0) -> Node:
    """Converts dicts, lists and scalars, such as decoded JSON, to a tree of nodes. Raises Invalid for other values."""
    if depth > MAX_DEPTH:
        raise Invalid(f"nested deeper than {MAX_DEPTH}", rule="manifest-depth")
    match value:
        case None | bool() | int() | str():
            return Node(0, value)
        case float() if math.isfinite(value):
            return Node(0, value)
        case list() | tuple():
            return Node(0, [node_of(item, depth + 1) for item in value])
        case dict():
            return Node(0, {str(key): node_of(item, depth + 1) for key, item in value.items()})
        case _:
            raise Invalid(f"not a plain value: {type(value).__name__}", rule="manifest-type")


def plain_of(value: msgspec.Struct) -> dict[str, Any]:
    """Converts a value of the model to dicts, lists and scalars in ODF's camelCase, without what is ``None``."""
    cls = type(value)
    tag = cls.__struct_config__.tag
    plain: dict[str, Any] = {} if tag is None else {TAG: tag}
    for each in layout.fields_of(cls):
        content = getattr(value, each.name)
        if content is not None:
            plain[each.key] = _plain_value(each.kind, content)
    return plain


def _plain_value(kind: Kind, value: Any) -> Any:
    match kind:
        case Table() | Union():
            return plain_of(value)
        case Vector(item):
            return [_plain_value(item, each) for each in value]
        case Choice():
            return value.value
        case Moment():
            return instant.render(value)
        case Octets(of):
            return base64.b64encode(value).decode() if of is bytes else str(value)
        case _:
            return value
