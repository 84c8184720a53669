"""Runs gossip over an open host: Gossipsub 1.1 and 1.2, signed messages of joined topics.

Gossip is a hint: messages may be lost, and nothing waits for them. The validator that is passed in decides which
messages are good; this module bounds what it costs to ask. Made by ``open_gossip`` inside ``open_host``, ends before
it.
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
from p2p.budget.work import GOSSIP_BYTE, Party, WorkBudget
from p2p.errors import NotJoined, NotTaken, only
from p2p.host.gossip_frames import FrameLimits, check, is_signed, net_subscriptions, said_topics, strip
from p2p.host.host import Host
from p2p.host.router import SteadyGossipSub, bound_queues
from p2p.ports import GossipVerdict, Judgement, PeerId
from p2p.wire.frames import DelimitedReader

log = logging.getLogger(__name__)

Validator = Callable[[str, PeerId, bytes], Awaitable[GossipVerdict]]
"""``await validate(topic, sender, data)``: ``sender`` passed the message to us and may not have written it."""

READ: Final = 64 << 10
"""Bytes read from a peer's gossip stream at a time; a frame with a head has 1 KiB."""


class GossipLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of gossip. Sizes in bytes, times in seconds."""

    max_rpc: int = 256 << 10
    """One frame of the gossip protocol: a message and its control part.
    Parsing one full of control entries takes 13 ms."""
    frame: FrameLimits = FrameLimits()
    """Limits of the parts of a frame."""
    max_streams: int = 2
    """Gossip streams of one peer: one in use, and one to replace it before the old one is known to be dead."""
    validation_timeout: float = 10.0
    """For one verdict; signatures are checked in worker threads, which may be busy."""
    concurrent_validations: int = 16
    incoming: int = 64
    """Accepted unread messages; the oldest are dropped."""


class IncomingGossip(msgspec.Struct, frozen=True):
    topic: str
    sender: PeerId
    data: bytes


class BoundedPubsub(Pubsub):  # type: ignore[misc]
    """Reads one frame of a peer at a time, charges the peer for it, and judges it before the next.

    The library starts a task per message without end, three for each subscription, and one malformed frame ends its
    host. It wakes once a minute to forget old verdicts, also where there are none.
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
        self._work: WorkBudget = base.get_network().work
        self.deliver: Callable[[Any], None] = lambda _: None
        self.judge: Callable[[Any, Any], Awaitable[GossipVerdict]] = _judge_nothing
        self._validations = trio.CapacityLimiter(limits.concurrent_validations)
        self._greeting: set[Any] = set()
        self._streams: dict[Any, list[Any]] = {}
        self.said: dict[Any, frozenset[str]] = {}
        """The topics that each peer says it joined, also those that we have not joined, as we may join them later."""
        self.hello = trio.Event()
        """Set, and replaced, when a peer joins or leaves a topic."""
        self.unsigned = 0
        """Messages that were dropped because their author's signature is missing, false, or not Ed25519."""

    async def _validation_cache_cleanup(self) -> None:
        """Old verdicts are not looked at, and there are at most a thousand: nothing wakes up to forget them."""
        await self.manager.wait_finished()

    async def _handle_new_peer(self, peer_id: Any) -> None:
        """Opens the gossip stream with a new peer, once at a time:
        a second stream would orphan the first one's queue."""
        if peer_id not in self._greeting:
            self._greeting.add(peer_id)
            try:
                await super()._handle_new_peer(peer_id)
            finally:
                self._greeting.discard(peer_id)

    def _handle_dead_peer(self, peer_id: Any) -> None:
        """Keeps the topics of a peer that has another open stream: it reconnected before the old connection was known
        to be dead, and announces its topics only once."""
        super()._handle_dead_peer(peer_id)
        if not self._streams.get(peer_id):
            self.said.pop(peer_id, None)
        elif self.manager.is_running:
            self.manager.run_task(self._count_again, peer_id)

    async def _count_again(self, peer_id: Any) -> None:
        for topic in self.said.get(peer_id, frozenset()) & frozenset(self.allowed_topics):
            await self._note_subscription(peer_id, topic, True)

    async def continuously_read_stream(self, stream: Any) -> None:
        peer = stream.muxed_conn.peer_id
        if peer not in self.peers:
            # The peer gossips after all: the library tries only once, when the connection is new.
            self._schedule_peer_stream_retry(peer)
        streams = self._streams.setdefault(peer, [])
        streams.append(stream)
        try:
            if len(streams) > self._limits.max_streams:
                # Each stream may hold an unfinished frame of 256 KiB (test_a_peer_gossips_on_two_streams_at_most).
                await streams.pop(0).reset()
            is_dead = await self._read(stream, peer)
        finally:
            if stream in streams:
                streams.remove(stream)
            if not streams and self._streams.get(peer) is streams:
                del self._streams[peer]
        if is_dead:
            self._handle_dead_peer(peer)

    async def _read(self, stream: Any, peer: Any) -> bool:
        """Reads frames until the stream ends; returns whether it broke,
        and with it perhaps the peer's other streams."""
        reader = DelimitedReader(self.max_inbound_rpc_size)
        try:
            while self.manager.is_running:
                for frame in reader.feed(await stream.read(READ)):
                    await self._take(stream.muxed_conn.party, peer, frame)
        except StreamEOF:
            log.debug("%s ended its gossip stream", peer)
        except (Invalid, DecodeError, ValueError) as error:
            log.warning("gossip of %s is malformed: %s", peer, error)
            await stream.reset()
            return True
        except (StreamError, IOException) as error:
            log.debug("gossip stream of %s broke: %s", peer, error)
            await stream.reset()
            return True
        return False

    async def _take(self, party: Party, peer: Any, frame: bytes) -> None:
        """Processes one frame, once the peer has paid for it."""
        rpc = rpc_pb2.RPC()
        try:
            rpc.ParseFromString(frame)
            cost = check(rpc, self._limits.frame)
        except (Invalid, DecodeError):
            # Garbage was parsed too: whoever sends it pays before the stream ends.
            self._work.charge(party, len(frame) * GOSSIP_BYTE, trio.current_time())
            raise
        await trio.sleep(self._work.charge(party, cost, trio.current_time()))
        if rpc.subscriptions:
            self._note_topics(peer, rpc)
        strip(rpc, self.allowed_topics)
        for topic, subscribes in net_subscriptions(rpc, self.allowed_topics).items():
            await self._note_subscription(peer, topic, subscribes)
        for message in rpc.publish:
            # libp2p's pubsub specification knows one topic of a message; the library's class still has a list.
            if len(message.topicIDs) == 1 and self._is_subscribed_to_msg(message):
                if len(message.data) > self._limits.frame.max_message:
                    raise ValueError(f"a message of {len(message.data)} bytes")
                await self.push_msg(peer, message)
                await trio.lowlevel.checkpoint()
        if rpc.HasField("control"):
            await self.router.handle_rpc(rpc, peer)
            await trio.lowlevel.checkpoint()

    def _note_topics(self, peer: Any, rpc: Any) -> None:
        before = self.said.get(peer, frozenset())
        said = said_topics(before, rpc, self._limits.frame.max_subscriptions)
        if said != before:
            self.said[peer] = said
            self.hello.set()
            self.hello = trio.Event()

    async def count_members(self, topic: str) -> None:
        """Counts peers that joined a topic before we did."""
        for peer in [peer for peer, said in self.said.items() if topic in said]:
            await self._note_subscription(peer, topic, True)

    async def _note_subscription(self, peer: Any, topic: str, subscribes: bool) -> None:
        """Notes that a peer joined a topic of ours, or left it. It gets earlier messages by anti-entropy."""
        if not subscribes:
            self._forget_subscription(peer, topic)
            return
        members = self.peer_topics.setdefault(topic, set())
        if peer not in members:
            members.add(peer)
            self._peer_subscription_count[peer] = self._peer_subscription_count.get(peer, 0) + 1
            if (waiting := self._subscription_events.pop((peer, topic), None)) is not None:
                waiting.set()
            await self.router.on_peer_subscribed(peer, topic)

    async def _replay_recent_messages(self, peer_id: Any, topic: str) -> None:
        """Does nothing. The library would send all messages it has at each join,
        each with a new record of our addresses."""

    async def push_msg(self, msg_forwarder: Any, msg: Any) -> None:
        """Judges a message, and forwards it as the verdict says. Our own were judged by their publisher."""
        name = self.get_message_id(msg)
        if self.seen_messages.has(name):
            return
        verdict = _OURS if msg_forwarder == self.my_id else await self._judge(msg_forwarder, msg)
        is_for_all = verdict.judgement is Judgement.ACCEPT
        if not is_for_all and not verdict.to:
            return
        # Not before: what was dropped for lack of time or budget is judged when another peer brings it.
        self.seen_messages.add(name)
        if ID(msg.from_id) == self.my_id and msg_forwarder != self.my_id:
            return
        self.notify_subscriptions(msg)
        to = {ID.from_base58(peer) for peer in verdict.to} - {msg_forwarder, ID(msg.from_id)}
        if is_for_all:
            await self.router.publish(msg_forwarder, msg, to)
        else:
            self.router.tell(to, msg)

    async def _judge(self, forwarder: Any, msg: Any) -> GossipVerdict:
        plain = rpc_pb2.Message(data=msg.data, topicIDs=msg.topicIDs, from_id=msg.from_id, seqno=msg.seqno)
        if not is_signed(msg, plain.SerializeToString()):
            self.unsigned += 1
            return _DECLINED
        with trio.move_on_after(self._limits.validation_timeout):
            async with self._validations:
                return await self.judge(forwarder, msg)
        return _DECLINED

    def notify_subscriptions(self, message: Any) -> None:
        """Delivers to our own queue: the library's holds 32 messages and drops the newest."""
        self.deliver(message)


