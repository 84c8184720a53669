"""Asks peers for the size of an object that no block states:
one peer after another, the next as soon as one is slow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeAlias

import trio

from chain.errors import Remote
from chain.multihash import Multihash
from odfd.errors import sole_faults
from odfd.published.replication import Replication
from p2p.ports import PeerId

WAIT: Final = 0.25
"""Seconds after which the next peer is asked too."""

Offer: TypeAlias = tuple[PeerId, int]
"""A peer that has the object, and the size in bytes that it states."""


class Asking(NamedTuple):
    found: trio.MemoryReceiveChannel[Offer]
    """Offers as they come; ends when all peers have answered."""
    taking: trio.Lock
    """While it is held no further peer is asked, because one is sending the object."""
    all_at_once: trio.Event
    """Once set, further peers are asked without waiting."""


@asynccontextmanager
async def offers(
    replication: Replication, peers: Iterable[PeerId], name: Multihash, reasons: dict[PeerId, str]
) -> AsyncIterator[Asking]:
    """Yields the offers; ``reasons`` receives the reasons of peers that do not have the object."""
    out, found = trio.open_memory_channel[Offer](0)
    asked = Asking(found, trio.Lock(), trio.Event())

    async def ask(peer: PeerId, answered: trio.Event) -> None:
        try:
            size = await replication.object_size(peer, name)
            if size is None:
                reasons[peer] = "does not have it"
            else:
                await out.send((peer, size))
        except Remote as fault:
            reasons[peer] = fault.message
        finally:
            answered.set()

    async def ask_all() -> None:
        async with out, trio.open_nursery() as asking:
            for peer in peers:
                answered = trio.Event()
                asking.start_soon(ask, peer, answered)
                if not asked.all_at_once.is_set():
                    with trio.move_on_after(WAIT):
                        await answered.wait()
                async with asked.taking:
                    pass

    with sole_faults():
        async with found, trio.open_nursery() as nursery:
            nursery.start_soon(ask_all)
            yield asked
            nursery.cancel_scope.cancel()
