"""Networks: who is let in, and whose names count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio

from chain.errors import Environment
from p2p.driver.invites import OF_ALL, OF_ONE, PATIENCE, InvitationDesk
from p2p.driver.namespaces import HELLO_SECONDS, Namespaces, members_topic, scope_protocol
from p2p.driver.ports import ConnectionChange
from p2p.errors import Misbehaviour, PeerUnreachable, ProtocolUnsupported, StreamBroken, TooSlow
from p2p.ports import PeerId
from p2p.wire.frames import frame
from p2p.wire.invite import INVITE_PROTOCOL, Redemption, encode_redeem

# Several networks on one host: each sees its own peers, topics and streams, and nothing of the others.

ANN, BEN = PeerId("ann"), PeerId("ben")
CHAIN = "/odf/1/chain"


class Host:
    """A host whose peers say what a test says."""

    peer_id = PeerId("me")
    chosen: frozenset[PeerId] = frozenset()

    def __init__(self) -> None:
        self.connected: dict[PeerId, str] = {}
        self.said: dict[PeerId, set[str]] = {}
        self.handlers: dict[str, Callable[[Any, PeerId], Awaitable[None]]] = {}
        self.joined: set[str] = set()
        self.opened: list[tuple[PeerId, str]] = []
        self.old: set[PeerId] = set()
        self.hang_up: set[str] = set()
        self.room: tuple[Any, ...] = ()
        self.hello = trio.Event()
        self.changes: Any
        self._read: Any
        self.changes, self._read = trio.open_memory_channel[ConnectionChange](9)

    def peers(self) -> dict[PeerId, str]:
        return self.connected

    def is_member(self, peer: PeerId, topic: str) -> bool:
        return topic in self.said.get(peer, ())

    def is_in_some(self, peer: PeerId) -> bool:
        return bool(self.said.get(peer))

    def say(self, peer: PeerId, *networks: str) -> None:
        self.said[peer] = {members_topic(one) for one in networks}
        self.hello.set()
        self.hello = trio.Event()

    def up(self, peer: PeerId, *networks: str) -> None:
        self.connected[peer] = ""
        self.said[peer] = {members_topic(one) for one in networks}
        self.changes.send_nowait(ConnectionChange(peer, up=True))

    def is_connected(self, peer: PeerId) -> bool:
        return peer in self.connected

    async def connect(self, multiaddr: str, *_others: str, allows: Any) -> PeerId:
        """The one who hangs up has done so when the dial is over."""
        await trio.lowlevel.checkpoint()
        if multiaddr not in self.hang_up:
            self.up(PeerId(multiaddr))
        return PeerId(multiaddr)

    def down(self, peer: PeerId) -> None:
        del self.connected[peer]
        self.changes.send_nowait(ConnectionChange(peer, up=False))

    async def next_change(self) -> ConnectionChange:
        change: ConnectionChange = await self._read.receive()
        return change

    async def next_hello(self) -> None:
        await self.hello.wait()

    async def join(self, topic: str, _validator: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.joined.add(topic)

    async def leave(self, topic: str) -> None:
        await trio.lowlevel.checkpoint()
        self.joined.discard(topic)

    def set_handler(self, protocol: str, handler: Any) -> None:
        self.handlers[protocol] = handler

    def drop_handler(self, protocol: str) -> None:
        self.handlers.pop(protocol, None)

    def choose(self, *room: Any) -> None:
        self.room = tuple(set(each) for each in room)

    async def open_stream(self, peer: PeerId, protocol: str) -> Any:
        await trio.lowlevel.checkpoint()
        if peer in self.old and protocol != CHAIN:
            raise ProtocolUnsupported(peer, "does not speak it")
        self.opened.append((peer, protocol))


class Stream:
    def __init__(self) -> None:
        self.was_reset = False

    async def reset(self) -> None:
        await trio.lowlevel.checkpoint()
        self.was_reset = True


async def serve(_stream: Any, _peer: PeerId) -> None:
    await trio.lowlevel.checkpoint()


async def test_while_one_network_is_joined_all_peers_are_in_it(autojump_clock: Any) -> None:
    """As before there were several: also a peer that joined no topic, and on streams that name nothing."""
    host: Any = Host()
    networks = Namespaces(host)
    one = networks.open("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(networks.run)
        host.up(ANN)
        assert await one.next_change() == ConnectionChange(ANN, up=True)
        assert list(one.peers()) == [ANN]
        await one.open_stream(ANN, CHAIN)
        assert host.opened == [(ANN, CHAIN)]
        host.down(ANN)
        assert await one.next_change() == ConnectionChange(ANN, up=False)
        host.up(BEN, "b")
        host.up(ANN, "a")
        assert await one.next_change() == ConnectionChange(ANN, up=True)
        assert list(one.peers()) == [ANN], "ben says that he is in another, and would be blamed for its words"
        nursery.cancel_scope.cancel()


async def test_each_network_sees_its_members_alone(autojump_clock: Any) -> None:
    host: Any = Host()
    networks = Namespaces(host)
    a, b = networks.open("a"), networks.open("b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(networks.run)
        host.up(ANN, "a")
        host.up(BEN)
        assert await a.next_change() == ConnectionChange(ANN, up=True)
        assert (list(a.peers()), list(b.peers())) == ([ANN], [])
        with pytest.raises(PeerUnreachable, match="not in b"):
            await b.open_stream(ANN, CHAIN)
        assert host.opened == [], "the name of b was not told to ann"
        host.say(BEN, "b")
        assert await b.next_change() == ConnectionChange(BEN, up=True)
        host.say(BEN, "a")
        assert await b.next_change() == ConnectionChange(BEN, up=False)
        assert await a.next_change() == ConnectionChange(BEN, up=True)
        nursery.cancel_scope.cancel()


async def test_a_network_that_is_joined_later_divides_who_is_connected(autojump_clock: Any) -> None:
    host: Any = Host()
    networks = Namespaces(host)
    a = networks.open("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(networks.run)
        host.up(ANN)
        assert (await a.next_change()).up
        host.say(ANN, "b")
        assert not (await a.next_change()).up
        b = networks.open("b")
        assert await b.next_change() == ConnectionChange(ANN, up=True)
        host.say(ANN, "a", "b")
        assert await a.next_change() == ConnectionChange(ANN, up=True)
        nursery.cancel_scope.cancel()


async def test_streams_name_their_network_where_there_are_several() -> None:
    host: Any = Host()
    host.connected = {ANN: "", BEN: ""}
    host.say(ANN, "a", "b")
    host.say(BEN, "b")
    host.old = {BEN}
    networks = Namespaces(host)
    networks.open("a")
    b = networks.open("b")
    for peer in (ANN, BEN):
        await b.open_stream(peer, CHAIN)
    assert host.opened == [(ANN, scope_protocol(CHAIN, "b")), (BEN, CHAIN)]


async def test_who_names_a_network_is_served_in_it(autojump_clock: Any) -> None:
    host: Any = Host()
    host.connected = {ANN: "", BEN: ""}
    networks = Namespaces(host)
    served: list[tuple[str, PeerId]] = []
    for name in ("a", "b"):

        async def answer(_stream: Any, peer: PeerId, name: str = name) -> None:
            await trio.lowlevel.checkpoint()
            served.append((name, peer))

        networks.open(name).set_handler(CHAIN, answer)
    await host.handlers[scope_protocol(CHAIN, "b")](Stream(), ANN)
    host.say(BEN, "a")
    await host.handlers[CHAIN](Stream(), BEN)
    await host.handlers[CHAIN](Stream(), ANN)
    assert served == [("b", ANN), ("a", BEN), ("b", ANN)], "who named b once is in it"


async def test_a_stream_of_a_peer_of_no_network_is_refused_after_a_while(autojump_clock: Any) -> None:
    """Attack T-PRIVATE-03: streams of a peer in no network, while several are joined.

    Defence: refused after two seconds in which the peer may declare its network.

    It may say in time where it is.
    """
    host: Any = Host()
    host.connected = {ANN: "", BEN: ""}
    networks = Namespaces(host)
    for name in ("a", "b"):
        networks.open(name).set_handler(CHAIN, serve)
    late, never = Stream(), Stream()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.handlers[CHAIN], never, ANN)
        nursery.start_soon(host.handlers[CHAIN], late, BEN)
        await trio.sleep(HELLO_SECONDS / 2)
        host.say(BEN, "b")
    assert (late.was_reset, never.was_reset) == (False, True)


async def test_a_network_that_is_left_leaves_nothing_behind() -> None:
    host: Any = Host()
    networks = Namespaces(host)
    a, b = networks.open("a"), networks.open("b")
    for each, peer in ((a, ANN), (b, BEN)):
        each.set_handler(CHAIN, serve)
        await each.join(each.topic, serve)  # type: ignore[arg-type]
        each.choose([peer])
    assert host.room == ({ANN, BEN}, set(), set())
    await networks.close("b")
    assert (set(host.handlers), host.joined, host.room[0]) == ({CHAIN, scope_protocol(CHAIN, "a")}, {a.topic}, {ANN})
    await networks.close("a")
    assert (host.handlers, host.joined) == ({}, set())


async def test_a_peer_that_goes_before_it_says_where_it_is_is_told_of(autojump_clock: Any) -> None:
    """A daemon that stops may take a dial and end before its first word: each network that dialled it dials again."""
    host: Any = Host()
    networks = Namespaces(host)
    a, b = networks.open("a"), networks.open("b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(networks.run)
        for each in (a, b):
            assert await each.connect(ANN, allows=lambda _: True) == ANN
        assert (list(a.peers()), a.is_connected(ANN)) == ([], True), "not known to be in it"
        host.down(ANN)
        for each in (a, b):
            assert await each.next_change() == ConnectionChange(ANN, up=False)
        host.hang_up = {BEN}
        with pytest.raises(PeerUnreachable, match="hung up"):
            await a.connect(BEN, allows=lambda _: True)
        nursery.cancel_scope.cancel()


# The desk of invitations: a token is redeemed by the peer that the connection proves, within bounds, to its end.

TOKEN = bytes(range(32))


class Two:
    """Who invites, and joiners that are connected with it."""

    def __init__(self, town: Any, joiners: int = 1) -> None:
        fabric = town.fabric
        self.asked: list[tuple[PeerId, bytes]] = []
        self.answer: Any = Redemption.ADMITTED
        self.inviter = fabric.host("alice")
        InvitationDesk(self.inviter, self._redeem).join()
        self.joiners = [fabric.host(f"joiner{number}") for number in range(joiners)]
        self.desks = [InvitationDesk(each, self._redeem) for each in self.joiners]
        for each in self.joiners:
            fabric.join(each, self.inviter)

    def _redeem(self, peer: PeerId, token: bytes) -> Redemption:
        self.asked.append((peer, token))
        if isinstance(self.answer, Exception):
            raise self.answer
        return Redemption(self.answer)

    async def ask(self, number: int = 0) -> Redemption:
        return await self.desks[number].ask(self.inviter.peer_id, TOKEN)


@pytest.mark.parametrize("outcome", Redemption)
async def test_each_outcome_is_told(outcome: Redemption, town: Any, autojump_clock: Any) -> None:
    """Attack T-INVITE-01: a token that is redeemed in the name of another node.

    Defence: the joiner is the peer that the connection proves.
    """
    two = Two(town)
    two.answer = outcome
    assert await two.ask() is outcome
    assert two.asked == [(two.joiners[0].peer_id, TOKEN)], "who asks is who is connected"


async def test_a_disk_that_fails_is_told_as_busy(town: Any, autojump_clock: Any) -> None:
    two = Two(town)
    two.answer = Environment("no space", rule="disk")
    assert await two.ask() is Redemption.BUSY


@pytest.mark.slow
async def test_tokens_are_not_guessed_at_any_speed(town: Any, autojump_clock: Any) -> None:
    """Attack T-INVITE-01: guessing tokens, or asking without end.

    Defence: tokens have 256 random bits; a budget of questions for each peer and for all.

    One peer has a budget, and so have all together: what is beyond it is not looked up.
    """
    two = Two(town, joiners=20)
    said = [await two.ask() for _ in range(30)]
    assert said.count(Redemption.ADMITTED) == len(two.asked) == OF_ONE.burst
    assert await two.ask(1) is Redemption.ADMITTED, "others have their own"
    for number in range(20):
        for _ in range(8):
            await two.ask(number)
    assert len(two.asked) <= OF_ALL.burst + OF_ALL.per_second * (trio.current_time() + 1)


async def ended(stream: Any) -> None:
    with suppress(StreamBroken):
        while await stream.receive_some(1):
            pass


async def test_who_says_nothing_or_too_much_is_let_go(town: Any, autojump_clock: Any) -> None:
    """Attack T-INVITE-01: a stream of the token protocol that says nothing, or more than a token.

    Defence: it ends after ten seconds, or at 33 bytes.
    """
    two = Two(town)
    for sent in (b"", frame(b"\x01" + bytes(31)), frame(b"\x02" + bytes(32)), b"\xff\xff\xff\xff" + bytes(64)):
        stream = await two.joiners[0].open_stream(two.inviter.peer_id, INVITE_PROTOCOL)
        if sent:
            await stream.send_all(sent)
        with trio.fail_after(PATIENCE + 1):
            await ended(stream)
    assert two.asked == []


async def test_an_answer_that_is_none_is_a_violation_and_silence_ends(town: Any, autojump_clock: Any) -> None:
    two = Two(town)
    answers: list[bytes] = [frame(b"\x81\x09"), frame(b"\x01\x00"), frame(encode_redeem(TOKEN))]

    async def lie(stream: Any, _peer: PeerId) -> None:
        if not answers:
            await trio.sleep_forever()
        await stream.send_all(answers.pop(0))

    two.inviter.set_handler(INVITE_PROTOCOL, lie)
    for _ in range(3):
        with pytest.raises(Misbehaviour):
            await two.ask()
    with pytest.raises(TooSlow):
        await two.ask()
