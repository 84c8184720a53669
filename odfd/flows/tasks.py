"""Reads tasks from manifests: those of a Flow, and the one of a Task. Every mistake has its line. Pure.

An unknown part is refused by its name, never ignored. The payload of a task ``WebhookCall`` has the event and
the time of its run filled in, and nothing else.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from chain.errors import Invalid
from chain.multihash import Multihash
from odfd.flows.dialect import OWN_KINDS, prepare_run, prepare_task
from odfd.flows.plan import HOUR, Retry, Step
from odfd.flows.schedule import parse_duration
from odfd.flows.spec import (
    CompactionTask,
    FlowRunSpec,
    GarbageCollectionTask,
    IngestTask,
    PullTask,
    PushTask,
    ResetTask,
    RetryBackoff,
    RetryPolicy,
    SyncFromTask,
    SyncToTask,
    TaskSpec,
    WebhookCallTask,
)
from odfd.resources import registry
from odfd.resources.manifest import VARIABLE, Draft, parse_size
from odfd.resources.references import reference_key
from odfd.resources.registry import ODF, OURS, VERSION
from odfd.resources.types import Deletion, ResourceType, TypeOperations

MAX_PAYLOAD: Final = 64 * 1024
_EVENT: Final = "trigger.event"
_TIME: Final = "trigger.time"


def check_payload(text: str) -> str:
    """Returns a payload that is valid. Raises Invalid for an unknown variable, or if it is too long."""
    unknown = [each for each in VARIABLE.findall(text) if each not in (_EVENT, _TIME)]
    if unknown:
        hint = f"known are ${{{{ {_EVENT} }}}} and ${{{{ {_TIME} }}}}"
        raise Invalid(f"unknown variable {unknown[0][:60]!r} in a payload", rule="webhook-payload", hint=hint)
    if len(text.encode()) > MAX_PAYLOAD:
        raise Invalid(f"a payload of more than {MAX_PAYLOAD} bytes", rule="webhook-payload", hint="make it shorter")
    return text


def fill(payload: str | None, event: str, time: str) -> str:
    """Returns the text to send; for no payload the event alone."""
    values = {_EVENT: event, _TIME: time}
    return event if payload is None else VARIABLE.sub(lambda found: values[found[1]], payload)


TYPE: Final = "Task"
RUN: Final = "FlowRun"
MOST_TASKS: Final = 8
MOST_FINISHED: Final = 100
"""Finished ones of one type and account that stay, of those that people declared."""
SPECS: Final = typing.get_args(TaskSpec)
REPOSITORY: Final = "Repository"
"""The type that a task ``Push`` refers to."""
_MOST_ATTEMPTS: Final = 100
_MOST_DELAY: Final = 366 * 24 * HOUR
_NODE: Final = re.compile(r"odf\+(?:http|ws)s?://[^/\s]+/\S+\Z", re.IGNORECASE)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")


def check_task(draft: Draft) -> None:
    """Adds the mistakes of a Task to its draft."""
    spec = draft.spec
    task_of(draft)
    if spec.target is None and not isinstance(spec, GarbageCollectionTask | WebhookCallTask):
        draft.note("spec", "the task has no target", "task-target", "RFC-019, Task: target: Dataset:NAME")
    for field, given in (("onNoOp", spec.on_no_op), ("onFailure", spec.on_failure)):
        if given is not None:
            hint = "RFC-019, Flow: leave it out, or write the task in a Flow"
            draft.note(f"spec.{field}", f"{field} is of a task that other tasks follow", "flow-tasks", hint)


def check_run(draft: Draft) -> None:
    """Adds the mistakes of a FlowRun to its draft."""
    spec: FlowRunSpec = draft.spec
    tasks_of(draft)
    if not 1 <= len(spec.tasks) <= MOST_TASKS:
        hint = f"RFC-019, FlowRun: 1 to {MOST_TASKS}"
        draft.note("spec.tasks", f"{len(spec.tasks)} tasks", "flow-tasks", hint)
    check_service(draft, spec.tasks)
    for number, each in enumerate(spec.tasks):
        needs = not isinstance(each, GarbageCollectionTask | WebhookCallTask)
        if spec.target is None and each.target is None and needs:
            hint = "RFC-019, FlowRun: target: Dataset:NAME, in the spec or in the task"
            draft.note(f"spec.tasks[{number}]", "the task has no target", "task-target", hint)


def check_service(draft: Draft, tasks: Sequence[TaskSpec]) -> None:
    """Adds a mistake for each task that would be done with other rights than those beside it."""
    for number, each in enumerate(tasks):
        if each.service_account is not None:
            hint = "RFC-019, Authorization: spec.serviceAccount, of all its tasks; for another account another flow"
            path = f"spec.tasks[{number}].serviceAccount"
            draft.note(path, "the tasks of one run act with the rights of one account", "flow-tasks", hint)


def tasks_of(draft: Draft) -> tuple[Step, ...]:
    """Returns the tasks that the draft of a Task or a FlowRun declares. Mistakes are added to the draft."""
    if not isinstance(draft.spec, FlowRunSpec):
        return (task_of(draft),)
    return tuple(read_task(draft, f"spec.tasks[{at}]", each) for at, each in enumerate(draft.spec.tasks[:MOST_TASKS]))


def task_of(draft: Draft) -> Step:
    """Returns the task that the draft of a Task declares. Mistakes are added to the draft."""
    return read_task(draft, "spec", draft.spec)


def target_of(spec: Any) -> str | None:
    """Returns the dataset that the stored spec of a Task or a FlowRun names, without its type."""
    text = spec.get("target") if isinstance(spec, dict) else None
    return text.removeprefix("Dataset:") if isinstance(text, str) else None


def read_task(draft: Draft, path: str, spec: TaskSpec) -> Step:
    """Reads the task at a path of a draft. Mistakes are added to the draft."""
    if spec.name is not None and not _NAME.match(spec.name):
        hint = "RFC-019, FlowRun: lower case letters, digits and -, such as task-1-verify"
        draft.note(f"{path}.name", f"{spec.name[:80]!r} is no name of a task", "flow-tasks", hint)
    uses, retry = None, None
    match spec:
        case IngestTask() | PullTask():
            uses = draft.attempt(f"{path}.source", source_key, spec.source)
        case PushTask():
            uses = draft.attempt(f"{path}.to", partial(reference_key, type_=REPOSITORY), spec.to)
        case SyncFromTask():
            draft.attempt(f"{path}.source.url", _node_url, spec.source.url)
        case SyncToTask():
            draft.attempt(f"{path}.destination.url", _node_url, spec.destination.url)
        case CompactionTask():
            _check_compaction(draft, path, spec)
        case ResetTask():
            for field, text in (("newBlockHash", spec.new_block_hash), ("oldBlockHash", spec.old_block_hash)):
                draft.attempt(f"{path}.{field}", Multihash.parse, text)
        case WebhookCallTask():
            draft.attempt(f"{path}.payload", check_payload, spec.payload)
            uses = draft.attempt(f"{path}.endpoint", partial(reference_key, type_="WebhookTarget"), spec.endpoint)
            if spec.retry_policy is not None:
                retry = read_retry(draft, f"{path}.retryPolicy", spec.retry_policy, Retry().most)
        case _:
            pass
    on = None if spec.target is None else draft.attempt(f"{path}.target", dataset_key, spec.target)
    return Step(said=spec, on=on, uses=uses, retry=retry)


def read_retry(draft: Draft, path: str, policy: RetryPolicy | None, most: int) -> Retry:
    """Reads the policy at a path. ``most``: the longest pause, in nanoseconds. Mistakes are added to the draft."""
    usual = Retry(most=most)
    if policy is None:
        return usual
    attempts = usual.attempts if policy.max_attempts is None else policy.max_attempts
    if not 1 <= attempts <= _MOST_ATTEMPTS:
        hint = f"RFC-019, Flow: 1 to {_MOST_ATTEMPTS}"
        draft.note(f"{path}.maxAttempts", f"{attempts} is out of range", "number-range", hint)
    least = draft.attempt(f"{path}.minDelay", parse_duration, policy.min_delay)
    if least is not None and least > _MOST_DELAY:
        draft.note(f"{path}.minDelay", "is out of range", "flow-duration", "at most 366d")
    return Retry(
        attempts=attempts,
        least=usual.least if least is None else least,
        most=most,
        backoff=(policy.backoff or RetryBackoff.EXPONENTIAL).value,
        is_declared=True,
    )


def source_key(text: str) -> str:
    """Returns the key of a reference to a Source. Raises Invalid."""
    return reference_key(text, "Source")


def dataset_key(text: str) -> str:
    """Returns the key of a reference to a Dataset. Raises Invalid."""
    return reference_key(text, "Dataset")


def _node_url(text: str) -> str:
    """Returns the URL of a dataset at another node. Raises Invalid for another one."""
    if not _NODE.match(text):
        raise Invalid(
            f"this node syncs with other nodes alone, and not with {text[:120]!r}",
            rule="sync-url",
            hint="RFC-019, Task Types: url: odf+https://NODE/ACCOUNT/DATASET; for a bucket or a folder declare a "
            "Repository, and write kind: Push",
        )
    return text


def _check_compaction(draft: Draft, path: str, spec: CompactionTask) -> None:
    draft.attempt(f"{path}.maxSliceSize", parse_size, spec.max_slice_size)
    if spec.max_slice_records is not None and spec.max_slice_records < 1:
        text = f"maxSliceRecords is {spec.max_slice_records}"
        draft.note(f"{path}.maxSliceRecords", text, "compact-limits", "a number from 1 on")


async def _cancel(operations: TypeOperations, view: Any, how: Deletion) -> Any:  # noqa: ARG001  as all types
    """Cancels a task, which deletes it if it is declared."""
    ended = await operations.cancel(view.id if "account" in view.headers else view.name)
    if ended.state != "cancelled":
        return view
    return msgspec.structs.replace(view, status=view.status | {"phase": "Failed", "code": "cancelled"})


TASK_TYPE: Final = ResourceType(
    names=registry.TASK, spec=SPECS, converts=prepare_task,
    about="Work that is done once: declared, or started by a command or a flow.",
    uris=(*(f"{ODF}/{each}/{VERSION}/Task" for each in ("flow", "flows", "task")), f"{OURS}/flow/{VERSION}/Task"),
    own_kinds=OWN_KINDS,
    check=check_task,
    delete=_cancel,
    example="""\
$schema: Task
headers: {name: sensors-check}
spec: {kind: Verify, target: Dataset:sensors}
""",
)  # fmt: skip

FLOW_RUN_TYPE: Final = ResourceType(
    names=registry.FLOW_RUN, spec=FlowRunSpec, converts=prepare_run,
    about="Tasks that are done once, in order, as a run of a flow does them.",
    uris=tuple(f"{base}/flow/{VERSION}/FlowRun" for base in (ODF, OURS)),
    own_kinds=OWN_KINDS,
    check=check_run,
    delete=lambda operations, view, how: operations.delete(RUN, view.id, how.generation, force=True),
    example="""\
$schema: FlowRun
headers: {name: sensors-tidied}
spec:
  target: Dataset:sensors
  tasks: [{kind: Compaction}, {kind: Verify}]
""",
)  # fmt: skip
