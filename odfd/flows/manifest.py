"""Reads flows from manifests: ``spec`` and ``flowPolicy`` of a Flow. Every mistake has its line.

It reads a part of the Flow of RFC-018; an unknown part is refused by its name, never ignored. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from chain.codec.yaml_tree import parse
from chain.errors import Invalid
from chain.ids import DatasetId
from odfd.flows import schedule
from odfd.flows.dialect import prepare
from odfd.flows.plan import (
    DAY,
    HOUR,
    MINUTE,
    Arrival,
    CatchUp,
    FlowPlan,
    FlowPolicy,
    FlowTask,
    Retry,
    Selection,
)
from odfd.flows.schedule import UTC, Every, Schedule, duration_text, parse_cron, parse_duration, parse_every, parse_zone
from odfd.flows.selection import EVERY
from odfd.flows.spec import (
    DatasetSchedule,
    DerivationPolicySpec,
    FlowPolicySpec,
    FlowSpec,
    IngestTask,
    OnDataset,
    OnEvent,
    OnSchedule,
    OnSource,
    RetryPolicy,
)
from odfd.flows.tasks import read_task, source_key
from odfd.resources import registry
from odfd.resources.manifest import Draft, read_resource
from odfd.resources.owners import OwnedPart
from odfd.resources.references import reference_key
from odfd.resources.resource import Resource
from odfd.resources.selectors import is_pattern, parse_pattern, parse_selector
from odfd.resources.types import ResourceType, TypeRegistry, annotated

_TARGET: Final = "Dataset:"
_MOST_ATTEMPTS: Final = 100
_MOST_TASKS: Final = 8
_MOST_RECORDS: Final = 10_000_000
ACCOUNT_INTERVAL: Final = MINUTE
"""Shortest interval and cooldown that an account may declare: each run takes a turn of the node's engine."""
_MOST_WINDOW: Final = schedule.MOST_INTERVAL
POLICY: Final = "flowPolicy"
SCHEDULE: Final = "schedule"
DERIVATION: Final = "derivationPolicy"
"""Names of annotations: of a Flow the first, of a Dataset the others."""


class DesiredFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow as written, with unresolved references."""

    name: str
    target: str
    """The dataset, or empty for a flow of a selection."""
    selection: Selection | None = None
    inputs: tuple[str, ...]
    schedule: Schedule | None
    on_update: bool
    arrivals: tuple[Arrival, ...]
    tasks: tuple[FlowTask, ...]
    policy: FlowPolicy
    source: str
    lines: Mapping[str, int]

    def place(self, path: str = "") -> str:
        """Returns ``file:line`` of a part of the flow."""
        return f"{self.source}:{self.lines.get(path, self.lines.get('', 1))}"

    def plan(self, id_: str, resolve: Callable[[str, str], DatasetId]) -> FlowPlan:
        """Builds the plan of the flow with an id.

        ``resolve`` turns the key of a reference, with its place in the text, into a did; its faults are passed on.
        """

        def dataset(ref: str, path: str) -> DatasetId:
            return resolve(reference_key(ref, "Dataset"), self.place(path))

        target = EVERY if self.selection is not None else dataset(self.target, "spec.target")
        inputs = [
            dataset(each, f"spec.triggers[{number}].dataset") for number, each in enumerate(self.inputs) if each
        ]  # fmt: skip
        return FlowPlan(
            id=id_,
            name=self.name,
            target=target,
            schedule=self.schedule,
            inputs=frozenset(inputs),
            on_update=self.on_update,
            arrivals=self.arrivals,
            tasks=self.tasks,
            policy=self.policy,
            selection=self.selection,
        )


class DerivationPolicy(NamedTuple):
    """Says how a derived dataset follows its inputs, as its annotation states it."""

    is_manual: bool
    cooldown: int | None
    """Nanoseconds between runs; ``None`` for that of the settings."""


def derivation_policy(owner: Resource) -> DerivationPolicy | None:
    """Reads the annotation of a dataset; ``None`` if it has none. Raises Invalid."""
    said = annotated(owner.annotations, "dataset", DERIVATION)
    if said is None:
        return None
    try:
        policy = msgspec.convert(said, DerivationPolicySpec)
    except msgspec.ValidationError as error:
        hint = "derivationPolicy: {cooldown: 10min}, or {when: Manual}"
        raise Invalid(f"{DERIVATION}: {error}", rule="flow-policy", hint=hint) from error
    if policy.when not in ("Update", "Manual"):
        raise Invalid(f"{DERIVATION}: unknown when {policy.when[:40]!r}", rule="enum-member", hint="Update or Manual")
    cooldown = None if policy.cooldown is None else parse_duration(policy.cooldown)
    if cooldown is not None and cooldown > _MOST_WINDOW:
        raise Invalid(f"{DERIVATION}: its cooldown is out of range", rule="flow-duration", hint="at most 366d")
    return DerivationPolicy(policy.when == "Manual", cooldown)


def scheduled(owner: Resource) -> Iterator[OwnedPart]:
    """Yields the flow of a dataset with a schedule, and checks its other annotations of this kind. Raises Invalid."""
    derivation_policy(owner)
    said = annotated(owner.annotations, "dataset", SCHEDULE)
    if said is None:
        return
    try:
        schedule = msgspec.convert(said, DatasetSchedule)
    except msgspec.ValidationError as error:
        hint = "schedule: {every: 1h}, or {cron: '@daily', timeZone: Europe/Vienna}"
        raise Invalid(f"{SCHEDULE}: {error}", rule="flow-trigger", hint=hint) from error
    schedule.check()
    _check_can_be_pulled(owner)
    if owner.account is not None and schedule.every is not None and parse_duration(schedule.every) < ACCOUNT_INTERVAL:
        least = duration_text(ACCOUNT_INTERVAL)
        raise Invalid(
            f"{SCHEDULE}: an account pulls a dataset every {least} at the most often, and not every {schedule.every}",
            rule="flow-duration",
            hint=f"every: {least}; the node's owner may declare a Flow that runs more often",
        )
    times = {"cron": schedule.cron} if schedule.cron is not None else {"every": schedule.every}
    yield OwnedPart(
        type="Flow", part=SCHEDULE, name=owner.name, refers=reference_key(owner.name, owner.type),
        annotations={} if schedule.time_zone is None else {POLICY: {"timeZone": schedule.time_zone}},
        spec={"target": f"{_TARGET}{owner.name}", "triggers": [{"kind": "Schedule", **times}]},
    )  # fmt: skip


def _check_can_be_pulled(owner: Resource) -> None:
    """Raises Invalid for a root that is only pushed to: its flow would fail each time, for ever."""
    declared = owner.spec.get("metadata") if isinstance(owner.spec, dict) else None
    kinds = {each.get("kind") for each in declared if isinstance(each, dict)} if isinstance(declared, list) else set()
    if "AddPushSource" in kinds and "SetPollingSource" not in kinds:
        raise Invalid(
            f"{SCHEDULE}: {owner.name} is pushed to, and has nothing to pull from",
            rule="flow-trigger",
            hint="leave out the schedule, or give the dataset a SetPollingSource instead",
        )


def flow_of(draft: Draft) -> DesiredFlow | None:
    """Reads a draft; returns ``None`` for an invalid flow, whose mistakes are added to the draft."""
    flow = _Reading(draft).flow()
    return None if draft.binding.mistakes else flow


def paces(flow: DesiredFlow) -> Iterator[tuple[str, str]]:
    """Yields the place and the words of what makes a flow run more often than an account may."""
    least, policy = duration_text(ACCOUNT_INTERVAL), flow.policy
    if isinstance(flow.schedule, Every) and flow.schedule.nanoseconds < ACCOUNT_INTERVAL:
        yield "spec.triggers", f"an account's flow runs every {least} at the most often, and not {flow.schedule}"
    follows = flow.on_update or any(flow.inputs)
    if follows and policy.cooldown < ACCOUNT_INTERVAL:
        text = f"an account's flow has a cooldown of {least} at the least, and not {duration_text(policy.cooldown)}"
        yield "spec.triggers", text
    if policy.retry.least < Retry().least:
        least, pause = duration_text(Retry().least), duration_text(policy.retry.least)
        text = f"an account's flow is tried again after {least} at the least, and not {pause}"
        yield f"{_POLICY}.retry.minDelay", text


def declared_flow(name: str, spec: Any, annotations: Mapping[str, Any]) -> DesiredFlow:
    """Reads a flow as it is stored, which was checked when it was applied. Raises Invalid for one that is damaged."""
    said = {"$schema": FLOW_TYPE.name, "headers": {"name": name, "annotations": annotations}, "spec": spec}
    (node,) = parse(json.dumps(said), name)
    draft, mistakes = read_resource(node, name, _REGISTRY)
    flow = None if draft is None else flow_of(draft)
    if draft is None or flow is None:
        fault = (draft.binding.mistakes if draft is not None else mistakes)[0]
        raise Invalid(f"the flow {name} cannot be read: {fault.message}", rule=fault.rule, hint="apply it again")
    return flow


class _Reading:
    """Reads and checks the values of one Flow; adds mistakes to the draft."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._note, self._try = draft.note, draft.attempt
        self._spec: FlowSpec = draft.spec
        self._policy: FlowPolicySpec = draft.typed.get(POLICY) or FlowPolicySpec()

    def flow(self) -> DesiredFlow:
        spec = self._spec
        on_update, tasks = self._on_update(), self._tasks()
        on_data = tuple(each.dataset if isinstance(each, OnDataset) else "" for each in spec.triggers)
        selection = self._selection()
        return DesiredFlow(
            name=self._draft.headers.name,
            target="" if selection is not None else spec.target.removeprefix(_TARGET),
            selection=selection,
            inputs=tuple(each.removeprefix(_TARGET) for each in on_data),
            schedule=self._schedule(),
            on_update=on_update,
            arrivals=self._arrivals(),
            tasks=tasks,
            policy=self._read_policy(),
            source=self._draft.source,
            lines=self._draft.lines,
        )

    def _selection(self) -> Selection | None:
        text, labels = self._spec.target.removeprefix(_TARGET), self._spec.target_labels
        if labels is not None:
            self._try("spec.targetLabels", parse_selector, labels)
        if is_pattern(text):
            pattern = self._try("spec.target", parse_pattern, text)
            return None if pattern is None else Selection(name=pattern, labels=labels)
        if labels is not None:
            hint = "target: Dataset:%, to mean all that have them"
            self._note("spec.targetLabels", "the target is one dataset", "flow-target", hint)
        return None

    def _tasks(self) -> tuple[FlowTask, ...]:
        specs = self._spec.tasks or (IngestTask(),)
        if len(specs) > _MOST_TASKS:
            hint = f"at most {_MOST_TASKS}; a second flow does more"
            self._note("spec.tasks", f"{len(specs)} tasks", "flow-tasks", hint)
        return tuple(read_task(self._draft, f"spec.tasks[{at}]", each) for at, each in enumerate(specs[:_MOST_TASKS]))

    def _on_update(self) -> bool:
        numbered = [(n, each) for n, each in enumerate(self._spec.triggers) if isinstance(each, OnEvent)]
        for number, _ in numbered[1:2]:
            self._note(f"spec.triggers[{number}]", "a second event", "flow-trigger", "leave it out: it is the same")
        pulls = any(isinstance(each, IngestTask) for each in self._spec.tasks or (IngestTask(),))
        for number, _ in numbered[:1] if pulls else ():
            hint = "follow another dataset, kind: Dataset; or give it tasks of kind Compaction or Ext"
            text = "an Ingest would run at new blocks of its own target"
            self._note(f"spec.triggers[{number}]", text, "flow-trigger", hint)
        return bool(numbered)

    def _arrivals(self) -> tuple[Arrival, ...]:
        """Returns the Sources whose pushes begin a run; each has to be the source of a task."""
        taken = {each.source for each in self._spec.tasks or () if isinstance(each, IngestTask)}
        found: list[Arrival] = []
        for number, each in enumerate(self._spec.triggers):
            if not isinstance(each, OnSource):
                continue
            path = f"spec.triggers[{number}]"
            key = self._try(f"{path}.source", source_key, each.source)
            if key not in {each and self._try(f"{path}.source", source_key, each) for each in taken}:
                hint = f"tasks: [{{kind: Ingest, source: {each.source}}}]"
                self._note(path, "no task takes from this Source", "flow-trigger", hint)
            least = 1 if each.min_records_to_await is None else each.min_records_to_await
            longest = self._length_at(f"{path}.maxAwaitInterval", each.max_await_interval, HOUR)
            if not 1 <= least <= _MOST_RECORDS or not 0 < longest <= DAY:
                hint = f"1 to {_MOST_RECORDS:,} records, and at most 1d"
                self._note(path, "what is waited for is out of range", "number-range", hint)
            found.append(Arrival(source=key or "", least=least, longest=longest))
        return tuple(found)

    def _schedule(self) -> Schedule | None:
        numbered = [(n, each) for n, each in enumerate(self._spec.triggers) if isinstance(each, OnSchedule)]
        if not self._spec.triggers:
            self._note("spec.triggers", "no trigger", "flow-trigger", "kind: Schedule, Dataset, Source or Event")
        zone = self._try(f"{_POLICY}.timeZone", parse_zone, self._policy.time_zone or UTC)
        if len(numbered) > 1:
            self._note(f"spec.triggers[{numbered[1][0]}]", "a second schedule", "flow-trigger", "write a second flow")
        for number, each in numbered[:1]:
            path = f"spec.triggers[{number}]"
            if (each.cron is None) == (each.every is None):
                self._note(path, "a schedule has either cron or every", "flow-trigger", "cron: '30 17 * * 1-5'")
            elif each.cron is not None:
                return self._try(f"{path}.cron", lambda text: parse_cron(text, zone or UTC), each.cron)
            elif each.every is not None:
                return self._try(f"{path}.every", parse_every, each.every)
        return None

    def _read_policy(self) -> FlowPolicy:
        policy, usual = self._policy, FlowPolicy()
        retry = policy.retry or RetryPolicy()
        attempts = usual.retry.attempts if retry.max_attempts is None else retry.max_attempts
        if not 1 <= attempts <= _MOST_ATTEMPTS:
            self._note(f"{_POLICY}.retry.maxAttempts", f"{attempts} is out of range", "number-range", "1 to 100")
        return FlowPolicy(
            suspend=policy.suspend,
            catch_up=self._try(f"{_POLICY}.catchUp", _catch_up, policy.catch_up) or usual.catch_up,
            window=self._length("catchUpWindow", policy.catch_up_window, usual.window),
            cooldown=self._cooldown(usual.cooldown),
            retry=Retry(
                attempts=attempts,
                least=self._length("retry.minDelay", retry.min_delay, usual.retry.least),
                most=self._length("retry.maxDelay", retry.max_delay, usual.retry.most),
            ),
        )

    def _cooldown(self, usual: int) -> int:
        """Returns the cooldown of the policy, or of the trigger by events."""
        for number, each in enumerate(self._spec.triggers):
            if isinstance(each, OnEvent) and each.cooldown is not None:
                place = f"spec.triggers[{number}].cooldown"
                if self._policy.cooldown is not None:
                    self._note(place, "the flowPolicy has a cooldown too", "flow-trigger", "leave one of them out")
                return self._length_at(place, each.cooldown, usual)
        return self._length("cooldown", self._policy.cooldown, usual)

    def _length(self, name: str, text: str | None, usual: int) -> int:
        return self._length_at(f"{_POLICY}.{name}", text, usual)

    def _length_at(self, place: str, text: str | None, usual: int) -> int:
        length = self._try(place, parse_duration, text)
        if length is not None and length > _MOST_WINDOW:
            self._note(place, "is out of range", "flow-duration", "at most 366d")
        return usual if length is None else length


_POLICY: Final = f"headers.annotations.{POLICY}"


def _catch_up(text: str) -> CatchUp:
    """Returns which missed times are caught up. Raises Invalid for an unknown word."""
    try:
        return CatchUp(text)
    except ValueError as error:
        known = ", ".join(each.value for each in CatchUp)
        raise Invalid(f"unknown catchUp {text[:40]!r}", rule="enum-member", hint=f"one of {known}") from error


FLOW_TYPE: Final = ResourceType(
    names=registry.FLOW,
    delete=lambda services, view, how: services.flows.delete(view.id, force=how.force),
    about="Declares when the node pulls a dataset, or does other tasks, by itself (odfctl docs flows).",
    spec=FlowSpec, prepare=prepare, annotations={POLICY: FlowPolicySpec},
    is_pruned=True,
    check=flow_of,
    example="""\
$schema: Flow
headers:
  name: sensors-hourly
  annotations:
    flowPolicy: {timeZone: America/Toronto}
spec:
  target: Dataset:sensors
  triggers:
  - {kind: Schedule, cron: "@hourly"}
""",
)  # fmt: skip
_REGISTRY: Final = TypeRegistry([FLOW_TYPE])
