"""Says which chains a reference means, and up to when all of a mirrored collection is here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from odfd.renditions.successor import HandoverNotice, notice_in
from odfd.store import collections
from odfd.store.catalog import DatasetEntry, is_one_chain
from odfd.store.collections import CollectionState
from odfd.store.directory import StateDirectory
from odfd.store.ledger.log import Ledger


def is_followed(state: CollectionState, notice: HandoverNotice) -> bool:
    """Whether a handover, or a later one, was followed here."""
    return notice.time < state.timeline.upper


def find_end(home: StateDirectory, dataset: DatasetId) -> tuple[int, int] | None:
    """Returns the end of a mirrored rendition that its owner has stated, while its name still means it here.

    It is a time in ms, and the number of blocks up to the notice. Later blocks may copy rows of the next rendition,
    for a way back: whoever reads by the name gets those rows from there.
    """
    block = None if home.keys.has_dataset_key(dataset) else home.chains.chain(dataset).last_of(("SetInfo",))
    notice = None
    with suppress(Invalid):  # what follows handovers reports it
        notice = notice_in(block)
    if block is None or notice is None:
        return None
    with home.database.read() as connection:
        state = collections.of(connection, dataset)
    is_past = state.active.dataset != dataset or is_followed(state, notice)
    return None if is_past else (notice.time, block.sequence_number + 1)


def find_complete_time(home: StateDirectory, shards: Sequence[DatasetId]) -> int | None:
    """Returns the last time that is complete in all shards of a mirrored collection, in milliseconds.

    ``None`` for one chain, and for shards that this node writes: these are written together, so their heads are of
    one time.
    """
    if len(shards) < 2 or home.keys.has_dataset_key(shards[0]):
        return None
    end = find_end(home, shards[0])
    return min([*map(home.chains.upper, shards), *([] if end is None else end[:1])]) - 1


def check_united(home: StateDirectory, entry: DatasetEntry) -> None:
    """Raises NotFound for a mirrored shard whose collection cannot be read by its name here yet."""
    if home.keys.has_dataset_key(entry.id):
        return
    with home.database.read() as connection:
        newest = Ledger(connection).newest_head(entry.id)
        is_first = newest is not None and newest[0].collection == entry.id
        if not is_first or len(collections.shards_of(connection, entry.id)) > 1:
            return
    raise NotFound(
        f"{entry.name} is the first of several shards, and the others are not here yet",
        rule="shard-missing",
        hint="its publisher's card names them: odfctl mirror list; to read this shard alone, name its id",
    )


def resolve_chains(home: StateDirectory, ref: str) -> Sequence[DatasetEntry]:
    """Returns the chains that a reference means: an id one, a name all shards. Raises NotFound, Invalid."""
    entry = home.resolve(ref)
    if is_one_chain(ref):
        return [entry]
    check_united(home, entry)
    with home.catalog() as catalog:
        return [catalog.resolve(str(each)) for each in home.shards_of(entry.id)]


def find_first_shard(home: StateDirectory, dataset: DatasetId) -> DatasetId | None:
    """Returns the first shard of the rendition that a chain is one of several shards of; ``None``: it is none."""
    with home.database.read() as connection:
        member = collections.member_of(connection, dataset)
    return None if member is None else member.dataset


def is_later_shard(home: StateDirectory, dataset: DatasetId) -> bool:
    """Whether a chain is one of several shards, and not the first, which its collection's name means."""
    return find_first_shard(home, dataset) not in (None, dataset)
