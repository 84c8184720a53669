"""``onError`` of a read step, as people write it, put where the format carries it: into the columns of the step.

Tree to tree, before a manifest is bound. A step whose columns are not written out (``ddlSchema``, or none) gets a
schema without fields that holds the attribute alone; who makes events of manifests gives it the fields.
"""

from __future__ import annotations

from collections.abc import Iterator

from chain.codec.bind import Mistake, plain
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.model.on_error import FAIL, ON_ERROR, declared_quarantine

_KEY = "onError"


def carrying_on_error(content: Node, mistakes: list[Mistake]) -> Node:
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
    if not isinstance(event.value, dict) or read is None or not isinstance(read.value, dict) or _KEY not in read.value:
        return event
    said = read.value[_KEY]
    for message, rule, hint in _wrong(said, read.value.get("schema")):
        mistakes.append(Mistake(f"{path}read.{_KEY}", said.line, message, rule, hint))
    others = {key: child for key, child in read.value.items() if key != _KEY}
    if plain(said) != FAIL:
        others["schema"] = with_attribute(others.get("schema"), ON_ERROR, said)
    return Node(event.line, {**event.value, "read": Node(read.line, others)})


def _wrong(said: Node, schema: Node | None) -> Iterator[tuple[str, str, str]]:
    try:
        declared_quarantine(plain(said))
    except Invalid as fault:
        yield fault.message, fault.rule, fault.hint
    extra = schema.value.get("extra") if schema is not None and isinstance(schema.value, dict) else None
    if extra is not None and isinstance(extra.value, dict) and ON_ERROR in extra.value:
        yield f"onError and the attribute {ON_ERROR} of the schema are both given", "on-error", "keep one of them"


def with_attribute(schema: Node | None, name: str, said: Node) -> Node:
    """A schema with the attribute. One that is no schema stays: binding it tells what is wrong."""
    if schema is None or schema.value is None:
        schema = Node(said.line, {"fields": Node(said.line, [])})
    if not isinstance(schema.value, dict):
        return schema
    extra = schema.value.get("extra")
    others = extra.value if extra is not None and isinstance(extra.value, dict) else {}
    return Node(schema.line, {**schema.value, "extra": Node(said.line, {**others, name: said})})
