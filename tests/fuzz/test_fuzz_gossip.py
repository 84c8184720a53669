"""Mutants of gossip frames, to a host that is really open: each is taken, or ends its stream, and never anything else.

The frames are protobuf read by the library's own parser, and what follows from them runs in its router; so the whole of
it is fed, as from a peer's stream. ``ODFD_FUZZ`` and ``ODFD_FUZZ_SEED`` as in ``test_fuzz_peers.py``.
"""

from __future__ import annotations

import os
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from p2p.budget.work import Party
from p2p.host.host import open_host
from p2p.host.pubsub import ID, BoundedPubsub, StreamEOF, open_gossip, rpc_pb2
from p2p.identity import peer_of_seed
from p2p.ports import GossipVerdict, Judgement, PeerId
from worlds.eventually import PATIENCE
from worlds.mutation import mutated

MUTANTS = int(os.environ.get("ODFD_FUZZ", "350"))
SEED = int(os.environ.get("ODFD_FUZZ_SEED", "1"))
TOPIC = "/odf/1/fuzz/heads"
STRANGER = ID.from_base58(peer_of_seed(b"s" * 32))


class OneFrame:
    """A peer's gossip stream with these bytes on it."""

    def __init__(self, frame: bytes) -> None:
        self._rest = memoryview(frame)
        self.muxed_conn = SimpleNamespace(peer_id=STRANGER, party=Party(1, PeerId(str(STRANGER)), ""))
        self.was_reset = False

    async def read(self, count: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._rest:
            raise StreamEOF
        part, self._rest = bytes(self._rest[:count]), self._rest[count:]
        return part

    async def reset(self) -> None:
        self.was_reset = True


def framed(rpc: Any) -> bytes:
    raw = rpc.SerializeToString()
    length, prefix = len(raw), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*prefix, length]) + raw


def frames() -> list[bytes]:
    """One of each kind."""
    subscribing, telling, controlling = rpc_pb2.RPC(), rpc_pb2.RPC(), rpc_pb2.RPC()
    subscribing.subscriptions.add(subscribe=True, topicid=TOPIC)
    telling.publish.add(from_id=STRANGER.to_bytes(), data=b"{}", seqno=bytes(8), topicIDs=[TOPIC], signature=bytes(64))
    control = controlling.control
    control.ihave.add(topicID=TOPIC, messageIDs=[b"one", b"two"])
    control.iwant.add(messageIDs=[b"one"])
    control.graft.add(topicID=TOPIC)
    control.prune.add(topicID=TOPIC, backoff=60)
    control.idontwant.add(messageIDs=[b"one"])
    return [framed(rpc) for rpc in (subscribing, telling, controlling)]


@pytest.mark.slow
async def test_gossip_frames_are_taken_or_end_their_stream() -> None:
    judged: list[bytes] = []

    async def judge(_topic: str, _sender: PeerId, data: bytes) -> GossipVerdict:
        await trio.lowlevel.checkpoint()
        judged.append(data)
        return GossipVerdict(Judgement.IGNORE)

    lot, whole, resets = Random(SEED), frames(), 0
    async with open_host(b"h" * 32, []) as host, open_gossip(host, [TOPIC], judge) as gossip:
        pubsub = gossip._pubsub
        assert isinstance(pubsub, BoundedPubsub)
        pubsub._work.chosen = frozenset([PeerId(str(STRANGER))])
        for _ in range(MUTANTS):
            stream = OneFrame(mutated(lot, lot.choice(whole), lot.choice(whole)) + lot.choice([b"", *whole]))
            await pubsub.continuously_read_stream(stream)
            resets += stream.was_reset
        assert len(pubsub.peer_topics) <= 1, "topics that nobody joined are kept"
        with trio.fail_after(PATIENCE):
            await gossip.publish(TOPIC, b"still here")
    assert 0 < resets < MUTANTS
    assert not judged, "nobody signed any of this"
