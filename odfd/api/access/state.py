"""Reads accounts and relations as they stand, for each question anew: a role ends with the apply that revokes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from chain.errors import Refused
from chain.ids import DatasetId
from odfd.access.callers import AccountCallers
from odfd.access.manifest import ACCOUNT, RELATIONS, callers_of, statements_of
from odfd.access.relations import Principal, Relations, Thing
from odfd.resources.declared import DeclaredResource, DeclaredStore
from odfd.state.directory import StateDirectory


class AccessState(NamedTuple):
    """What stands, at one version of the log of resources."""

    version: tuple[str, int]
    relations: Relations
    callers: list[AccountCallers]
    names: Mapping[str, str]
    """Of accounts, by id."""
    accounts: Mapping[str, str | None]
    """By id of each resource, its account."""
    datasets: Mapping[str, str]
    """Ids of resources, by did."""


class AccessReader:
    """Reads the state of access of one node. ``adopt``: takes over resources that came by other ways.

    ``public_of``: which datasets anybody may have. All is called from worker threads. Raises Environment.
    """

    def __init__(
        self,
        home: StateDirectory,
        public_of: Callable[[Iterable[DatasetId]], Collection[DatasetId]],
        adopt: Callable[[], None],
    ) -> None:
        self._home, self.public_of, self._adopt = home, public_of, adopt
        self._lock = threading.Lock()
        self._kept: AccessState | None = None

    def read(self) -> AccessState:
        """Returns what stands now; it is computed anew where the log of resources grew."""
        self._adopt()
        with self._lock, self._home.database.read() as connection:
            store = DeclaredStore(connection)
            version = store.epoch(), store.newest()
            if self._kept is None or self._kept.version != version:
                self._kept = state_of(store.all(), version)
            return self._kept

    def check_inputs(self, dataset: DatasetId, inputs: Sequence[DatasetId]) -> None:
        """Raises Refused where the account of a derived dataset may not read one of its inputs."""
        state = self.read()
        account = state.accounts.get(state.datasets.get(str(dataset), ""))
        if account is None:
            return
        public, acting = self.public_of(inputs), Principal(account)
        for each in inputs:
            id_ = state.datasets.get(str(each), "")
            if state.relations.role(acting, Thing(id_, state.accounts.get(id_), each in public)) is None:
                text = f"its account {state.names.get(account, account)} may not read the input {each.short}"
                hint = "the owner of the input grants the role reader: docs/access.md"
                raise Refused(text, rule="access-inputs", hint=hint)


def state_of(resources: Iterable[DeclaredResource], version: tuple[str, int]) -> AccessState:
    """Makes the state of all resources."""
    every = list(resources)
    owners = {each.id: each.account for each in every}
    statements = [said for each in every if each.type == RELATIONS for said in statements_of(each)]
    accounts = [each for each in every if each.type == ACCOUNT]
    return AccessState(
        version=version,
        relations=Relations(statements, owners),
        callers=callers_of(accounts),
        names={each.id: each.name for each in accounts},
        accounts=owners,
        datasets={each.did: each.id for each in every if each.type == "Dataset" and each.did is not None},
    )
