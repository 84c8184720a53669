"""Circuits between real hosts: who listens nowhere is reached by way of a relay, which sees sealed bytes and serves
its network alone; one that lies or is gone costs nobody more than the circuit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from chain.statements.keys import SigningKey
from p2p.budget.connection_slots import FEW
from p2p.driver.namespaces import Namespaces
from p2p.driver.network import GossipHost, open_network
from p2p.driver.node_reach import NodeReach, ReachSettings
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.errors import PeerFault, PeerUnreachable, StreamBroken, WrongIdentity
from p2p.host.host import Host, open_host
from p2p.host.messages import read_message
from p2p.host.stream import Stream
from p2p.identity import peer_of_did
from p2p.machines.relay import RelayLimits
from p2p.ports import PeerId
from p2p.wire import circuit
from p2p.wire.circuit import HOP, STOP, CircuitStatus, HopKind, HopMessage, Limit, StopKind, StopMessage
from p2p.wire.reach import ASK, PUNCH
from worlds.eventually import PATIENCE, became

ANY_PORT = "/ip4/127.0.0.1/tcp/0"
WALL = 1_700_000_000_000_000_000
SECRET = b"what two peers tell each other " * 4000


class Nothing:
    """Library and statements of a node that has none."""

    def datasets(self, limit: int) -> Sequence[Any]:
        return []

    def interests(self) -> Sequence[Any]:
        return []

    def refs(self, datasets: Any = None) -> Sequence[Any]:
        return []

    def envelope(self, sid: Any) -> None:
        """Nobody asks for one."""


class Node:
    def __init__(
        self, host: Host, network: GossipHost, driver: ReplicationDriver, reach: NodeReach, life: trio.CancelScope
    ) -> None:
        self.host, self.network, self.driver, self.reach, self.life = host, network, driver, reach, life
        self.over = trio.Event()

    @property
    def circuits(self) -> list[str]:
        return [each for each in self.host.addresses() if "/p2p-circuit/" in each]

    async def echoes(self, peer: PeerId, data: bytes = b"are you there?") -> bool:
        """No more than fits into the window of a stream."""
        async with await self.host.open_stream(peer, "/echo") as stream:
            await stream.send_all(data)
            came = b""
            while len(came) < len(data):
                came += await stream.receive_some() or b"."
            return came == data


async def echo(stream: Stream, _peer: PeerId) -> None:
    async for data in stream:
        await stream.send_all(data)


class Nodes:
    """Opened one by one, each with a task of its own, so that one can be ended before the others."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    async def open(self, name: bytes, *listen: str, **settings: Any) -> Node:
        node: Node = await self._nursery.start(partial(self._run, name * 32, listen, settings))
        return node

    async def _run(
        self, seed: bytes, listen: Sequence[str], settings: dict[str, Any], task_status: Any = trio.TASK_STATUS_IGNORED
    ) -> None:
        nothing: Any = Nothing()
        networks, relay = settings.pop("networks", ("test",)), settings.pop("relay", None)
        with trio.CancelScope() as life:
            async with (
                open_host(seed, listen) as host,
                open_network(host) as network,
                trio.open_nursery() as nursery,
            ):
                chosen = ReplicationSettings(network="test", degree=0, **settings)
                key = SigningKey(seed)
                joined: dict[str, ReplicationDriver] = {}
                spaces = Namespaces(network)
                nursery.start_soon(spaces.run)
                for name in networks:
                    chosen = ReplicationSettings(network=name, degree=0, **settings)
                    own: Any = spaces.open(name)
                    joined[name] = ReplicationDriver(own, nothing, nothing, chosen, Random(1), lambda: WALL, key)
                reached = ReachSettings(relays=settings.get("relays", ()), relay=relay)
                reach = NodeReach(network, reached, Random(1), lambda: WALL, key, joined.values)
                host.set_handler("/echo", echo)
                for driver in joined.values():
                    await nursery.start(driver.run)  # type: ignore[arg-type]  # trio cannot name what it passes
                nursery.start_soon(reach.run)
                node = Node(host, network, joined[networks[0]], reach, life)
                task_status.started(node)
                await trio.sleep_forever()
        node.over.set()


@asynccontextmanager
async def world() -> AsyncIterator[Nodes]:
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            yield Nodes(nursery)
            nursery.cancel_scope.cancel()


