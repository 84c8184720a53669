"""Runs gossip over an open host: Gossipsub 1.1 and 1.2, signed messages of joined topics.

Gossip is a hint: messages may be lost, and nothing waits for them. Who may say what is decided by the validator that
is passed in; this module bounds what it costs to ask. Made by ``open_gossip`` inside ``open_host``, dies before it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import trio
from google.protobuf.message import DecodeError
from libp2p.io.exceptions import IOException
from libp2p.network.stream.exceptions import StreamEOF, StreamError
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service

from chain.errors import Invalid
from p2p.errors import NotJoined, NotTaken
from p2p.host.host import Host, only
from p2p.host.router import SteadyGossipSub, widen_queues
from p2p.ports import Judgement, PeerId
from p2p.wire.delimited import DelimitedReader

log = logging.getLogger(__name__)

Validator = Callable[[str, PeerId, bytes], Awaitable[Judgement]]
"""``await validate(topic, sender, data)``: ``sender`` handed us the message and may not have written it."""

READ: Final = 64 << 10
"""Bytes read of a peer's gossip at a time; frames of a head have 1 KiB."""


class GossipLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of gossip. Sizes in bytes, times in seconds."""

    max_message: int = 256 << 10
    """Payload of one message. A signed head has 1 KiB, a bundle of attestations some dozens."""
    max_rpc: int = 512 << 10
    """One frame of the gossip protocol: a message and its control part."""
    max_messages_per_rpc: int = 256
    """Read before the peer's next frame; each waits for its verdict."""
    max_control_per_rpc: int = 1024
    """Entries of one control part. A mesh has a dozen topics and a few hundred messages in its window."""
    validation_timeout: float = 10.0
    """For one verdict: signatures are checked in worker threads, which may be busy."""
    concurrent_validations: int = 16
    incoming: int = 64
    """Accepted messages that nobody has read yet; the oldest make room."""


class Incoming(msgspec.Struct, frozen=True):
    """An accepted message."""

    topic: str
    sender: PeerId
    data: bytes


class BoundedPubsub(Pubsub):  # type: ignore[misc]
    """Reads one frame of a peer at a time and judges it before the next, so a flood waits in the sender's memory.

    The library starts a task per message without end, and one malformed frame ends its host.
    """

    def __init__(self, base: Any, router: SteadyGossipSub, limits: GossipLimits) -> None:
        super().__init__(
            base,
            router,
            strict_signing=True,
            max_inbound_rpc_size=limits.max_rpc,
            max_concurrent_validator_count=limits.concurrent_validations,
            validation_timeout=limits.validation_timeout,
            allowed_topics=frozenset(),
        )
        self._limits = limits
        self.deliver: Callable[[Any], None] = lambda _: None
        self._greeting: set[Any] = set()

    async def _handle_new_peer(self, peer_id: Any) -> None:
        """Once at a time for a peer: a second stream would orphan the first one's queue."""
        if peer_id not in self._greeting:
            self._greeting.add(peer_id)
            try:
                await super()._handle_new_peer(peer_id)
            finally:
                self._greeting.discard(peer_id)

    async def continuously_read_stream(self, stream: Any) -> None:
        peer = stream.muxed_conn.peer_id
        if peer not in self.peers:
            # It gossips after all: the library asks once, when the connection is new, and never again.
            self._schedule_peer_stream_retry(peer)
        reader = DelimitedReader(self.max_inbound_rpc_size)
        try:
            while self.manager.is_running:
                for frame in reader.feed(await stream.read(READ)):
                    rpc = rpc_pb2.RPC()
                    rpc.ParseFromString(frame)
                    self._check_counts(rpc)
                    await self._take(peer, rpc)
                    await trio.lowlevel.checkpoint()
        except StreamEOF:
            log.debug("%s ended its gossip stream", peer)
        except (Invalid, DecodeError, ValueError) as error:
            log.warning("gossip of %s is malformed: %s", peer, error)
            await stream.reset()
            self._handle_dead_peer(peer)
        except (StreamError, IOException) as error:
            log.debug("gossip stream of %s broke: %s", peer, error)
            await stream.reset()
            self._handle_dead_peer(peer)

    def _check_counts(self, rpc: Any) -> None:
        control = rpc.control
        entries = len(control.graft) + len(control.prune)
        entries += sum(
            len(part.messageIDs) for kind in (control.ihave, control.iwant, control.idontwant) for part in kind
        )
        entries += len(control.ihave) + len(control.iwant) + len(control.idontwant)
        if len(rpc.publish) > self._limits.max_messages_per_rpc or entries > self._limits.max_control_per_rpc:
            raise ValueError(f"a frame of {len(rpc.publish)} messages and {entries} control entries")

    async def _take(self, peer: Any, rpc: Any) -> None:
        rpc.ClearField("senderRecord")  # py-libp2p adds one to each frame; where peers are we learn elsewhere
        for subscription in rpc.subscriptions[: self.max_subscriptions_per_rpc]:
            self.handle_subscription(peer, subscription)
        for message in rpc.publish:
            if len(message.topicIDs) == 1 and self._is_subscribed_to_msg(message):
                if len(message.data) > self._limits.max_message:
                    raise ValueError(f"a message of {len(message.data)} bytes")
                await self.push_msg(peer, message)
        if rpc.HasField("control"):
            await self.router.handle_rpc(rpc, peer)

    def notify_subscriptions(self, message: Any) -> None:
        """Into our own queue: the library's holds 32 messages and drops the newest."""
        self.deliver(message)


