"""Asks peers how large an object is of which no block tells it: one peer more as soon as the last lets us wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import trio

from chain.errors import Remote
from chain.multihash import Multihash
from odfd.errors import sole_faults
from p2p.ports import PeerId, Replication

WAIT: Final = 0.25
"""Seconds after which the next peer is asked too."""

Offer: TypeAlias = tuple[PeerId, int]
"""A peer that has it, and how many bytes it says that it has."""


@asynccontextmanager
async def offers(
    replication: Replication, peers: Iterable[PeerId], name: Multihash, reasons: dict[PeerId, str]
) -> AsyncIterator[tuple[trio.MemoryReceiveChannel[Offer], trio.Lock]]:
    """Offers as they come, until all have answered; ``reasons`` hears of the others.

    While the lock is held nobody else is asked: somebody gives it.
    """
    out, found = trio.open_memory_channel[Offer](0)
    taking = trio.Lock()

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
                with trio.move_on_after(WAIT):
                    await answered.wait()
                async with taking:
                    pass

    with sole_faults():
        async with found, trio.open_nursery() as nursery:
            nursery.start_soon(ask_all)
            yield found, taking
            nursery.cancel_scope.cancel()