async def behind(nodes: Nodes, name: bytes, *relays: Node) -> Node:
    """A node that listens nowhere and is told as reached by way of these."""
    node = await nodes.open(name, relays=tuple(relay.host.addresses()[0] for relay in relays))
    await became(lambda: len(node.circuits) == len(relays))
    return node


@pytest.mark.slow
async def test_who_listens_nowhere_is_reached_and_the_relay_sees_sealed_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-REACH-02: a relay that reads the traffic.

    Defence: noise from end to end, within the circuit.
    """
    async with world() as nodes:
        relay = await nodes.open(b"r", ANY_PORT, relay=RelayLimits())
        seen = bytearray()
        original = Stream.send_all

        async def tapped(stream: Stream, data: bytes) -> None:
            if stream.protocol in (HOP, STOP):
                seen.extend(data)
            await original(stream, data)

        monkeypatch.setattr(Stream, "send_all", tapped)
        alice = await behind(nodes, b"a", relay)
        bob = await nodes.open(b"b")
        assert await bob.driver.connect(alice.circuits[0]) == alice.host.peer_id
        assert await bob.echoes(alice.host.peer_id, SECRET)
        assert await alice.echoes(bob.host.peer_id), "it serves both ways"
        assert len(seen) > 2 * len(SECRET)
        assert SECRET[:31] not in seen
        figures = relay.reach.figures()
        assert (figures.reserved, figures.circuits) == (1, 1)
        assert "/p2p-circuit" in bob.host.peers()[alice.host.peer_id]
        assert alice.host.network_of(bob.host.peer_id) == "127.0.0.0/16", "where the relay is"
        await bob.host.disconnect(alice.host.peer_id)
        await became(lambda: relay.reach.figures().circuits == 0)
        await bob.driver.connect(alice.circuits[0])
        assert await bob.echoes(alice.host.peer_id)


async def ask(node: Host, relay: PeerId, message: bytes) -> int | None:
    async with await node.open_stream(relay, HOP) as stream:
        await stream.send_all(message)
        return circuit.decode_hop(await read_message(stream, relay, circuit.MAX_MESSAGE)).status


@pytest.mark.slow
async def test_strangers_are_not_served() -> None:
    """Attack T-REACH-02: unlisted peers that use a relay as an open proxy.

    Defence: it serves peers that signed a presence for its network, and chosen peers; it dials no peer.

    No open proxy: who is not in the relay's network, and was not chosen, neither reserves nor is led anywhere.
    """
    async with world() as nodes, open_host(b"s" * 32) as stranger:
        relay = await nodes.open(b"r", ANY_PORT, relay=RelayLimits())
        alice = await behind(nodes, b"a", relay)
        here = await stranger.connect(relay.host.addresses()[0])
        reserve = circuit.encode_hop(HopMessage(kind=HopKind.RESERVE))
        lead = circuit.encode_hop(HopMessage(kind=HopKind.CONNECT, peer=alice.host.peer_id))
        assert await ask(stranger, here, reserve) == CircuitStatus.PERMISSION_DENIED
        assert await ask(stranger, here, lead) == CircuitStatus.PERMISSION_DENIED
        assert await ask(stranger, here, b"\x03abc") == CircuitStatus.MALFORMED_MESSAGE
        assert await ask(stranger, here, b"\xff\xff\x7f") == CircuitStatus.MALFORMED_MESSAGE
        relay.network.choose([stranger.peer_id])
        status = circuit.encode_hop(HopMessage(kind=HopKind.STATUS, status=CircuitStatus.OK))
        assert await ask(stranger, here, status) == CircuitStatus.UNEXPECTED_MESSAGE
        assert await ask(stranger, here, reserve) == CircuitStatus.OK, "a person chose it"
        figures = relay.reach.figures()
        assert (figures.reserved, figures.circuits) == (2, 0)


@pytest.mark.slow
async def test_only_our_relays_bring_circuits() -> None:
    """Attack T-REACH-02: unsolicited circuits through any peer.

    Defence: only relays that hold a reservation of the node may open circuits to it.
    """
    async with world() as nodes, open_host(b"s" * 32) as stranger:
        relay = await nodes.open(b"r", ANY_PORT, relay=RelayLimits())
        alice = await nodes.open(b"a", ANY_PORT, relays=(relay.host.addresses()[0],))
        await became(lambda: alice.circuits)
        here = await stranger.connect(alice.host.addresses()[0])
        async with await stranger.open_stream(here, STOP) as stream:
            await stream.send_all(circuit.encode_stop(StopMessage(kind=StopKind.CONNECT, peer=stranger.peer_id)))
            said = circuit.decode_stop(await read_message(stream, here, circuit.MAX_MESSAGE))
        assert said.status == CircuitStatus.PERMISSION_DENIED


@pytest.mark.slow
async def test_a_relay_that_leads_to_another_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-REACH-02: a relay that connects to another peer.

    Defence: the remote key is checked against the address.
    """
    async with world() as nodes:
        relay = await nodes.open(b"r", ANY_PORT, relay=RelayLimits())
        alice, carol = await behind(nodes, b"a", relay), await behind(nodes, b"c", relay)
        bob = await nodes.open(b"b")
        server: Any = relay.reach.relay_server
        lead = server._lead
        monkeypatch.setattr(server, "_lead", lambda source, _: lead(source, alice.host.peer_id))
        with pytest.raises(WrongIdentity):
            await bob.driver.connect(carol.circuits[0])
        assert not bob.host.is_connected(carol.host.peer_id)


