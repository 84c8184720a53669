"""Builds renditions of derived datasets when an input hands over: each over the new inputs, beside the old one.

All of them hand over in one transaction, at one time, so no transform reads a mixture. A derived rendition is found by
the inputs that its transform names, so what was built before a crash, or before a handover back, is used again. Spec:
docs/spec/collections.md#derived.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import trio

from chain.errors import Conflict
from chain.ids import DatasetId
from chain.instant import from_millis, to_millis
from chain.model.events import MetadataEvent, Seed, SetTransform
from chain.state import load_state
from chain.store.shards import SEALED
from odfd.api.datasets.rendition_effects import Move, RenditionEffects
from odfd.api.resources.dataset_batch import BASE_KIND
from odfd.datasets.catalog import Catalog
from odfd.datasets.creation import declaration, input_ids, inputs_first, is_same_query
from odfd.datasets.visibility import Mark, Marks
from odfd.renditions import tables
from odfd.renditions.sharded_inputs import over
from odfd.renditions.successor import without_notice
from odfd.renditions.tables import CollectionState, Member
from odfd.renditions.timeline import RenditionRow
from odfd.resources import records
from odfd.runtime.clock import Clock
from odfd.state.directory import StateDirectory
from odfd.trust.signing.owner_commit import OwnerCommitter

Derive = Callable[[DatasetId], Awaitable[None]]
"""Runs a derived dataset until none of its inputs has more to consume. Raises whatever prevents that."""


class DerivedRenditions:
    """Finds and builds the renditions of one node's derived datasets."""

    def __init__(
        self,
        home: StateDirectory,
        committer: OwnerCommitter,
        clock: Clock,
        effects: RenditionEffects,
        readers: Callable[[DatasetId], Sequence[DatasetId]],
        derive: Derive,
    ) -> None:
        """``readers`` lists the datasets here that derive directly from one."""
        self._home, self._committer, self._clock = home, committer, clock
        self._effects, self._readers, self._derive = effects, readers, derive

    def affected(self, source: DatasetId) -> list[DatasetId]:
        """Lists this node's active renditions that derive from a dataset, also indirectly, inputs before readers."""
        found: dict[DatasetId, None] = {}
        waiting = [source]
        while waiting:
            shards = self._effects.state_member(waiting.pop()).shards
            for each in dict.fromkeys(reader for shard in shards for reader in self._readers(shard)):
                if each not in found and each != source and self._is_active(each):
                    found[each] = None
                    waiting.append(each)
        return inputs_first(found, self._inputs, found)

    async def prepared(self, old: Member, new: Member) -> list[Move]:
        """Builds renditions over ``new`` of all that derives from ``old``, up to its present head. Returns all moves.

        Raises whatever prevents one of them.
        """
        moves = [Move(old, new)]
        successors = [(old, new)]
        for dataset in await trio.to_thread.run_sync(self.affected, old.dataset):
            state, member = await trio.to_thread.run_sync(self._built, dataset, successors)
            self._effects.step("derived-begun")
            await self._derive(member.dataset)
            self._effects.step("derived")
            moves.append(Move(state.active, member))
            successors.append((state.active, member))
        return moves

    def _is_active(self, dataset: DatasetId) -> bool:
        return self._home.keys.has_dataset_key(dataset) and self._effects.state(dataset).active.dataset == dataset

    def _inputs(self, dataset: DatasetId) -> Sequence[DatasetId]:
        transform = self._transform(dataset)
        return () if transform is None else input_ids(transform)

    def _transform(self, dataset: DatasetId) -> SetTransform | None:
        return load_state(self._home.chains.chain(dataset)).set_transform

    def _built(self, dataset: DatasetId, successors: Sequence[tuple[Member, Member]]) -> tuple[CollectionState, Member]:
        """Returns the rendition with the active one's query over the new inputs, and begins it if there is none."""
        state, transform = self._effects.state(dataset), self._transform(dataset)
        assert transform is not None
        wanted = _over(transform, successors)
        for each in state.members:
            is_open = not each.is_gone and self._home.chains.upper(each.dataset) < SEALED
            made = self._transform(each.dataset)
            if is_open and each.dataset != dataset and made is not None and is_same_query(made, wanted):
                return state, each
        self._begin(state, wanted)
        state = self._effects.state(dataset)
        return state, state.members[-1]

    def _begin(self, state: CollectionState, transform: SetTransform) -> None:
        active, number = state.active.dataset, len(state.members)
        known = load_state(self._home.chains.chain(active))
        known = msgspec.structs.replace(known, set_info=without_notice(known.set_info))
        base = self._home.name_of(active)
        declared = declaration(known, base)
        metadata = (transform if isinstance(each, SetTransform) else each for each in declared.metadata)
        with self._home.newborn() as born:
            row = RenditionRow(number=number, shards=(str(born),), reason="an input hands over")
            member = Member(row=row, origin="inputs")

            def together(connection: sqlite3.Connection) -> None:
                now = self._clock.now()
                Catalog(connection).check_inner(active, number, 1)
                folder = records.get(connection, BASE_KIND, str(active))
                records.put(connection, BASE_KIND, str(born), folder.body if folder else b"", now)
                Marks(connection).put(born, Mark.PRIVATE, now)  # private, whatever the settings publish
                latest = tables.of(connection, active)
                if len(latest.members) != number:
                    raise Conflict("another rendition was begun", rule="rendition-command", hint="do it again")
                tables.keep(connection, msgspec.structs.replace(latest, members=(*latest.members, member)))

            events: tuple[MetadataEvent, ...] = (Seed(dataset_id=born, dataset_kind=declared.kind), *metadata)
            time = from_millis(to_millis(self._clock.now()))
            self._committer.commit_now(born, None, events, (), time, together)


def _over(transform: SetTransform, successors: Sequence[tuple[Member, Member]]) -> SetTransform:
    """Returns the same query over other inputs. Raises Refused if it reads single shards."""
    for old, new in successors:
        transform = over(transform, old.row.shards, new.row.shards)
    return transform
