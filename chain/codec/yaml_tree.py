"""Parses YAML to a tree of plain values with their lines; ``yes``, ``no`` and dates are text, tags have no effect.

Scalars follow the core schema of YAML 1.2: ``null``, ``true``, integers, floats, and text for all else. Size, depth and
number of nodes are bounded; aliases share a node but each use is counted. Trees are built and thrown away per parse.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import yaml

from chain.errors import Invalid
from chain.yaml_text import FLOAT, INTEGER

MAX_TEXT: Final = 4 << 20
"""Most characters of one file of manifests."""
MAX_DEPTH: Final = 100
MAX_NODES: Final = 200_000
"""Most nodes of one file; those reached through aliases are counted each time."""
_CORE: Final = "tag:yaml.org,2002:"
_TAGS: Final = {
    yaml.ScalarEvent: (None, "!", _CORE + "str"),
    yaml.SequenceStartEvent: (None, "!", _CORE + "seq"),
    yaml.MappingStartEvent: (None, "!", _CORE + "map"),
}
"""Accepted tags: they state the kind of value that is there anyway, or that a scalar is text."""
_MAX_DIGITS: Final = 40
"""Most digits of a number; longer ones are text, as none of the format's has more than twenty."""

NULL: Final = re.compile(r"(?:~|null|Null|NULL|)\Z")
BOOLEAN: Final = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")

Scalar: TypeAlias = bool | int | float | str | None


@dataclass(slots=True)
class Node:
    """A value and the line on which it begins, from one; zero when it came from no text."""

    line: int
    value: Scalar | list[Node] | dict[str, Node]


_HINT: Final = "YAML indents by spaces, and texts with signs like : # * & [ { need quotes"
_ALIAS: Final = "name it before, by &name; a text that begins with * needs quotes"


def parse(text: str, source: str) -> list[Node]:
    """Returns one tree per document of ``text``, without empty documents. Raises Invalid with place ``source:line``."""
    if len(text) > MAX_TEXT:
        raise Invalid(f"{len(text)} characters of YAML", rule="manifest-size", hint=f"at most {MAX_TEXT}", place=source)
    try:
        trees = list(_Builder(source).documents(yaml.parse(text, Loader=yaml.CSafeLoader)))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        message = ": ".join(part for part in (error.context, error.problem) if part)
        raise Invalid(f"not YAML: {message}", rule="yaml", hint=_HINT, place=f"{source}:{line}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise Invalid(f"not YAML: {str(error).splitlines()[0]}", rule="yaml", hint=_HINT, place=source) from error
    return [tree for tree in trees if tree.value is not None]


class _Builder:
    """Builds trees from a stream of YAML events, without recursion. Lives for one parse."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._nodes = 0
        self._sizes: dict[int, int] = {}

    def documents(self, events: Iterator[yaml.Event]) -> Iterator[Node]:
        anchors: dict[str, Node] = {}
        open_nodes: list[_Open] = []
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                anchors = {}
            if not isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                continue
            if isinstance(event, yaml.CollectionEndEvent):
                done = open_nodes.pop()
                node = self._closed(done)
            else:
                node = self._opened(event, anchors)
                if isinstance(event, yaml.CollectionStartEvent):
                    open_nodes.append(_Open(node, self._nodes))
                    if len(open_nodes) > MAX_DEPTH:
                        raise self._fault(node.line, f"nested deeper than {MAX_DEPTH}", "yaml-depth")
                    continue
            if open_nodes:
                self._add(open_nodes[-1], node)
            else:
                yield node

    def _opened(self, event: yaml.NodeEvent, anchors: dict[str, Node]) -> Node:
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            node = anchors.get(event.anchor or "")
            if node is None or id(node) not in self._sizes:
                raise self._fault(line, f"alias *{event.anchor} refers to nothing before it", "yaml-alias", _ALIAS)
            self._count(self._sizes[id(node)], line)
            return node
        self._count(1, line)
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag not in _TAGS[type(event)]:
            raise self._fault(line, f"a tag, {event.tag}", "yaml-tag", "manifests have none; leave it out")
        if isinstance(event, yaml.ScalarEvent):
            node = Node(line, _scalar(event.value) if event.implicit[0] and event.tag is None else event.value)
            self._sizes[id(node)] = 1
        else:
            node = Node(line, [] if isinstance(event, yaml.SequenceStartEvent) else {})
        if event.anchor is not None:
            anchors[event.anchor] = node
        return node

    def _closed(self, done: _Open) -> Node:
        self._sizes[id(done.node)] = self._nodes - done.nodes_before + 1
        if done.key is not None:
            raise self._fault(done.node.line, f"key {done.key!r} has no value", "yaml", _HINT)
        return done.node

    def _add(self, parent: _Open, node: Node) -> None:
        container = parent.node.value
        if isinstance(container, list):
            container.append(node)
        elif isinstance(container, dict) and parent.key is not None:
            container[parent.key] = node
            parent.key = None
        elif isinstance(container, dict):
            key = _key(node.value)
            if key is None:
                raise self._fault(node.line, "a key that is not text", "yaml-key", "write it in quotes")
            if key in container:
                raise self._fault(node.line, f"key {key!r} appears twice", "yaml-key", "remove one of them")
            parent.key = key

    def _count(self, nodes: int, line: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise self._fault(line, f"more than {MAX_NODES} values", "yaml-size")

    def _fault(self, line: int, message: str, rule: str, hint: str = "") -> Invalid:
        return Invalid(message, rule=rule, hint=hint, place=f"{self._source}:{line}")


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end was not yet read, with the key whose value comes next."""

    node: Node
    nodes_before: int
    key: str | None = None


def _key(value: object) -> str | None:
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case _:
            return None


def _scalar(text: str) -> Scalar:
    if NULL.match(text):
        return None
    if BOOLEAN.match(text):
        return text[0] in "tT"
    if len(text) <= _MAX_DIGITS and INTEGER.match(text):
        return int(text, 10 if text.lstrip("-+").isdecimal() else 0)
    if len(text) <= _MAX_DIGITS and FLOAT.match(text) and math.isfinite(number := float(text)):
        return number
    return text
