"""The gossip router rests while it has nobody to talk to."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V12

from p2p.host.pubsub import HEARTBEAT, SteadyGossipSub


class Counted(SteadyGossipSub):
    beats = 0

    def mesh_heartbeat(self) -> Any:
        self.beats += 1
        return super().mesh_heartbeat()


@pytest.mark.slow
async def test_without_peers_and_messages_there_is_no_heartbeat(autojump_clock: object) -> None:
    router: Any = Counted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.heartbeat)
        await trio.sleep(1000 * HEARTBEAT)
        assert router.beats == 0
        router.add_peer("peer", PROTOCOL_ID_V12)
        await trio.sleep(10.5 * HEARTBEAT)
        assert router.beats == 11
        router.remove_peer("peer")
        await trio.sleep(1000 * HEARTBEAT)
        assert router.beats == 11
        nursery.cancel_scope.cancel()