_OURS: Final = GossipVerdict(Judgement.ACCEPT)
_DECLINED: Final = GossipVerdict(Judgement.IGNORE)


async def _judge_nothing(_sender: Any, _message: Any) -> GossipVerdict:
    """Accepts nothing; the default judge."""
    return _DECLINED


class Gossip:
    def __init__(self, pubsub: BoundedPubsub, host: Host, validate: Validator, limits: GossipLimits) -> None:
        self._pubsub = pubsub
        self._host = host
        self._validate = validate
        self._limits = limits
        self._send, self.incoming = trio.open_memory_channel[IncomingGossip](limits.incoming)
        self.missed = 0
        """Accepted messages that were dropped for newer ones because ``incoming`` was not read."""
        pubsub.deliver = self._deliver
        pubsub.judge = self._judge

    async def join(self, topics: Iterable[str]) -> None:
        """Joins topics; joining one again has no effect.
        Their messages are judged, passed on, and put into ``incoming``."""
        for topic in topics:
            self._pubsub.allowed_topics |= {topic}
            await self._pubsub.subscribe(topic)
            await self._pubsub.count_members(topic)

    async def leave(self, topic: str) -> None:
        self._pubsub.allowed_topics -= {topic}
        await self._pubsub.unsubscribe(topic)
        for peer in list(self._pubsub.peer_topics.get(topic, ())):
            self._pubsub._forget_subscription(peer, topic)

    def is_member(self, peer: PeerId, topic: str) -> bool:
        """Whether a connected peer says that it joined a topic, whether we joined it or not."""
        return topic in self._pubsub.said.get(ID.from_base58(peer), ())

    def has_joined_like(self, peer: PeerId, prefix: str, suffix: str) -> bool:
        """Whether a connected peer says that it joined some topic of this form."""
        said = self._pubsub.said.get(ID.from_base58(peer), ())
        return any(topic.startswith(prefix) and topic.endswith(suffix) for topic in said)

    async def next_hello(self) -> None:
        """Waits until some peer joins or leaves a topic."""
        await self._pubsub.hello.wait()

    async def publish(self, topic: str, data: bytes) -> None:
        """Publishes to the peers that joined the topic, if any. Raises NotJoined and NotTaken (too large)."""
        if topic not in self._pubsub.topic_ids:
            raise NotJoined(f"topic {topic!r} was not joined", rule="gossip-topic", hint="join it before publishing")
        most = self._limits.frame.max_message
        if len(data) > most:
            raise NotTaken("", f"a message of {len(data)} bytes", rule="gossip-size", hint=f"at most {most}")
        await self._pubsub.publish(topic, data)
        # The library only queues, and drops frames that do not fit: let its senders run before the next message.
        await trio.lowlevel.checkpoint()

    def peers(self, topic: str) -> list[PeerId]:
        """Lists the connected peers that have joined the topic."""
        return [PeerId(str(peer)) for peer in self._pubsub.peer_topics.get(topic, ())]

    async def wait_for_peer(self, topic: str, peer: PeerId) -> None:
        """Waits until the peer has joined the topic and can be written to."""
        known = ID.from_base58(peer)
        await self._pubsub.wait_for_peer(known, timeout=float("inf"))
        await self._pubsub.wait_for_subscription(known, topic, timeout=float("inf"))

    async def _judge(self, sender: Any, message: Any) -> GossipVerdict:
        return await self._validate(message.topicIDs[0], PeerId(str(sender)), message.data)

    def _deliver(self, message: Any) -> None:
        origin = PeerId(str(ID(message.from_id)))
        if origin == self._host.peer_id:
            return
        arrived = IncomingGossip(message.topicIDs[0], origin, message.data)
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
    """Opens gossip on an open host, with these topics joined."""
    limits = limits or GossipLimits()
    router = SteadyGossipSub()
    pubsub = BoundedPubsub(host.base, router, limits)
    bound_queues()
    try:
        async with background_trio_service(pubsub), background_trio_service(router):
            await pubsub.wait_until_ready()
            gossip = Gossip(pubsub, host, validate, limits)
            await gossip.join(topics)
            for peer in host.peers():
                # The library opens a gossip stream when a connection is made: these were made before.
                pubsub._schedule_peer_stream_retry(ID.from_base58(peer))
            yield gossip
    except BaseExceptionGroup as group:
        raise only(group) from None
    finally:
        # The library's cache has a thread, which nothing else ends.
        pubsub.seen_messages.stop()
