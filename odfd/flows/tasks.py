"""Reads tasks from manifests: those of a Flow, and the one of a Task. Every mistake has its line. Pure.

An unknown part is refused by its name, never ignored.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

import msgspec

from odfd.flows.dialect import prepare_task
from odfd.flows.payload import check_payload
from odfd.flows.plan import Compaction, FlowTask, GarbageCollection, Ingest, PushTo, Verify, WebhookCall
from odfd.flows.spec import (
    CompactionParams,
    CompactionTask,
    ExtensionTask,
    GarbageCollectionTask,
    IngestTask,
    TaskSpec,
    VerifyLevel,
    WebhookCallTask,
)
from odfd.resources import registry
from odfd.resources.manifest import Draft, described
from odfd.resources.quantities import parse_size
from odfd.resources.references import reference_key
from odfd.resources.types import Deletion, ResourceType, annotated

TYPE: Final = "Task"
SPECS: Final = (IngestTask, CompactionTask, GarbageCollectionTask, WebhookCallTask, ExtensionTask)
TARGET: Final = "taskTarget"
"""Name of a Task's annotation with the dataset that it is for."""
VERIFY: Final = "Verify"
PUSH: Final = "Push"
REPOSITORY: Final = "Repository"
"""The type that a task ``Push`` refers to. The names before are the known extensions."""


class TaskTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The target of a Task."""

    dataset: Annotated[
        str,
        described("The dataset: its name, Dataset:NAME or did:odf:…. Required for all tasks but GarbageCollection."),
    ]


def check_task(draft: Draft) -> None:
    """Adds the mistakes of a Task to its draft."""
    task_of(draft)
    path, given = f"headers.annotations.{TARGET}", draft.typed.get(TARGET)
    if isinstance(draft.spec, GarbageCollectionTask):
        if given is not None:
            draft.note(path, "a GarbageCollection is of the whole node", "task-target", "leave it out")
    elif given is None:
        draft.note(path, "the task has no target", "task-target", f"annotations: {{{TARGET}: {{dataset: NAME}}}}")
    else:
        draft.attempt(f"{path}.dataset", partial(reference_key, type_="Dataset"), given.dataset)


def task_of(draft: Draft) -> FlowTask:
    """Returns the task that the draft of a Task declares. Mistakes are added to the draft."""
    return read_task(draft, "spec", draft.spec)


def target_of(annotations: Any) -> str | None:
    """Returns the dataset that the annotations of a Task name, without its type."""
    given = annotated(annotations, "flow", TARGET)
    text = given.get("dataset") if isinstance(given, dict) else None
    return text.removeprefix("Dataset:") if isinstance(text, str) else None


def read_task(draft: Draft, path: str, spec: TaskSpec) -> FlowTask:
    """Reads the task at a path of a draft. Mistakes are added to the draft."""
    match spec:
        case IngestTask():
            source = draft.attempt(f"{path}.source", source_key, spec.source)
            return Ingest(fetch_uncacheable=spec.fetch_uncacheable, source=source)
        case ExtensionTask():
            return _extension(draft, path, spec)
        case CompactionTask():
            return _compaction(draft, f"{path}.params", spec.params or CompactionParams())
        case GarbageCollectionTask():
            return GarbageCollection()
        case WebhookCallTask():
            payload = draft.attempt(f"{path}.payload", check_payload, spec.payload)
            key = draft.attempt(f"{path}.target", partial(reference_key, type_="WebhookTarget"), spec.target)
            return WebhookCall(target=key or spec.target, payload=payload)


def source_key(text: str) -> str:
    """Returns the key of a reference to a Source. Raises Invalid."""
    return reference_key(text, "Source")


def _compaction(draft: Draft, path: str, params: CompactionParams) -> Compaction:
    size = draft.attempt(f"{path}.maxSliceSize", parse_size, params.max_slice_size)
    if params.max_slice_records is not None and params.max_slice_records < 1:
        text = f"maxSliceRecords is {params.max_slice_records}"
        draft.note(f"{path}.maxSliceRecords", text, "compact-limits", "a number from 1 on")
    return Compaction(max_slice_bytes=size, max_slice_rows=params.max_slice_records)


def _extension(draft: Draft, path: str, spec: ExtensionTask) -> FlowTask:
    """Reads a task that RFC-018 does not have; each extension has its own field."""
    if spec.extension not in (VERIFY, PUSH):
        text = f"this node knows no task {spec.extension[:80]!r}"
        draft.note(f"{path}.$schema", text, "unknown-type", f"known are {VERIFY} and {PUSH}")
    elif spec.extension == VERIFY and spec.to is not None:
        draft.note(f"{path}.to", f"{VERIFY} goes nowhere", "flow-tasks", f"leave it out, or write $schema: {PUSH}")
    elif spec.extension == PUSH and spec.level is not None:
        draft.note(f"{path}.level", f"{PUSH} has no level", "flow-tasks", f"leave it out, or add a task {VERIFY}")
    elif spec.extension == PUSH and spec.to is None:
        draft.note(f"{path}.to", f"{PUSH} needs a repository", "flow-tasks", "to: NAME, of odfctl repo list")
    if spec.extension == PUSH:
        key = draft.attempt(f"{path}.to", partial(reference_key, type_=REPOSITORY), spec.to)
        return PushTo(to=key or "")
    return Verify(level=(spec.level or VerifyLevel.DATA).value)


async def _cancel(services: Any, view: Any, how: Deletion) -> Any:  # noqa: ARG001  as all types
    """Cancels a task, which deletes it if it is declared."""
    ended = await services.tasks.cancel(view.id if "account" in view.headers else view.name)
    if ended.state != "cancelled":
        return view
    return msgspec.structs.replace(view, status=view.status | {"phase": "Failed", "code": "cancelled"})


TASK_TYPE: Final = ResourceType(
    names=registry.TASK, spec=SPECS, prepare=prepare_task,
    about="Work that is done once: declared, or started by a command or a flow.",
    annotations={TARGET: TaskTarget},
    check=check_task,
    delete=_cancel,
    example="""\
$schema: Task
headers:
  name: sensors-check
  annotations:
    taskTarget: {dataset: sensors}
spec: {kind: Ext, $schema: Verify, level: data}
""",
)  # fmt: skip
