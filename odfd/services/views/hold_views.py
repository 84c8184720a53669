"""Builds the views of read holds for ``odfctl hold list`` and ``describe``."""

from __future__ import annotations

from chain import instant
from chain.errors import NotFound
from chain.ids import DatasetId
from chain.instant import from_millis
from odfd.control import wire
from odfd.queries.sharded_cuts import pin_at
from odfd.store.directory import StateDirectory
from odfd.store.read_holds import ReadHold, ReadHolds


def hold_view(home: StateDirectory, held: ReadHold) -> wire.HoldView:
    name = home.name_of(held.dataset)
    try:
        number = home.chains.chain(held.dataset).block_by_hash(held.block).sequence_number
    except NotFound:  # a damaged row
        pin = None
    else:
        pin = wire.Pin(name=name, id=str(held.dataset), block=str(held.block), sequence_number=number)
    return wire.HoldView(
        id=held.id,
        dataset=name,
        time=instant.render(from_millis(held.time)),
        pin=pin,
        shards=() if pin is None else shard_pins(home, held.dataset, held.time),
        note=held.note,
        taken_at=instant.render(held.taken),
        expires_at=None if held.expires is None else instant.render(held.expires),
        owner=held.owner,
        fence=held.fence if held.owner else None,
    )


def shard_pins(home: StateDirectory, first: DatasetId, time: int) -> tuple[wire.Pin, ...]:
    """The cut of each shard at a time that is complete; empty for one chain. Raises NotFound."""
    shards = home.shards_of(first)
    if len(shards) == 1:
        return ()
    name = home.name_of(first)
    return tuple(pin_at(home, name, shard, time) for shard in shards)


def holds_of(home: StateDirectory, dataset: DatasetId) -> tuple[wire.HoldView, ...]:
    with home.database.read() as connection:
        found = ReadHolds(connection).of(dataset, home.clock.now())
    return tuple(hold_view(home, each) for each in found)
