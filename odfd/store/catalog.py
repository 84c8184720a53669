"""Looks up datasets by name and did, and names them: each is a resource of the type Dataset.

A collection is one resource, which stands for the first chain of its active rendition. The other chains of its
renditions and shards, and its recorded differences, are no resources: they are found by their ids, and by the
collection's name with a number (``sales.r0``, ``sales.r0.s1``, ``sales.h1``).
"""

from __future__ import annotations

import difflib
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from chain.errors import Invalid, NotFound
from chain.ids import DID_ODF, DatasetId, DatasetName, parse_local_alias, parse_own_name
from chain.instant import Instant
from odfd.resources.reader import NamedRow
from odfd.resources.references import reference_key
from odfd.resources.resource import Json, Resource, derived_id
from odfd.resources.selectors import Facts
from odfd.resources.store import ResourceStore
from odfd.store import collections
from odfd.store import flow_runs as flows
from odfd.store import webhook_calls as webhooks
from odfd.store.collections import CollectionState, Member

TYPE: Final = "Dataset"
Labels: TypeAlias = Callable[[Resource], Mapping[str, Json]]
"""Returns all labels of a dataset, including those that the node gives it."""
_INNER: Final = re.compile(
    r"(?P<name>.+)\.(?:r(?P<number>\d{1,2})(?:\.s(?P<place>[1-9]\d{0,2}))?|h(?P<handover>[1-9]\d{0,8}))",
    re.ASCII | re.IGNORECASE,
)


class NamedId(str):
    """The id of a dataset that was called by its name.

    It means the whole collection, where an id that was given means one chain. Whoever judged a name passes this on, so
    that nothing else gets the name in between.
    """

    __slots__ = ()


def is_one_chain(ref: str) -> bool:
    """Whether a reference is an id, which means one chain; a name means all shards of a collection."""
    return ref.startswith("did:") and not isinstance(ref, NamedId)


def outer_name(name: str) -> str:
    """Returns the name of the collection that a chain is called after; another name unchanged."""
    found = _INNER.fullmatch(name)
    return name if found is None else found["name"]


class DatasetEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset in the catalogue: its name, its id, and when it got here."""

    name: DatasetName
    id: DatasetId
    created_at: Instant
    is_inner: bool = False
    """Whether it is a chain inside a collection, and not the one that the collection's name means."""


def name_with_id(name: str, dataset: DatasetId) -> str:
    """Names a dataset by its local name and its did, as ``wire.DatasetDetail.inputs`` does."""
    return f"{name} ({dataset})"


class DatasetResources(ResourceStore):
    """Reads and writes resources; the id of a chain inside a collection means the collection."""

    def with_did(self, type_: str, did: str) -> Resource | None:
        found = super().with_did(type_, did)
        if found is not None or type_ != TYPE or not did.startswith(DID_ODF):
            return found
        try:
            whole = collections.whole(self._db, DatasetId.parse(did)).active.dataset
        except Invalid:
            return None
        return super().with_did(type_, str(whole))


