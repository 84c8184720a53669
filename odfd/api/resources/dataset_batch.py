"""Collects the planned datasets of one apply, each based on those before, and commits all in one transaction.

A planned dataset counts for those after it before anything is written: a query is checked against inputs that the same
apply makes. A crash, or a fault at any step, leaves all of them or none.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, TypeAlias

import msgspec

from chain import instant
from chain.errors import Conflict, Fault, Invalid
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.events import MetadataEvent, SetTransform
from chain.state import ChainState, load_state, transform_of
from chain.store.base import Head
from odfd.api.resources.desired_state import DesiredSnapshot
from odfd.api.resources.sharded_birth import note_birth
from odfd.datasets.catalog import TYPE, Catalog, resolve_dataset
from odfd.datasets.creation import input_ids
from odfd.resources import records
from odfd.resources.plan import cycle_fault
from odfd.resources.references import find_cycle, reference_key
from odfd.state.directory import StateDirectory
from odfd.trust.signing.commit_parts import Addition
from odfd.trust.signing.owner_commit import OwnerCommitter, author_blocks

BASE_KIND = "source-base"
"""Kind of the record that keeps, on this node only, the folder in which a dataset's relative source paths begin."""
Also: TypeAlias = Callable[[sqlite3.Connection], None]


class PlannedDataset(NamedTuple):
    """The blocks that an apply will append to a dataset, or begin it with."""

    desired: DesiredSnapshot
    dataset: DatasetId
    head: Head | None
    """The head after which ``events`` are appended; ``None`` if they begin the chain."""
    events: Sequence[MetadataEvent]
    is_kept: bool
    """Whether it was deleted and its data is kept; it is taken back first."""
    others: Sequence[DatasetId] = ()
    """The further shards of a new collection, which begin as ``dataset`` does."""

    @property
    def chains(self) -> Sequence[DatasetId]:
        return (self.dataset, *self.others)


