"""Makes the FlowRun that each run of a Flow is: what it does, what caused it, and how it went (RFC-019, FlowRun). Pure.

A finished run stays until its flow has enough newer ones, or it is too old (``recentRunsRetention``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from chain import instant
from chain.errors import Refused
from chain.instant import Instant
from odfd.flows.plan import DAY, Cause, FlowPlan, Outcome, Record, acted_on
from odfd.flows.schedule import Several, parse_duration
from odfd.flows.tasks import RUN
from odfd.resources.manifest import MAX_NAME
from odfd.resources.references import reference_key
from odfd.resources.resource import Json, OwnerReference, Resource
from odfd.resources.status import Condition, ConditionValue, ResourceStatus, fail, ready

USUAL_RUNS: Final = 10
USUAL_AGE: Final = 30 * DAY
STATUS, CAUSES, RETRY, OUTCOME = "FlowRunStatus", "FlowRunActivationCauses", "FlowRunRetry", "RunOutcome"
"""The conditions of a FlowRun; the last is ours, since RFC-019 tells the outcomes of tasks alone."""
GOOD: Final = frozenset({Outcome.UPDATED, Outcome.UP_TO_DATE})
_STAMP: Final = str.maketrans({"-": "", ":": "", "T": "-"})
Told: TypeAlias = Mapping[str, ConditionValue]


class TaskEnd(NamedTuple):
    """How one task of a run ended."""

    name: str
    task: str
    """The name of its Task; empty for one that none was made for."""
    outcome: Outcome
    message: str
    at: Instant


def begin(
    flow: Resource, plan: FlowPlan, record: Record, news: Iterable[tuple[Cause, Mapping[str, str] | None]],
    target: str | None, before: Resource | None, now: Instant,
) -> Resource:  # fmt: skip
    """Returns the run that begins, which means by its references what the flow meant then.

    ``news``: what caused it, each with the handle of the account that asked for it, if one did. ``target``: the
    reference to its dataset, where the flow's is a selector. ``before``: the run that it repeats, whose causes it has,
    whatever became of the flow.
    """
    spec: dict[str, Json] = {key: flow.spec[key] for key in ("target", "serviceAccount", "tasks") if key in flow.spec}
    if plan.selection is not None:
        del spec["target"]
        spec |= {} if target is None else {"target": target}
    acted = {key for key, _ in acted_on(plan.tasks)}
    causes = None if before is None else before.status.conditions.get(CAUSES)
    told = {STATUS: {"status": "Running", "tasks": []}, CAUSES: {
        "activationCauses": [
            each | ({} if asker is None else {"initiator": asker})
            for cause, asker in news for each in _causes(flow, plan, cause)
        ],
        "lateActivationCauses": [],
    } if causes is None else causes.value}  # fmt: skip
    if record.retried:
        told[RETRY] = {"retryOf": f"{RUN}:{record.retried}", "retryNumber": record.attempts}
    status = ResourceStatus(
        phase="Reconciling",
        conditions={key: Condition(value=value, updated_at=now, observed_generation=1) for key, value in told.items()},
    )
    return Resource(
        id=record.run, type=RUN, name=_name(flow, record.run, now), account=flow.account, spec=spec, status=status,
        references={key: held for key, held in flow.references.items() if key in acted},
        owners=(OwnerReference(id=flow.id, type=flow.type, name=flow.name, part=None),), created_at=now, updated_at=now,
    )  # fmt: skip


def _name(flow: Resource, run: str, now: Instant) -> str:
    """Returns a name for a run; in the order of names are the runs of a flow in the order in which they began."""
    suffix = f"-{instant.render(now)[:19].translate(_STAMP)}-{run[:8]}"
    return flow.name[: MAX_NAME - len(suffix)].rstrip("-.") + suffix


def end(run: Resource, outcome: Outcome, message: str, steps: Iterable[TaskEnd], now: Instant) -> ResourceStatus:
    """Returns the status of a run after its end."""
    kept = {key: ConditionValue(value=each.value) for key, each in run.status.conditions.items()}
    told, fault = outcome_of(outcome, message, steps)
    at_work = msgspec.structs.replace(run.status, phase="Reconciling")  # a label makes it wait to be looked at
    if fault is None:
        return ready(at_work, run.generation, {**kept, **told}, now)
    return fail(at_work, run.generation, {**kept, **told}, fault, None, now)


def outcome_of(outcome: Outcome, message: str, steps: Iterable[TaskEnd]) -> tuple[Told, Refused | None]:
    """Returns the conditions of a run that has ended, and its fault unless it ended well."""
    code = "" if outcome in GOOD else "cancelled" if outcome is Outcome.CANCELLED else "flow-run"
    tasks = [
        {"name": step.name, **({"task": f"Task:{step.task}"} if step.task else {}), "status": "Finished",
         "outcome": {**step.outcome.told, **({"message": step.message} if step.message else {})},
         "lastUpdatedAt": instant.render(step.at)}
        for step in steps
    ]  # fmt: skip
    told = {
        STATUS: ConditionValue(value={"status": "Finished", "tasks": tasks}),
        OUTCOME: ConditionValue(value=outcome.told, code=code, message=message),
    }
    return told, Refused(
        message, rule=code, hint="odfctl get flowruns -o yaml shows what its tasks did"
    ) if code else None


def task_name(plan: FlowPlan, place: int) -> str:
    """Returns the name of the task at a place: its own, or the one that RFC-019 gives it."""
    task = plan.tasks[place]
    return task.said.name or f"task-{place}-{str(task.said.__struct_config__.tag).rpartition('/')[2].lower()}"


def retention_of(flow: Resource) -> tuple[int, int]:
    """Returns how many finished runs of a flow stay, and for how many nanoseconds."""
    said = flow.spec.get("recentRunsRetention") or {}
    age = said.get("maxAge")
    return said.get("maxRuns", USUAL_RUNS), USUAL_AGE if age is None else parse_duration(age)


def _causes(flow: Resource, plan: FlowPlan, cause: Cause) -> Iterator[dict[str, Any]]:
    """Yields what caused a run as RFC-019 tells it: each trigger that fired, as the flow has it."""
    declared = [each for each in flow.spec["triggers"] if each.get("enabled") is not False]

    def of(*kinds: str) -> list[Mapping[str, Any]]:
        return [each for each in declared if each["kind"] in kinds]

    schedule = plan.schedule
    schedules = schedule.schedules if isinstance(schedule, Several) else (schedule,) if schedule is not None else ()
    timed = [
        each
        for each, times in zip(of("Schedule", "Interval"), schedules, strict=False)
        if times.after(Instant(cause.at - 1)) == cause.at
    ]
    match cause.what:
        case "times":
            fired = timed
        case "request":
            fired = timed or of("Manual")  # a time that a person wants to be made up for, or none
        case "records":
            fired = of("SourceUpdated", *(("InputsUpdated",) if plan.batched else ()))
        case did:
            own = str(plan.target)
            fired = [
                each
                for each in of("Event")
                if (did == own if "target" not in each else did in _dids(flow, each["target"]))
            ] or of("InputsUpdated")
    for each in fired:
        yield {"activationTime": instant.render(cause.at), "trigger": each}


def _dids(flow: Resource, ref: str) -> list[str | None]:
    held = flow.references.get(reference_key(ref, "Dataset"))
    return [] if held is None else [held.did]
