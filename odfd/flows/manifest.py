"""Reads flows as people write them: ``$schema: Flow`` with headers and spec. All mistakes are told, each at its line.

A part of the Flow of RFC-018; what is not understood is refused by its name, never passed over. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from chain.codec.bind import Binding, Mistake, found
from chain.codec.layout import Table
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.ids import DID_ODF, DatasetId
from chain.model.wire import U32
from chain.refs import parse_own_name
from odfd.flows import schedule
from odfd.flows.plan import CatchUp, FlowPlan, FlowPolicy, Retry
from odfd.flows.schedule import UTC, Schedule, parse_cron, parse_duration, parse_every, parse_zone

SCHEMA: Final = "$schema"
_NAMES: Final = ("Flow", "https://opendatafabric.org/schemas/flow/v1alpha1/Flow")
_TARGET: Final = "Dataset:"
_MOST_ATTEMPTS: Final = 100
_MOST_WINDOW: Final = schedule.MOST_INTERVAL
T = TypeVar("T")


class _OnSchedule(msgspec.Struct, frozen=True, kw_only=True, tag="Schedule"):
    cron: str | None = None
    every: str | None = None


class _OnDataset(msgspec.Struct, frozen=True, kw_only=True, tag="Dataset"):
    dataset: str


class _Ingest(msgspec.Struct, frozen=True, kw_only=True, tag="Ingest", rename="camel"):
    fetch_uncacheable: bool = False


class _Retry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    max_attempts: U32 | None = None
    min_delay: str | None = None
    max_delay: str | None = None


class _Policy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    suspend: bool = False
    time_zone: str | None = None
    catch_up: str | None = None
    catch_up_window: str | None = None
    cooldown: str | None = None
    retry: _Retry | None = None


class _Annotations(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    flow_policy: _Policy | None = None


class _Headers(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    annotations: _Annotations | None = None


class _Spec(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    triggers: tuple[_OnSchedule | _OnDataset, ...]
    tasks: tuple[_Ingest, ...] | None = None


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    headers: _Headers
    spec: _Spec


class WantedFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow as it was written: datasets are named, not yet found."""

    name: str
    target: str
    inputs: tuple[str, ...]
    schedule: Schedule | None
    fetch_uncacheable: bool
    policy: FlowPolicy
    source: str
    lines: Mapping[str, int]

    def place(self, path: str = "") -> str:
        """``file:line`` of a part of it."""
        return f"{self.source}:{self.lines.get(path, self.lines.get('', 1))}"

    def plan(self, resolve: Callable[[str, str], DatasetId]) -> FlowPlan:
        """``resolve``: a reference, and the place where it was written, to an id. Raises what that raises."""
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


def is_flow(node: Node) -> bool:
    """Whether a document is written as a resource, which has its type under ``$schema``."""
    return isinstance(node.value, dict) and SCHEMA in node.value


def read_flow(node: Node, source: str) -> tuple[WantedFlow | None, list[Mistake]]:
    """Of a document for which ``is_flow`` holds. No flow where there are mistakes."""
    parts = node.value
    assert isinstance(parts, dict)
    said = parts[SCHEMA]
    if said.value not in _NAMES:
        told = f"unknown type {said.value!r}" if isinstance(said.value, str) else f"expected text, found {found(said)}"
        return None, [Mistake(SCHEMA, said.line, told, "unknown-type", "known is Flow; datasets begin with kind: …")]
    binding = Binding()
    rest = Node(node.line, {key: child for key, child in parts.items() if key != SCHEMA})
    document = binding.bind(Table(_Document), rest)
    if binding.mistakes:
        return None, binding.mistakes
    reading = _Reading(binding, document)
    flow = reading.flow(source)
    return (None, binding.mistakes) if binding.mistakes else (flow, [])


class _Reading:
    """One document's values judged; mistakes are added to the binding."""

    def __init__(self, binding: Binding, document: _Document) -> None:
        self._binding = binding
        self._headers, self._spec = document.headers, document.spec
        said = self._headers.annotations
        self._policy = (said.flow_policy if said is not None else None) or _Policy()

    def flow(self, source: str) -> WantedFlow:
        spec = self._spec
        self._try("headers.name", parse_own_name, self._headers.name)
        tasks = spec.tasks or (_Ingest(),)
        if len(tasks) != 1:
            self._note("spec.tasks", f"{len(tasks)} tasks", "flow-tasks", "one, or none: the dataset is pulled")
        on_data = tuple(each.dataset if isinstance(each, _OnDataset) else "" for each in spec.triggers)
        for number, each in enumerate(on_data):
            if each:
                self._reference(f"spec.triggers[{number}].dataset", each)
        return WantedFlow(
            name=self._headers.name,
            target=self._reference("spec.target", spec.target),
            inputs=tuple(each.removeprefix(_TARGET) for each in on_data),
            schedule=self._schedule(),
            fetch_uncacheable=tasks[0].fetch_uncacheable,
            policy=self._read_policy(),
            source=source,
            lines=self._binding.lines,
        )

    def _schedule(self) -> Schedule | None:
        numbered = [(n, each) for n, each in enumerate(self._spec.triggers) if isinstance(each, _OnSchedule)]
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
        said, usual = self._policy, FlowPolicy()
        retry = said.retry or _Retry()
        attempts = usual.retry.attempts if retry.max_attempts is None else retry.max_attempts
        if not 1 <= attempts <= _MOST_ATTEMPTS:
            self._note(f"{_POLICY}.retry.maxAttempts", f"{attempts} is out of range", "number-range", "1 to 100")
        return FlowPolicy(
            suspend=said.suspend,
            catch_up=self._try(f"{_POLICY}.catchUp", _catch_up, said.catch_up) or usual.catch_up,
            window=self._length("catchUpWindow", said.catch_up_window, usual.window),
            cooldown=self._length("cooldown", said.cooldown, usual.cooldown),
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

    def _reference(self, path: str, text: str) -> str:
        """The name or did in ``Dataset:NAME``."""
        ref = text.removeprefix(_TARGET)
        self._try(path, DatasetId.parse if ref.startswith(DID_ODF) else parse_own_name, ref)
        return ref

    def _try(self, path: str, read: Callable[[str], T], text: str | None) -> T | None:
        try:
            return None if text is None else read(text)
        except Invalid as fault:
            self._note(path, fault.message, fault.rule, fault.hint)
            return None

    def _note(self, path: str, message: str, rule: str, hint: str) -> None:
        near: Any = path
        while near and near not in self._binding.lines:
            near = near[: max(near.rfind("."), near.rfind("["), 0)]
        self._binding.mistakes.append(Mistake(path, self._binding.lines.get(near, 0), message, rule, hint))


_POLICY: Final = "headers.annotations.flowPolicy"


def _catch_up(text: str) -> CatchUp:
    """Raises Invalid."""
    try:
        return CatchUp(text)
    except ValueError as error:
        known = ", ".join(each.value for each in CatchUp)
        raise Invalid(f"unknown catchUp {text[:40]!r}", rule="enum-member", hint=f"one of {known}") from error