class Catalog:
    """Looks up and changes the names of datasets, over one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db, self._store = connection, ResourceStore(connection)

    def entries(self) -> Sequence[DatasetEntry]:
        """Lists the datasets by name, each collection once."""
        return [entry for row in self._store.rows(TYPE) if (entry := _entry(row)) is not None]

    def chains(self) -> Sequence[DatasetEntry]:
        """Lists every chain that is here: the datasets, and then the chains inside collections."""
        found = self.entries()
        known = {entry.id for entry in found}
        inner = [
            entry
            for state in collections.every(self._db)
            for each in collections.chains_of(state)
            if each not in known and (entry := self._inner(each, state)) is not None
        ]
        return [*found, *inner]

    def chains_of(self, entry: DatasetEntry) -> Sequence[DatasetId]:
        """Lists the chains of a collection, or of one rendition of it; first the one that the name means."""
        shards = collections.shards_of(self._db, entry.id)
        every = () if entry.is_inner else collections.chains_of(collections.of(self._db, entry.id))
        return list(dict.fromkeys((*shards, *every)))

    def resolve(self, ref: str) -> DatasetEntry:
        """Returns a dataset by local name or did. Raises NotFound (with the nearest name) or Invalid."""
        found = self.look(ref)
        if found is not None:
            return found
        if ref.startswith(DID_ODF):
            short = DatasetId.parse(ref).short
            raise NotFound(f"no dataset {short} here", rule="dataset-ref", hint="odfctl mirror add takes a did")
        raise _missing(ref, [entry.name for entry in self.entries()])

    def look(self, ref: str) -> DatasetEntry | None:
        """Returns what the node's owner means by a did, a name or ``account/name``. Raises Invalid."""
        if ref.startswith(DID_ODF):
            return self.find(DatasetId.parse(ref))
        _check_ref(ref)
        row = None if "/" in ref else self._store.row_named(TYPE, ref, None)
        return _entry(row) or _entry(self._store.find_any(TYPE, ref)) or self._within(ref, self.look)

    def resolve_as(self, ref: str, account: str | None) -> DatasetEntry | None:
        """Returns what an account calls by a did or a name; ``account``: ``None`` for callers without one.

        Raises Invalid.
        """
        if ref.startswith(DID_ODF):
            return self.find(DatasetId.parse(ref))
        _check_ref(ref)
        return _entry(self._store.resolve(TYPE, ref, account)) or self._within(
            ref, partial(self.resolve_as, account=account)
        )

    def find_named(self, name: str, account: str | None) -> DatasetEntry | None:
        """Returns the dataset of an account by its name. ``account``: ``None`` for the node's owner."""
        return _entry(self._store.row_named(TYPE, name, account))

    def find(self, dataset: DatasetId) -> DatasetEntry | None:
        """Returns a chain by its id, with an index: the cost does not grow with the number of datasets."""
        found = self._store.row_with_did(TYPE, str(dataset))
        return _entry(found) or self._inner(dataset, collections.whole(self._db, dataset))

    def resource_of(self, dataset: DatasetId) -> Resource | None:
        """Returns the resource of the dataset that a chain is, or is inside of."""
        found = self._store.with_did(TYPE, str(dataset))
        return found or self._store.with_did(TYPE, str(collections.whole(self._db, dataset).active.dataset))

    def facts(self, dataset: DatasetId, labels: Labels) -> Facts:
        """Returns what else than its name selects the dataset that a chain is, or is inside of."""
        found = self.resource_of(dataset)
        if found is None:
            return {}, None
        return labels(found), None if found.account is None else self._store.account_name(found.account)

    def name_of(self, dataset: DatasetId) -> str:
        """Returns the local name of a dataset, or its shortened did, to show to people."""
        entry = self.find(dataset)
        return entry.name if entry else dataset.short

    def add(self, name: str, dataset: DatasetId, now: Instant, account: str | None = None) -> None:
        """Names a dataset of an account. ``account``: ``None`` for the node's owner.

        Raises Invalid if the name is that of another dataset of the account, or the dataset has another name.
        """
        parsed = self.check(name, dataset, account)
        if self.find(dataset) is None:
            id_ = derived_id(TYPE, str(dataset), str(now))
            named = Resource(
                id=id_, type=TYPE, name=parsed, did=str(dataset), account=account, created_at=now, updated_at=now
            )
            self._store.put(named, now)

    def rename(self, dataset: DatasetId, name: str, now: Instant) -> None:
        """Gives a dataset another name in its account. Raises Invalid if that is taken."""
        row = self._store.with_did(TYPE, str(dataset))
        if row is not None and row.name != name:
            for fault in self.inner_fault(name, row.account):
                raise fault
            self._store.put(msgspec.structs.replace(row, name=parse_own_name(name), updated_at=now), now)

    def check(self, name: str, dataset: DatasetId, account: str | None = None) -> DatasetName:
        """Checks that ``add`` would accept a name, and returns it. Raises Invalid."""
        parsed = parse_own_name(name)
        held = self._store.row_named(TYPE, parsed, account)
        if held is not None and held.did != str(dataset):
            raise _to_taken(name, held.did)
        inner = self._within(parsed, partial(self.find_named, account=account)) if held is None else None
        if inner is not None and inner.id != dataset:
            raise _to_taken(name, str(inner.id))
        known, row = self.find(dataset), self._store.row_with_did(TYPE, str(dataset))
        is_others = row is not None and account is not None and row.account != account
        if known is not None and (is_others or known.name.casefold() != parsed.casefold()):
            raise Invalid(
                f"{dataset.short} is here already, as {known.name}",
                rule="dataset-exists",
                hint=f"to call it {name}: odfctl rename {known.name} {name}",
            )
        return parsed

    def inner_fault(self, name: str, account: str | None) -> Iterator[Invalid]:
        """Yields a fault for a name by which a chain inside a collection of the account is found."""
        inner = self._within(name, partial(self.find_named, account=account))
        if inner is not None:
            yield _to_taken(name, str(inner.id))

    def hand_on(self, old: DatasetId, new: DatasetId, now: Instant) -> None:
        """Lets the resource of a collection stand for another chain of it, with all that was declared and refers."""
        self._store.exchange(TYPE, str(old), str(new), now)

    def take_in(self, dataset: DatasetId, now: Instant) -> None:
        """Lets a chain that became part of a collection be no resource of its own; what refers to it means that."""
        row, whole = self._store.with_did(TYPE, str(dataset)), collections.of(self._db, dataset).active.dataset
        into = None if whole == dataset else self._store.with_did(TYPE, str(whole))
        if row is not None and into is not None:
            self._store.gather(into, [row], now)

    def check_inner(self, of: DatasetId, number: int, shards: int) -> None:
        """Raises Invalid if another dataset has a name by which a rendition of this one would be found."""
        for place in range(shards):
            self._check_inside(of, partial(inner_name, number=number, place=place))

    def check_difference(self, of: DatasetId, handover: int) -> None:
        """Raises Invalid if another dataset has the name of the recorded difference of a handover of this one."""
        self._check_inside(of, partial(difference_name, handover=handover))

    def _check_inside(self, of: DatasetId, name_in: Callable[[str], str]) -> None:
        row = self.resource_of(of)
        held = None if row is None else self._store.row_named(TYPE, name_in(row.name), row.account)
        if held is not None:
            raise _to_taken(held.name, held.did)

    def remove(self, entry: DatasetEntry, now: Instant) -> None:
        held = self._store.with_did(TYPE, str(entry.id))
        if held is not None:
            self._store.delete(held, now)

    def _inner(self, dataset: DatasetId, state: CollectionState) -> DatasetEntry | None:
        """Returns a chain inside a collection; ``None`` for any other, and for one that is deleted."""
        row = self._store.row_with_did(TYPE, str(state.active.dataset))
        if row is None:
            return None
        if (handover := state.handover_of(dataset)) is not None:
            name = difference_name(row.name, handover)
        else:
            member = state.member(state.number_of(dataset))
            if member.dropped:
                return None
            name = inner_name(row.name, member.row.number, member.shards.index(dataset))
        return DatasetEntry(name=DatasetName(name), id=dataset, created_at=row.created_at, is_inner=True)

    def _within(self, ref: str, look: Callable[[str], DatasetEntry | None]) -> DatasetEntry | None:
        """Returns the chain that a name with a number of a rendition or handover means; ``None`` if there is none.

        ``look`` finds the collection by its name.
        """
        found = _INNER.fullmatch(ref)
        whole = None if found is None else look(found["name"])
        if found is None or whole is None:
            return None
        state = collections.of(self._db, whole.id)
        if found["handover"] is not None:
            kept = {state.handover_of(each.dataset): each.dataset for each in state.differences}
            chain = kept.get(int(found["handover"]))
            return None if chain is None else self.find(chain)
        number, place = int(found["number"]), int(found["place"] or 0)
        shards = state.members[number].shards if number < len(state.members) else ()
        # A dataset of one chain is read as a collection of one rendition and one shard, and has no such names.
        is_there = place < len(shards) and len(state.members) + len(shards) > 2
        return self.find(shards[place]) if is_there else None


