"""Plans an apply: which resources come, change or stay, with their ids and generations. Pure; nothing is written here.

Names are judged as they will be when all of the batch is done, so that two resources may swap theirs. Ids are given in
the order of types and names, so that the order in which manifests were written shows nowhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.instant import Instant
from odfd.resources.declared import DeclaredResource, Json, canonical

APPLY: Final = "odfctl"
"""The manager of those who apply manifests."""
Action: TypeAlias = Literal["created", "updated", "unchanged"]


class DesiredResource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource as somebody wants it."""

    type: str
    name: str
    id: str | None = None
    labels: Mapping[str, Json] = {}
    annotations: Mapping[str, Json] = {}
    spec: Json
    place: str = ""
    """Where it was written."""


class PlannedResource(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one of them."""

    action: Action
    before: DeclaredResource | None
    after: DeclaredResource
    changes: tuple[str, ...] = ()


PreApply: TypeAlias = Callable[[DesiredResource, DeclaredResource | None, str], Json]


class ResourceLookup(Protocol):
    """Resources as they stand."""

    def get(self, resource_id: str) -> DeclaredResource | None: ...
    def named(self, type_: str, name: str) -> DeclaredResource | None: ...


def as_written(desired: DesiredResource, before: DeclaredResource | None, resource_id: str) -> Json:  # noqa: ARG001
    """A spec that is kept as it was written."""
    return desired.spec


def plan(
    desired: Sequence[DesiredResource],
    standing: ResourceLookup,
    new_id: Callable[[], str],
    now: Instant,
    manager: str = APPLY,
    kept: PreApply = as_written,
) -> tuple[list[PlannedResource], list[Invalid]]:
    """In the order of ``desired``. Where there are faults the plan must not be carried out.

    ``kept``: the spec as it is kept, of what is wanted, of what stands, and of the id. Raises Invalid.
    """
    faults: list[Invalid] = []
    found = [_found(each, standing, faults) for each in desired]
    _check_twice(desired, found, faults)
    _check_names(desired, found, standing, faults)
    ordered = sorted(range(len(desired)), key=lambda number: (desired[number].type, desired[number].name.casefold()))
    ids = {number: new_id() for number in ordered if found[number] is None}
    planned = []
    for number, (each, before) in enumerate(zip(desired, found, strict=True)):
        resource_id = ids[number] if before is None else before.id
        try:
            as_kept = msgspec.structs.replace(each, spec=kept(each, before, resource_id))
        except Invalid as fault:
            fault.place = fault.place or each.place
            faults.append(fault)
            continue
        planned.append(_planned(as_kept, before, resource_id, now, manager))
    return planned, faults


def _found(desired: DesiredResource, standing: ResourceLookup, faults: list[Invalid]) -> DeclaredResource | None:
    if desired.id is None:
        return standing.named(desired.type, desired.name)
    held = standing.get(desired.id)
    if held is None or held.type != desired.type:
        faults.append(
            Invalid(
                f"headers.id: there is no {desired.type} with the id {desired.id}",
                rule="no-such-id",
                hint="leave the id out: the node gives one",
                place=desired.place,
            )
        )
        return None
    return held


def _check_twice(
    desired: Sequence[DesiredResource], found: Sequence[DeclaredResource | None], faults: list[Invalid]
) -> None:
    """Two manifests of one resource: neither is right."""
    places: dict[str, list[DesiredResource]] = defaultdict(list)
    for each, held in zip(desired, found, strict=True):
        places[held.id if held is not None else f"{each.type} {each.name.casefold()}"].append(each)
    for several in places.values():
        for each in several if len(several) > 1 else ():
            others = ", ".join(sorted(other.place for other in several if other is not each))
            text = f"headers.name: {each.type} {each.name} is written twice, also at {others}"
            faults.append(Invalid(text, rule="manifest-twice", hint="keep one of them", place=each.place))


def _check_names(
    desired: Sequence[DesiredResource],
    found: Sequence[DeclaredResource | None],
    standing: ResourceLookup,
    faults: list[Invalid],
) -> None:
    """Of the final state."""
    moving = {held.id for held in found if held is not None}
    for each, held in zip(desired, found, strict=True):
        if each.id is not None and held is None:
            continue  # told already
        other = standing.named(each.type, each.name)
        if other is not None and (held is None or other.id != held.id) and other.id not in moving:
            text = f"headers.name: {each.name} is the name of another {each.type}, {other.id}"
            faults.append(Invalid(text, rule="name-taken", hint="choose another name", place=each.place))


def _planned(
    desired: DesiredResource, before: DeclaredResource | None, new_id: str, now: Instant, manager: str
) -> PlannedResource:
    labels, annotations, managers = _kept(desired, before, manager)
    if before is None:
        after = DeclaredResource(
            id=new_id, type=desired.type, name=desired.name, labels=labels, annotations=annotations, managers=managers,
            spec=desired.spec, created_at=now, updated_at=now,
        )  # fmt: skip
        return PlannedResource(action="created", before=None, after=after)
    after = msgspec.structs.replace(
        before, name=desired.name, labels=labels, annotations=annotations, managers=managers, spec=desired.spec
    )
    changes = _changes(before, after)
    if not changes:
        # Who came by other ways is declared now as it is: that is no change.
        kept = before if before.spec is not None or desired.spec is None else after
        return PlannedResource(action="unchanged", before=before, after=kept)
    after = msgspec.structs.replace(after, generation=before.generation + 1, updated_at=now)
    return PlannedResource(action="updated", before=before, after=after, changes=changes)


def _kept(
    desired: DesiredResource, before: DeclaredResource | None, manager: str
) -> tuple[Mapping[str, Json], Mapping[str, Json], Mapping[str, str]]:
    """Labels and annotations with those of other managers, and who set which."""
    managers = {} if before is None else dict(before.managers)
    parts: list[dict[str, Json]] = []
    for part in ("labels", "annotations"):
        said: Mapping[str, Json] = getattr(desired, part)
        held: Mapping[str, Json] = {} if before is None else getattr(before, part)
        others = {key: value for key, value in held.items() if managers.get(f"{part}.{key}", APPLY) != manager}
        for key in said:
            managers.pop(f"{part}.{key}", None)
            if manager != APPLY:
                managers[f"{part}.{key}"] = manager
        parts.append({**others, **said})
    standing = {
        f"{part}.{key}" for part, values in zip(("labels", "annotations"), parts, strict=True) for key in values
    }
    return parts[0], parts[1], {key: who for key, who in managers.items() if key in standing}


def _changes(before: DeclaredResource, after: DeclaredResource) -> tuple[str, ...]:
    """Which parts differ. A spec that nobody had declared is compared with the thing itself, not here."""
    changes = [f"name: {before.name} -> {after.name}"] if before.name != after.name else []
    for part in ("labels", "annotations"):
        changes += difference(getattr(before, part), getattr(after, part), part)
    if before.spec is not None:
        changes += difference(before.spec, after.spec, "spec")
    return tuple(changes)


def difference(before: Json, after: Json, path: str) -> list[str]:
    """Lines such as ``+ labels.env: "prod"``, one a part that differs."""
    if _is_sealed(before) or _is_sealed(after):
        return [] if before == after else [f"~ {path}: (sensitive, changed)"]
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        lines = []
        for key in sorted({*before, *after}):
            below = f"{path}.{key}"
            if key not in after:
                lines.append(f"- {below}: {_shown(before[key])}")
            elif key not in before:
                lines.append(f"+ {below}: {_shown(after[key])}")
            else:
                lines += difference(before[key], after[key], below)
        return lines
    return [] if canonical(before) == canonical(after) else [f"~ {path}: {canonical(before)} -> {canonical(after)}"]


def _is_sealed(value: Json) -> bool:
    return isinstance(value, Mapping) and set(value) == {"value", "contentEncoding"}


def _shown(value: Json) -> str:
    return "(sensitive)" if _is_sealed(value) else canonical(value)
