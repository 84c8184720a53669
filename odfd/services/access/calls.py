"""Describes a call of an operation by an account: its guard, the tasks of accounts, and which items it may see.

There is one predicate for all that happens on a node: flows, mirrors, tasks, events, changes, log lines. An item is
shown if the account can read every resource that the item names, or if the item is the account's own; an item that
names no resource is shown to the node's owner only. An answer therefore looks as if resources that the account cannot
read did not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import trio
from cachetools import LRUCache

from chain.errors import NotFound
from chain.ids import DID_ODF, DatasetId
from chain.model.events import SetTransform
from odfd.access.relations import Principal
from odfd.control import wire
from odfd.datasets.creation import input_ids
from odfd.resources.resource import UUID
from odfd.runtime.hanging_calls import in_loop
from odfd.runtime.subjects import NODE, Subjects, about
from odfd.services.access.guard import Guard

_TRANSFORM: Final = (SetTransform.__name__,)
SubjectsOf: TypeAlias = Callable[[Sequence[wire.ResourceView]], Awaitable[Mapping[str, Sequence[Subjects]]]]
"""Returns what resources are about, by their ids (``Controller.subjects``)."""
MOST: Final = 10_000
"""Recorded tasks at most; the task board keeps fewer."""


class TaskOwners:
    """Maps tasks to the accounts that began them, for this run of the node."""

    def __init__(self, about: Callable[[str], Subjects], subjects: SubjectsOf) -> None:
        """``about``: returns what a task is about, by its id. Raises NotFound."""
        self._about, self.subjects = about, subjects
        self._accounts: LRUCache[str, str] = LRUCache(MOST)

    def note(self, subject: Principal, value: Any) -> Any:
        """Returns ``value`` unchanged; if it is a new task, records ``subject`` as its beginner."""
        if isinstance(value, wire.TaskRef) and subject.account is not None:
            self._accounts[value.id] = subject.account
        return value

    def has(self, subject: Principal, task: str) -> bool:
        return task in self.which(subject, [task])

    @in_loop
    def which(self, subject: Principal, tasks: Iterable[str]) -> Collection[str]:
        """Returns those of some tasks that a subject began."""
        if subject.account is None:
            return ()
        return {task for task in tasks if self._accounts.get(task) == subject.account}

    def about(self, task: str) -> Subjects:
        """Returns what a task is about; empty for a task that does not exist."""
        try:
            return self._about(task)
        except NotFound:
            return NODE

    def abouts(self, task: str) -> Sequence[Subjects]:
        """Returns what lets a subject see a task: what it is about, or its declaration, whose id it has.

        One that is declared is seen by who may read that, also where it waits for a right on what it is about.
        """
        return self.about(task), *((about(task.lower()),) if UUID.match(task) else ())


def no_task(task: str) -> NotFound:
    """Builds the fault for a task that does not exist, or that the subject may not see."""
    hint = "odfctl get tasks lists those that you may see"
    return NotFound(f"there is no task {task[:80]!r} that you may see", rule="task", hint=hint)


class _Judged(NamedTuple):
    """The resources that some items name, at one state of access."""

    readable: Collection[str]
    here: Collection[str]
    inputs: dict[str, Collection[str]]
    """The inputs of derived datasets, by dataset."""

    def may_be_told(self, item: Subjects, told: Collection[str], *, is_own: bool) -> bool:
        """``told``: resources that were readable before; their deletion is shown."""
        known = (
            thing in self.readable or (thing not in self.here and (is_own or thing in told)) for thing in item.things
        )
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

    def __call__(self, items: Sequence[Subjects]) -> Sequence[bool]:
        """Returns for each item whether the subject may see it. Blocking."""
        state, own = self._guard.state(), self._own(items)
        inputs = self._inputs({thing for item in items if item.inputs for thing in item.things})
        named = {thing for item in items for thing in item.things}.union(*inputs.values())
        here = {each for each in named if state.id_of(each) is not None}
        judged = _Judged(self._guard.readable_things(state, here), here, inputs)
        return [
            judged.may_be_told(each, self.told, is_own=is_own) for each, is_own in zip(items, own, strict=True)
        ]  # fmt: skip

    def _own(self, items: Sequence[Subjects]) -> Sequence[bool]:
        """Returns for each item whether it is of the subject's account, or a task that this began."""
        subject, tasks = self._guard.subject, {item.task for item in items if item.task}
        begun = self._tasks.which(subject, tasks) if tasks else ()
        return [(item.account is not None and item.account == subject.account) or item.task in begun for item in items]

    def _inputs(self, things: Iterable[str]) -> dict[str, Collection[str]]:
        chains = self._guard.home.chains
        found: dict[str, Collection[str]] = {}
        for thing in things:
            if thing.startswith(DID_ODF):
                block = chains.chain(DatasetId.parse(thing)).last_of(_TRANSFORM)
                if block is not None and isinstance(block.event, SetTransform):
                    found[thing] = frozenset(map(str, input_ids(block.event))) - {thing}
        return found


class Call(NamedTuple):
    """One call of an operation by a caller who is not the node's owner."""

    guard: Guard
    tasks: TaskOwners
    service: Any
    """The service that the operation is of."""
    operation: Callable[..., Any]

    @property
    def sees(self) -> ItemVisibility:
        return ItemVisibility(self.guard, self.tasks)

    async def begin(self, *args: Any, **more: Any) -> Any:
        """Calls the operation; a task that it begins is the caller's."""
        return self.tasks.note(self.guard.subject, await self.operation(*args, **more))

    async def check_task(self, task: str, *, is_again: bool = False) -> None:
        """Raises NotFound for a task that the caller may not see, as for one that does not exist.

        ``is_again``: in an answer that lasts, also for another caller than at its begin.
        """
        abouts = self.tasks.abouts(task)

        def may_see() -> bool:
            return not (is_again and not self.guard.is_same_caller()) and any(self.sees(abouts))

        if not await trio.to_thread.run_sync(may_see):
            raise no_task(task)
