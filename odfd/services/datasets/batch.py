"""Prepares the blocks of the datasets of one apply, each based on those before; one transaction commits all.

A planned dataset counts for those after it before anything is written: a query is checked against inputs that the same
apply makes. A crash, or a fault at any step, leaves all of them or none.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import MetadataEvent, SetTransform
from chain.state import ChainState, load_state, transform_of
from chain.store.base import Head
from odfd.datasets.commit import CommitPart
from odfd.datasets.creation import input_ids
from odfd.ingest.local_files import BASE_KIND
from odfd.renditions.timeline import RenditionRow, Switch, Timeline
from odfd.resources import records
from odfd.resources.controller import ApplyBatch
from odfd.resources.plan import cycle_fault
from odfd.resources.references import find_cycle, reference_key
from odfd.services.datasets.desired import DesiredSnapshot
from odfd.store import collections
from odfd.store.catalog import TYPE, Catalog, resolve_dataset
from odfd.store.collections import CollectionState, Member
from odfd.store.directory import StateDirectory
from odfd.store.visibility import Marks, VisibilityMark
from odfd.trust.signing.owner_commit import author_blocks


class PlannedDataset(NamedTuple):
    """The blocks that an apply will append to a dataset, or begin it with."""

    desired: DesiredSnapshot
    dataset: DatasetId
    head: Head | None
    """The head after which ``events`` are appended; ``None`` if they begin the chain."""
    events: Sequence[MetadataEvent]
    others: Sequence[DatasetId] = ()
    """The further shards of a new collection, which begin as ``dataset`` does."""

    @property
    def chains(self) -> Sequence[DatasetId]:
        return (self.dataset, *self.others)


class DatasetBatch:
    """Adds datasets to an apply. Blocking; used by one task."""

    def __init__(self, home: StateDirectory, batch: ApplyBatch) -> None:
        self._home, self.whole = home, batch

    def new_ids(self, desired: DesiredSnapshot) -> Sequence[DatasetId]:
        """Makes a key for each shard of a new dataset, and returns their ids; in a dry run only placeholder ids."""
        places = range(1 if desired.shards is None else desired.shards.number)
        if self.whole.dry_run:
            names = [f"{desired.name.casefold()}{f' {place}' if place else ''}" for place in places]
            return [DatasetId.from_public_key(hashlib.sha256(name.encode()).digest()) for name in names]
        return [self.whole.closing.enter_context(self._home.newborn()) for _ in places]

    def add(self, planned: PlannedDataset, state: ChainState) -> None:
        """Adds a planned dataset, whose chain is in ``state`` before.

        Raises Invalid for events that break a chain's rules, and for the name of a mirror of the same apply.
        """
        if self.whole.known.get(planned.desired.key, planned.dataset) != planned.dataset:
            text = f"a mirror of the same apply is called {planned.desired.name} too"
            raise Invalid(text, rule="dataset-name", hint="give one of them another name")
        now = self.whole.now
        blocks = author_blocks(state, planned.events, max(now, state.system_time or now))
        for block in blocks:
            state = state.advance(block)
        self.whole.states[planned.dataset] = state

    def state(self, dataset: DatasetId) -> ChainState:
        """Returns the state of a dataset, with what is planned for it."""
        planned: ChainState | None = self.whole.states.get(dataset)
        return load_state(self._home.chains.chain(dataset)) if planned is None else planned

    def resolve(self, ref: str, desired: DesiredSnapshot) -> DatasetId:
        """Returns the id of an input of a dataset, which may be a planned one. Raises Invalid."""
        said = ref.removeprefix("Dataset:")
        if said.startswith("did:"):
            return DatasetId.parse(said)
        # What the batch makes precedes what others have under its name.
        planned = self.whole.known.get((desired.account, said.casefold()))
        if planned is not None and reference_key(ref, TYPE) not in desired.meant:
            return planned
        try:
            with self._home.catalog() as catalog:
                found = resolve_dataset(ref, desired.meant, catalog, desired.account)
            if str(found.id) in self.whole.nameless and reference_key(ref, TYPE) not in desired.meant:
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
            return [] if said is None else [str(id_) for id_ in input_ids(said)]

        cycle = find_cycle([str(dataset)] if changed else [], edges)
        if cycle is not None:
            with self._home.catalog() as catalog:
                names = [catalog.name_of(DatasetId.parse(each)) for each in cycle]
            raise cycle_fault(names, desired.transform_place())

    def _transform(self, dataset: DatasetId) -> SetTransform | None:
        planned: ChainState | None = self.whole.states.get(dataset)
        if planned is not None:
            return planned.set_transform
        return transform_of(self._home.chains.chain(dataset))

    def parts(self, each: PlannedDataset) -> list[CommitPart]:
        """Returns what the transaction appends to the chains of a dataset."""
        return [self._part(each, dataset) for dataset in each.chains] if each.events else []

    def _part(self, each: PlannedDataset, dataset: DatasetId) -> CommitPart:
        events = each.events if each.head is not None else found_dataset(each.events, dataset)
        upper = instant.from_millis(self._home.chains.upper(dataset))
        return CommitPart(dataset=dataset, expected=each.head, events=events, time=max(self.whole.now, upper))

    def record(self, connection: sqlite3.Connection, each: PlannedDataset) -> None:
        """Writes the name of a dataset, and the folder in which its relative paths begin; of a new one, its shards.

        An imported dataset has no such folder until a manifest declares it.
        """
        base, now = each.desired.draft.base, self.whole.now
        if each.events:
            Catalog(connection).add(each.desired.name, each.dataset, now, each.desired.account)
        for key in map(str, each.chains):
            if each.events or (base and ((kept := records.get(connection, BASE_KIND, key)) is None or not kept.body)):
                records.put(connection, BASE_KIND, key, base.encode(), now)
        if each.head is None:
            _note_birth(connection, each.desired, each.chains, now)


def found_dataset(events: Sequence[MetadataEvent], dataset: DatasetId) -> Sequence[MetadataEvent]:
    """Returns the founding events of a dataset, with its id in the Seed."""
    return (msgspec.structs.replace(events[0], dataset_id=dataset), *events[1:])


def _note_birth(
    connection: sqlite3.Connection, desired: DesiredSnapshot, born: Sequence[DatasetId], now: Instant
) -> None:
    """Writes the collection of all shards, if the dataset declares shards.

    All of them are private until they are published.
    """
    if desired.shards is None:
        return
    marks = Marks(connection)
    Catalog(connection).check_inner(born[0], 0, len(born))
    for each in born:
        marks.put(each, VisibilityMark.PRIVATE, now)  # private, whatever the settings publish
    row = RenditionRow(number=0, shards=tuple(map(str, born)), by=desired.shards.by)
    member, timeline = Member(row=row, origin="first"), Timeline((Switch(0, "", row),), 0)
    collections.keep(connection, CollectionState(id=born[0], members=(member,), timeline=timeline))