class Gossip:
    """Topics we have joined."""

    def __init__(self, pubsub: BoundedPubsub, host: Host, validate: Validator, limits: GossipLimits) -> None:
        self._pubsub = pubsub
        self._host = host
        self._validate = validate
        self._limits = limits
        self._send, self.incoming = trio.open_memory_channel[Incoming](limits.incoming)
        self.missed = 0
        """Accepted messages that made room for newer ones because nobody read ``incoming``."""
        pubsub.deliver = self._deliver

    async def join(self, topics: Iterable[str]) -> None:
        """Idempotent. From now on messages of these topics are judged, passed on, and put into ``incoming``."""
        for topic in topics:
            self._pubsub.allowed_topics |= {topic}
            self._pubsub.set_topic_validator(topic, self._judge, is_async_validator=True)
            await self._pubsub.subscribe(topic)

    async def leave(self, topic: str) -> None:
        self._pubsub.allowed_topics -= {topic}
        await self._pubsub.unsubscribe(topic)
        self._pubsub.remove_topic_validator(topic)

    async def publish(self, topic: str, data: bytes) -> None:
        """To whoever has joined; nobody may have. Raises NotJoined and NotTaken (too large)."""
        if topic not in self._pubsub.topic_ids:
            raise NotJoined(f"topic {topic!r} was not joined", rule="gossip-topic", hint="join it before publishing")
        if len(data) > self._limits.max_message:
            raise NotTaken(
                "", f"a message of {len(data)} bytes", rule="gossip-size", hint=f"at most {self._limits.max_message}"
            )
        await self._pubsub.publish(topic, data)
        # The library only queues, and drops what does not fit: let its senders run before the next message.
        await trio.lowlevel.checkpoint()

    def peers(self, topic: str) -> list[PeerId]:
        """Connected peers that have joined the topic."""
        return [PeerId(str(peer)) for peer in self._pubsub.peer_topics.get(topic, ())]

    async def wait_for_peer(self, topic: str, peer: PeerId) -> None:
        """Until the peer has said that it joined the topic, and we can write to it."""
        known = ID.from_base58(peer)
        await self._pubsub.wait_for_peer(known, timeout=float("inf"))
        await self._pubsub.wait_for_subscription(known, topic, timeout=float("inf"))

    async def _judge(self, sender: Any, message: Any) -> bool:
        peer = PeerId(str(sender))
        if peer == self._host.peer_id:
            return True
        verdict = await self._validate(message.topicIDs[0], peer, message.data)
        return verdict is Judgement.ACCEPT

    def _deliver(self, message: Any) -> None:
        origin = PeerId(str(ID(message.from_id)))
        if origin == self._host.peer_id:
            return
        arrived = Incoming(message.topicIDs[0], origin, message.data)
        try:
            self._send.send_nowait(arrived)
        except trio.WouldBlock:
            self.incoming.receive_nowait()
            self.missed += 1
            self._send.send_nowait(arrived)


@asynccontextmanager
async def open_gossip(
    host: Host, topics: Iterable[str], validate: Validator, limits: GossipLimits | None = None
) -> AsyncIterator[Gossip]:
    """Gossip on an open host, with these topics joined."""
    limits = limits or GossipLimits()
    router = SteadyGossipSub()
    pubsub = BoundedPubsub(host.base, router, limits)
    widen_queues()
    try:
        async with background_trio_service(pubsub), background_trio_service(router):
            await pubsub.wait_until_ready()
            gossip = Gossip(pubsub, host, validate, limits)
            await gossip.join(topics)
            for peer in host.peers():
                pubsub._schedule_peer_stream_retry(ID.from_base58(peer))
            yield gossip
    except BaseExceptionGroup as group:
        raise only(group) from None
    finally:
        pubsub.seen_messages.stop()
