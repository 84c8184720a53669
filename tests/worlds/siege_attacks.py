"""The attacks of a siege: each is a coroutine that sends what it has and counts it under a name of ``NAMES``."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import httpx
import trio

from chain import instant
from chain.errors import Fault, Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from p2p.errors import PeerFault
from p2p.host.host import Host, open_host
from p2p.host.pubsub import KEY_IN_NAME, SIGNED, rpc_pb2  # type: ignore[attr-defined]
from p2p.host.stream import Stream
from p2p.identity import peer_of_did
from p2p.ports import PeerId
from p2p.wire import chains, circuit, invite, lookup, objects, presence, trust
from p2p.wire.chains import BlockRange
from p2p.wire.circuit import StopKind, StopMessage
from p2p.wire.contact import LookupContact, lookup_key
from p2p.wire.frames import DelimitedReader, FrameSplitter, frame
from p2p.yamux.frames import RST, SYN, WINDOW_UPDATE, pack
from worlds.hostile import framed, joins, messages, subscriptions
from worlds.siege_plan import OPENED, Plan

Attack = Callable[..., Awaitable[None]]
FAILS = (
    Fault, OSError, httpx.HTTPError,
    trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError,
)  # fmt: skip
"""How attacks end that a node has had enough of."""
MESHSUB = "/meshsub/1.2.0"
HEADS_A_SECOND = 5
"""What the budget of a site lets one of five addresses ask for; it does not charge whoever comes from this machine."""
HELLO = b"\x13/multistream/1.0.0\n\x07/noise\n"
ANSWERS = ("answers that drip", "sizes that are lies")
"""These wait for a node to ask. Identities that do nothing else give them, so that nobody throws them out."""
NAMES = (
    "frames of subscriptions", "names in iwant", "false signatures", "muxer frames", "silent connections",
    "handshakes half done", "free keys", "statements of free keys", "presences of free keys", "ranges",
    "answers not read", "bytes that drip", "questions for statements", "questions for peers", "HEAD of packs",
    "bytes that drip at the site", "sums that are new each time", "tokens of invitations", "circuits that lie",
    "records of the lookup", *ANSWERS,
)  # fmt: skip
"""What is counted, of each attack."""


class Identity:
    """One key, its host, and what it has heard. ``sent``: how often each attack went out, of all identities."""

    def __init__(self, plan: Plan, host: Host, seed: bytes, serial: int, sent: Counter[str]) -> None:
        self.plan, self.host, self.serial, self.sent = plan, host, serial, sent
        self.key = SigningKey(seed)
        self.dataset = DatasetId.parse(plan.dataset)
        self.heard: list[bytes] = []
        for version in ("1.1.0", "1.2.0"):
            host.set_handler(f"/meshsub/{version}", self._listen)
        host.set_handler(chains.PROTOCOL, self._boast)
        host.set_handler(objects.PROTOCOL, self._drip)
        host.set_handler(trust.PROTOCOL, self._lie)
        host.set_handler(lookup.LOOKUP_PROTOCOL, self._mislead)

    def topic(self, name: str) -> str:
        return f"/odf/1/{self.plan.network}/{name}"

    def message(self, topic: str, data: bytes, key: SigningKey) -> Any:
        """As libp2p signs it."""
        self.serial += 1
        said = rpc_pb2.Message(
            data=data,
            topicIDs=[self.topic(topic)],
            from_id=KEY_IN_NAME + key.public,
            seqno=self.serial.to_bytes(8, "big"),
        )
        said.signature = key.sign(SIGNED + said.SerializeToString())
        return said

    async def _listen(self, stream: Stream, _peer: PeerId) -> None:
        """Names of messages are remembered, to be asked for."""
        reader = DelimitedReader(1 << 20)
        async for data in stream:
            for body in reader.feed(data):
                rpc = rpc_pb2.RPC.FromString(body)
                self.heard += [each.seqno + each.from_id for each in rpc.publish]
                self.heard += [name for part in rpc.control.ihave for name in part.messageIDs]
                del self.heard[:-200]

    async def _boast(self, stream: Stream, peer: PeerId) -> None:
        """To serve the chain however far it is asked for; asked for blocks, as ``_drip``; or that at once, by lot."""
        reader, is_boast = FrameSplitter(1 << 16), os.urandom(1)[0] % 2
        while is_boast and (data := await stream.receive_some()):
            for body in reader.feed(data):
                with suppress(Invalid):
                    ask = chains.decode_range(body)
                    is_boast = not ask.max_bytes
                    size = chains.Blocks(request=ask.request, size=1 << 20, start=ask.start, blocks=())
                    if is_boast:
                        await stream.send_all(frame(chains.encode_blocks(size)))
                        self.sent["sizes that are lies"] += 1
        await self._drip(stream, peer)

    async def _drip(self, stream: Stream, _peer: PeerId) -> None:
        """A mebibyte is promised, and comes a byte at a time."""
        await stream.send_all((1 << 20).to_bytes(4, "big"))
        while True:
            await stream.send_all(b"\x81")
            self.sent["answers that drip"] += 1
            await trio.sleep(0.5)

    async def _lie(self, stream: Stream, _peer: PeerId) -> None:
        """Other sums each time, whatever is asked."""
        async for _ in stream:
            buckets = {f"{number:02x}": os.urandom(32).hex() for number in range(256)}
            await stream.send_all(frame(trust.encode(trust.Sums(buckets))))
            self.sent["sums that are new each time"] += 1

    async def _mislead(self, stream: Stream, _peer: PeerId) -> None:
        """It knows invented nodes, and all about every dataset; whom it does not name."""
        reader = FrameSplitter(1 << 16)
        async for data in stream:
            for _ in reader.feed(data):
                told = lookup.Nodes(contacts=_invented(), records=(self.record(self.dataset),) * 2)
                await stream.send_all(frame(lookup.encode_nodes(told)))
                self.sent["lookups that were led astray"] += 1

    def record(self, dataset: DatasetId) -> bytes:
        """That it serves the dataset, which it does not: signed, and true in nothing else."""
        said = presence.Presence(key=self.key.public, issued=_now(), lifetime=3600, addresses=("/ip4/127.0.0.1/tcp/1",))
        return lookup.seal_record(said, self.plan.network, lookup_key(self.plan.network, dataset), self.key)


async def gossip(one: Identity, target: PeerId) -> Stream:
    stream = await one.host.open_stream(target, MESHSUB)
    for name in ("heads", "peers", "attest", "proofs"):
        await stream.send_all(joins(one.topic(name), graft=True))
    await stream.send_all(framed(rpc_pb2.RPC(publish=[one.message("peers", _serves(one, one.key), one.key)])))
    return stream


async def frames_of_subscriptions(one: Identity, target: PeerId) -> None:
    stream = await gossip(one, target)
    for _ in range(2):
        await stream.send_all(subscriptions(one.topic("heads"), 2400))
        one.sent["frames of subscriptions"] += 1
    await one.host.ping(target)


async def floods_of_iwant(one: Identity, target: PeerId) -> None:
    stream = await gossip(one, target)
    for _ in range(20):
        names = one.heard or [os.urandom(40)]
        rpc = rpc_pb2.RPC()
        rpc.control.iwant.add().messageIDs.extend((names * 1020)[:1020])
        await stream.send_all(framed(rpc))
        one.sent["names in iwant"] += 1020
        await trio.sleep(0.1)


async def false_signatures(one: Identity, target: PeerId) -> None:
    stream = await gossip(one, target)
    for _ in range(20):
        await stream.send_all(messages(one.topic("heads"), 250, KEY_IN_NAME + os.urandom(32)))
        one.sent["false signatures"] += 250


async def frames_of_the_muxer(one: Identity, target: PeerId) -> None:
    stream = await one.host.open_stream(target, chains.PROTOCOL)
    muxer = one.host._connections(target)[0].muxed_conn
    for _ in range(20):
        muxer.session._send(pack(WINDOW_UPDATE, 0, stream._muxed.stream_id, 0) * 5000)
        number = muxer.session._next_id
        muxer.session._next_id += 2 * 200
        for at in range(number, number + 2 * 200, 2):
            muxer.session._send(pack(WINDOW_UPDATE, SYN, at, 0) + pack(WINDOW_UPDATE, RST, at, 0))
        muxer.kick()
        one.sent["muxer frames"] += 5400
        await one.host.ping(target)


async def silent_connections(one: Identity, target: PeerId) -> None:
    place = one.host.peers()[target].split("/")
    async with AsyncExitStack() as stack:
        for _ in range(20):
            stack.push_async_callback((await trio.open_tcp_stream(place[2], int(place[4]))).aclose)
            one.sent["silent connections"] += 1
        await trio.sleep(3)


async def handshakes_half_done(one: Identity, target: PeerId) -> None:
    """The first message of a handshake makes the other end compute the most of it."""
    place = one.host.peers()[target].split("/")
    for _ in range(50):
        async with await trio.open_tcp_stream(place[2], int(place[4])) as stream:
            await stream.send_all(HELLO + (32).to_bytes(2, "big") + os.urandom(32))
            one.sent["handshakes half done"] += 1
            with trio.move_on_after(0.2):
                while await stream.receive_some():
                    pass


async def free_keys(one: Identity, target: PeerId) -> None:
    address = next(each for each in one.plan.targets if each.endswith(target))
    async with AsyncExitStack() as stack:
        for _ in range(12):
            other = await stack.enter_async_context(open_host(os.urandom(32)))
            one.sent["free keys"] += 1
            with suppress(PeerFault):
                await other.connect(address)
                one.sent["free keys that were let in"] += 1
        await trio.sleep(3)


async def statements_of_free_keys(one: Identity, target: PeerId) -> None:
    """Heads of datasets that are none and of the one that is wanted, by keys that nobody knows; presences."""
    stream = await gossip(one, target)
    for number in range(40):
        key = SigningKey(os.urandom(32))
        rpc = rpc_pb2.RPC()
        for each in range(8):
            about = one.dataset if each % 2 else key.dataset_id
            rpc.publish.append(one.message("heads", head_of(about, key, 1 + 8 * number + each), key))
        rpc.publish.append(one.message("peers", _serves(one, key), key))
        await stream.send_all(framed(rpc))
        one.sent["statements of free keys"] += 8
        one.sent["presences of free keys"] += 1
        await trio.sleep(0.02)


async def ranges_for_little(one: Identity, target: PeerId) -> None:
    async with await one.host.open_stream(target, chains.PROTOCOL) as stream:
        for number in range(100):
            ask = BlockRange(request=number, dataset=one.dataset, start=0, max_blocks=1)
            await stream.send_all(frame(chains.encode_range(ask)))
            one.sent["ranges"] += 1
            await stream.receive_some()


async def answers_half_read(one: Identity, target: PeerId) -> None:
    """Sixty questions, and nothing of what comes is read."""
    async with await one.host.open_stream(target, chains.PROTOCOL) as stream:
        for number in range(60):
            await stream.send_all(frame(chains.encode_range(BlockRange(request=number, dataset=one.dataset, start=0))))
            one.sent["answers not read"] += 1
        await trio.sleep(20)


async def questions_that_drip(one: Identity, target: PeerId) -> None:
    async with await one.host.open_stream(target, trust.PROTOCOL) as stream:
        for byte in frame(b" " * 60_000):
            await stream.send_all(bytes([byte]))
            one.sent["bytes that drip"] += 1
            await trio.sleep(0.5)


async def listings(one: Identity, target: PeerId) -> None:
    async with await one.host.open_stream(target, trust.PROTOCOL) as stream:
        for _ in range(50):
            await stream.send_all(frame(trust.encode(trust.SumAsk())))
            await stream.send_all(frame(trust.encode(trust.ListAsk(datasets=(one.dataset,)))))
            await stream.send_all(frame(trust.encode(trust.GetAsk((Multihash.sha3_256(os.urandom(8)),) * 200))))
            one.sent["questions for statements"] += 3
            await stream.receive_some()


async def questions_for_peers(one: Identity, target: PeerId) -> None:
    for _ in range(20):
        async with await one.host.open_stream(target, presence.PROTOCOL) as stream:
            ask = presence.PeersAsk(wanted=64, tags=tuple(sorted({int.from_bytes(os.urandom(4), "big") for _ in "16"})))
            await stream.send_all(frame(presence.encode_ask(ask)))
            one.sent["questions for peers"] += 1
            await stream.receive_some()


async def tokens_of_invitations(one: Identity, target: PeerId) -> None:
    """The one that was redeemed, which is for one node; and invented ones."""
    for number in range(20):
        token = os.urandom(32) if number % 2 else bytes.fromhex(one.plan.token)
        async with await one.host.open_stream(target, invite.INVITE_PROTOCOL) as stream:
            await stream.send_all(frame(invite.encode_redeem(token)))
            one.sent["tokens of invitations"] += 1
            reader = FrameSplitter(1 << 10)
            for body in reader.feed(await stream.receive_some() or b""):
                one.sent[OPENED] += invite.decode_redemption(body) is invite.Redemption.ADMITTED
        await trio.sleep(0.5)


async def circuits_that_lie(one: Identity, target: PeerId) -> None:
    """Somebody comes by way of it, who is nobody: the bytes of the other end, or others, are given back."""
    for number in range(10):
        source = peer_of_did(SigningKey(os.urandom(32)).did)
        async with await one.host.open_stream(target, circuit.STOP) as stream:
            await stream.send_all(circuit.encode_stop(StopMessage(kind=StopKind.CONNECT, peer=source)))
            one.sent["circuits that lie"] += 1
            await give_back(stream, noise=number % 2 == 0)
        await trio.sleep(0.2)


async def give_back(stream: Stream, *, noise: bool) -> None:
    """For a second: what comes, after bytes that are no handshake if ``noise``."""
    with trio.move_on_after(1.0):
        if noise:
            await stream.send_all(b"\x13/multistream/1.0.0\n" + os.urandom(500))
        async for data in stream:
            await stream.send_all(data)


async def records_of_the_lookup(one: Identity, target: PeerId) -> None:
    """Of datasets that it does not have, so that whoever looks for them asks it; and to be noted near their keys."""
    for number in range(20):
        dataset = one.dataset if number % 2 else SigningKey(os.urandom(32)).dataset_id
        key, own = lookup_key(one.plan.network, dataset), (bytes([127, 0, 0, 1]), 1 + number)
        record = one.record(dataset) if number % 4 else os.urandom(200)
        for ask in (lookup.encode_store(lookup.Store(key=key, record=record, own=own)),
                    lookup.encode_find(lookup.Find(key=key, own=own))):  # fmt: skip
            async with await one.host.open_stream(target, lookup.LOOKUP_PROTOCOL) as stream:
                await stream.send_all(frame(ask))
                one.sent["records of the lookup"] += 1
                await stream.receive_some()


ATTACKS: tuple[Attack, ...] = (
    frames_of_subscriptions, floods_of_iwant, false_signatures, frames_of_the_muxer, silent_connections, free_keys,
    statements_of_free_keys, ranges_for_little, answers_half_read, questions_that_drip, listings, handshakes_half_done,
    questions_for_peers, tokens_of_invitations, circuits_that_lie, records_of_the_lookup,
)  # fmt: skip
"""Of an identity on a peer that it has connected to."""


async def heads_of_packs(plan: Plan, stream: trio.SocketStream, sent: Counter[str]) -> None:
    ask = f"HEAD /{plan.name}/packs/0 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    while True:
        await stream.send_all(ask)
        sent["HEAD of packs"] += 1
        if not await stream.receive_some():
            break
        await trio.sleep(1 / HEADS_A_SECOND)


async def requests_that_drip(_plan: Plan, stream: trio.SocketStream, sent: Counter[str]) -> None:
    for byte in b"GET / HTTP/1.1\r\nHost: " + b"x" * 600:
        await stream.send_all(bytes([byte]))
        sent["bytes that drip at the site"] += 1
        await trio.sleep(0.5)


OF_SITES: tuple[Attack, ...] = (heads_of_packs, requests_that_drip)
"""Of an address, on the site of one node."""


def _serves(one: Identity, key: SigningKey) -> bytes:
    """A presence of somebody who says to serve the dataset."""
    said = presence.Presence(key=key.public, issued=_now(), lifetime=3600, tags=(presence.tag_of(one.dataset),))
    return presence.seal(said, one.plan.network, key)


def _now() -> int:
    return instant.to_millis(Instant(time.time_ns()))


def _invented() -> tuple[LookupContact, ...]:
    return tuple(LookupContact(os.urandom(32), bytes([127, 0, 0, 1]), 1 + number) for number in range(8))


def head_of(about: DatasetId, key: SigningKey, size: int, root: bytes = b"", head: Multihash | None = None) -> bytes:
    """Of blocks that nobody has, unless they are said."""
    now = time.time_ns()
    said = HeadStatement(
        dataset=about, epoch=0, size=size, root_hash=root or os.urandom(32), authority=0,
        head=head or Multihash.sha3_256(os.urandom(8)),
        issued_at=statement.when(Instant(now)), expires_at=statement.when(Instant(now + 86_400 * instant.SECOND)),
    )  # fmt: skip
    return envelope.seal(statement.encode(said), key)
