"""Reads accounts and relations anew for each request: a role ends with the apply that revokes it."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from chain.ids import DID_ODF, DatasetId
from chain.store.database import Database
from odfd.access.callers import AccountCallers
from odfd.access.manifest import ACCOUNT, RELATIONS, attributes_of, callers_of, statements_of
from odfd.access.relations import Principal, Relations, Role, Statement, Thing
from odfd.resources.registry import DATASET, MIRROR
from odfd.resources.resource import Resource, ResourceEvent
from odfd.resources.store import ResourceStore
from odfd.store import collections


class AccessState(NamedTuple):
    """Accounts, resources and relations at one version of the log of resources."""

    version: tuple[str, int]
    relations: Relations
    callers: list[AccountCallers]
    names: Mapping[str, str]
    """Names of accounts, by id."""
    accounts: Mapping[str, str | None]
    """The account of each resource, by the resource's id."""
    datasets: Mapping[str, str]
    """Ids of resources, by did."""
    dids: Mapping[str, DatasetId]
    """Dids of datasets, by the ids of their resources and of those of their mirrors."""
    attributes: Mapping[str, tuple[Statement, ...]]
    """What labels state of resources, by id; only of those with such labels."""
    whole: Callable[[str], str]
    """Returns the did of the dataset that a chain, by its did, is inside of, or is. Blocking."""

    def id_of(self, thing: str) -> str | None:
        """Returns the id of an existing resource, given by its id or by the did of a dataset or a chain inside one."""
        if thing in self.accounts:
            return thing
        found = self.datasets.get(thing)
        is_chain = found is None and thing.startswith(DID_ODF)
        return self.datasets.get(self.whole(thing)) if is_chain else found

    def holds_after(self, event: ResourceEvent) -> bool:
        """Whether a change, such as a change of status, leaves access as it is."""
        after = event.resource
        return (
            event.op != "Deleted"
            and after.type not in (ACCOUNT, RELATIONS)
            and self.accounts.get(after.id, _UNKNOWN) == after.account
            and (after.type not in _OF_DATASETS or after.did is None or str(self.dids.get(after.id)) == after.did)
            and self.attributes.get(after.id, ()) == attributes_of(after)
        )


_UNKNOWN: Final = object()
_OF_DATASETS: Final = (DATASET.name, MIRROR.name)
_LOOKED_AT: Final = 200
"""Changes up to which each is examined; after more, the state is computed anew at once."""


class AccessReader:
    """Reads the state of access of one node.

    ``public_of``: returns which of some datasets are public. ``published``: a counter that grows when that may have
    changed; it alone is called from the event loop, all else from worker threads. Raises Environment.
    """

    def __init__(
        self,
        database: Database,
        public_of: Callable[[Iterable[DatasetId]], Collection[DatasetId]],
        published: Callable[[], int] = lambda: 0,
    ) -> None:
        self._database, self.public_of, self.published = database, public_of, published
        self._lock = threading.Lock()
        self._kept: AccessState | None = None
        self._digest: tuple[int, str] | None = None
        """A value of ``published``, and the digest at that time."""

    def read(self) -> AccessState:
        """Returns the current state; computes it anew if the log of resources has changed access."""
        with self._lock, self._database.read() as connection:
            store = ResourceStore(connection)
            version = store.epoch(), store.newest()
            if self._kept is None or not _holds(self._kept, store):
                self._kept = state_of(store.all(), version, self._whole)
            elif self._kept.version != version:
                self._kept = self._kept._replace(version=version)
            return self._kept

    def at(self, number: int) -> AccessState | None:
        """Returns the state at a log number; ``None`` if the log no longer reaches back so far."""
        with self._database.read() as connection:
            store = ResourceStore(connection)
            standing, epoch = store.standing_at(number), store.epoch()
        return None if standing is None else state_of(standing, (epoch, number), self._whole)

    def public_digest(self) -> str:
        """Returns a digest of the set of public datasets."""
        # Read before the set: after a publication in between the digest is under the older number, and is made again.
        published = self.published()
        with self._lock:
            if self._digest is not None and self._digest[0] == published:
                return self._digest[1]
        public = sorted(map(str, self.public_of(self.read().dids.values())))
        made = hashlib.sha256("\n".join(public).encode()).hexdigest()[:16]
        with self._lock:
            self._digest = published, made
        return made

    def role(self, account: str, thing: str) -> Role | None:
        """Returns the role of an account on a resource, both by id; ``None`` if it may not know of it."""
        state = self.read()
        dataset = state.dids.get(thing)
        is_published = dataset is not None and bool(self.public_of([dataset]))
        return state.relations.role(Principal(account), Thing(thing, state.accounts.get(thing), is_published))

    def _whole(self, did: str) -> str:
        with self._database.read() as connection:
            return str(collections.whole(connection, DatasetId.parse(did)).active.dataset)

    def account_name(self, account: str) -> str:
        """Returns the name of an account; its id if it is gone."""
        return self.read().names.get(account, account)


def _holds(kept: AccessState, store: ResourceStore) -> bool:
    epoch, number = kept.version
    if epoch != store.epoch() or number < store.floor():
        return False
    news = store.events(number, _LOOKED_AT + 1)
    return len(news) <= _LOOKED_AT and all(map(kept.holds_after, news))


def state_of(
    resources: Iterable[Resource], version: tuple[str, int], whole: Callable[[str], str] = lambda did: did
) -> AccessState:
    """Computes the state from all resources. ``whole`` as in ``AccessState``."""
    every = list(resources)
    datasets = {each.did: each.id for each in every if each.type == DATASET.name and each.did is not None}
    mirrors = {each.id: each.did for each in every if each.type == MIRROR.name and each.did in datasets}
    owners = {each.id: each.account for each in every}
    statements = [said for each in every if each.type == RELATIONS for said in statements_of(each)]
    attributes = {each.id: said for each in every if (said := attributes_of(each))}
    statements += itertools.chain.from_iterable(attributes.values())
    accounts = [each for each in every if each.type == ACCOUNT]
    return AccessState(
        version=version,
        # Who may read a dataset may read the Mirror of it.
        relations=Relations(statements, owners, {held: datasets[did] for held, did in mirrors.items()}),
        callers=callers_of(accounts),
        names={account.id: account.name for account in accounts},
        accounts=owners,
        datasets=datasets,
        dids={each.id: DatasetId.parse(each.did) for each in every if each.type in _OF_DATASETS and each.did},
        attributes=attributes,
        whole=whole,
    )
