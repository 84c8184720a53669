"""Computes how far a root dataset is observed: which data blocks enough groups found at the declared source.

A root has no transforms to re-run; its publisher answers for it. Observations that others made at the source within a
day of a block are facts of their own: they accuse nobody, and are never attestations.
Spec: docs/spec/trust.md#observations.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from chain import instant
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import AddData
from chain.model.portal import PORTAL
from chain.multihash import Multihash
from chain.statements.statement import FETCHED
from chain.store.base import ChainReader
from chain.walk import first_where
from odfd.policy.policy import Policy
from odfd.store.ledger.observations import Observations, Sighting
from odfd.trust.admission.rules import EARLY_LIMIT

WINDOW: Final = 86400 * instant.SECOND
"""Time after a block in which its source is likely to give the same rows."""
DATA: Final = ("AddData",)


class Electorate(msgspec.Struct, frozen=True, kw_only=True):
    """The groups whose observations of one dataset count:
    those of the policy without excluded or related ones, and me."""

    me: KeyDid
    own_group: str | None
    groups: Mapping[KeyDid, str]


def electorate(
    policy: Policy, me: KeyDid, is_silent: Callable[[KeyDid], bool], suspended: Collection[str]
) -> Electorate:
    return Electorate(
        me=me,
        own_group=policy.group_of(me),
        groups={
            key: group.name
            for group in policy.groups
            if group.name not in suspended
            for key in group.keys
            if not is_silent(key)
        },
    )


def behind(
    who: Electorate, sightings: Iterable[Sighting], block: Multihash, time: Instant, *, is_fixed: bool = False
) -> int:
    """Counts the groups, me included, that found the same rows at the source of ``block``; ``time`` is its system time.

    ``is_fixed``: the source does not change, so observations count at any later time. A group whose keys disagree does
    not count, nor does an observer who could not reach the source, or decoded bytes that the publisher kept.
    """
    found: dict[str, set[bool]] = {}
    for sighting in sightings:
        group = "" if sighting.observer == who.me else who.groups.get(sighting.observer)
        in_time = time - EARLY_LIMIT <= sighting.at and (is_fixed or sighting.at <= time + WINDOW)
        if group is not None and sighting.block == block and in_time and sighting.result in FETCHED:
            found.setdefault(group, set()).add(sighting.is_same)
    if "" in found and who.own_group is not None:
        found[who.own_group] = found.pop("")
    return sum(results == {True} for results in found.values())


def sighted(who: Electorate, sightings: Iterable[Sighting], block: Block) -> int:
    """Counts the groups as ``behind`` does; the source of a portal's block counts as fixed."""
    return behind(who, sightings, block.hash, block.system_time, is_fixed=_is_of_portal(block))


class _Memo(msgspec.Struct, frozen=True, kw_only=True):
    who: Electorate
    heard: int
    reach: int
    last: Multihash | None
    """The last block within ``reach``."""


class ObservationReach:
    """Computes how many blocks from the first are observed by enough groups, and caches the result."""

    def __init__(self) -> None:
        self._memos: dict[tuple[DatasetId, int], _Memo] = {}

    def reach(
        self, connection: sqlite3.Connection, chain: ChainReader, dataset: DatasetId, count: int, who: Electorate
    ) -> int:
        head, kept = chain.head(), Observations(connection)
        size, heard = (head.size if head else 0), kept.count_of(dataset)
        start = self._count_valid(kept, chain, dataset, count, who, size)
        while start < size:
            block = first_where(chain, DATA, start, size)
            if block is None:
                start = size
            elif _has_rows(block) and sighted(who, kept.at(dataset, block.sequence_number), block) < count:
                start = block.sequence_number
                break
            else:
                start = block.sequence_number + 1
        last = chain.block_at(start - 1).hash if start else None
        self._memos[dataset, count] = _Memo(who=who, heard=heard, reach=start, last=last)
        return start

    def _count_valid(
        self, kept: Observations, chain: ChainReader, dataset: DatasetId, count: int, who: Electorate, size: int
    ) -> int:
        """Returns how many blocks of the cached result are still valid."""
        memo = self._memos.get((dataset, count))
        if memo is None or memo.who != who or memo.reach > size or not memo.reach:
            return 0
        if chain.block_at(memo.reach - 1).hash != memo.last:
            return 0
        changed = kept.lowest_since(dataset, memo.heard)
        return memo.reach if changed is None else min(memo.reach, changed)


def _has_rows(block: Block) -> bool:
    return isinstance(block.event, AddData) and block.event.new_data is not None


def _is_of_portal(block: Block) -> bool:
    """Whether the block is one of a portal and names its private input, which does not change."""
    event = block.event
    state = event.new_source_state if isinstance(event, AddData) else None
    return state is not None and state.kind == PORTAL
