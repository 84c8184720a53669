"""Reads flows from manifests: ``spec`` and ``flowPolicy`` of a Flow. Every mistake has its line.

A part of the Flow of RFC-018; what is not understood is refused by its name, never passed over. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.wire import U32
from odfd.flows import schedule
from odfd.flows.plan import CatchUp, FlowPlan, FlowPolicy, Retry
from odfd.flows.schedule import UTC, Schedule, parse_cron, parse_duration, parse_every, parse_zone
from odfd.resources.declared import DeclaredResource
from odfd.resources.manifest import Draft, described
from odfd.resources.owners import OwnedPart
from odfd.resources.references import reference_key, refers_to

_TARGET: Final = "Dataset:"
_DATASET: Final = refers_to("Dataset")
_MOST_ATTEMPTS: Final = 100
_MOST_WINDOW: Final = schedule.MOST_INTERVAL
POLICY: Final = "flowPolicy"
SCHEDULE: Final = "schedule"
"""An annotation of a Dataset."""
LENGTH: Final = msgspec.Meta(extra_json_schema={"format": "duration, such as 90s, 10min, 1h or 1d"})


class OnSchedule(msgspec.Struct, frozen=True, kw_only=True, tag="Schedule"):
    """Runs at times: either ``cron`` or ``every`` is given."""

    cron: Annotated[str, described("Five fields, or @hourly, @daily, @weekly, @monthly, @yearly.")] | None = None
    every: Annotated[str, described("An interval; runs are at its multiples since 1970 in UTC."), LENGTH] | None = None


class OnDataset(msgspec.Struct, frozen=True, kw_only=True, tag="Dataset"):
    """Runs when a dataset has new data."""

    dataset: Annotated[str, described("Its name, Dataset:NAME, did:odf:…, or the id of its resource."), _DATASET]


class IngestTask(msgspec.Struct, frozen=True, kw_only=True, tag="Ingest", rename="camel"):
    """Pulls the dataset."""

    fetch_uncacheable: Annotated[
        bool, described("Fetch also from a web source that cannot tell whether it changed.")
    ] = False


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Retries of a run that failed for a temporary reason."""

    max_attempts: Annotated[U32, described("1 to 100; 3 if nothing is said.")] | None = None
    min_delay: Annotated[str, described("The first pause; 10s."), LENGTH] | None = None
    max_delay: Annotated[str, described("The longest pause; 1h."), LENGTH] | None = None


class FlowPolicySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the runs of a flow behave."""

    suspend: Annotated[bool, described("The flow rests.")] = False
    time_zone: Annotated[str, described("Of the cron expression; UTC.")] | None = None
    catch_up: Annotated[str, described("Of times that passed: one (the latest), all, or none.")] | None = None
    catch_up_window: Annotated[str, described("How old a time may be that is caught up; 1d."), LENGTH] | None = None
    cooldown: Annotated[str, described("Between two runs that new data causes; 1min."), LENGTH] | None = None
    retry: RetryPolicy | None = None


class FlowSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which dataset is pulled, and when."""

    target: Annotated[
        str, described("Dataset:NAME, NAME, did:odf:… or the id of its resource: what is pulled."), _DATASET
    ]
    triggers: Annotated[
        tuple[OnSchedule | OnDataset, ...], described("One schedule at most, and any number of datasets.")
    ]
    tasks: Annotated[tuple[IngestTask, ...], described("Nothing, or one: a pull with settings.")] | None = None


