"""Cuts the shards of a rendition for a query: all at one time, or each at its pin.

Shards are written together, so their heads in one snapshot of the store are one time; and a time cuts each of them
after its last block of that time or an earlier one. Work does not grow with the shards' lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from chain.errors import Refused
from chain.ids import DatasetId
from chain.store.sqlite_shards import SqliteShards
from engines.query.temporal import AT_BLOCK
from odfd.control import wire
from odfd.queries.cuts import Cut, cut_of
from odfd.state.directory import StateDirectory

_RULE: Final = "shard-query"


def cuts_of(
    home: StateDirectory,
    name: str,
    shards: Sequence[DatasetId],
    clauses: Mapping[str, str],
    pins: Mapping[str, wire.Pin],
) -> list[Cut]:
    """Computes the cut of each; ``pins`` by id: of all or none. Raises Refused, Invalid, NotFound."""
    if AT_BLOCK in clauses:
        raise _refused(name, shards, "cut at a block", "say a time (AS OF), or name a shard by its id")
    views = SqliteShards(home.database, home.chains).read(shards).views
    found = []
    for each in shards:
        head = views[each].shard.head
        size = 0 if head is None else head.size
        found.append(cut_of(name, home.chains.chain(each), clauses, pins.get(str(each)), size))
    return found


def check_terms(name: str, shards: Sequence[DatasetId], request: wire.QueryRequest) -> None:
    """Raises Refused for what is said of one chain alone."""
    if request.require:
        raise _refused(name, shards, "cut by policy", "leave out the requirement, or name a shard by its id")
    if request.prove:
        raise _refused(name, shards, "proven", "name a shard by its id")


def _refused(name: str, shards: Sequence[DatasetId], what: str, hint: str) -> Refused:
    return Refused(f"{name} has {len(shards)} shards, which are not {what} together", rule=_RULE, hint=hint)