@pytest.mark.slow
async def test_a_circuit_ends_with_its_bytes_and_another_is_made() -> None:
    async with world() as nodes:
        limits = RelayLimits(circuit=Limit(60, 64 << 10))
        relay = await nodes.open(b"r", ANY_PORT, relay=limits)
        alice = await behind(nodes, b"a", relay)
        bob = await nodes.open(b"b")
        for _ in range(2):
            await bob.driver.connect(alice.circuits[0])
            with pytest.raises(StreamBroken):
                await bob.echoes(alice.host.peer_id, SECRET)
            await became(lambda: relay.reach.figures().circuits == 0)
            await became(lambda: not bob.host.is_connected(alice.host.peer_id))


@pytest.mark.slow
async def test_a_relay_that_is_killed_is_told_to_nobody_and_another_leads_on() -> None:
    """Attack T-REACH-02: a relay that drops, refuses or dies.

    Defence: it is not announced any more; others are used beside it.
    """
    async with world() as nodes:
        one, other = [await nodes.open(name, ANY_PORT, relay=RelayLimits()) for name in (b"1", b"2")]
        alice = await behind(nodes, b"a", one, other)
        bob = await nodes.open(b"b")
        dead = next(each for each in alice.circuits if str(one.host.peer_id) in each)
        await bob.driver.connect(dead)
        one.life.cancel()
        await one.over.wait()
        await became(lambda: len(alice.circuits) == 1)
        await became(lambda: not bob.host.is_connected(alice.host.peer_id))
        with pytest.raises(PeerFault):
            await bob.driver.connect(dead)
        await bob.driver.connect(alice.circuits[0])
        assert await bob.echoes(alice.host.peer_id)


@pytest.mark.slow
async def test_a_relay_leads_to_nobody_by_way_of_itself() -> None:
    async with world() as nodes:
        relay = await nodes.open(b"r", ANY_PORT, relay=RelayLimits())
        carol = await nodes.open(b"c")
        address = f"{relay.host.addresses()[0]}/p2p-circuit/p2p/{carol.host.peer_id}"
        with pytest.raises(PeerUnreachable, match="through this node"):
            await relay.driver.connect(address)
        bob = await nodes.open(b"b")
        with pytest.raises(PeerUnreachable, match="NO_RESERVATION"):
            await bob.driver.connect(address)


@pytest.mark.slow
async def test_what_is_of_the_host_is_there_for_peers_of_each_network() -> None:
    """The relay is in two networks, whose members meet nowhere else; each reserves, is seen, and may ask."""
    async with world() as nodes:
        relay = await nodes.open(b"r", ANY_PORT, relay=RelayLimits(), networks=("first", "second"))
        there = (relay.host.addresses()[0],)
        for name, network in ((b"a", "first"), (b"b", "second")):
            node = await nodes.open(name, relays=there, networks=(network,))
            await became(lambda node=node: node.circuits)
            await became(lambda node=node: node.host.peer_id in relay.reach.autonat.sightings)
            for protocol in (ASK, PUNCH):
                await (await node.host.open_stream(relay.host.peer_id, protocol)).reset()
        assert relay.reach.figures().reserved == 2
        stranger = await nodes.open(b"s", relays=there, networks=("third",))
        await became(lambda: stranger.host.is_connected(relay.host.peer_id))
        reserve = circuit.encode_hop(HopMessage(kind=HopKind.RESERVE))
        assert await ask(stranger.host, relay.host.peer_id, reserve) == CircuitStatus.PERMISSION_DENIED


