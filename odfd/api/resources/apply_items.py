"""Makes the items of an apply, which say what it did or would do, and prepares what it does beside declaring.

An apply joins networks, blocks peers, lists validators and begins mirrors. That is recorded in its one transaction, and
brought into force after it. After a crash in between the next start does so, since a node begins with what is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import trio

from chain.errors import Fault, Refused
from odfd.api.resources.types import TYPES
from odfd.control import wire
from odfd.resources.controller import Controllers, Intent
from odfd.resources.plan import PlannedResource

INTENDED: Final = frozenset(each.name for each in TYPES if each.kept is not None)
"""Types that an apply prepares (``Controller.prepare``): networks, peers, validators and mirrors."""


def refused(items: Sequence[wire.ApplyItem], others: Sequence[PlannedResource]) -> wire.ApplyResult:
    """Returns the result of an apply of which nothing was done because one part failed; the others are skipped."""
    kept = [each if each.action == "failed" else msgspec.structs.replace(each, action="skipped") for each in items]
    kept += [wire.ApplyItem(kind=each.after.type.lower(), name=each.after.name, action="skipped") for each in others]
    return wire.ApplyResult(items=tuple(kept))


def with_headers(items: Sequence[wire.ApplyItem], planned: Sequence[PlannedResource]) -> list[wire.ApplyItem]:
    """Adds the changes of headers to items, and counts an item with such a change as updated."""
    plans = {(each.after.type.lower(), each.after.name.casefold()): each for each in planned}
    told = []
    for item in items:
        plan = plans.get((item.kind, item.name.casefold()))
        more = tuple(each for each in plan.changes if " spec." not in each) if plan is not None else ()
        if more and item.action in ("unchanged", "updated"):
            item = msgspec.structs.replace(item, action="updated", changes=(*item.changes, *more))
        told.append(item)
    return told


def declared_item(planned: PlannedResource) -> wire.ApplyItem:
    """Returns the item for a resource that only has to be stored."""
    return wire.ApplyItem(
        kind=planned.after.type.lower(), name=planned.after.name, action=planned.action, id=planned.after.id,
        changes=planned.changes,
    )  # fmt: skip


def with_warnings(item: wire.ApplyItem, warnings: Mapping[tuple[str, str], tuple[str, ...]]) -> wire.ApplyItem:
    """Adds the warnings from reading its manifest to an item."""
    more = warnings.get((item.kind, item.name.casefold()), ())
    return msgspec.structs.replace(item, warnings=(*more, *item.warnings)) if more else item


def successful(items: Sequence[wire.ApplyItem], planned: Sequence[PlannedResource]) -> list[PlannedResource]:
    """Returns the planned resources to record: all whose items did not fail, nor those of the same dataset."""
    failed = {(each.kind, each.name.casefold()) for each in items if each.action == "failed"}
    is_failed = [(each.after.type.lower(), each.after.key) in failed for each in planned]
    dids = {each.after.did for each, fails in zip(planned, is_failed, strict=True) if fails} - {None}
    return [each for each, fails in zip(planned, is_failed, strict=True) if not fails and each.after.did not in dids]


TAKE_UP_SECONDS: Final = 30.0
"""Longest time for which an apply waits until what it recorded is in force; the next start does what is left."""


class PreparedIntent(NamedTuple):
    """The item of a planned resource, and what is to be done for it."""

    item: wire.ApplyItem
    """Says also why it cannot be done."""
    intent: Intent | None = None
    """``None``: nothing is to be done beside the declaration, or nothing can be."""

    @property
    def key(self) -> str:
        """Distinguishes it from other items of an apply, also from datasets, whose names have no spaces."""
        return f"{self.item.kind} {self.item.name.casefold()}"


async def prepared(
    controllers: Controllers, planned: Sequence[PlannedResource], refusals: Mapping[str, Fault]
) -> list[PreparedIntent]:
    """Prepares the planned resources that are more than declared, in the order of the controllers; changes nothing.

    ``refusals``: faults of those that could not be recorded, by their keys. A failure becomes an item too.
    """
    return [
        await _prepared(controllers, each, refusals)
        for controller in controllers
        if controller.type in INTENDED
        for each in planned
        if each.after.type == controller.type
    ]


async def _prepared(
    controllers: Controllers, planned: PlannedResource, refusals: Mapping[str, Fault]
) -> PreparedIntent:
    after, item = planned.after, declared_item(planned)
    try:
        if (refusal := refusals.get(PreparedIntent(item).key)) is not None:
            raise refusal
        if planned.action != "created" and (planned.before is None or planned.before.spec == after.spec):
            return PreparedIntent(item)
        _check_same(planned)
        return PreparedIntent(item, await controllers.of(after.type).prepare(planned))
    except Fault as fault:
        return PreparedIntent(
            wire.ApplyItem(kind=item.kind, name=item.name, action="failed", fault=wire.Problem.of(fault))
        )


def _check_same(planned: PlannedResource) -> None:
    """Raises Refused if the resource would stand for another thing than before."""
    before, after = planned.before, planned.after
    key = TYPES.named(after.type).stands_for
    if before is not None and key and before.spec.get(key) != after.spec.get(key):
        kind = after.type.lower()
        text = f"the {key} of {kind} {before.name} cannot change"
        raise Refused(text, rule="immutable", hint=f"odfctl delete {kind} {before.name}, and apply it anew")


async def taken_up(intents: Sequence[PreparedIntent]) -> list[wire.ApplyItem]:
    """Brings recorded intents into force; what cannot be yet is a warning, since the declaration stands."""
    items = []
    with trio.CancelScope(shield=True, deadline=trio.current_time() + TAKE_UP_SECONDS):
        for each in intents:
            item = each.item
            try:
                if each.intent is not None:
                    await each.intent.take_up()
            except Fault as fault:
                text = f"it is declared, and not in force yet: {fault.message}"
                item = msgspec.structs.replace(item, warnings=(*item.warnings, text))
            items.append(item)
    return [*items, *(each.item for each in intents[len(items) :])]
