"""Adapts py-libp2p's gossip router: settings that lose no messages, and bounded costs for each message."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import Any, Final

import libp2p.pubsub.pubsub as pubsub_module
import trio
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, PROTOCOL_ID_V12, GossipSub
from libp2p.pubsub.mcache import MessageCache
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.pubsub.utils import safe_bytes_from_hex

MAX_FRAMES: Final = 256
"""Frames waiting for one slow peer. py-libp2p holds 32 and drops further ones silently."""
MAX_QUEUE: Final = 1 << 20
"""Bytes of these frames: a thousand heads. With a limit of frames alone, a peer that reads nothing cost 256 MiB."""
MAX_RECENT: Final = 16 << 20
"""Bytes of recent messages, of all topics, that are kept for peers that request them again."""
MAX_AGAIN: Final = 3
"""Times that one peer gets the same message on request, as in Go."""


class BoundedQueue(RpcQueue):  # type: ignore[misc]
    """A bounded queue of frames for one peer; a frame that does not fit is refused, and the router drops it."""

    def __init__(self) -> None:
        super().__init__(MAX_FRAMES)
        self._held = 0

    def push(self, rpc: Any, priority: bool = False) -> bool:
        size = rpc.ByteSize()
        # Of a peer that does not read, frames alone would be no bound
        # (test_a_peer_that_reads_nothing_is_kept_a_mebibyte_of_gossip).
        if self._held + size > MAX_QUEUE or not super().push(rpc, priority):
            return False
        self._held += size
        return True

    async def pop(self) -> Any:
        rpc = await super().pop()
        if rpc is not None:
            self._held -= rpc.ByteSize()
        return rpc


class RecentMessages(MessageCache):  # type: ignore[misc]
    """Keeps the messages of the last heartbeats, for peers that request one by name."""

    def __init__(self, window: int, history: int) -> None:
        super().__init__(window, history)
        self._held = 0
        self._given: dict[bytes, Counter[Any]] = {}

    def put(self, msg: Any) -> None:
        """Keeps a message for requests, if there is room for it."""
        count, size = len(self.msgs), msg.ByteSize()
        if self._held + size <= MAX_RECENT:
            super().put(msg)
            self._held += size * (len(self.msgs) - count)

    def give(self, name: bytes, peer: Any) -> Any | None:
        """Returns a requested message; ``None`` if it is gone, or the peer got it often enough."""
        found = self.msgs.get(name)
        given = self._given.setdefault(name, Counter()) if found is not None else Counter()
        given[peer] += 1
        return found if given[peer] <= MAX_AGAIN else None

    def shift(self) -> None:
        super().shift()
        self._held = sum(msg.ByteSize() for msg in self.msgs.values())
        self._given = {name: given for name, given in self._given.items() if name in self.msgs}


HEARTBEAT: Final = 1
"""Seconds between repairs of the mesh, as in Go and JavaScript. py-libp2p's default is 120."""
WINDOW: Final = 3
HISTORY: Final = 5
"""Heartbeats for which messages are kept for requests, and announced; as everywhere."""
DEGREE: Final = 6
"""Peers in the mesh of a topic, to which each message goes; as everywhere."""
WORTH_SPARING: Final = 16 << 10
"""Bytes of a message from which neighbours are told not to send it to us too. That costs a frame to each of them for
every message, which for small messages is more than the copies that it saves. A head has 1 KiB."""


def bound_queues() -> None:
    """Makes the library use our class of queues, which it names itself; may be called again."""
    pubsub_module.RpcQueue = BoundedQueue