class DatasetBatch:
    """Collects the planned datasets of one apply, and commits them. Blocking; used by one task, which closes it."""

    def __init__(self, home: StateDirectory, now: Instant, *, dry_run: bool, forced: bool = False) -> None:
        """``forced``: whether a transform may pin an engine that is not here."""
        self._home = home
        self.forced = forced
        self.now, self.dry_run = Instant(now // MILLISECOND * MILLISECOND), dry_run
        self.planned: list[PlannedDataset] = []
        self._states: dict[DatasetId, ChainState] = {}
        self._names: dict[tuple[str | None, str], DatasetId] = {}
        self._nameless: frozenset[DatasetId] = frozenset()
        self._born = ExitStack()

    def close(self) -> None:
        """Deletes the keys of new datasets that were not committed."""
        self._born.close()

    def leave_names(self, datasets: Iterable[DatasetId]) -> None:
        """Takes the present names of datasets as free, since the apply gives them others."""
        self._nameless = frozenset(datasets)

    def new_ids(self, desired: DesiredSnapshot) -> Sequence[DatasetId]:
        """Makes a key for each shard of a new dataset, and returns their ids; in a dry run only placeholder ids."""
        places = range(1 if desired.shards is None else desired.shards.number)
        if self.dry_run:
            names = [f"{desired.name.casefold()}{f' {place}' if place else ''}" for place in places]
            return [DatasetId.from_public_key(hashlib.sha256(name.encode()).digest()) for name in names]
        return [self._born.enter_context(self._home.newborn()) for _ in places]

    def add(self, planned: PlannedDataset, state: ChainState) -> None:
        """Adds a planned dataset, whose chain is in ``state`` before.

        Raises Invalid for events that break a chain's rules, and for the name of a mirror of the same apply.
        """
        if self._names.get(planned.desired.key, planned.dataset) != planned.dataset:
            text = f"a mirror of the same apply is called {planned.desired.name} too"
            raise Invalid(text, rule="dataset-name", hint="give one of them another name")
        blocks = author_blocks(state, planned.events, max(self.now, state.system_time or self.now))
        for block in blocks:
            state = state.advance(block)
        self._states[planned.dataset] = state
        self._names[planned.desired.key] = planned.dataset
        self.planned.append(planned)

    def promise(self, name: str, dataset: DatasetId) -> None:
        """Makes a mirror of the same apply known by its name, so that queries may refer to it."""
        self._names[None, name.casefold()] = dataset

    def state(self, dataset: DatasetId) -> ChainState:
        """Returns the state of a dataset, with what is planned for it."""
        planned = self._states.get(dataset)
        return load_state(self._home.chains.chain(dataset)) if planned is None else planned

    def resolve(self, ref: str, desired: DesiredSnapshot) -> DatasetId:
        """Returns the id of an input of a dataset, which may be a planned one. Raises Invalid."""
        said = ref.removeprefix("Dataset:")
        if said.startswith("did:"):
            return DatasetId.parse(said)
        # What the batch makes precedes what others have under its name.
        planned = self._names.get((desired.account, said.casefold()))
        if planned is not None and reference_key(ref, TYPE) not in desired.meant:
            return planned
        try:
            with self._home.catalog() as catalog:
                found = resolve_dataset(ref, desired.meant, catalog, desired.account)
            if found.id in self._nameless and reference_key(ref, TYPE) not in desired.meant:
                text = f"{found.name} has another name after this apply"
                raise Invalid(text, rule="dataset-ref", hint="write its new name")
            return found.id
        except Invalid as fault:
            fault.place = desired.input_place(ref)
            raise

    def check_circle(self, desired: DesiredSnapshot, dataset: DatasetId, events: Sequence[MetadataEvent]) -> None:
        """Raises Invalid if the dataset would derive from itself, directly or through others."""
        changed = [event for event in events if isinstance(event, SetTransform)]

        def edges(did: str) -> list[str]:
            said = changed[-1] if did == str(dataset) else self._transform(DatasetId.parse(did))
            return [] if said is None else [str(each) for each in input_ids(said)]

        cycle = find_cycle([str(dataset)] if changed else [], edges)
        if cycle is not None:
            with self._home.catalog() as catalog:
                names = [catalog.name_of(DatasetId.parse(each)) for each in cycle]
            raise cycle_fault(names, desired.transform_place())

    def _transform(self, dataset: DatasetId) -> SetTransform | None:
        if (planned := self._states.get(dataset)) is not None:
            return planned.set_transform
        return transform_of(self._home.chains.chain(dataset))

    def commit(self, committer: OwnerCommitter, also: Also) -> None:
        """Writes all blocks, names and folders, and what ``also`` writes, or nothing. Raises as ``commit_now``."""

        def together(connection: sqlite3.Connection) -> None:
            for each in self.planned:
                self._check_new(connection, each)
            also(connection)  # names what it declares; the others are named here
            for each in self.planned:
                self._note(connection, each)
                if each.head is None:
                    note_birth(connection, each.desired, each.chains, self.now)

        additions = self._additions()
        if additions:
            committer.commit_additions_now(additions, self.now, together)
        else:
            with self._home.database.write() as connection:
                together(connection)

    def faults(self, committer: OwnerCommitter) -> dict[str, Fault]:
        """Returns, by name, the faults that keep single datasets from being committed."""
        found = committer.faults_of(self._additions(), self.now)
        by_name = {each.desired.name: [found[one] for one in each.chains if one in found] for each in self.planned}
        return {name: faults[0] for name, faults in by_name.items() if faults}

    def _additions(self) -> list[Addition]:
        return [self._addition(each, dataset) for each in self.planned if each.events for dataset in each.chains]

    def _addition(self, each: PlannedDataset, dataset: DatasetId) -> Addition:
        events = each.events if each.head is not None else born(each.events, dataset)
        upper = instant.from_millis(self._home.chains.upper(dataset))
        return Addition(dataset, each.head, events, (), at=max(self.now, upper))

    def _check_new(self, connection: sqlite3.Connection, each: PlannedDataset) -> None:
        if each.head is not None or each.is_kept:
            return
        held = Catalog(connection).named(each.desired.name, each.desired.account)
        if held is not None and held.id not in self._nameless:
            raise Conflict(f"{each.desired.name} was made by another apply meanwhile", rule="head-moved")

    def _note(self, connection: sqlite3.Connection, each: PlannedDataset) -> None:
        """Writes the name of a dataset, and the folder in which its relative paths begin.

        An imported dataset has no such folder until a manifest declares it.
        """
        base = each.desired.base
        if each.events:
            Catalog(connection).add(each.desired.name, each.dataset, self.now, each.desired.account)
        for key in map(str, each.chains):
            if each.events or (base and ((kept := records.get(connection, BASE_KIND, key)) is None or not kept.body)):
                records.put(connection, BASE_KIND, key, base.encode(), self.now)


def born(events: Sequence[MetadataEvent], dataset: DatasetId) -> Sequence[MetadataEvent]:
    """Returns the founding events of a dataset, with its id in the Seed."""
    return (msgspec.structs.replace(events[0], dataset_id=dataset), *events[1:])
