"""Adapts py-libp2p's gossip router: settings that lose no messages, and bounded costs for each message."""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial
from typing import Any, Final

import libp2p.pubsub.pubsub as pubsub_module
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, PROTOCOL_ID_V12, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.rpc_queue import RpcQueue

HEARTBEAT: Final = 1
"""Seconds between repairs of the mesh, as in Go and JavaScript. py-libp2p's default is 120."""
QUEUE: Final = 256
"""Frames waiting for one slow peer. py-libp2p holds 32 and drops the next without a word."""
WORTH_SPARING: Final = 16 << 10
"""Bytes of a message from which neighbours are told not to send it again. That is a frame to each of them for every
message: for small ones it costs all more than the copies it spares. A head has 1 KiB."""


def widen_queues() -> None:
    """The size is a default argument of a class that the library names itself. Idempotent."""
    pubsub_module.RpcQueue = partial(RpcQueue, QUEUE)


class SteadyGossipSub(GossipSub):  # type: ignore[misc]
    """The router with settings that do not lose messages.

    Its spam protection drops all but ten messages a second of a topic, our own too, and tells nobody. Its adaptive
    mode answers a small mesh with a heartbeat a minute long. Without that mode its list of deliveries only grows.
    """

    def __init__(self) -> None:
        super().__init__(
            [PROTOCOL_ID_V12, PROTOCOL_ID_V11],
            degree=6,
            degree_low=4,
            degree_high=12,
            heartbeat_interval=HEARTBEAT,
            spam_protection_enabled=False,
            adaptive_gossip_enabled=False,
        )
        self.recent_message_deliveries: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=1))
        self.max_iwant_requests_per_second = 100.0

    async def publish(self, msg_forwarder: Any, pubsub_msg: Any) -> None:
        """Pass on what was judged. The library's signs a record of our addresses for each message, which every reader
        verifies, and keeps up to a thousand messages and a hundred more a peer.
        """
        self.mcache.put(pubsub_msg)
        name = self.pubsub.get_message_id(pubsub_msg)
        rpc = rpc_pb2.RPC(publish=[pubsub_msg])
        topics, origin = pubsub_msg.topicIDs, pubsub_module.ID(pubsub_msg.from_id)
        for peer in self._get_peers_to_send(topics, msg_forwarder, origin, name):
            if peer in self.pubsub.peers:
                self.send_rpc(peer, rpc)
        if len(pubsub_msg.data) >= WORTH_SPARING:
            await self._emit_idontwant_for_message(name, topics)

    async def emit_control_message(self, control_msg: Any, to_peer: Any) -> None:
        """Without a signed record of our addresses, which the library adds to each."""
        self.send_rpc(to_peer, rpc_pb2.RPC(control=control_msg), priority=True)

    def _get_peers_to_send(self, topic_ids: Any, msg_forwarder: Any, *args: Any, **kwargs: Any) -> Any:
        """Our own messages go to every peer that joined (flood publish, as in JavaScript).

        Until the next heartbeat a peer that has just joined is in no mesh, and a message published to none is lost.
        """
        chosen = set(super()._get_peers_to_send(topic_ids, msg_forwarder, *args, **kwargs))
        if msg_forwarder == self.pubsub.my_id:
            for topic in topic_ids:
                chosen |= {peer for peer in self.pubsub.peer_topics.get(topic, ()) if peer in self.pubsub.peers}
        return chosen - {msg_forwarder}
