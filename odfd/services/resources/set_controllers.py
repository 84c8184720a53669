"""Observes declared sets of variables and secrets, and reads their values for datasets."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant
from odfd.resources import records
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.registry import SECRET_SET, VARIABLE_SET
from odfd.resources.resource import Resource
from odfd.resources.sets import SecretSealer, binding, names_in
from odfd.resources.store import ResourceStore
from odfd.services.resources.planning import PartsKeeper
from odfd.store import collections
from odfd.store.catalog import Catalog
from odfd.store.directory import StateDirectory

SETS: Final = "sets"
"""Kind of the records that say which sets the source of a collection has read, by the collection's id."""
_TYPES: Final = (SECRET_SET.name, VARIABLE_SET.name)


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
    """Reads the values that sources of a dataset may use: those in sets of its name and its account. Blocking.

    The sets that a dataset has read stay its own when they, or it, get another name: another set that has the name
    then gives only values that they have not.
    """

    def __init__(self, home: StateDirectory) -> None:
        self._home = home

    def of(self, dataset: DatasetId) -> Mapping[str, str]:
        """Returns the values for a dataset, and notes its sets. Raises Environment if a key is not here."""
        with self._home.database.read() as connection:
            row = Catalog(connection).resource_of(dataset)
            if row is None:
                return {}
            sets, noted = self._sets(connection, row.name, row.account, dataset), self._noted(connection, dataset)
        if noted != (ids := _ids(sets)):
            with self._home.database.write() as connection:
                _note(connection, dataset, ids)
        return self._read(sets)

    def values_of(self, name: str, account: str | None) -> Mapping[str, str]:
        """Returns the values in the sets of a name and an account. Raises Environment."""
        with self._home.database.read() as connection:
            sets = self._sets(connection, name, account, None)
        return self._read(sets)

    def _read(self, sets: Sequence[Resource]) -> Mapping[str, str]:
        values: dict[str, str] = {}
        for each in reversed(sets):
            values |= each.spec["variables"] if each.type == VARIABLE_SET.name else self._opened(each)
        return values

    def names(self, name: str, account: str | None, dataset: DatasetId | None = None) -> frozenset[str]:
        """Lists the names of the values that ``of`` returns for a dataset of this name and account."""
        with self._home.database.read() as connection:
            found = self._sets(connection, name, account, dataset)
        return frozenset(key for each in found for key in names_in(each.type, each.spec))

    def noting(self, before: Resource) -> Callable[[sqlite3.Connection], None]:
        """Returns what notes the sets of a dataset that gets another name, as they are now."""
        assert before.did is not None
        dataset = DatasetId.parse(before.did)
        with self._home.database.read() as connection:
            ids = _ids(self._sets(connection, before.name, before.account, dataset))
        return lambda connection: _note(connection, dataset, ids) if ids else None

    def _opened(self, secrets: Resource) -> Mapping[str, str]:
        held: Mapping[str, Any] = secrets.spec["secrets"]
        return {
            key: self._home.secrets.open(sealed["value"], (binding(secrets.id, key),)).reveal()
            for key, sealed in held.items()
        }

    def _sets(
        self, connection: sqlite3.Connection, name: str, account: str | None, dataset: DatasetId | None
    ) -> Sequence[Resource]:
        """Lists the sets of a dataset, those whose values count first: noted ones, and secrets before variables."""
        store = ResourceStore(connection)
        noted = {} if dataset is None else self._noted(connection, dataset)
        held = [store.get(noted[type_]) for type_ in _TYPES if type_ in noted]
        own = [each for each in held if each is not None and each.account == account]  # none comes along from another's
        named = [store.find_named(type_, name, account) for type_ in _TYPES]
        return [*own, *(each for each in named if each is not None and each not in own)]

    def _noted(self, connection: sqlite3.Connection, dataset: DatasetId) -> Mapping[str, str]:
        found = records.get(connection, SETS, str(collections.of(connection, dataset).id))
        return {} if found is None else msgspec.json.decode(found.body, type=dict[str, str])


def _ids(sets: Sequence[Resource]) -> Mapping[str, str]:
    """Returns the id of the first set of each type."""
    return {each.type: each.id for each in reversed(sets)}


def _note(connection: sqlite3.Connection, dataset: DatasetId, ids: Mapping[str, str]) -> None:
    body = msgspec.json.encode(ids, order="deterministic")
    records.put(connection, SETS, str(collections.of(connection, dataset).id), body, Instant(0))
