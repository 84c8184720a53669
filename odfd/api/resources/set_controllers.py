"""Observes declared sets of variables and secrets."""

from __future__ import annotations

import trio

from odfd.api.resources.declarations import SECRET_SET, DeclarationService
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.resource import Resource
from odfd.resources.sets import VARIABLE_SET_TYPE, SecretSealer, binding


class SetController(Controller):
    """Reports whether each value of a set has its element, and makes those that older sets lack."""

    type = VARIABLE_SET_TYPE.name

    def __init__(self, declarations: DeclarationService) -> None:
        self._declarations = declarations

    async def observe(self, resource: Resource) -> ObservedState:
        is_lacking = await trio.to_thread.run_sync(self._declarations.lacks_parts, resource)
        return ObservedState(steps=("make its elements",) if is_lacking else ())

    async def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        await trio.to_thread.run_sync(self._declarations.make_parts, resource)


class SecretController(SetController):
    """Reports whether each value of a SecretSet can still be opened."""

    type = SECRET_SET

    def __init__(self, declarations: DeclarationService, keys: SecretSealer) -> None:
        super().__init__(declarations)
        self._keys = keys

    async def observe(self, resource: Resource) -> ObservedState:
        await trio.to_thread.run_sync(self._open_all, resource)
        return await super().observe(resource)

    def _open_all(self, resource: Resource) -> None:
        """Opens each secret. Raises Environment if the key of one is not here."""
        for key, sealed in resource.spec["secrets"].items():
            self._keys.open(sealed["value"], (binding(resource.id, key),))