@pytest.mark.slow
async def test_a_hostile_relay_brings_as_many_strangers_as_its_address_may_have() -> None:
    """Attack T-REACH-02: a relay of this node that brings unlisted peers without end.

    Defence: a peer that comes through a relay counts for the address of the relay, in connections and in work.

    It leads whoever it likes, by keys that cost nothing: they all count for the relay's address.
    """
    async with world() as nodes, AsyncExitStack() as stack:
        endless = RelayLimits(of_line=1000, of_prefix=1000, of_peer=1000)
        relay = await nodes.open(b"r", ANY_PORT, relay=endless)
        alice = await behind(nodes, b"a", relay)
        eves = [await stack.enter_async_context(open_host(bytes([number + 1]) * 32)) for number in range(8)]
        relay.network.choose([eve.peer_id for eve in eves])
        swarm = alice.host.base.get_network()
        swarm.slots._of_host = FEW
        for eve in eves:
            with suppress(PeerFault):
                await eve.connect(relay.host.addresses()[0])
                await eve.connect(alice.circuits[0])
        assert {place.party.host for place in swarm.slots._taken.values()} == {"127.0.0.1"}
        assert swarm.turned_away > 0, "more came than that"
        most = FEW + 1
        assert len(swarm.slots) == most, "the relay itself is one that alice dialled"
        assert alice.host.is_connected(relay.host.peer_id), "and is not displaced by those that it brings"


@pytest.mark.slow
async def test_who_a_relay_says_is_there_is_only_believed_by_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-REACH-02: a relay that names a friend as the source of a circuit, and leads to another peer.

    Defence: the name is only a reason to refuse early; the handshake within the circuit proves the key of the other
    end.

    The relay names a friend as the source of a circuit, and leads a stranger.
    """
    async with world() as nodes:
        relay = await nodes.open(b"r", ANY_PORT, relay=RelayLimits())
        alice, friend, eve = await behind(nodes, b"a", relay), await nodes.open(b"f"), await nodes.open(b"e")
        alice.network.choose([friend.host.peer_id])
        server: Any = relay.reach.relay_server
        lead = server._lead
        monkeypatch.setattr(server, "_lead", lambda _, target: lead(friend.host.peer_id, target))
        await eve.driver.connect(alice.circuits[0])
        assert await eve.echoes(alice.host.peer_id)
        assert alice.host.is_connected(eve.host.peer_id)
        assert not alice.host.is_connected(friend.host.peer_id)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["mirror", "noise", "end"])
async def test_a_relay_that_answers_a_circuit_itself_is_found_out(way: str) -> None:
    """Attack T-REACH-02: a relay that answers a circuit itself: with the caller's own bytes, with others, or by ending
    it.

    Defence: whatever the handshake raises is the fault of that dial, and nothing of it stays.

    It says that it leads to carol, and gives back the caller's own bytes, or others, or ends: nothing stays.
    """
    async with world() as nodes, open_host(b"m" * 32, [ANY_PORT]) as relay:
        bob = await nodes.open(b"b")
        carol = SigningKey(b"c" * 32)

        async def answer(stream: Stream, peer: PeerId) -> None:
            await read_message(stream, peer, circuit.MAX_MESSAGE)
            await stream.send_all(circuit.encode_hop(HopMessage(kind=HopKind.STATUS, status=CircuitStatus.OK)))
            if way == "noise":
                await stream.send_all(b"\x13/multistream/1.0.0\n" + bytes(500))
            async for data in stream:
                if way == "end":
                    return
                if way == "mirror":
                    await stream.send_all(data)

        relay.set_handler(HOP, answer)
        swarm = bob.host.base.get_network()
        before = len(swarm.slots)
        target = peer_of_did(carol.did)
        with pytest.raises(PeerFault):
            await bob.driver.connect(f"{relay.addresses()[0]}/p2p-circuit/p2p/{target}")
        assert not bob.host.is_connected(target)
        assert len(swarm.slots) <= before + 1, "the relay alone"
