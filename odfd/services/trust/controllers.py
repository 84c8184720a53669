"""Prepares and observes declared validators and trust policies."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from chain.errors import Refused
from chain.ids import KeyDid
from odfd.control import wire
from odfd.policy.manifest import TYPE as TRUST_POLICY
from odfd.policy.manifest import unreachable
from odfd.policy.policy import Policy
from odfd.resources.controller import ApplyBatch, Controller, Intent, ObservedState
from odfd.resources.plan import PlannedResource
from odfd.resources.resource import Resource
from odfd.resources.status import ConditionValue
from odfd.runtime.subjects import Sees
from odfd.services.judgement.effective_policy import VALIDATOR
from odfd.services.trust.service import TrustService


class ValidatorController(Controller):
    """Reports whether the word of a validator counts."""

    type = VALIDATOR
    prepares = "changes"
    has_own_events = True
    conditions: Collection[str] = ("Counts",)
    hears = ("validator",)

    def __init__(self, trust: TrustService) -> None:
        self._trust = trust

    async def prepare(self, planned: PlannedResource, batch: ApplyBatch) -> Intent:  # noqa: ARG002  it needs no other
        key, group = KeyDid.parse(planned.after.spec["did"]), planned.after.spec["group"]
        return Intent(lambda connection: self._trust.record_validator(connection, key, group), self._trust.take_up)

    @contextmanager
    def deletion(self, connection: sqlite3.Connection, gone: Resource, *, purge: bool) -> Iterator[None]:  # noqa: ARG002
        """Raises Invalid if the policy cannot be in force without it."""
        yield
        self._trust.check_policy(connection)

    async def finalize(self, resource: Resource) -> None:  # noqa: ARG002  all is judged without it
        await self._trust.take_up()

    def observe(self, resource: Resource) -> ObservedState:
        found = self._trust.validators().get(resource.spec["did"])
        if found is None:
            return ObservedState(steps=("put it in force",))  # its declaration is committed before the policy is read
        return ObservedState(told={"Counts": ConditionValue(value=not found.suspended, message=found.reason)})

    async def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        await self._trust.take_up()

    def states(self, resources: Sequence[wire.ResourceView], sees: Sees | None) -> Mapping[str, wire.Value]:
        found = {} if sees is not None else self._trust.validators()
        return {resource.id: found[resource.spec["did"]] for resource in resources if resource.spec["did"] in found}


class TrustPolicyController(Controller):
    """Puts a policy in force, and reports a quorum that cannot be reached."""

    type = TRUST_POLICY

    def __init__(self, policy: Callable[[], Policy], changed: Callable[[], None]) -> None:
        """``changed`` judges all datasets anew, by the policies as they are declared."""
        self._policy, self._changed = policy, changed

    async def observe(self, resource: Resource) -> ObservedState:
        if resource.status.observed_generation != resource.generation:
            self._changed()
        unmet = unreachable(resource, self._policy())
        if not unmet:
            return ObservedState()
        hint = "odfctl trust validator add lists more, or ask for fewer; until then nothing of it is used or served"
        return ObservedState(fault=Refused("; ".join(unmet), rule="quorum-unreachable", hint=hint))

    async def finalize(self, resource: Resource) -> None:  # noqa: ARG002  the others are judged by too
        self._changed()
