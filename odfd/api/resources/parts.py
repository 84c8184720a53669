"""Keeps the resources that others own, whatever code writes their owners."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterable

from odfd.api.resources.types import TYPES
from odfd.datasets.catalog import DatasetResources
from odfd.resources.owners import OwnedPart, keep_parts
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore
from odfd.resources.types import TypeRegistry
from odfd.runtime.clock import Clock
from odfd.state.directory import StateDirectory


class PartsKeeper:
    """Computes what resources own, and writes it with them. Blocking."""

    def __init__(
        self, home: StateDirectory, clock: Clock, new_id: Callable[[], str], registry: TypeRegistry = TYPES
    ) -> None:
        self._home, self._clock = home, clock
        self.new_id, self.registry = new_id, registry

    def of(self, owner: Resource) -> Iterable[OwnedPart]:
        """Yields the resources that one makes. Raises Invalid."""
        kind = self.registry.named(owner.type)
        return () if kind.parts is None else kind.parts(owner)

    def store(self, connection: sqlite3.Connection) -> ResourceStore:
        """Returns a store that also writes the resources that others make."""
        return DatasetResources(connection, functools.partial(keep_parts, self.of, self.new_id))

    def lack(self, owner: Resource) -> bool:
        """Whether the resources that this one makes are missing or differ."""
        with self._home.database.read() as connection:
            held = {(each.type, each.name): each.spec for each in ResourceStore(connection).owned(owner.id)}
        return held != {(each.type, each.name): each.spec for each in self.of(owner)}

    def make(self, owner: Resource) -> None:
        """Writes the resources that this one makes, and removes those it no longer makes. Raises Invalid."""
        with self._home.database.write() as connection:
            store = self.store(connection)
            held = store.get(owner.id)
            if held is not None:
                keep_parts(self.of, self.new_id, store, held, self._clock.now())
