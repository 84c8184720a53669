"""Runs gossip over an open host: Gossipsub 1.1 and 1.2, signed messages of joined topics.

Gossip is a hint: messages may be lost, and nothing waits for them. The validator that is passed in decides which
messages are good; this module bounds what it costs to ask. Made by ``open_gossip`` inside ``open_host``, ends before
it.

``check`` holds a frame of gossip against limits, and computes what it costs, before any of it is acted on. Works on
the values of py-libp2p's protobuf classes and does nothing else: no clock, no network.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import libp2p.pubsub.pubsub as pubsub_module
import msgspec
import trio
from google.protobuf.message import DecodeError
from libp2p.io.exceptions import IOException
from libp2p.network.stream.exceptions import StreamEOF, StreamError
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, PROTOCOL_ID_V12, GossipSub
from libp2p.pubsub.mcache import MessageCache
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.pubsub.utils import safe_bytes_from_hex
from libp2p.tools.anyio_service import background_trio_service

from chain.errors import Invalid
from chain.statements.keys import verify
from p2p.budget.work import GOSSIP_BYTE, GOSSIP_ENTRY, GOSSIP_FRAME, GOSSIP_MESSAGE, Party, WorkBudget
from p2p.errors import NotJoined, NotTaken, only
from p2p.host.host import Host
from p2p.ports import GossipVerdict, Judgement, PeerId
from p2p.wire.frames import DelimitedReader

MAX_NAME: Final = 64
"""Bytes of a message's name in a control part; ours have 46: a peer id and a number."""
MAX_TOPIC: Final = 128
"""Characters of a topic's name; ours have 82 at most."""
ED25519: Final = bytes.fromhex("08011220")
"""The bytes before an Ed25519 public key in libp2p's 36-byte form."""
KEY_IN_NAME: Final = b"\x00\x24" + ED25519
"""The bytes before the key in a peer id that contains an Ed25519 key."""
SIGNED: Final = b"libp2p-pubsub:"
"""The prefix that is signed before every gossip message."""


class FrameLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_messages: int = 256
    """Messages of one frame; all are judged before the peer's next frame is read."""
    max_control: int = 1024
    """Entries of one control part. A mesh has a dozen topics and a few hundred messages in its window."""
    max_subscriptions: int = 64
    """Topics joined or left in one frame, and topics kept of one peer.
    A network has four, and a peer may be in several."""
    max_message: int = 256 << 10
    """Bytes of one message's payload. A signed head has 1 KiB, a bundle of attestations some dozens."""


def entries_of(rpc: Any) -> int:
    """Counts the entries of the control part and the names in them."""
    control = rpc.control
    lists = (control.ihave, control.iwant, control.idontwant)
    return (
        len(control.graft)
        + len(control.prune)
        + sum(len(list_) for list_ in lists)
        + sum(len(part.messageIDs) for list_ in lists for part in list_)
    )


def check(rpc: Any, limits: FrameLimits) -> float:
    """Estimates the cost of a frame in microseconds. Raises Invalid if anything is more than an honest peer sends."""
    messages, subscriptions = len(rpc.publish), len(rpc.subscriptions)
    parts = len(rpc.control.ihave) + len(rpc.control.iwant) + len(rpc.control.idontwant)
    # Counting the names of a frame full of parts would be the work that is to be refused
    # (test_no_frame_of_gossip_holds_the_loop).
    entries = parts if parts > limits.max_control else entries_of(rpc)
    over = messages > limits.max_messages or subscriptions > limits.max_subscriptions or entries > limits.max_control
    if over:
        text = f"a frame of {messages} messages, {subscriptions} subscriptions and {entries} control entries"
        raise Invalid(text, rule="gossip-frame")
    return GOSSIP_FRAME + GOSSIP_MESSAGE * messages + GOSSIP_ENTRY * (subscriptions + entries)


def net_subscriptions(rpc: Any, topics: Collection[str]) -> dict[str, bool]:
    """Returns the net changes of subscriptions to ``topics``: a thousand joins and leaves of one are one change."""
    return {one.topicid: one.subscribe for one in rpc.subscriptions if one.topicid in topics}


def said_topics(before: frozenset[str], rpc: Any, most: int) -> frozenset[str]:
    """Returns all topics that a peer says it joined, ours or not: at most ``most``, and none with a too long name."""
    said = set(before)
    for one in rpc.subscriptions:
        if not one.subscribe:
            said.discard(one.topicid)
        elif len(said) < most and len(one.topicid) <= MAX_TOPIC:
            said.add(one.topicid)
    return frozenset(said)


def strip(rpc: Any, topics: Collection[str]) -> None:
    """Removes the parts of a frame that we do not act on.

    They are the addresses that a sender states for itself or others, since believing them would mean to verify them
    each time, and to dial wherever a stranger wants; and topics that we have not joined, because py-libp2p keeps a note
    of each for ever.
    """
    rpc.ClearField("senderRecord")
    control = rpc.control
    for name in ("ihave", "graft", "prune"):
        entries = getattr(control, name)
        kept = [entry for entry in entries if entry.topicID in topics]
        if len(kept) < len(entries):
            del entries[:]
            entries.extend(kept)
    for prune in control.prune:
        del prune.peers[:]
    for part in (*control.ihave, *control.iwant, *control.idontwant):
        # A name said a thousand times would fetch a message as often
        # (test_what_is_asked_for_a_thousand_times_is_given_thrice).
        names = list(dict.fromkeys(name for name in part.messageIDs if len(name) <= MAX_NAME))
        if len(names) < len(part.messageIDs):
            del part.messageIDs[:]
            part.messageIDs.extend(names)


def is_signed(message: Any, payload: bytes) -> bool:
    """Whether the named author signed ``payload``, the message without key and signature.

    Accepts Ed25519 only: all nodes of our networks use it, and other signatures cost up to a hundred times as much.
    """
    author: bytes = message.from_id
    key = author[len(KEY_IN_NAME) :]
    # libp2p's pubsub specification: the key may be left out if the author's id contains it, as an Ed25519 id does.
    if not author.startswith(KEY_IN_NAME) or len(key) != 32 or message.key not in (b"", ED25519 + key):
        return False
    # A message is named by author and number: with a longer number no IHAVE or IWANT could name it (MAX_NAME).
    return len(message.seqno) <= MAX_NAME - len(author) and verify(key, SIGNED + payload, message.signature)


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
