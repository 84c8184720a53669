"""Moves what people write in a read step, and the format has no field for, into attributes of the step's columns.

These are ``onError`` and the options of a read step. Tree to tree, before a manifest is bound. A step whose columns are
not written out (``ddlSchema``, or none) gets a schema without fields that holds the attributes alone; who makes events
of manifests gives it the fields. Kinds of file that the format does not know become the step that stands for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from chain.codec.bind import Mistake, plain
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.model.on_error import FAIL, ON_ERROR, declared_quarantine
from chain.model.read_options import KINDS, NAMES, READ, RULE, check_kind, declared_options

_ON_ERROR = "onError"


def carrying_read_options(content: Node, mistakes: list[Mistake]) -> Node:
    """The content of a snapshot or of an event in which no read step has the short form. Adds to ``mistakes``."""
    fields = content.value
    if not isinstance(fields, dict):
        return content
    events = fields.get("metadata")
    if events is None or not isinstance(events.value, list):
        return _event(content, "", mistakes)
    made = [_event(each, f"metadata[{number}].", mistakes) for number, each in enumerate(events.value)]
    return Node(content.line, {**fields, "metadata": Node(events.line, made)})


def _event(event: Node, path: str, mistakes: list[Mistake]) -> Node:
    read = event.value.get("read") if isinstance(event.value, dict) else None
    if not isinstance(event.value, dict) or read is None or not isinstance(read.value, dict):
        return event
    fields = _without_options(_without_on_error(read.value, path, mistakes), read.line, path, mistakes)
    return Node(event.line, {**event.value, "read": Node(read.line, fields)})


def _without_on_error(fields: dict[str, Node], path: str, mistakes: list[Mistake]) -> dict[str, Node]:
    if _ON_ERROR not in fields:
        return fields
    given = fields[_ON_ERROR]
    place = f"{path}read.{_ON_ERROR}"
    try:
        declared_quarantine(plain(given))
    except Invalid as fault:
        mistakes.append(Mistake(place, given.line, fault.message, fault.rule, fault.hint))
    if _has_attribute(fields, ON_ERROR):
        twice = f"onError and the attribute {ON_ERROR} of the schema are both given"
        mistakes.append(Mistake(place, given.line, twice, "on-error", "keep one of them"))
    others = {key: child for key, child in fields.items() if key != _ON_ERROR}
    if plain(given) != FAIL:
        others["schema"] = _with_attribute(others.get("schema"), ON_ERROR, given)
    return others


def _without_options(fields: dict[str, Node], line: int, path: str, mistakes: list[Mistake]) -> dict[str, Node]:
    kind = fields.get("kind")
    named = kind.value if kind is not None and isinstance(kind.value, str) else ""
    given = {key: child for key, child in fields.items() if key in NAMES}
    if not given and named not in KINDS:
        return fields
    others = {key: child for key, child in fields.items() if key not in NAMES}
    if kind is not None and named in KINDS:
        given["format"] = kind
        others["kind"] = Node(kind.line, KINDS[named])
    first = next(iter(given))
    place = f"{path}read.{first}"
    try:
        options = declared_options({key: plain(child) for key, child in given.items()})
        kind = others.get("kind")
        if kind is not None and isinstance(kind.value, str):
            check_kind(options, kind.value)
    except Invalid as fault:
        mistakes.append(Mistake(place, given[first].line, fault.message, fault.rule, fault.hint))
    if _has_attribute(others, READ):
        twice = f"options and the attribute {READ} of the schema are both given"
        mistakes.append(Mistake(place, given[first].line, twice, RULE, "keep one of them"))
    others["schema"] = _with_attribute(others.get("schema"), READ, Node(line, given))
    return others


def _has_attribute(fields: Mapping[str, Node], name: str) -> bool:
    schema = fields.get("schema")
    extra = schema.value.get("extra") if schema is not None and isinstance(schema.value, dict) else None
    return extra is not None and isinstance(extra.value, dict) and name in extra.value


def _with_attribute(schema: Node | None, name: str, given: Node) -> Node:
    """A schema with the attribute. One that is no schema stays: binding it reports what is wrong."""
    if schema is None or schema.value is None:
        schema = Node(given.line, {"fields": Node(given.line, [])})
    if not isinstance(schema.value, dict):
        return schema
    extra = schema.value.get("extra")
    others = extra.value if extra is not None and isinstance(extra.value, dict) else {}
    return Node(schema.line, {**schema.value, "extra": Node(given.line, {**others, name: given})})
