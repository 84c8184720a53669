"""Describes the change of each event in the log of resources. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from odfd.resources.plan import changes_of
from odfd.resources.resource import Resource, ResourceEvent, ResourceHandle


def told(before: Resource | None, event: ResourceEvent) -> tuple[str, tuple[str, ...]]:
    """Describes a change by a word and details. ``before``: the resource's previous event, if it is kept.

    For a change of the status the word is its new phase, or ``Observed`` if the phase is the same.
    """
    after = event.resource
    if event.op == "Added":
        return "Created", tuple(f"made by {each.type} {each.name}" for each in after.owners)
    if event.op == "Deleted" or before is None:
        return ("Deleted" if event.op == "Deleted" else event.op), ()
    if event.op == "Modified":
        return "Changed", changes_of(before, after)
    is_same = (before.status.phase, before.status.code) == (after.status.phase, after.status.code)
    return ("Observed" if is_same else after.status.phase), tuple(_seen(before, after))


def _seen(before: Resource, after: Resource) -> Iterator[str]:
    """Yields the changes of a status, and of the resources that references are resolved to."""
    status = after.status
    if status.phase == "Failed" and (status.code, status.message) != (before.status.code, before.status.message):
        yield f"{status.code}: {status.message}"
    for key in sorted({*before.status.conditions, *status.conditions}):
        held, now = before.status.conditions.get(key), status.conditions.get(key)
        if now is None:
            yield f"- {key}"
        elif held is None or (held.value, held.message) != (now.value, now.message):
            yield f"{key}={now.value}" + (f": {now.message}" if now.message else "")
    for key, means in after.references.items():
        if before.references.get(key) != means:
            yield f"{key} is {_handle(means)}"


def _handle(means: ResourceHandle | None) -> str:
    return "not here" if means is None else f"{means.name} ({means.id})"
