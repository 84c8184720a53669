"""Notes who began which task, so that accounts follow and cancel their own, and see no others."""

from __future__ import annotations

from typing import Any, Final

from cachetools import LRUCache

from chain.errors import NotFound
from odfd.access.relations import Principal
from odfd.control import wire

MOST: Final = 10_000
"""Tasks that are noted; the board keeps fewer."""


class TaskOwners:
    """Remembers who began tasks, in this run of the node. Used in the event loop."""

    def __init__(self) -> None:
        self._accounts: LRUCache[str, str] = LRUCache(MOST)

    def noted(self, subject: Principal, value: Any) -> Any:
        """Returns a value; that of a new task is noted."""
        if isinstance(value, wire.TaskRef) and subject.account is not None:
            self._accounts[value.id] = subject.account
        return value

    def has(self, subject: Principal, task: str) -> bool:
        return subject.account is not None and self._accounts.get(task) == subject.account

    def check(self, subject: Principal, task: str) -> None:
        """Raises NotFound for a task of others, as for one that is not there."""
        if not self.has(subject, task):
            hint = "odfctl get tasks lists yours"
            raise NotFound(f"there is no task {task[:80]!r} of yours", rule="task", hint=hint)
