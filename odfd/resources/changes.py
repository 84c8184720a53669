"""Describes what differs between two states of a resource, and the change of each event in their log. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from odfd.resources.resource import Json, Resource, ResourceEvent, ResourceHandle, canonical


def describe(before: Resource | None, event: ResourceEvent) -> tuple[str, tuple[str, ...]]:
    """Describes a change by a word and details. ``before``: the resource's previous event, if it is kept.

    For a change of the status the word is its new phase, or ``Observed`` if the phase is the same.
    """
    after = event.resource
    if event.op == "Added":
        return "Created", tuple(f"made by {owner.type} {owner.name}" for owner in after.owners)
    if event.op == "Deleted" or before is None:
        return ("Deleted" if event.op == "Deleted" else event.op), ()
    if event.op == "Modified":
        return "Changed", changes_of(before, after)
    is_same = (before.status.phase, before.status.code) == (after.status.phase, after.status.code)
    return ("Observed" if is_same else after.status.phase), tuple(_compare(before, after))


def _compare(before: Resource, after: Resource) -> Iterator[str]:
    """Yields the changes of a status, and of the resources that references are resolved to."""
    status = after.status
    if status.phase == "Failed" and (status.code, status.message) != (before.status.code, before.status.message):
        yield f"{status.code}: {status.message}"
    for key in sorted({*before.status.conditions, *status.conditions}):
        held, now = before.status.conditions.get(key), status.conditions.get(key)
        if now is None:
            yield f"- {key}"
        elif held is None or (held.value, held.message) != (now.value, now.message):
            value = now.value if isinstance(now.value, str) else canonical(now.value)
            yield f"{key}={value}" + (f": {now.message}" if now.message else "")
    for key, means in after.references.items():
        if before.references.get(key) != means:
            yield f"{key} is {_handle(means)}"


def _handle(means: ResourceHandle | None) -> str:
    return "not here" if means is None else f"{means.name} ({means.id})"


def changes_of(
    before: Resource, after: Resource, name_of: Callable[[str | None], str] = lambda account: account or "the node"
) -> tuple[str, ...]:
    """Lists the parts that differ; specs only if both exist. ``name_of``: names an account by its id."""
    changes = [f"name: {before.name} -> {after.name}"] if before.name != after.name else []
    if before.account != after.account:
        changes.append(f"~ account: {name_of(before.account)} -> {name_of(after.account)}")
    for part in ("labels", "annotations"):
        changes += difference(getattr(before, part), getattr(after, part), part)
    if before.spec is not None and after.spec is not None:
        changes += difference(before.spec, after.spec, "spec")
    return tuple(changes)


def difference(before: Json, after: Json, path: str) -> list[str]:
    """Returns a line for each part that differs, such as ``+ labels.env: "prod"``."""
    # Before maps are compared: a sealed value is a map too, and its parts would be shown.
    if _is_sealed(before) or _is_sealed(after):
        return [] if before == after else [f"~ {path}: (sensitive, changed)"]
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        lines = []
        for key in sorted({*before, *after}):
            below = f"{path}.{key}"
            if key not in after:
                lines.append(f"- {below}: {_show(before[key])}")
            elif key not in before:
                lines.append(f"+ {below}: {_show(after[key])}")
            else:
                lines += difference(before[key], after[key], below)
        return lines
    # As texts: in Python ``1 == True``, and the change would be lost.
    return [] if canonical(before) == canonical(after) else [f"~ {path}: {canonical(before)} -> {canonical(after)}"]


def _is_sealed(value: Json) -> bool:
    return isinstance(value, Mapping) and set(value) == {"value", "contentEncoding"}


def _show(value: Json) -> str:
    return "(sensitive)" if _is_sealed(value) else canonical(value)
