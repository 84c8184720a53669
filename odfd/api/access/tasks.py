"""Notes who began which task, so that accounts see and cancel their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cachetools import LRUCache

from chain.errors import NotFound
from odfd.access.relations import Principal
from odfd.control import wire
from odfd.runtime.about import NODE, About

MOST: Final = 10_000
"""Tasks that are noted; the board keeps fewer."""


class TaskOwners:
    """Remembers who began tasks, in this run of the node. Used in the event loop."""

    def __init__(self, about: Callable[[str], About]) -> None:
        """``about``: what a task is about, by its id. Raises NotFound."""
        self._about = about
        self._accounts: LRUCache[str, str] = LRUCache(MOST)

    def noted(self, subject: Principal, value: Any) -> Any:
        """Returns a value; that of a new task is noted."""
        if isinstance(value, wire.TaskRef) and subject.account is not None:
            self._accounts[value.id] = subject.account
        return value

    def has(self, subject: Principal, task: str) -> bool:
        return subject.account is not None and self._accounts.get(task) == subject.account

    def about(self, task: str) -> About:
        """Returns what a task is about; of one that is not there, nothing."""
        try:
            return self._about(task)
        except NotFound:
            return NODE


def no_task(task: str) -> NotFound:
    """Makes the fault for a task that the subject is not told of, as for one that is not there."""
    hint = "odfctl get tasks lists those that you may see"
    return NotFound(f"there is no task {task[:80]!r} that you may see", rule="task", hint=hint)
