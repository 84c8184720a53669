"""Prepares what an apply does beside declaring: it joins networks, blocks peers, lists validators and begins mirrors.

It is recorded in the one transaction of the apply, and brought into force after it. After a crash in between the next
start does so, since a node begins with what is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import trio

from chain.errors import Fault, Refused
from odfd.api.resources.declarations import INTENDED
from odfd.api.resources.types import TYPES
from odfd.control import wire
from odfd.resources.controller import Controllers, Intent
from odfd.resources.plan import PlannedResource

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
    after, kind = planned.after, planned.after.type.lower()
    item = wire.ApplyItem(kind=kind, name=after.name, action=planned.action, id=after.id, changes=planned.changes)
    try:
        if (refusal := refusals.get(PreparedIntent(item).key)) is not None:
            raise refusal
        if planned.action != "created" and (planned.before is None or planned.before.spec == after.spec):
            return PreparedIntent(item)
        _check_same(planned)
        return PreparedIntent(item, await controllers.of(after.type).prepare(planned))
    except Fault as fault:
        return PreparedIntent(wire.ApplyItem(kind=kind, name=after.name, action="failed", fault=wire.Problem.of(fault)))


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
