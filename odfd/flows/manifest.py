"""Reads flows from manifests: ``spec`` and ``flowPolicy`` of a Flow. Every mistake has its line.

It reads the Flow of RFC-019, and former ones (``odfd.flows.dialect``); an unknown part is refused by its name. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from chain.codec.yaml_tree import parse
from chain.errors import Invalid
from chain.ids import DatasetId
from odfd.flows import schedule
from odfd.flows.dialect import OWN_KINDS, POLICY, PULL, prepare, show
from odfd.flows.plan import (
    BRINGS,
    DAY,
    EVERY,
    HOUR,
    INGESTS,
    MINUTE,
    TARGET,
    TIMES,
    Arrival,
    CatchUp,
    FlowPlan,
    FlowPolicy,
    Follows,
    Retry,
    Step,
)
from odfd.flows.schedule import (
    UTC,
    Cron,
    Every,
    Schedule,
    Several,
    duration_text,
    parse_cron,
    parse_duration,
    parse_every,
    parse_zone,
)
from odfd.flows.spec import (
    OWN_TRIGGERS,
    DatasetSchedule,
    DerivationPolicySpec,
    FlowPolicySpec,
    FlowSpec,
    OnEvent,
    OnInputsUpdated,
    OnInterval,
    OnRequest,
    OnSchedule,
    OnSourceUpdated,
    RetryLimit,
    RunsRetention,
    TriggerSpec,
)
from odfd.flows.tasks import MOST_TASKS, check_service, read_retry, read_task, source_key
from odfd.resources import registry
from odfd.resources.manifest import Draft, read_resource
from odfd.resources.owners import OwnedPart
from odfd.resources.references import reference_key
from odfd.resources.registry import ODF, OURS, VERSION
from odfd.resources.resource import Resource
from odfd.resources.selectors import Selection, is_pattern, parse_selector, parse_target
from odfd.resources.types import ResourceType, TypeRegistry, annotation_of

_TARGET: Final = "Dataset:"
_MOST_RECORDS: Final = 10_000_000
MOST_RUNS: Final = 100
ACCOUNT_INTERVAL: Final = MINUTE
"""Shortest interval and cooldown that an account may declare: each run takes a turn of the node's engine."""
_MOST_WINDOW: Final = schedule.MOST_INTERVAL
SCHEDULE: Final = "schedule"
DERIVATION: Final = "derivationPolicy"
"""Names of annotations of a Dataset."""


class DesiredFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow as written, with unresolved references."""

    name: str
    target: str
    """The dataset, or empty for a flow of a selection."""
    selection: Selection | None = None
    inputs: Mapping[str, tuple[str, int | None]]
    """The datasets whose events trigger runs, each with the path of its trigger and the cooldown of that."""
    follows: Follows | None
    derived: tuple[str, str] | None
    """The derived dataset whose inputs it follows, and the path of that; ``None`` for the target."""
    schedule: Schedule | None
    on_update: bool
    on_request: bool
    cooldowns: Mapping[str, int]
    arrivals: tuple[Arrival, ...]
    tasks: tuple[Step, ...]
    datasets: Mapping[int, str]
    """The datasets of tasks, by the place of the task, that have another one than the target."""
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
        inputs = {dataset(ref, path): cooldown for ref, (path, cooldown) in self.inputs.items()}
        cooldowns = {
            TARGET if did == target else str(did): cooldown for did, cooldown in inputs.items() if cooldown is not None
        }
        brings = any(isinstance(task.said, BRINGS) for task in self.tasks)
        tasks = [
            each
            if (ref := self.datasets.get(number)) is None
            else msgspec.structs.replace(each, dataset=dataset(ref, f"spec.tasks[{number}].target"))
            for number, each in enumerate(self.tasks)
        ]
        follows = self.follows
        if follows is not None and self.derived is not None:
            follows = msgspec.structs.replace(follows, dataset=dataset(*self.derived))
        return FlowPlan(
            id=id_,
            name=self.name,
            target=target,
            schedule=self.schedule,
            inputs=frozenset(inputs) if brings else frozenset(inputs) - {target},
            follows=follows,
            on_update=self.on_update or (target in inputs and not brings),
            on_request=self.on_request,
            cooldowns={**self.cooldowns, **cooldowns},
            arrivals=self.arrivals,
            tasks=tuple(tasks),
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
    said = annotation_of(owner.annotations, "dataset", DERIVATION)
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


def schedule_of(owner: Resource) -> Iterator[OwnedPart]:
    """Yields the flow of a dataset with a schedule, and checks its other annotations of this kind. Raises Invalid."""
    derivation_policy(owner)
    said = annotation_of(owner.annotations, "dataset", SCHEDULE)
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
    trigger = {"kind": "Interval", "interval": schedule.every}
    if schedule.cron is not None:
        trigger = {"kind": "Schedule", "cron": schedule.cron}
    yield OwnedPart(
        type="Flow", part=SCHEDULE, name=owner.name, refers=reference_key(owner.name, owner.type),
        annotations={} if schedule.time_zone is None else {POLICY: {"timeZone": schedule.time_zone}},
        spec={"target": f"{_TARGET}{owner.name}", "triggers": [trigger], "tasks": [{"kind": PULL}]},
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
    times = flow.schedule.schedules if isinstance(flow.schedule, Several) else (flow.schedule,)
    for time in times if flow.cooldowns.get(TIMES, 0) < ACCOUNT_INTERVAL else ():
        if isinstance(time, Every) and time.nanoseconds < ACCOUNT_INTERVAL:
            yield "spec.triggers", f"an account's flow runs every {least} at the most often, and not {time}"
    follows = flow.on_update or flow.inputs or flow.follows is not None
    if follows and policy.cooldown < ACCOUNT_INTERVAL:
        text = f"an account's flow has a cooldown of {least} at the least, and not {duration_text(policy.cooldown)}"
        yield "spec.triggers", text
    if policy.retry.least < Retry().least:
        least, pause = duration_text(Retry().least), duration_text(policy.retry.least)
        text = f"an account's flow is tried again after {least} at the least, and not {pause}"
        yield "spec.retryPolicy.minDelay", text


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
        selection, tasks = self._selection(), self._tasks()
        target = "" if selection is not None else spec.target.removeprefix(_TARGET)
        if not spec.triggers:
            self._note("spec.triggers", "no trigger", "flow-trigger", "RFC-019, FlowTrigger: kind: Manual or others")
        on_update, inputs = self._events(tasks)
        follows, derived = self._follows(tasks)
        schedule, cooldowns = self._schedule()
        self._check_retention()
        cooldowns |= self._target_cooldown()
        return DesiredFlow(
            name=self._draft.headers.name,
            target=target,
            selection=selection,
            inputs=inputs,
            follows=follows,
            derived=derived,
            schedule=schedule,
            on_update=on_update,
            on_request=any(isinstance(each, OnRequest) for _, each in self._triggers()),
            cooldowns=cooldowns,
            arrivals=self._arrivals(tasks),
            tasks=tasks,
            datasets={
                number: each.target.removeprefix(_TARGET)
                for number, each in enumerate(spec.tasks)
                if each.target is not None
            },
            policy=self._read_policy(),
            source=self._draft.source,
            lines=self._draft.lines,
        )

    def _triggers(self) -> Iterator[tuple[str, TriggerSpec]]:
        """Yields the triggers that are enabled, each with its path."""
        for number, each in enumerate(self._spec.triggers):
            if each.enabled is not False:
                yield f"spec.triggers[{number}]", each

    def _selection(self) -> Selection | None:
        text, labels = self._spec.target.removeprefix(_TARGET), self._spec.target_labels
        if labels is not None:
            self._try("spec.targetLabels", parse_selector, labels)
        if is_pattern(text):
            made = self._try("spec.target", parse_target, text)
            return None if made is None else msgspec.structs.replace(made, labels=labels)
        if labels is not None:
            hint = "RFC-018, Selectors: {type: Dataset, name: '%', labels: …} means all that have them"
            self._note("spec.targetLabels", "the target is one dataset", "flow-target", hint)
        return None

    def _tasks(self) -> tuple[Step, ...]:
        specs = self._spec.tasks
        if not 1 <= len(specs) <= MOST_TASKS:
            hint = f"RFC-019, Flow: 1 to {MOST_TASKS}; a second flow does more"
            self._note("spec.tasks", f"{len(specs)} tasks", "flow-tasks", hint)
        check_service(self._draft, specs)
        return tuple(read_task(self._draft, f"spec.tasks[{at}]", each) for at, each in enumerate(specs[:MOST_TASKS]))

    def _events(self, tasks: Sequence[Step]) -> tuple[bool, dict[str, tuple[str, int | None]]]:
        """Returns whether events of the target trigger runs, and the other datasets whose events do."""
        on_update, inputs = False, dict[str, tuple[str, int | None]]()
        for path, each in self._triggers():
            if not isinstance(each, OnEvent):
                continue
            if each.target is not None:
                inputs[each.target.removeprefix(_TARGET)] = f"{path}.target", self._cooldown(path, each, None)
            elif on_update:
                self._note(path, "a second event of the target", "flow-trigger", "leave it out: it is the same")
            else:
                on_update = True
                brings = (number for number, task in enumerate(tasks) if isinstance(task.said, BRINGS))
                if (number := next(brings, None)) is not None:
                    kind = self._spec.tasks[number].__struct_config__.tag
                    hint = "RFC-019, FlowTrigger: name another dataset as its target, or write kind: InputsUpdated"
                    self._note(path, f"a {kind} would run at new blocks of its own target", "flow-trigger", hint)
        return on_update, inputs

    def _target_cooldown(self) -> dict[str, int]:
        """Returns the cooldown of events of the target, under the did that stands for it in ``FlowPlan``."""
        found = next(
            (
                self._cooldown(path, each, None)
                for path, each in self._triggers()
                if isinstance(each, OnEvent) and each.target is None
            ),
            None,
        )
        return {} if found is None else {TARGET: found}

    def _follows(self, tasks: Sequence[Step]) -> tuple[Follows | None, tuple[str, str] | None]:
        """Returns the condition on new data of inputs, and the dataset that has them, if it is not the target."""
        found = [(path, each) for path, each in self._triggers() if isinstance(each, OnInputsUpdated)]
        for path, _ in found[1:]:
            hint = "RFC-019, FlowTrigger: write a second flow"
            self._note(path, "a second InputsUpdated", "flow-trigger", hint)
        if not found:
            return None, None
        path, each = found[0]
        least, longest = self._batch(path, each)
        if least > 1 and not any(isinstance(task.said, INGESTS) and task.uses is None for task in tasks):
            hint = "RFC-019, FlowTrigger: add kind: Transform, or leave out minRecordsToAwait"
            self._note(path, "no task reads the records that it counts", "flow-trigger", hint)
        follows = Follows(least=least, longest=longest, cooldown=self._cooldown(path, each, MINUTE))
        if each.target is None or each.target == self._spec.target:
            return follows, None
        return follows, (each.target.removeprefix(_TARGET), f"{path}.target")

    def _batch(self, path: str, each: OnInputsUpdated | OnSourceUpdated) -> tuple[int, int]:
        """Returns the number of records that are awaited, and how long, in nanoseconds."""
        least = 1 if each.min_records_to_await is None else each.min_records_to_await
        longest = self._length_at(f"{path}.maxAwaitInterval", each.max_await_interval, HOUR)
        if not 1 <= least <= _MOST_RECORDS or not 0 < longest <= DAY:
            hint = f"1 to {_MOST_RECORDS:,} records, and at most 1d"
            self._note(path, "the awaited time is out of range", "number-range", hint)
        return least, longest

    def _arrivals(self, tasks: Sequence[Step]) -> tuple[Arrival, ...]:
        """Returns the Sources whose pushes begin a run; each has to be the source of a task."""
        taken = {task.uses for task in tasks if isinstance(task.said, INGESTS)}
        found: list[Arrival] = []
        for path, each in self._triggers():
            if not isinstance(each, OnSourceUpdated):
                continue
            key = self._try(f"{path}.source", source_key, each.source)
            if key not in taken:
                hint = f"RFC-019, FlowTrigger: tasks: [{{kind: Ingest, source: {each.source}}}]"
                self._note(path, "no task takes from this Source", "flow-trigger", hint)
            least, longest = self._batch(path, each)
            cooldown = self._cooldown(path, each, 0)
            found.append(Arrival(source=key or "", least=least, longest=longest, cooldown=cooldown))
        return tuple(found)

    def _schedule(self) -> tuple[Schedule | None, dict[str, int]]:
        """Returns all times at which it runs, and the cooldown between them."""
        zone = self._try(f"{_POLICY}.timeZone", parse_zone, self._policy.time_zone or UTC)
        found: list[Cron | Every | None] = []
        cooldowns: list[int] = []
        for path, each in self._triggers():
            match each:
                case OnSchedule():
                    found.append(self._try(f"{path}.cron", lambda text: parse_cron(text, zone or UTC), each.cron))
                case OnInterval():
                    found.append(self._try(f"{path}.interval", parse_every, each.interval))
                case _:
                    continue
            cooldowns.append(self._cooldown(path, each, 0))
            if cooldowns[-1] != cooldowns[0]:
                hint = "RFC-019, FlowTrigger: write a second flow"
                self._note(f"{path}.cooldown", "times of one flow have one cooldown", "flow-trigger", hint)
        times = tuple(each for each in found if each is not None)
        if not times:
            return None, {}
        told = {TIMES: cooldowns[0]} if cooldowns[0] else {}
        return (times[0] if len(times) == 1 else Several(times)), told

    def _cooldown(self, path: str, each: TriggerSpec, usual: Any) -> Any:
        """Returns the cooldown of a trigger in nanoseconds, or the usual one."""
        return self._length_at(f"{path}.cooldown", each.cooldown, usual)

    def _read_policy(self) -> FlowPolicy:
        policy, usual = self._policy, FlowPolicy()
        most = self._length_at(f"{_POLICY}.retry.maxDelay", (policy.retry or RetryLimit()).max_delay, usual.retry.most)
        news = [
            self._cooldown(path, each, MINUTE)
            for path, each in self._triggers()
            if isinstance(each, OnEvent | OnInputsUpdated | OnSourceUpdated)
        ]
        return FlowPolicy(
            suspend=policy.suspend,
            catch_up=self._try(f"{_POLICY}.catchUp", _catch_up, policy.catch_up) or usual.catch_up,
            window=self._length_at(f"{_POLICY}.catchUpWindow", policy.catch_up_window, usual.window),
            cooldown=min(news, default=usual.cooldown),
            retry=read_retry(self._draft, "spec.retryPolicy", self._spec.retry_policy, most),
        )

    def _check_retention(self) -> None:
        kept, path = self._spec.recent_runs_retention or RunsRetention(), "spec.recentRunsRetention"
        if kept.max_runs is not None and not 1 <= kept.max_runs <= MOST_RUNS:
            hint = f"RFC-019, Flow: 1 to {MOST_RUNS}"
            self._note(f"{path}.maxRuns", f"{kept.max_runs} is out of range", "number-range", hint)
        self._length_at(f"{path}.maxAge", kept.max_age, None)

    def _length_at(self, place: str, text: str | None, usual: Any) -> Any:
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
    made_by="a derived dataset, which follows its inputs",
    instead="odfctl flow pause NAME, or set flows.follow = false for all",
    about="Declares when the node pulls a dataset, or does other tasks, automatically (odfctl docs flows).",
    spec=FlowSpec, converts=prepare, shows=show, annotations={POLICY: FlowPolicySpec},
    uris=tuple(f"{base}/flow/{VERSION}/Flow" for base in (ODF, OURS)),
    own_kinds=OWN_KINDS | OWN_TRIGGERS, is_pruned=True,
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
  tasks:
  - {kind: Ingest, source: Source:sensors}
""",
)  # fmt: skip
_REGISTRY: Final = TypeRegistry([FLOW_TYPE])
