"""Observes declared sets of variables and secrets, and reads their values for datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chain.ids import DatasetId
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.registry import SECRET_SET, VARIABLE_SET
from odfd.resources.resource import Resource
from odfd.resources.sets import SecretSealer, binding, names_in
from odfd.resources.store import ResourceStore
from odfd.services.resources.planning import PartsKeeper
from odfd.store.catalog import Catalog
from odfd.store.directory import StateDirectory


class SetController(Controller):
    """Reports whether each value of a set has its element, and makes those that older sets lack."""

    type = VARIABLE_SET.name

    def __init__(self, parts: PartsKeeper) -> None:
        self._parts = parts

    def observe(self, resource: Resource) -> ObservedState:
        return ObservedState(steps=("make its elements",) if self._parts.lack(resource) else ())

    def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        self._parts.make(resource)


class SecretController(SetController):
    """Reports whether each value of a SecretSet can still be opened."""

    type = SECRET_SET.name

    def __init__(self, parts: PartsKeeper, keys: SecretSealer) -> None:
        super().__init__(parts)
        self._keys = keys

    def observe(self, resource: Resource) -> ObservedState:
        """Opens each secret. Raises Environment if the key of one is not here."""
        for key, sealed in resource.spec["secrets"].items():
            self._keys.open(sealed["value"], (binding(resource.id, key),))
        return super().observe(resource)


class SetValues:
    """Reads the values that sources of a dataset may use: those in sets of its name and its account. Blocking."""

    def __init__(self, home: StateDirectory) -> None:
        self._home = home

    def of(self, dataset: DatasetId) -> Mapping[str, str]:
        """Returns the values for a dataset, secrets before variables. Raises Environment if a key is not here."""
        with self._home.database.read() as connection:
            row = Catalog(connection).resource_of(dataset)
        return {} if row is None else self.values_of(row.name, row.account)

    def values_of(self, name: str, account: str | None) -> Mapping[str, str]:
        """Returns the values in the sets of a name and an account. Raises Environment."""
        variables, secrets = self._sets(name, account)
        values = {} if variables is None else dict(variables.spec["variables"])
        held: Mapping[str, Any] = {} if secrets is None else secrets.spec["secrets"]
        for key, sealed in held.items():
            assert secrets is not None
            values[key] = self._home.secrets.open(sealed["value"], (binding(secrets.id, key),)).reveal()
        return values

    def names(self, name: str, account: str | None) -> frozenset[str]:
        """Lists the names of the values that ``named`` returns."""
        found = self._sets(name, account)
        return frozenset(key for each in found if each is not None for key in names_in(each.type, each.spec))

    def _sets(self, name: str, account: str | None) -> tuple[Resource | None, Resource | None]:
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            return store.find_named(VARIABLE_SET.name, name, account), store.find_named(SECRET_SET.name, name, account)