class SteadyGossipSub(GossipSub):  # type: ignore[misc]
    """The router with settings that do not lose messages.

    The library's spam protection silently drops all but ten messages a second of a topic, our own too. Its adaptive
    mode gives a small mesh a heartbeat of a minute. Without that mode its list of deliveries only grows.
    """

    def __init__(self) -> None:
        super().__init__(
            [PROTOCOL_ID_V12, PROTOCOL_ID_V11],
            degree=DEGREE,
            degree_low=4,
            degree_high=12,
            heartbeat_interval=HEARTBEAT,
            spam_protection_enabled=False,
            adaptive_gossip_enabled=False,
        )
        self.recent_message_deliveries: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=1))
        # The library's limit is ten, and it ignores the eleventh request in a second without a word.
        self.max_iwant_requests_per_second = 100.0
        self.mcache = RecentMessages(WINDOW, HISTORY)
        # The scorer blames a peer for what others make it pass on or ask for, and drops peers because of that.
        self.scorer = None
        self._busy = trio.Event()

    def add_peer(self, peer_id: Any, protocol_id: Any) -> None:
        super().add_peer(peer_id, protocol_id)
        self._busy.set()

    async def heartbeat(self) -> None:
        """Repairs the mesh every ``HEARTBEAT`` seconds while there are peers or recent messages, and sleeps otherwise.

        The library's loop never pauses, so a node without peers would wake for nothing. Its heartbeat has more steps,
        which do nothing without a scorer and its adaptive mode.
        """
        await trio.sleep(self.heartbeat_initial_delay)
        while True:
            if not (self.peer_protocol or self.mcache.msgs or self.fanout):
                self._busy = trio.Event()
                await self._busy.wait()
            grafts, prunes = self.mesh_heartbeat()
            self.fanout_heartbeat()
            await self._emit_control_msgs(grafts, prunes, self.gossip_heartbeat())
            self.mcache.shift()
            self._periodic_security_cleanup()
            self._prune_idontwant_entries()
            await trio.sleep(self.heartbeat_interval)

    async def publish(self, msg_forwarder: Any, pubsub_msg: Any, to: Iterable[Any] = ()) -> None:
        """Forwards a judged message to the mesh and to ``to``.

        The library's version signs a record of our addresses for each message, which every receiver verifies, and keeps
        up to a thousand messages and a hundred more for each peer.
        """
        self.mcache.put(pubsub_msg)
        self._busy.set()
        name = self.pubsub.get_message_id(pubsub_msg)
        topics, origin = pubsub_msg.topicIDs, pubsub_module.ID(pubsub_msg.from_id)
        self.tell({*self._get_peers_to_send(topics, msg_forwarder, origin, name), *to}, pubsub_msg)
        if len(pubsub_msg.data) >= WORTH_SPARING:
            await self._emit_idontwant_for_message(name, topics)

    def tell(self, peers: Iterable[Any], message: Any) -> None:
        """Sends a message only to these gossip peers; their neighbours are not notified that we have it."""
        rpc = rpc_pb2.RPC(publish=[message])
        for peer in peers:
            if peer in self.pubsub.peers:
                self.send_rpc(peer, rpc)

    async def handle_iwant(self, iwant_msg: Any, sender_peer_id: Any) -> None:
        """Sends each requested message in its own frame, as far as the queue takes it.

        The library puts all that are named, as often as they are named, into one frame, which it copies and splits: 100
        MiB for 90 KiB of names.
        """
        if not self._check_iwant_rate_limit(sender_peer_id):
            return
        queue = self.pubsub.peer_queues.get(sender_peer_id)
        for name in iwant_msg.messageIDs:
            message = self.mcache.give(safe_bytes_from_hex(name) or b"", sender_peer_id)
            if message is not None and (queue is None or not queue.push(rpc_pb2.RPC(publish=[message]))):
                return

    async def emit_control_message(self, control_msg: Any, to_peer: Any) -> None:
        """Sends a control message without the signed record of addresses that the library adds to each."""
        self.send_rpc(to_peer, rpc_pb2.RPC(control=control_msg), priority=True)

    def _get_peers_to_send(self, topic_ids: Any, msg_forwarder: Any, *args: Any, **kwargs: Any) -> Any:
        """Sends our own messages to every peer that joined (flood publish, as in JavaScript).

        Until the next heartbeat a peer that has just joined is in no mesh, and a message published to none is lost.
        """
        chosen = set(super()._get_peers_to_send(topic_ids, msg_forwarder, *args, **kwargs))
        if msg_forwarder == self.pubsub.my_id:
            for topic in topic_ids:
                chosen |= {peer for peer in self.pubsub.peer_topics.get(topic, ()) if peer in self.pubsub.peers}
        return chosen - {msg_forwarder}
