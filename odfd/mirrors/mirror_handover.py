"""Decides what a mirror does next when its owner handed over: the successor is mirrored, awaited, or takes the name.

Pure; all that the decision depends on is durable, so an interrupted step is decided again. A mirror goes on with the
old rendition until the new one is complete to the time of the handover in all shards. The old one is complete up to
that time then too, so that whoever reads it crosses at the same time with the exact difference.
Spec: docs/spec/collections.md#published.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from chain.data.partition import FUNCTION
from chain.ids import DatasetId
from chain.instant import Instant
from chain.statements.card import CardShards
from odfd.datasets.shard_reading import is_followed
from odfd.renditions.successor import HandoverNotice
from odfd.store import collections, mirror_specs
from odfd.store.catalog import Catalog
from odfd.store.collections import CollectionState, Member
from odfd.store.ledger.log import Ledger


class Stay(msgspec.Struct, frozen=True):
    """The collection goes on in the active rendition."""


class Begin(msgspec.Struct, frozen=True):
    """Mirror the successor too."""

    to: DatasetId


class Await(msgspec.Struct, frozen=True):
    """Wait for shards: of ``late`` not all is here; without any, it is not known yet which chains are the shards."""

    late: tuple[DatasetId, ...] = ()


class Cross(msgspec.Struct, frozen=True):
    """Let the collection's name mean the successor."""

    member: Member


Step: TypeAlias = Stay | Begin | Await | Cross


def next_step(
    state: CollectionState, notice: HandoverNotice | None, uppers: Mapping[DatasetId, int], *, has_block: bool
) -> Step:
    """Returns the next step of a mirrored collection.

    ``notice``: what the active rendition's chain says; ``uppers``: frontiers of chains that are here, in milliseconds;
    ``has_block``: whether the notice's block is here.
    """
    if notice is None or is_followed(state, notice):
        return Stay()
    active = state.active
    if len(active.shards) != notice.ended:
        return Await()  # the name means one shard here, or all are not here yet
    member = next((member for member in state.members if member.dataset == notice.to), None)
    if member is None:
        return Begin(notice.to)
    if not has_block:
        return Await((notice.to,))
    if notice.is_plain:
        return Cross(member)
    if len(member.shards) != notice.shards:
        return Await()
    late = [shard for shard in active.shards if uppers.get(shard, 0) < notice.time]
    late += [shard for shard in member.shards if uppers.get(shard, 0) <= notice.time]
    return Await(tuple(late)) if late else Cross(member)


def united(state: CollectionState, shards: tuple[DatasetId, ...], by: tuple[str, ...]) -> CollectionState | None:
    """Returns the collection with these chains as the shards of the rendition of the first one.

    ``None``: it was active with that chain alone already, and readers have positions in it.
    """
    number = state.number_of(shards[0])
    member = state.member(number)
    row = msgspec.structs.replace(member.row, shards=tuple(map(str, shards)), by=by)
    state = state.with_members(msgspec.structs.replace(member, row=row, origin="owner"))
    switches = state.timeline.switches
    if not any(switch.to.number == number for switch in switches):
        return state
    if len(switches) > 1:
        return None
    first = msgspec.structs.replace(switches[0], to=row)
    return msgspec.structs.replace(state, timeline=msgspec.structs.replace(state.timeline, switches=(first,)))


def unite(connection: sqlite3.Connection, shards: CardShards, now: Instant) -> str | None:
    """Stores the collection that a card lists; returns why it cannot be stored yet instead, or ``None``."""
    ids, catalog = shards.ids, Catalog(connection)
    if shards.function != FUNCTION:
        return f"its shards are divided by {shards.function}, which this version does not know"
    for id_ in ids:
        newest = Ledger(connection).newest_head(id_)
        if newest is None or newest[0].collection != ids[0]:
            return f"no head of {catalog.name_of(id_)} says yet that it is one of {len(ids)} shards of it"
    state = united(collections.of(connection, ids[0]), ids, shards.by)
    if state is None:
        return "it was read as one chain here before: mirror the collection under another name"
    collections.keep(connection, state)
    for id_ in ids[1:]:
        catalog.take_in(id_, now)
        mirror_specs.take_in(connection, id_, now)
    return None
