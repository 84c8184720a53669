"""What is fetched to prove a fork is bounded before it is fetched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chain.errors import Invalid
from chain.ids import DatasetId
from odfd.network.forks import MAX_BRANCH, ForkFinder
from p2p.ports import PeerId

DATASET = DatasetId.from_public_key(bytes(32))
PEER = PeerId("peer")


class Peers:
    """A peer whose every block is another than ours."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    async def fetch_blocks(self, _peer: PeerId, _dataset: DatasetId, start: int, count: int) -> list[bytes]:
        self.asked.append((start, count))
        return [b"another"]


async def test_a_branch_that_is_longer_than_any_proof_is_not_fetched() -> None:
    """A head may claim any size: its signer would have this node fetch for ever, and prove nothing."""
    nothing: Any = None
    ours = [bytes([number]) * 32 for number in range(8)]
    for beyond, fetched in ((0, 1), (1, 0)):
        peers: Any = Peers()
        finder = ForkFinder(nothing, nothing, peers, nothing, nothing)
        head: Any = SimpleNamespace(dataset=DATASET, size=MAX_BRANCH + beyond, root_hash=bytes(32))
        if beyond:
            with pytest.raises(Invalid) as caught:
                await finder._branch(PEER, head, ours)
            assert caught.value.rule == "fork-branch"
        else:
            peers.fetch_blocks = stopping(peers)
            assert await finder._branch(PEER, head, ours) is None
        assert len([start for start, count in peers.asked if count > 1]) == fetched


def stopping(peers: Peers) -> Any:
    """The same, but it gives nothing of the branch itself."""
    one = peers.fetch_blocks

    async def fetch(peer: PeerId, dataset: DatasetId, start: int, count: int) -> list[bytes]:
        found = await one(peer, dataset, start, count)
        return found if count == 1 else []

    return fetch
