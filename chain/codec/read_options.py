"""Options of a read step that the format has no field for, as people write them, put where the format carries them.

Tree to tree, before a manifest is bound, as ``onError`` is: beside the fields of the step in the text, an attribute of
its columns in the chain. Kinds of file that the format does not know become the step that stands for them.
"""

from __future__ import annotations

from chain.codec.bind import Mistake, plain
from chain.codec.on_error import with_attribute
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.model.read_options import KINDS, NAMES, READ, RULE, check_kind, declared_options


def carrying_read_options(content: Node, mistakes: list[Mistake]) -> Node:
    """The content of a snapshot or of an event in which all options are attributes. Adds to ``mistakes``."""
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
    kind = read.value.get("kind")
    named = kind.value if kind is not None and isinstance(kind.value, str) else ""
    said = {key: child for key, child in read.value.items() if key in NAMES}
    if not said and named not in KINDS:
        return event
    others = {key: child for key, child in read.value.items() if key not in NAMES}
    if kind is not None and named in KINDS:
        said["format"] = kind
        others["kind"] = Node(kind.line, KINDS[named])
    _judge(said, others, f"{path}read", mistakes)
    others["schema"] = with_attribute(others.get("schema"), READ, Node(read.line, said))
    return Node(event.line, {**event.value, "read": Node(read.line, others)})


def _judge(said: dict[str, Node], others: dict[str, Node], path: str, mistakes: list[Mistake]) -> None:
    first = next(iter(said))
    try:
        options = declared_options({key: plain(child) for key, child in said.items()})
        kind = others.get("kind")
        if kind is not None and isinstance(kind.value, str):
            check_kind(options, kind.value)
    except Invalid as fault:
        mistakes.append(Mistake(f"{path}.{first}", said[first].line, fault.message, fault.rule, fault.hint))
    schema = others.get("schema")
    extra = schema.value.get("extra") if schema is not None and isinstance(schema.value, dict) else None
    if extra is not None and isinstance(extra.value, dict) and READ in extra.value:
        what = f"options and the attribute {READ} of the schema are both given"
        mistakes.append(Mistake(f"{path}.{first}", said[first].line, what, RULE, "keep one of them"))