def inner_name(base: str, number: int, place: int) -> str:
    """Returns the name of a chain inside a collection."""
    return f"{base}.r{number}.s{place}" if place else f"{base}.r{number}"


def difference_name(base: str, handover: int) -> str:
    """Returns the name of the recorded difference of a handover, which is a chain inside a collection."""
    return f"{base}.h{handover}"


def resolve_dataset(ref: str, meant: Mapping[str, str], catalog: Catalog, account: str | None = None) -> DatasetEntry:
    """Resolves a resource's reference: to the dataset it was resolved to before, else by its present name or did.

    ``meant``: dids by the keys of references. ``account``: that of the resource; ``None`` for the node's owner, who
    also means what a single other account has. Raises NotFound, Invalid.
    """
    key, name = reference_key(ref, TYPE), ref.removeprefix(f"{TYPE}:")
    if (did := meant.get(key)) is not None:
        found = catalog.find(DatasetId.parse(did))
        if found is None:
            hint = "it continues when that comes again; to mean another of the name, apply it again"
            raise NotFound(f"the dataset {ref!r} that was meant is gone", rule="dataset-ref", hint=hint)
        return found
    if "/" in key:
        hint = "odfctl get datasets -w lists what is here, with accounts"
        raise NotFound(f"there is no {key}", rule="dataset-ref", hint=hint)
    found = catalog.resolve(name) if account is None else catalog.find_named(name, account)
    if found is None:
        raise _missing(name, ())
    return found


def default_name(dataset: DatasetId) -> DatasetName:
    """Derives a name for a dataset that was given none."""
    return DatasetName(f"odf-{dataset.public_key.hex()[:12]}")


def _missing(ref: str, names: Sequence[str]) -> NotFound:
    """Builds the fault for a name that finds nothing; ``names``: those that the asker may be told of."""
    near = difflib.get_close_matches(ref, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "odfctl get datasets lists what is here"
    return NotFound(f"no dataset {ref!r} here", rule="dataset-ref", hint=hint)


def _to_taken(name: str, did: str | None) -> Invalid:
    assert did is not None, "a dataset has one"
    return Invalid(
        f"{name} is already the name of {DatasetId.parse(did).short}",
        rule="dataset-exists",
        hint=f"choose another name, or first: odfctl rename {name} OTHER",
    )


def _check_ref(ref: str) -> None:
    """Raises Invalid for what is neither a name nor ``account/name``."""
    parse_local_alias(ref) if "/" in ref else parse_own_name(ref)


def _entry(row: NamedRow | Resource | None) -> DatasetEntry | None:
    if row is None or row.did is None:
        return None
    return DatasetEntry(name=DatasetName(row.name), id=DatasetId.parse(row.did), created_at=row.created_at)


def hand_on(connection: sqlite3.Connection, old: Member, new: Member, now: Instant) -> None:
    """Lets the resource of a collection, and what flows and webhooks remember of it, be of the new rendition."""
    Catalog(connection).hand_on(old.dataset, new.dataset, now)
    flows.hand_on(connection, old.dataset, new.dataset)
    webhooks.hand_on(connection, str(old.dataset), str(new.dataset))
