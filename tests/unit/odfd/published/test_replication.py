"""A place is a peer as long as its last answer stands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from chain.errors import Remote
from chain.ids import DatasetId
from odfd.published.replication import Replication

CITIES = DatasetId(bytes(32))
PLACE = "https://example.org/cities"


class Source:
    """A place that answers when it is let, or not at all."""

    def __init__(self) -> None:
        self.begun, self.let = trio.Event(), trio.Event()
        self.is_gone = False
        self._edition = SimpleNamespace(root=PLACE, head=SimpleNamespace(dataset=CITIES), statements=(), card=None)

    async def resolve(self, place: str, _now: object) -> str:
        self.begun.set()
        await self.let.wait()
        if self.is_gone:
            raise Remote("nobody answers")
        return place

    async def edition(self, _root: str, _known: object) -> Any:
        return self._edition


async def test_a_place_that_is_asked_again_is_still_a_peer_until_it_fails() -> None:
    """Mirrors are shown with their number of peers, also while one of these is asked."""
    source: Any = Source()
    nobody: Any = SimpleNamespace(peers=list)
    replication = Replication(nobody, lambda _: source, nobody, lambda: 0)
    source.let.set()
    await replication.inquire(CITIES, PLACE)
    source.let, source.begun = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replication.inquire, CITIES, PLACE)
        await source.begun.wait()
        assert [view.peer for view in replication.peers()] == [PLACE]
        source.let.set()
    source.is_gone = True
    with pytest.raises(Remote):
        await replication.inquire(CITIES, PLACE)
    assert replication.peers() == []
