"""Builds renditions of derived datasets when an input hands over: each over the new inputs, beside the old one.

All of them hand over in one transaction, at one time, so no transform reads a mixture. A derived rendition is found by
the inputs that its transform names, so what was built before a crash, or before a handover back, is used again. Spec:
docs/spec/collections.md#derived.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from chain.ids import DatasetId
from chain.instant import from_millis, to_millis
from chain.model.events import SetTransform
from chain.state import load_state
from chain.store.shards import SEALED
from odfd.datasets.creation import input_ids, inputs_first, is_same_query
from odfd.renditions.sharded_inputs import over
from odfd.renditions.timeline import RenditionRow
from odfd.runtime.clock import Clock
from odfd.services.renditions.effects import Move, RenditionEffects
from odfd.services.renditions.origins import BEGUN, RenditionOrigins
from odfd.store.collections import CollectionState, Member
from odfd.store.directory import StateDirectory

Derive = Callable[[DatasetId], Awaitable[None]]
"""Runs a derived dataset until none of its inputs has more to consume. Raises whatever prevents that."""


class DerivedRenditions:
    """Finds and builds the renditions of one node's derived datasets."""

    def __init__(
        self,
        home: StateDirectory,
        clock: Clock,
        effects: RenditionEffects,
        origins: RenditionOrigins,
        readers: Callable[[DatasetId], Sequence[DatasetId]],
        derive: Derive,
    ) -> None:
        """``readers`` lists the datasets here that derive directly from one."""
        self._home, self._clock, self._origins = home, clock, origins
        self._effects, self._readers, self._derive = effects, readers, derive

    def list_affected(self, source: DatasetId) -> list[DatasetId]:
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

    async def prepare(self, old: Member, new: Member) -> list[Move]:
        """Builds renditions over ``new`` of all that derives from ``old``, up to its present head. Returns all moves.

        Raises whatever prevents one of them.
        """
        moves = [Move(old, new)]
        successors = [(old, new)]
        for dataset in await trio.to_thread.run_sync(self.list_affected, old.dataset):
            state, member = await trio.to_thread.run_sync(self._build, dataset, successors)
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

    def _build(self, dataset: DatasetId, successors: Sequence[tuple[Member, Member]]) -> tuple[CollectionState, Member]:
        """Returns the rendition with the active one's query over the new inputs, and begins it if there is none."""
        state, transform = self._effects.state(dataset), self._transform(dataset)
        assert transform is not None
        wanted = _over(transform, successors)
        for member in state.members:
            is_open = not member.is_gone and self._home.chains.upper(member.dataset) < SEALED
            made = self._transform(member.dataset)
            if is_open and member.dataset != dataset and made is not None and is_same_query(made, wanted):
                return state, member
        self._begin(state, wanted)
        state = self._effects.state(dataset)
        return state, state.members[-1]

    def _begin(self, state: CollectionState, transform: SetTransform) -> None:
        number, time = len(state.members), from_millis(to_millis(self._clock.now()))

        def member(born: tuple[str, ...]) -> Member:
            return Member(row=RenditionRow(number=number, shards=born, reason="an input hands over"), origin="inputs")

        self._origins.begin(state, member, time, [BEGUN], transform)


def _over(transform: SetTransform, successors: Sequence[tuple[Member, Member]]) -> SetTransform:
    """Returns the same query over other inputs. Raises Refused if it reads single shards."""
    for old, new in successors:
        transform = over(transform, old.row.shards, new.row.shards)
    return transform
