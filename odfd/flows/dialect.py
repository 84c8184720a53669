"""Turns spellings in RFC-018's text and examples into those that a Flow's ``spec`` has, each with a warning.

The text has ``steps``, ``kind: Cron`` and parameters beside a task's kind; the examples have ``tasks``, ``kind:
Schedule`` and ``params``. Both write a target as an object, and use parameters that have no effect here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from chain.codec.bind import Mistake, plain
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from odfd.resources.selectors import parse_filter, selector_text
from odfd.resources.types import Remarks

_COMPACTION: Final = ("maxSliceSize", "maxSliceRecords")
_GROUPED: Final = re.compile(r"[1-9][0-9]{0,2}(_[0-9]{3}){1,5}\Z")
_LABEL: Final = "datasetKind"


def prepare(spec: Node, remarks: Remarks) -> Node:
    """Returns a spec in the form of ``FlowSpec``; parts that are wrong stay, to be refused when it is bound."""
    if not isinstance(spec.value, dict):
        return spec
    fields = dict(spec.value)
    if "steps" in fields and "tasks" not in fields:
        fields["tasks"] = fields.pop("steps")
        remarks.warnings.append("spec.steps is read as tasks")
    target = fields.get("target")
    if target is not None and isinstance(target.value, dict):
        fields |= _target(target, remarks)
    for part, read in (("triggers", _trigger), ("tasks", _task)):
        items = fields.get(part)
        if items is not None and isinstance(items.value, list):
            made = [read(each, f"spec.{part}[{number}]", remarks) for number, each in enumerate(items.value)]
            fields[part] = Node(items.line, made)
    return Node(spec.line, fields)


def prepare_task(spec: Node, remarks: Remarks) -> Node:
    """Returns the spec of a Task in the form that its class has."""
    return _task(spec, "spec", remarks)


def _target(node: Node, remarks: Remarks) -> Mapping[str, Node]:
    """Returns the fields for a target that is written as an object: a reference, or a selector."""
    assert isinstance(node.value, dict)
    said = dict(node.value)
    labels = said.pop("labels", None)
    path = "spec.target"
    selected = None if labels is None else _selector(labels, f"{path}.labels", remarks)
    made = remarks.reference(Node(node.line, said), path)
    return {"target": made} if selected is None else {"target": made, "targetLabels": selected}


def _selector(node: Node, path: str, remarks: Remarks) -> Node | None:
    said = plain(node)
    if isinstance(said, dict) and said.get("kind") in ("Root", "Derivative"):
        said = {_LABEL if key == "kind" else key: each for key, each in said.items()}
        remarks.warnings.append(f"{path}.kind is read as {_LABEL}, the label that the node gives")
    try:
        parse_filter(said)
    except Invalid as fault:
        remarks.mistakes.append(Mistake(path, node.line, fault.message, fault.rule, fault.hint))
        return None
    return Node(node.line, selector_text(said))


def _trigger(node: Node, path: str, remarks: Remarks) -> Node:
    if isinstance(node.value, dict) and "kind" in node.value and node.value["kind"].value == "Cron":
        remarks.warnings.append(f"{path}: kind: Cron is read as Schedule")
        return Node(node.line, {**node.value, "kind": Node(node.value["kind"].line, "Schedule")})
    return node


def _task(node: Node, path: str, remarks: Remarks) -> Node:
    if not isinstance(node.value, dict) or "kind" not in node.value:
        return node
    kind, fields = node.value["kind"].value, dict(node.value)
    if kind == "Ingest":
        return Node(node.line, _without_slices(fields, path, remarks))
    beside = [each for each in _COMPACTION if each in fields]
    if kind == "Compaction" and beside and "params" not in fields:
        remarks.warnings.append(f"{path}: {' and '.join(beside)} are read as params")
        fields["params"] = Node(node.line, {each: fields.pop(each) for each in beside})
    params = fields.get("params")
    if params is not None and isinstance(params.value, dict):
        made = {key: _number(each, f"{path}.params.{key}", remarks) for key, each in params.value.items()}
        fields["params"] = Node(params.line, made)
    return Node(node.line, fields)


def _number(node: Node, path: str, remarks: Remarks) -> Node:
    """Reads a number with underscores, which YAML 1.1 has and YAML 1.2 reads as a text."""
    if not isinstance(node.value, str) or _GROUPED.match(node.value) is None:
        return node
    number = int(node.value)
    remarks.warnings.append(f"{path}: {node.value} is read as {number}")
    return Node(node.line, number)


def _without_slices(fields: dict[str, Node], path: str, remarks: Remarks) -> dict[str, Node]:
    """Removes the sizes of slices from an Ingest, which writes a slice for each transaction, and warns of it."""
    params = fields.get("params")
    inner = dict(params.value) if params is not None and isinstance(params.value, dict) else {}
    for where, name, given in (("params.", "targetSliceRecords", inner), ("", "targetRecordsPerSlice", fields)):
        if name in given:
            del given[name]
            text = f"{path}.{where}{name} is passed over: each fetch becomes a slice, and a Compaction merges them"
            remarks.warnings.append(text)
    if params is not None and isinstance(params.value, dict):
        fields["params"] = Node(params.line, inner)
        if not inner:
            del fields["params"]
    return fields
