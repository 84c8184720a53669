"""Decides which items one account may see of what happens on a node: flows, mirrors, tasks, events, changes, log lines.

There is one predicate for all of them. An item is shown if the account can read every resource that the item names, or
if the item is the account's own; an item that names no resource is shown to the node's owner only. An answer therefore
looks as if resources that the account cannot read did not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import trio

from chain.ids import DID_ODF, DatasetId
from chain.model.events import SetTransform
from odfd.api.access.guard import Guard
from odfd.api.access.tasks import TaskOwners
from odfd.datasets.creation import input_ids
from odfd.runtime.subjects import Subjects

_TRANSFORM: Final = (SetTransform.__name__,)


class _Judged(NamedTuple):
    """The resources that some items name, at one state of access."""

    readable: Collection[str]
    here: Collection[str]
    inputs: dict[str, Collection[str]]
    """The inputs of derived datasets, by dataset."""

    def may_be_told(self, item: Subjects, told: Collection[str], *, is_own: bool) -> bool:
        """``told``: resources that were readable before; their deletion is shown."""
        known = (each in self.readable or (each not in self.here and (is_own or each in told)) for each in item.things)
        return all(known) and (is_own or (bool(item.things) and self._may_name_inputs(item)))

    def _may_name_inputs(self, item: Subjects) -> bool:
        named = (each for thing in item.things for each in self.inputs.get(thing, ())) if item.inputs else ()
        return all(each in self.readable for each in named)


class ItemVisibility:
    """The predicate for one subject. Lives for one request."""

    def __init__(self, guard: Guard, tasks: TaskOwners) -> None:
        self._guard, self._tasks = guard, tasks
        self.told: Collection[str] = ()
        """Resources that were readable at any time while an answer lasts."""

    async def __call__(self, items: Sequence[Subjects]) -> Sequence[bool]:
        """Returns for each item whether the subject may see it."""
        own = [self._is_own(each) for each in items]
        return await trio.to_thread.run_sync(self._judge, items, own)

    def _is_own(self, item: Subjects) -> bool:
        subject = self._guard.subject
        by_account = item.account is not None and item.account == subject.account
        return by_account or (bool(item.task) and self._tasks.has(subject, item.task))

    def _judge(self, items: Sequence[Subjects], own: Sequence[bool]) -> Sequence[bool]:
        state = self._guard.state()
        inputs = self._inputs({thing for each in items if each.inputs for thing in each.things})
        named = {thing for each in items for thing in each.things}.union(*inputs.values())
        here = {each for each in named if state.id_of(each) is not None}
        judged = _Judged(self._guard.readable_things(state, here), here, inputs)
        return [
            judged.may_be_told(each, self.told, is_own=is_own) for each, is_own in zip(items, own, strict=True)
        ]  # fmt: skip

    def _inputs(self, things: Iterable[str]) -> dict[str, Collection[str]]:
        chains = self._guard.home.chains
        found: dict[str, Collection[str]] = {}
        for each in things:
            if each.startswith(DID_ODF):
                block = chains.chain(DatasetId.parse(each)).last_of(_TRANSFORM)
                if block is not None and isinstance(block.event, SetTransform):
                    found[each] = frozenset(map(str, input_ids(block.event))) - {each}
        return found
