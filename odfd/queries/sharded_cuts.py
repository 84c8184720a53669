"""Cuts the shards of a rendition for a query: all at one time, or each at its pin.

Shards are written together, so their heads in one snapshot of the store are one time; and a time cuts each of them
after its last block of that time or an earlier one. Shards of a mirror come one by one: they are cut at the last time
that is complete in all, by the frontiers that their owner signed. A block means its whole transaction, and what
satisfies a requirement is cut at the last time to which all satisfy it. Work does not grow with the shards' lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import from_millis, render, to_millis
from chain.multihash import Multihash
from chain.store.base import Head
from chain.store.shards import Shard, View
from chain.store.sqlite_shards import SqliteShards
from engines.query.temporal import AS_OF, AT_BLOCK
from odfd.control import wire
from odfd.datasets.shard_reading import find_complete_time
from odfd.queries.cuts import Cut, cut_of
from odfd.queries.standing import refuse_unsatisfied
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory

_CUT: Final = "query-cut"


def cuts_of(
    home: StateDirectory,
    name: str,
    shards: Sequence[DatasetId],
    clauses: Mapping[str, str],
    pins: Mapping[str, wire.Pin],
    served: Callable[[DatasetId], int] | None = None,
) -> list[Cut]:
    """Computes the cut of each shard; ``pins`` by id: of all or of none. Raises Refused, Invalid, NotFound.

    ``served``: how many blocks of a shard may be read; all are cut at the last time to which each may be. What was
    asked for exactly, by pins or clauses, is not cut: it is as if it were not here.
    """
    complete, is_exact = find_complete_time(home, shards), bool(clauses or pins)
    views = SqliteShards(home.database, home.chains).read(shards)
    is_whole = complete is None or bool(pins)  # a pin says itself what is read
    whole = [_size(views[shard]) if is_whole else views[shard].size_at(complete or 0) for shard in shards]
    if not all(whole) and not pins:
        raise _missing(home, name, min(shards, key=home.chains.upper))
    if AT_BLOCK in clauses and not pins and AS_OF not in clauses:
        time = _time_of(home, name, shards, clauses[AT_BLOCK])
        if complete is not None and time > complete:
            raise _incomplete(home, name, shards, time)
        whole = [views[shard].size_at(time) for shard in shards]
        clauses = {kind: value for kind, value in clauses.items() if kind != AT_BLOCK}
    cuts = [
        cut_of(name, home.chains.chain(each), clauses, pins.get(str(each)), size)
        for each, size in zip(shards, whole, strict=True)
    ]
    if served is None:
        return cuts
    found = cut_to(home, shards, cuts, [min(cut.size, served(each)) for each, cut in zip(shards, cuts, strict=True)])
    if found is None or (is_exact and found != cuts):
        raise NotFound(f"no such rows of {name} here", rule=_CUT, hint="SHOW TABLES lists datasets")
    return found


def complete_sizes(home: StateDirectory, shards: Sequence[DatasetId]) -> list[int | None]:
    """Returns how many blocks of each shard are of one time that is complete in all; ``None``: all that are here."""
    complete = find_complete_time(home, shards)
    if complete is None:
        return [None for _ in shards]
    views = SqliteShards(home.database, home.chains).read(shards)
    return [views[shard].size_at(complete) for shard in shards]


def heads_of(home: StateDirectory, shards: Sequence[DatasetId]) -> list[Head | None]:
    """Returns the last block of each shard at one time, the last that is complete in all. Raises NotFound.

    ``None`` for a single chain without blocks.
    """
    if len(shards) == 1:
        return [home.chains.chain(shards[0]).head()]
    cuts = cuts_of(home, home.name_of(shards[0]), shards, {}, {})
    return [Head(cut.block, cut.size - 1) for cut in cuts]


def pin_at(home: StateDirectory, name: str, dataset: DatasetId, time: int) -> wire.Pin:
    """All blocks of a chain up to a time. Raises NotFound."""
    chain = home.chains.chain(dataset)
    size = View(Shard(chain.head(), 0), chain.block_at).size_at(time)
    last = chain.block_at(max(0, size - 1))
    return wire.Pin(name=name, id=str(dataset), block=str(last.hash), sequence_number=last.sequence_number)


def satisfying(
    home: StateDirectory,
    shards: Sequence[DatasetEntry],
    cuts: Sequence[Cut],
    request: wire.QueryRequest,
    reach: Callable[[DatasetEntry, int], int],
) -> list[Cut]:
    """Returns the cuts, or their parts up to the last time to which all satisfy the requirement. Raises Refused.

    ``reach``: counts the first blocks of a shard that satisfy it.
    """
    reached = [reach(each, cut.size) for each, cut in zip(shards, cuts, strict=True)]
    short = [place for place, cut in enumerate(cuts) if reached[place] < cut.size]
    if not short or request.cut:
        found = cut_to(home, [shard.id for shard in shards], cuts, reached)
        if found is not None:
            return found
    worst = min(short, key=lambda place: reached[place])
    raise refuse_unsatisfied(
        shards[worst].name, reached[worst], cuts[worst].size, request.require or "", cut=request.cut
    )


def cut_to(
    home: StateDirectory, shards: Sequence[DatasetId], cuts: Sequence[Cut], reached: Sequence[int]
) -> list[Cut] | None:
    """Returns the parts of the cuts up to the last time at which each shard has no block after its first ``reached``.

    ``None`` if nothing of a shard is left.
    """
    chains = [home.chains.chain(shard) for shard in shards]
    ends = [
        to_millis(chain.block_at(size).system_time)
        for chain, size, cut in zip(chains, reached, cuts, strict=True)
        if size < cut.size
    ]
    if not ends:
        return list(cuts)
    views = SqliteShards(home.database, home.chains).read(shards)
    # Without the millisecond in which a block is left out: a time cuts all shards alike (docs/spec/collections.md).
    sizes = [min(cut.size, views[each].size_at(min(ends) - 1)) for each, cut in zip(shards, cuts, strict=True)]
    if not all(reached) or not all(sizes):
        return None
    return [
        msgspec.structs.replace(cut, size=size, block=chain.block_at(size - 1).hash)
        for cut, size, chain in zip(cuts, sizes, chains, strict=True)
    ]


def _missing(home: StateDirectory, name: str, shard: DatasetId) -> NotFound:
    return NotFound(
        f"nothing of {name} is complete here yet: its shard {home.name_of(shard)} is missing",
        rule="shard-missing",
        hint="odfctl mirror list shows how far each shard is",
    )


def _incomplete(home: StateDirectory, name: str, shards: Sequence[DatasetId], time: int) -> Refused:
    late = min(shards, key=home.chains.upper)
    return Refused(
        f"the transaction of {render(from_millis(time))} is not in all shards of {name} here: {home.name_of(late)} is"
        " behind",
        rule="shard-missing",
        hint="odfctl mirror list shows how far each shard is",
    )


def _size(view: View) -> int:
    return 0 if view.shard.head is None else view.shard.head.size


def _time_of(home: StateDirectory, name: str, shards: Sequence[DatasetId], at: str) -> int:
    """Returns the time of the transaction to which a block of any shard belongs. Raises Invalid, NotFound."""
    digits = at.removeprefix("#")
    if digits.isascii() and digits.isdecimal():
        raise Invalid(
            f"{name} has {len(shards)} shards, and each has a block {at[:40]}",
            rule=_CUT,
            hint="say the hash of a block, which means its transaction in all shards; or a time: AS OF",
        )
    wanted = Multihash.parse(at)
    for shard in shards:
        with suppress(NotFound):
            return to_millis(home.chains.chain(shard).block_by_hash(wanted).system_time)
    raise NotFound(f"no shard of {name} has the block {at[:200]}", rule=_CUT, hint="odfctl get renditions lists them")
