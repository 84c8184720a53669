"""Computes the status of a resource: its phase, the generation acted upon, and conditions. Pure.

The phase changes only along the edges of RFC-018's diagram. Only the reconciler writes a status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from chain import instant
from chain.errors import Fault
from chain.instant import Instant

Phase: TypeAlias = Literal["Pending", "Reconciling", "Ready", "Failed"]
EDGES: Final = frozenset(
    {("Pending", "Reconciling"), ("Reconciling", "Ready"), ("Reconciling", "Failed"), ("Ready", "Pending"),
     ("Failed", "Pending")}
)  # fmt: skip
DANGLING: Final = "DanglingReferences"
DELETING: Final = "Deleting"
"""Condition of a deleted resource whose effects are not undone yet."""
DRIFT: Final = "Drift"
"""Condition of a resource that was as declared and no longer is, without a new declaration; until it is mended."""
UNRESOLVED: Final = "unresolved-reference"
"""The code of a resource that waits for another one."""
COMMON: Final = (DANGLING, DELETING, DRIFT)
"""Conditions that resources of all types may have."""
INTERRUPTED: Final = "interrupted"
"""The code of an attempt that was cut off by a crash, a stop or a change."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition, which says more than the phase."""

    value: Any
    code: str = ""
    message: str = ""
    updated_at: Instant
    observed_generation: int


class ResourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status after the last attempt."""

    phase: Phase = "Pending"
    code: str = ""
    """The rule of the last failure."""
    message: str = ""
    hint: str = ""
    observed_generation: int = 0
    """The generation of the last attempt that ended; zero before the first."""
    reconciled_at: Instant | None = None
    failures: int = 0
    """Number of failed attempts in a row."""
    retry_at: Instant | None = None
    """When it is tried again; ``None`` if only a change leads to another attempt."""
    conditions: Mapping[str, Condition] = {}
    """Conditions by the name of their type; ``odfd.services.resources.declarations`` shows them by its URI."""


class ConditionValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value of one condition, as a controller reports it."""

    value: Any
    code: str = ""
    message: str = ""


def move(status: ResourceStatus, phase: Phase) -> ResourceStatus:
    """Returns the status in another phase. Raises ValueError if no edge leads there, which is a bug."""
    if (status.phase, phase) not in EDGES:
        raise ValueError(f"no way from {status.phase} to {phase}")
    return msgspec.structs.replace(status, phase=phase)


def pending(status: ResourceStatus) -> Sequence[ResourceStatus]:
    """Returns the statuses that lead to waiting for an attempt; none if it waits. Abandons an attempt in progress."""
    if status.phase == "Pending":
        return ()
    if status.phase != "Reconciling":
        return (move(status, "Pending"),)
    given_up = msgspec.structs.replace(
        move(status, "Failed"), code=INTERRUPTED, message="the attempt was cut off", hint="", retry_at=None
    )
    return (given_up, move(given_up, "Pending"))


def drift(status: ResourceStatus, generation: int, message: str, now: Instant) -> Sequence[ResourceStatus]:
    """Returns the statuses that lead to waiting, with the condition ``Drift`` if it was as declared."""
    if status.phase != "Ready":
        return pending(status)
    drift = Condition(value=True, message=message, updated_at=now, observed_generation=generation)
    (waiting,) = pending(status)
    return (msgspec.structs.replace(waiting, conditions={**waiting.conditions, DRIFT: drift}),)


def ready(status: ResourceStatus, generation: int, seen: Mapping[str, ConditionValue], now: Instant) -> ResourceStatus:
    """Returns the status after a successful attempt."""
    return ResourceStatus(
        phase=move(status, "Ready").phase, observed_generation=generation, reconciled_at=now,
        conditions=_conditions(status, generation, seen, now),
    )  # fmt: skip


def fail(
    status: ResourceStatus, generation: int, seen: Mapping[str, ConditionValue], fault: Fault, retry_at: Instant | None,
    now: Instant,
) -> ResourceStatus:  # fmt: skip
    """Returns the status after a failed attempt."""
    return ResourceStatus(
        phase=move(status, "Failed").phase, code=fault.rule or type(fault).__name__.lower(), message=fault.message,
        hint=fault.hint, observed_generation=generation, reconciled_at=now, failures=status.failures + 1,
        retry_at=retry_at, conditions=_conditions(status, generation, seen, now),
    )  # fmt: skip


def held_back(status: ResourceStatus, generation: int, fault: Fault, retry_at: Instant, now: Instant) -> ResourceStatus:
    """Returns the status of a deleted resource whose effects could not be undone."""
    why = {DELETING: ConditionValue(value=True, code=fault.rule or "", message=fault.message)}
    return ResourceStatus(
        phase=status.phase, code=fault.rule or type(fault).__name__.lower(), message=fault.message, hint=fault.hint,
        observed_generation=generation, reconciled_at=now, failures=status.failures + 1, retry_at=retry_at,
        conditions=_conditions(status, generation, why, now),
    )  # fmt: skip


def is_unchanged(status: ResourceStatus, seen: Mapping[str, ConditionValue]) -> bool:
    """Whether the conditions are already as reported."""
    held = status.conditions
    return held.keys() == seen.keys() and all(_says(held[key], value) for key, value in seen.items())


def show(status: ResourceStatus, uri: Mapping[str, str]) -> dict[str, Any]:
    """Formats a status as in RFC-018; ``uri``: the URIs of the types of conditions."""
    found: dict[str, Any] = {"phase": status.phase, "observedGeneration": status.observed_generation}
    found |= {} if status.reconciled_at is None else {"reconciledAt": instant.render(status.reconciled_at)}
    found |= {key: value for key in ("code", "message", "hint", "failures") if (value := getattr(status, key))}
    found |= {} if status.retry_at is None else {"retryAt": instant.render(status.retry_at)}
    if status.conditions:
        found["conditions"] = {uri.get(key, key): _show(key, each) for key, each in sorted(status.conditions.items())}
    return found


def _show(key: str, each: Condition) -> dict[str, Any]:
    found: dict[str, Any] = {"value": each.value}
    found |= {key: value for key in ("code", "message") if (value := getattr(each, key))}
    if key.startswith("FlowRun"):  # RFC-019's have no value, but fields
        found = dict(each.value)
    elif isinstance(each.value, Mapping) and "kind" in each.value:  # RFC-019's TaskOutcome
        error = {"error": {"kind": each.code}} if each.code else {}
        found = {**each.value, **({"message": each.message} if each.message else {}), **error}
    return found | {"updatedAt": instant.render(each.updated_at), "observedGeneration": each.observed_generation}


def _conditions(
    status: ResourceStatus, generation: int, seen: Mapping[str, ConditionValue], now: Instant
) -> Mapping[str, Condition]:
    """Returns the conditions; one whose value and message are unchanged keeps its time."""
    found = {}
    for key, value in seen.items():
        held = status.conditions.get(key)
        at = held.updated_at if held is not None and _says(held, value) else now
        found[key] = Condition(
            value=value.value, code=value.code, message=value.message, updated_at=at, observed_generation=generation
        )
    return found


def _says(held: Condition, value: ConditionValue) -> bool:
    return (held.value, held.code, held.message) == (value.value, value.code, value.message)
