"""Keeps the record of a repository's IPNS name alive: it is signed for a week, and is signed again without a push."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from chain import instant
from chain.instant import Instant
from odfd.ipfs.publishing import NameRecord, RepositoryPublisher
from odfd.repositories.catalog import TYPE
from odfd.repositories.manifest import IPNS, place_of
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.resource import Resource
from odfd.resources.status import ConditionValue

RECORD: Final = "NameRecord"


class RepositoryController(Controller):
    """Renews the record of this node's own name, if a repository is declared under it and was pushed to."""

    type = TYPE
    conditions: Collection[str] = (RECORD,)

    def __init__(self, shelves: Callable[[], RepositoryPublisher | None], now: Callable[[], Instant]) -> None:
        """``shelves`` returns ``None`` without a Kubo, where nothing can be renewed and pushes tell why."""
        self._shelves, self._now = shelves, now

    async def observe(self, resource: Resource) -> ObservedState:
        shelves, root = self._shelves(), place_of(resource.spec["url"]).root
        if shelves is None or not root.startswith(IPNS):
            return ObservedState()
        found = await shelves.record(root)
        if found is None:
            return ObservedState()
        steps = ("renew the record of the name",) if found.is_due(self._now()) else ()
        return ObservedState(told={RECORD: _to_condition(found)}, steps=steps, is_drift=False)

    async def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        shelves = self._shelves()
        if shelves is not None:
            await shelves.renew(place_of(resource.spec["url"]).root, self._now())


def _to_condition(found: NameRecord) -> ConditionValue:
    if found.expires is None or found.renews is None:
        return ConditionValue(value={}, message="the Kubo has no record of the name")
    ends, renewed = instant.render(found.expires), instant.render(found.renews)
    value = {"expiresAt": ends, "renewsAt": renewed}
    return ConditionValue(value=value, message=f"signed until {ends}, and again from {renewed}")
