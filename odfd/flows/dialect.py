"""Turns other spellings of a Flow or a Task into those that RFC-019 has, each with a warning.

They are of RFC-018, whose text and examples differ too, and of former programs: ``Ext`` tasks, ``every``, triggers
``Dataset`` and ``Source``, parts of ``flowPolicy`` and the annotation ``taskTarget``. What has no word in RFC-019, or
has one that this node cannot follow, is refused with the RFC's clause and what to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from chain.codec.bind import Mistake, node_of, plain
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from odfd.flows.spec import OWN_TASKS, EventType
from odfd.resources.selectors import parse_selector, selector_text, target_parts
from odfd.resources.types import Remarks, annotation_uris

POLICY: Final = "flowPolicy"
TASK_TARGET: Final = "taskTarget"
"""The former annotation with the dataset of a Task."""
PULL, PUSH, CHAIN = (f"{OWN_TASKS}/{each}" for each in ("Pull", "Push", "VerifyChain"))
_OWN: Final = {"pull": PULL, "push": PUSH, "verifychain": CHAIN}
OWN_KINDS: Final = frozenset(_OWN.values())
"""Kinds of tasks that RFC-019 does not have."""
_TASKS: Final = (
    "Ingest", "Transform", "SyncFrom", "SyncTo", "Compaction", "Reset", "GarbageCollection", "Verify", "WebhookCall",
)  # fmt: skip
_TRIGGERS: Final = ("Manual", "Schedule", "Interval", "Event", "InputsUpdated", "SourceUpdated")
_COMPACTION: Final = ("maxSliceSize", "maxSliceRecords")
_GROUPED: Final = re.compile(r"[1-9][0-9]{0,2}(_[0-9]{3}){1,5}\Z")
_NEWS: Final = ("Event", "InputsUpdated", "SourceUpdated")
_Fields = dict[str, Node]


def prepare(parts: _Fields, remarks: Remarks) -> _Fields:
    """Returns the parts of a Flow in the form of ``FlowSpec``; what is wrong stays, to be refused when it is bound."""
    spec = parts.get("spec")
    if spec is None or not isinstance(spec.value, dict):
        return parts
    fields = dict(spec.value)
    if "steps" in fields and "tasks" not in fields:
        fields["tasks"] = fields.pop("steps")
        remarks.warnings.append("spec.steps is read as tasks")
    if "tasks" not in fields:
        fields["tasks"] = Node(spec.line, [Node(spec.line, {"kind": Node(spec.line, PULL)})])
        remarks.warnings.append(f"spec.tasks is missing, and read as [{{kind: {PULL}}}]")
    if fields.pop("recentBindingsRetention", None) is not None:
        remarks.warnings.append("spec.recentBindingsRetention is passed over: odfctl get flows lists all bindings")
    target, labels = fields.get("target"), fields.get("targetLabels")
    if target is not None and isinstance(target.value, dict):
        fields |= _target(target, remarks)
    elif labels is not None and isinstance(labels.value, str):
        fields["targetLabels"] = _labels(labels, remarks)
    for part, read in (("triggers", _trigger), ("tasks", _task)):
        items = fields.get(part)
        if items is not None and isinstance(items.value, list):
            made = [read(each, f"spec.{part}[{number}]", remarks) for number, each in enumerate(items.value)]
            fields[part] = Node(items.line, made)
    return _without_policy({**parts, "spec": Node(spec.line, fields)}, fields, remarks)


def prepare_task(parts: _Fields, remarks: Remarks) -> _Fields:
    """Returns the parts of a Task in the form that its class has."""
    spec = parts.get("spec")
    if spec is None or not isinstance(spec.value, dict):
        return parts
    made = _task(spec, "spec", remarks)
    headers, target = _take(parts.get("headers"), TASK_TARGET)
    if target is None or not isinstance(target.value, dict) or not isinstance(made.value, dict):
        return {**parts, "spec": made}
    path = f"headers.annotations.{TASK_TARGET}"
    if "target" in made.value:
        _wrong(remarks, path, target, "the task has spec.target too", "Task", "leave out the annotation", "task-target")
    dataset = target.value.get("dataset")
    remarks.warnings.append(f"{path} is read as spec.target")
    fields = made.value if dataset is None else {**made.value, "target": dataset}
    return {**parts, "headers": headers, "spec": Node(made.line, fields)}


def prepare_run(parts: _Fields, remarks: Remarks) -> _Fields:
    """Returns the parts of a FlowRun in the form that its class has."""
    spec = parts.get("spec")
    if spec is None or not isinstance(spec.value, dict) or "tasks" not in spec.value:
        return parts
    tasks = spec.value["tasks"]
    if not isinstance(tasks.value, list):
        return parts
    made = [_task(each, f"spec.tasks[{number}]", remarks) for number, each in enumerate(tasks.value)]
    return {**parts, "spec": Node(spec.line, {**spec.value, "tasks": Node(tasks.line, made)})}


class PresentForm(NamedTuple):
    """The present form of what was stored, with what was read otherwise and what cannot be."""

    spec: Any
    annotations: Mapping[str, Any]
    remarks: Sequence[str]
    mistakes: Sequence[Mistake]


def to_present(
    prepares: Callable[[_Fields, Remarks], _Fields], spec: Any, annotations: Mapping[str, Any]
) -> PresentForm:
    """Returns the present form of a stored spec and its annotations."""
    remarks = Remarks([], [])
    parts = {"headers": node_of({"annotations": dict(annotations)}), "spec": node_of(spec)}
    made = prepares(parts, remarks)
    kept = plain(made["headers"]).get("annotations", {})
    return PresentForm(plain(made["spec"]), kept, remarks.warnings, remarks.mistakes)


def show(spec: Any) -> Any:
    """Returns a stored spec of a Flow as RFC-019 writes it: labels are a part of the target."""
    if "targetLabels" not in spec:
        return spec
    account, _, name = spec["target"].removeprefix("Dataset:").rpartition("/")
    target = {"type": "Dataset", **({"account": account} if account else {}), "name": name}
    target["labels"] = _filter(spec["targetLabels"])
    return {key: target if key == "target" else each for key, each in spec.items() if key != "targetLabels"}


def _wrong(
    remarks: Remarks, path: str, node: Node, message: str, clause: str, hint: str, rule: str = "flow-tasks"
) -> None:
    remarks.mistakes.append(Mistake(path, node.line, message, rule, f"RFC-019, {clause}: {hint}"))


def _target(node: Node, remarks: Remarks) -> Mapping[str, Node]:
    """Returns the fields for a target that is written as an object: a reference, or a selector."""
    made, selected = target_parts(node, "spec.target", remarks)
    return {"target": made} if selected is None else {"target": made, "targetLabels": selected}


def _labels(node: Node, remarks: Remarks) -> Node:
    """Returns a selector in the text that its object has; a wrong one stays, to be refused."""
    assert isinstance(node.value, str)
    remarks.warnings.append("spec.targetLabels is read as labels of spec.target")
    try:
        return Node(node.line, selector_text(_filter(node.value)))
    except Invalid:
        return node


def _filter(text: str) -> Any:
    """Returns the filter of a selector; one of equalities alone as RFC-018 writes it. Raises Invalid."""
    found = parse_selector(text)
    terms = found["$and"] if found.keys() == {"$and"} else [found]
    merged = {key: value for term in terms for key, value in term.items()}
    is_plain = len(merged) == sum(map(len, terms)) and not any(key.startswith("$") for key in merged)
    return merged if is_plain else dict(found)


def _trigger(node: Node, path: str, remarks: Remarks) -> Node:
    if not isinstance(node.value, dict) or "kind" not in node.value or not isinstance(node.value["kind"].value, str):
        return node
    kind, fields = node.value["kind"].value, dict(node.value)

    def rename(name: str, was: str) -> None:
        fields["kind"] = Node(node.line, name)
        remarks.warnings.append(f"{path}: {was} is read as kind: {name}")

    if kind == "Cron":
        rename("Schedule", "kind: Cron")
    elif kind == "Schedule" and "every" in fields and "cron" not in fields:
        fields["interval"] = fields.pop("every")
        rename("Interval", "every")
    elif kind == "Source":
        rename("SourceUpdated", "kind: Source")
    elif kind == "Dataset" and "dataset" in fields:
        fields["target"] = fields.pop("dataset")
        fields["events"] = Node(node.line, {"type": Node(node.line, EventType.UPDATED.value)})
        rename("Event", "kind: Dataset")
    elif ":" in kind:
        hint = f"kinds are {', '.join(_TRIGGERS)}"
        _wrong(remarks, f"{path}.kind", node.value["kind"], f"this node has no trigger {kind[:120]}", "FlowTrigger",
               hint, "unknown-kind")  # fmt: skip
    if "cooldownMaxBatch" in fields:
        text = "an event trigger has no cooldownMaxBatch"
        _wrong(remarks, f"{path}.cooldownMaxBatch", fields.pop("cooldownMaxBatch"), text, "FlowTrigger",
               "leave it out: cooldown alone puts events together", "flow-trigger")  # fmt: skip
    return Node(node.line, fields)


def _task(node: Node, path: str, remarks: Remarks) -> Node:
    if not isinstance(node.value, dict) or "kind" not in node.value or not isinstance(node.value["kind"].value, str):
        return node
    fields = dict(node.value)
    said = node.value["kind"].value
    kind = next((each for each in _TASKS if each.casefold() == said.casefold()), _OWN.get(said.casefold(), said))
    fields["kind"] = Node(node.value["kind"].line, kind)
    match kind:
        case "Ext":
            fields = _extension(fields, path, remarks)
        case "Ingest":
            fields = _ingest(_without_slices(fields, path, remarks), path, remarks)
        case "Compaction":
            fields = _compaction(fields, path, remarks)
        case "WebhookCall":
            _webhook(fields, path, remarks)
        case "SyncFrom" | "SyncTo":
            _sync(fields, path, kind, remarks)
        case "Reset" if "ref" in fields:
            ref = fields.pop("ref")
            if ref.value != "head":
                text = f"a dataset has no block reference {str(ref.value)[:40]!r}"
                _wrong(remarks, f"{path}.ref", ref, text, "Reset", "leave it out: it is head")
        case str() if ":" in kind and kind not in _OWN.values():
            hint = f"kinds are {', '.join(_TASKS)}"
            text = f"this node has no task {kind[:120]}"
            _wrong(remarks, f"{path}.kind", fields["kind"], text, "Task Types", hint, "unknown-kind")
    return Node(node.line, fields)


def _extension(fields: _Fields, path: str, remarks: Remarks) -> _Fields:
    """Reads a task of a former program that RFC-018 does not have."""
    extension = fields.pop("$schema", None)
    name = None if extension is None else extension.value
    level = fields.pop("level", None) if name == "Verify" else None
    if name == "Verify":
        kind = CHAIN if level is not None and level.value == "chain" else "Verify"
        if level is not None and level.value == "reproduced":
            fields["replayTransform"] = Node(level.line, value=True)
        elif level is not None and level.value not in ("chain", "data"):
            _wrong(remarks, f"{path}.level", level, f"unknown level {str(level.value)[:40]!r}", "Verify",
                   "leave it out, or write replayTransform: true", "enum-member")  # fmt: skip
    elif name == "Push":
        kind = PUSH
    else:
        at = fields["kind"] if extension is None else extension
        text = f"this node knows no task {str(name)[:80]!r}" if name is not None else "$schema is missing"
        hint = f"kinds are {', '.join(_TASKS)}"
        rule = "unknown-type" if name is not None else "required-field"
        _wrong(remarks, f"{path}.$schema", at, text, "Task Types", hint, rule)
        return fields
    remarks.warnings.append(f"{path}: kind: Ext, $schema: {name} is read as kind: {kind}")
    return {**fields, "kind": Node(fields["kind"].line, kind)}


def _ingest(fields: _Fields, path: str, remarks: Remarks) -> _Fields:
    """Reads an Ingest that RFC-019 does not have: without a Source, or with a field of our own."""
    if (said := fields.get("fetchUncacheable")) is not None and said.value is False:
        fields = {key: each for key, each in fields.items() if key != "fetchUncacheable"}
    if "source" in fields and "fetchUncacheable" not in fields:
        return fields
    was = "an Ingest without source" if "source" not in fields else "an Ingest with fetchUncacheable"
    remarks.warnings.append(f"{path}: {was} is read as kind: {PULL}")
    return {**fields, "kind": Node(fields["kind"].line, PULL)}


def _compaction(fields: _Fields, path: str, remarks: Remarks) -> _Fields:
    params = fields.get("params")
    if params is not None and isinstance(params.value, dict):
        del fields["params"]
        fields |= params.value
        remarks.warnings.append(f"{path}.params is read as fields of the task")
    if "minUncompactedRows" in fields:
        text = "a Compaction has no minUncompactedRows"
        _wrong(remarks, f"{path}.minUncompactedRows", fields.pop("minUncompactedRows"), text, "Compaction",
               f"leave it out; sizes are {' and '.join(_COMPACTION)}")  # fmt: skip
    return {key: _number(each, f"{path}.{key}", remarks) for key, each in fields.items()}


def _webhook(fields: _Fields, path: str, remarks: Remarks) -> None:
    if "target" in fields and "endpoint" not in fields:
        fields["endpoint"] = fields.pop("target")
        remarks.warnings.append(f"{path}.target is read as endpoint")
    endpoint = fields.get("endpoint")
    if endpoint is None:
        return
    if isinstance(endpoint.value, str) and endpoint.value.startswith("WebhookEndpoint:"):
        fields["endpoint"] = Node(endpoint.line, endpoint.value.replace("WebhookEndpoint:", "WebhookTarget:", 1))
    elif isinstance(endpoint.value, dict):
        type_ = endpoint.value.get("type")
        if type_ is not None and isinstance(type_.value, str) and type_.value.endswith("WebhookEndpoint"):
            fields["endpoint"] = Node(endpoint.line, {**endpoint.value, "type": Node(type_.line, "WebhookTarget")})


def _sync(fields: _Fields, path: str, kind: str, remarks: Remarks) -> None:
    """Checks what RFC-019 lets be asked of a sync, and which this node does in one way."""
    force, create = fields.pop("force", None), fields.pop("createIfNotExists", None)
    if force is not None and force.value is not False:
        text = "a history is never overwritten by another one"
        _wrong(remarks, f"{path}.force", force, text, kind, "leave it out; odfctl reset makes a way back")
    if create is not None and create.value is not True:
        text = "a push makes the dataset that is not there"
        _wrong(remarks, f"{path}.createIfNotExists", create, text, kind, "leave it out")
    part = "source" if kind == "SyncFrom" else "destination"
    place = fields.get(part)
    if place is not None and isinstance(place.value, dict) and "auth" in place.value:
        text = "this node takes credentials from a Repository alone"
        hint = f"declare a Repository with credentials, and write kind: {PUSH if kind == 'SyncTo' else PULL}"
        _wrong(remarks, f"{path}.{part}.auth", place.value["auth"], text, kind, hint)
        fields[part] = Node(place.line, {key: each for key, each in place.value.items() if key != "auth"})


def _number(node: Node, path: str, remarks: Remarks) -> Node:
    """Reads a number with underscores, which YAML 1.1 has and YAML 1.2 reads as a text."""
    if not isinstance(node.value, str) or _GROUPED.match(node.value) is None:
        return node
    number = int(node.value)
    remarks.warnings.append(f"{path}: {node.value} is read as {number}")
    return Node(node.line, number)


def _without_slices(fields: _Fields, path: str, remarks: Remarks) -> _Fields:
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


def _without_policy(parts: _Fields, fields: _Fields, remarks: Remarks) -> _Fields:
    """Moves what RFC-019 has words for out of the former flowPolicy: ``cooldown``, and most of ``retry``."""
    path = f"headers.annotations.{POLICY}"
    headers, policy = _take(parts.get("headers"), POLICY)
    if policy is None or not isinstance(policy.value, dict) or not policy.value.keys() & {"cooldown", "retry"}:
        return parts
    said = dict(policy.value)
    cooldown, retry = said.pop("cooldown", None), said.get("retry")
    if cooldown is not None:
        fields["triggers"] = _cooling(fields.get("triggers"), cooldown, path, remarks)
    if retry is not None and isinstance(retry.value, dict):
        moved: _Fields = {key: each for key, each in retry.value.items() if key in ("maxAttempts", "minDelay")}
        kept = {key: each for key, each in retry.value.items() if key not in moved}
        if moved and "retryPolicy" in fields:
            _wrong(remarks, f"{path}.retry", retry, "the flow has spec.retryPolicy too", "Flow",
                   "leave out the annotation's", "flow-policy")  # fmt: skip
        elif moved:
            fields["retryPolicy"] = Node(retry.line, moved)
            remarks.warnings.append(f"{path}.retry is read as spec.retryPolicy")
        said["retry"] = Node(retry.line, kept)
        if not kept:
            del said["retry"]
    spec = Node(parts["spec"].line, {key: each for key, each in fields.items() if each is not None})
    if not said:
        return {**parts, "headers": headers, "spec": spec}
    return {**parts, "headers": _with_annotation(headers, POLICY, Node(policy.line, said)), "spec": spec}


def _cooling(triggers: Node | None, cooldown: Node, path: str, remarks: Remarks) -> Node:
    """Returns the triggers with the cooldown of the former policy at each that waits for news."""
    items = triggers.value if triggers is not None and isinstance(triggers.value, list) else []
    made = []
    for number, each in enumerate(items):
        trigger = each.value if isinstance(each.value, dict) else {}
        if "kind" not in trigger or trigger["kind"].value not in _NEWS:
            made.append(each)
            continue
        if "cooldown" in trigger:
            _wrong(remarks, f"spec.triggers[{number}].cooldown", each, f"{POLICY} has a cooldown too", "FlowTrigger",
                   "leave out the annotation's", "flow-trigger")  # fmt: skip
        made.append(Node(each.line, {**trigger, "cooldown": cooldown}))
    remarks.warnings.append(f"{path}.cooldown is read as cooldown of each trigger that waits for news")
    return Node(cooldown.line if triggers is None else triggers.line, made)


def _take(headers: Node | None, key: str) -> tuple[Node, Node | None]:
    """Returns headers without an annotation, which may stand by its short name or by its URI; and that annotation."""
    empty = Node(0, {}) if headers is None else headers
    entries = empty.value.get("annotations") if isinstance(empty.value, dict) else None
    if entries is None or not isinstance(entries.value, dict) or not isinstance(empty.value, dict):
        return empty, None
    names = (key, *annotation_uris("flow", key))
    found = next((entries.value[name] for name in names if name in entries.value), None)
    rest = {name: each for name, each in entries.value.items() if name not in names}
    fields = {name: each for name, each in empty.value.items() if name != "annotations"}
    return Node(empty.line, fields | ({"annotations": Node(entries.line, rest)} if rest else {})), found


def _with_annotation(headers: Node, key: str, value: Node) -> Node:
    assert isinstance(headers.value, dict)
    entries = headers.value.get("annotations", Node(value.line, {}))
    assert isinstance(entries.value, dict)
    return Node(headers.line, {**headers.value, "annotations": Node(entries.line, {**entries.value, key: value})})
