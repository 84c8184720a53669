"""The desk of proposals: one stream each, ended within bounds, and answers that are none are told as such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from chain.errors import Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.shards import Same, Shard
from p2p.driver.proposals import PATIENCE, ProposalDesk
from p2p.errors import StreamBroken, TooSlow, Violation
from p2p.ports import PeerId
from p2p.wire.frames import frame
from p2p.wire.propose import (
    PROPOSE_PROTOCOL,
    Wanted,
    encode_outcomes,
    encode_refused,
    encode_shards,
    encode_want,
)


class Two:
    """A commit point that answers as it is told, and a proposer."""

    def __init__(self, town: Any) -> None:
        fabric = town.fabric
        self.point, self.proposer = fabric.host("point"), fabric.host("proposer")
        self.desk = ProposalDesk(self.proposer)
        fabric.join(self.proposer, self.point)

    def says(self, *bodies: bytes) -> None:
        async def answer(stream: Any, _peer: PeerId) -> None:
            for each in bodies:
                await stream.send_all(frame(each))
            await trio.sleep_forever()

        self.point.set_handler(PROPOSE_PROTOCOL, answer)

    async def shards(self) -> Sequence[Shard]:
        return await self.desk.shards(self.point.peer_id, [DatasetId.from_public_key(bytes(32))])


async def test_a_commit_point_that_lies_or_says_nothing_is_left(town: Any, autojump_clock: Any) -> None:
    two = Two(town)
    wanted = encode_want(Wanted(Multihash.sha3_256(b"x"), 1))
    for body in (b"\x83", encode_shards([Shard(), Shard()]), encode_outcomes([Same(Shard())]), wanted):
        two.says(body)
        with pytest.raises(Violation):
            await two.shards()
    two.says()
    with pytest.raises(TooSlow):
        await two.shards()
    two.says(encode_refused(Refused("no", rule="propose-writer")))
    with pytest.raises(Refused, match="no"):
        await two.shards()


async def test_a_proposer_that_says_nothing_or_nonsense_is_let_go(town: Any, autojump_clock: Any) -> None:
    two = Two(town)
    ProposalDesk(two.point).join()
    with pytest.raises(Refused, match="takes no proposals"):
        await two.shards()
    for sent in (b"", frame(b"\x09"), b"\xff\xff\xff\xff"):
        stream = await two.proposer.open_stream(two.point.peer_id, PROPOSE_PROTOCOL)
        if sent:
            await stream.send_all(sent)
        with trio.fail_after(3 * PATIENCE):
            try:
                while await stream.receive_some(64):
                    pass
            except StreamBroken:
                pass