class DatasetSchedule(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """When a dataset without a Flow is pulled: either ``cron`` or ``every`` is given."""

    cron: Annotated[str, described("Five fields, or @hourly, @daily, @weekly, @monthly, @yearly.")] | None = None
    every: Annotated[str, described("An interval; runs are at its multiples since 1970 in UTC."), LENGTH] | None = None
    time_zone: Annotated[str, described("Of the cron expression; UTC.")] | None = None

    def check(self) -> None:
        """Raises Invalid."""
        zone = parse_zone(self.time_zone or UTC)
        if (self.cron is None) == (self.every is None):
            raise Invalid("a schedule has either cron or every", rule="flow-trigger", hint="cron: '30 17 * * 1-5'")
        parse_every(self.every) if self.cron is None and self.every is not None else parse_cron(self.cron or "", zone)


class DesiredFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow as written, with unresolved references."""

    name: str
    target: str
    inputs: tuple[str, ...]
    schedule: Schedule | None
    fetch_uncacheable: bool
    policy: FlowPolicy
    source: str
    lines: Mapping[str, int]

    def place(self, path: str = "") -> str:
        """Returns ``file:line`` of a part of the flow."""
        return f"{self.source}:{self.lines.get(path, self.lines.get('', 1))}"

    def plan(self, resolve: Callable[[str, str], DatasetId]) -> FlowPlan:
        """Builds the plan; ``resolve``: a reference, and its place in the text, to an id. Raises what that raises."""
        target = resolve(self.target, self.place("spec.target"))
        inputs = [
            resolve(each, self.place(f"spec.triggers[{number}].dataset"))
            for number, each in enumerate(self.inputs)
            if each
        ]
        return FlowPlan(
            name=self.name,
            target=target,
            schedule=self.schedule,
            inputs=frozenset(inputs),
            fetch_uncacheable=self.fetch_uncacheable,
            policy=self.policy,
        )


def scheduled(owner: DeclaredResource, uri: str) -> Iterator[OwnedPart]:
    """Yields the flow of a dataset with a schedule. ``uri``: the long name of its annotation. Raises Invalid."""
    annotated = owner.annotations.get(SCHEDULE, owner.annotations.get(uri))
    if annotated is None:
        return
    try:
        schedule = msgspec.convert(annotated, DatasetSchedule)
    except msgspec.ValidationError as error:
        hint = "schedule: {every: 1h}, or {cron: '@daily', timeZone: Europe/Vienna}"
        raise Invalid(f"{SCHEDULE}: {error}", rule="flow-trigger", hint=hint) from error
    schedule.check()
    times = {"cron": schedule.cron} if schedule.cron is not None else {"every": schedule.every}
    yield OwnedPart(
        type="Flow", part=SCHEDULE, name=owner.name, refers=reference_key(owner.name, owner.type),
        annotations={} if schedule.time_zone is None else {POLICY: {"timeZone": schedule.time_zone}},
        spec={"target": f"{_TARGET}{owner.name}", "triggers": [{"kind": "Schedule", **times}]},
    )  # fmt: skip


def flow_of(draft: Draft) -> DesiredFlow | None:
    """Reads a draft; ``None`` for an invalid flow, whose mistakes are added to it."""
    flow = _Reading(draft).flow()
    return None if draft.binding.mistakes else flow


class _Reading:
    """One document's values judged; mistakes are added to the draft."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._note, self._try = draft.note, draft.attempt
        self._spec: FlowSpec = draft.spec
        self._policy: FlowPolicySpec = draft.typed.get(POLICY) or FlowPolicySpec()

    def flow(self) -> DesiredFlow:
        spec = self._spec
        tasks = spec.tasks or (IngestTask(),)
        if len(tasks) != 1:
            self._note("spec.tasks", f"{len(tasks)} tasks", "flow-tasks", "one, or none: the dataset is pulled")
        on_data = tuple(each.dataset if isinstance(each, OnDataset) else "" for each in spec.triggers)
        return DesiredFlow(
            name=self._draft.headers.name,
            target=spec.target.removeprefix(_TARGET),
            inputs=tuple(each.removeprefix(_TARGET) for each in on_data),
            schedule=self._schedule(),
            fetch_uncacheable=tasks[0].fetch_uncacheable,
            policy=self._read_policy(),
            source=self._draft.source,
            lines=self._draft.lines,
        )

    def _schedule(self) -> Schedule | None:
        numbered = [(n, each) for n, each in enumerate(self._spec.triggers) if isinstance(each, OnSchedule)]
        if not self._spec.triggers:
            self._note("spec.triggers", "no trigger", "flow-trigger", "kind: Schedule, or kind: Dataset")
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
            cooldown=self._length("cooldown", policy.cooldown, usual.cooldown),
            retry=Retry(
                attempts=attempts,
                least=self._length("retry.minDelay", retry.min_delay, usual.retry.least),
                most=self._length("retry.maxDelay", retry.max_delay, usual.retry.most),
            ),
        )

    def _length(self, name: str, text: str | None, usual: int) -> int:
        length = self._try(f"{_POLICY}.{name}", parse_duration, text)
        if length is not None and length > _MOST_WINDOW:
            self._note(f"{_POLICY}.{name}", "is out of range", "flow-duration", "at most 366d")
        return usual if length is None else length


_POLICY: Final = f"headers.annotations.{POLICY}"


def _catch_up(text: str) -> CatchUp:
    """Raises Invalid."""
    try:
        return CatchUp(text)
    except ValueError as error:
        known = ", ".join(each.value for each in CatchUp)
        raise Invalid(f"unknown catchUp {text[:40]!r}", rule="enum-member", hint=f"one of {known}") from error
