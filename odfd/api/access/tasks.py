"""Records which account began which task, so that accounts can see and cancel their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from cachetools import LRUCache

from chain.errors import NotFound
from odfd.access.relations import Principal
from odfd.control import wire
from odfd.resources.resource import UUID
from odfd.runtime.subjects import NODE, Subjects, about

MOST: Final = 10_000
"""Recorded tasks at most; the task board keeps fewer."""


class TaskOwners:
    """Maps tasks to the accounts that began them, for this run of the node. Used in the event loop."""

    def __init__(self, about: Callable[[str], Subjects]) -> None:
        """``about``: returns what a task is about, by its id. Raises NotFound."""
        self._about = about
        self._accounts: LRUCache[str, str] = LRUCache(MOST)

    def noted(self, subject: Principal, value: Any) -> Any:
        """Returns ``value`` unchanged; if it is a new task, records ``subject`` as its beginner."""
        if isinstance(value, wire.TaskRef) and subject.account is not None:
            self._accounts[value.id] = subject.account
        return value

    def has(self, subject: Principal, task: str) -> bool:
        return subject.account is not None and self._accounts.get(task) == subject.account

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
