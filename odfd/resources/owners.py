"""Stores the resources that others own, and deletes them with the last of their owners.

The resources that a resource makes are computed from it alone (``Parts``), and written in the transaction that writes
it, whatever code does that. People do not change them, but only their owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from chain.errors import Invalid
from chain.instant import Instant
from odfd.resources.resource import Json, OwnerReference, Resource, handle_of
from odfd.resources.store import ResourceStore


class OwnedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that another one makes and owns."""

    type: str
    part: str = ""
    """Identifies it among the owner's parts of one type; does not change with the name."""
    name: str
    annotations: Mapping[str, Json] = {}
    spec: Json
    refers: str = ""
    """The key of the reference to its owner, if its spec has one."""


Parts: TypeAlias = Callable[[Resource], Iterable[OwnedPart]]
"""Returns the resources that a resource owns. Raises Invalid if it declares them wrongly."""


def keep_parts(parts: Parts, new_id: Callable[[], str], store: ResourceStore, owner: Resource, now: Instant) -> None:
    """Writes the parts of an owner, and removes those it no longer has. Raises Invalid."""
    owned = ((each, _part(each, owner.id)) for each in store.list_owned(owner.id))
    held = {(each.type, part): each for each, part in owned if part is not None}
    for part in parts(owner):
        before = held.pop((part.type, part.part), None)
        child = _child(part, owner, before, new_id, now)
        if child != before:
            store.put(child, now)
    for each in held.values():
        store.disown(each, owner.id, now)


def owned_fault(before: Resource, place: str = "") -> Invalid:
    """Returns the fault for changing or deleting an owned resource."""
    (owner, *_) = before.owners
    text = f"{before.type} {before.name} is made by {owner.type} {owner.name}"
    return Invalid(text, rule="owned", hint=f"change that: odfctl edit {owner.type.lower()} {owner.name}", place=place)


def name_fault(owner: Resource, part: OwnedPart, other: Resource | None) -> Invalid | None:
    """Returns the fault if an owned resource would have the name of another, or ``None``."""
    if other is None or any(each.id == owner.id for each in other.owners):
        return None
    text = f"{owner.type} {owner.name} makes a {part.type} {part.name}, and another has that name"
    return Invalid(text, rule="name-taken", hint=f"odfctl delete {part.type.lower()} {part.name}, or rename the other")


def _child(
    part: OwnedPart, owner: Resource, before: Resource | None, new_id: Callable[[], str], now: Instant
) -> Resource:
    references = {part.refers: handle_of(owner)} if part.refers else {}
    owned = OwnerReference(id=owner.id, name=owner.name, type=owner.type, part=part.part)
    if before is None:
        return Resource(
            id=new_id(), type=part.type, name=part.name, annotations=part.annotations, spec=part.spec, owners=(owned,),
            account=owner.account,
            references=references, created_at=now, updated_at=now,
        )  # fmt: skip
    owners = tuple(owned if each.id == owner.id else each for each in before.owners)
    annotations = {**before.annotations, **part.annotations}
    after = msgspec.structs.replace(
        before, name=part.name, annotations=annotations, spec=part.spec, owners=owners, references=references,
        account=owner.account,
    )  # fmt: skip
    # Other owners, or another account, are no new declaration, and need no further attempt.
    has_changed = (before.name, before.annotations, before.spec) != (after.name, after.annotations, after.spec)
    if after == before:
        return before
    return msgspec.structs.replace(after, generation=before.generation + has_changed, updated_at=now)


def _part(child: Resource, owner: str) -> str | None:
    return next(each.part for each in child.owners if each.id == owner)
