"""Strangers against daemons with their own settings: what they take is bounded, and honest service goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from threading import Event
from typing import Any

import pytest
import trio

from odfd.cli.kinds import with_state
from p2p.errors import PeerFault
from p2p.host.host import Host, open_host
from p2p.host.stream import BrokenStream, Stream
from p2p.ports import PeerId
from p2p.wire.circuit import CircuitStatus, HopKind, HopMessage
from p2p.wire.reach import LEAST_DATA, DialDataRequest, ResponseStatus
from worlds.eventually import PATIENCE, until
from worlds.hostile import from_address, joins, processor_seconds, subscriptions
from worlds.hostile_members import PORT, asks_for_dial, connected, hop, reserves
from worlds.manifests import ROOT
from worlds.nat_world import Internet, NoNat, Place, open_internet

# Programs of a few dozen lines against a daemon with its own settings: what they take of it is bounded. Many
# addresses are those of 127.0.0.0/8. What is measured is the processor's time of the daemon, never the wall's.


pytestmark = pytest.mark.e2e
NETWORK = "hostile"
HEADS = f"/odf/1/{NETWORK}/heads"
MESHSUB = "/meshsub/1.2.0"


async def swallow(stream: Stream, _peer: PeerId) -> None:
    async for _ in stream:
        pass


def attacked(daemon: Any, attack: Callable[[Host, PeerId, str], Awaitable[None]]) -> float:
    """Seconds of the processor that an attack by a stranger costs; afterwards the daemon answers."""
    daemon.ask("network", "join", NETWORK)
    address = daemon.ask("status")["listen"][0]

    async def mount() -> float:
        with trio.fail_after(PATIENCE):
            async with open_host(b"e" * 32) as eve:
                for version in ("1.1.0", "1.2.0"):
                    eve.set_handler(f"/meshsub/{version}", swallow)
                peer = await eve.connect(address)
                await eve.ping(peer)
                before = processor_seconds(daemon.process.pid)
                with suppress(BrokenStream):
                    await attack(eve, peer, address)
                return before

    before = trio.run(mount)
    assert daemon.lives
    return processor_seconds(daemon.process.pid) - before


def test_two_frames_of_gossip_cost_a_node_a_moment(make_daemon: Callable[..., Any]) -> None:
    """Attack T-PEER-04: costly gossip frames against a daemon as installed.

    Defence: two frames take much less time than its watchdog allows.

    25 seconds of a node's loop, longer than systemd waits for a sign of life.
    """

    async def join_and_leave(eve: Host, peer: PeerId, _address: str) -> None:
        stream = await eve.open_stream(peer, MESHSUB)
        await stream.send_all(joins(HEADS, graft=True))
        for _ in range(2):
            await stream.send_all(subscriptions(HEADS, 2400))
        await eve.ping(peer)

    daemon = make_daemon(listens=True, small=True).start()
    assert attacked(daemon, join_and_leave) < 4.0


def test_silent_connections_and_free_keys_keep_nobody_out_of_a_node(make_daemon: Callable[..., Any]) -> None:
    """Attack T-PEER-03: silent connections of many addresses, and a key for each connection, against a daemon as
    installed.

    Defence: an honest peer connects, and the daemon uses little processor time.

    Sixty-three connections that say nothing shut everyone out; so did sixty-four keys.
    """

    async def crowd(eve: Host, peer: PeerId, address: str) -> None:
        port = int(address.split("/")[4])
        async with AsyncExitStack() as stack:
            for number in range(20):
                other = await stack.enter_async_context(open_host(bytes([number + 1]) * 32))
                with from_address("127.0.1.1"), suppress(PeerFault):
                    await other.connect(address)
            for number in range(160):
                source = f"127.0.{2 + number % 4}.{1 + number // 4}"
                stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=source)
                stack.push_async_callback(stream.aclose)
            honest = await stack.enter_async_context(open_host(b"h" * 32))
            with from_address("127.0.9.9"):
                await honest.connect(address)
            await honest.ping(peer)

    daemon = make_daemon(listens=True, small=True).start()
    assert attacked(daemon, crowd) < 6.0


# Daemons in namespaces whose addresses count as of the Internet, attacked by strangers: honest service goes on.


TOWN = "town"


@pytest.fixture
def internet() -> Iterator[Internet]:
    try:
        with open_internet() as net:
            yield net
    except NoNat as reason:
        pytest.skip(f"no namespaces can be made here: {reason}")


def started(make: Callable[..., Any], name: str, place: Place, *bootstrap: str, **settings: str) -> Any:
    daemon = make(name, ODFD_NODE_NAME=name, ODFD_P2P_LISTEN=f"/ip4/0.0.0.0/tcp/{PORT}", **settings)
    daemon.small, daemon.inside = True, place.namespaces
    daemon.start()
    daemon.ask("network", "join", TOWN, *(word for each in bootstrap for word in ("--bootstrap", each)))
    return daemon


def address_of(daemon: Any) -> str:
    return str(next(each for each in daemon.ask("status")["listen"] if each.startswith("/ip4/20.")))


def published(daemon: Any) -> str:
    (daemon.folder / "1.csv").write_text("event_time,city,population\n2024-01-01T00:00:00Z,c1,7\n")
    (daemon.folder / "m.yaml").write_text(ROOT)
    daemon.ask("apply", "-f", str(daemon.folder / "m.yaml"))
    daemon.ask("pull", "cities")
    return str(daemon.dataset("cities")["id"])


def sources_at(place: Place, blocks: int, hosts: int) -> list[str]:
    """More addresses of a place: so many in each of so many /24s; the first is the one that it has."""
    operator = place.address.rpartition(".0.1")[0]
    found = [f"{operator}.{block}.{host}" for block in range(blocks) for host in range(1, hosts + 1)]
    for each in found[1:]:
        place.run("ip", "address", "add", f"{each}/8", "dev", "wan")
    return found


@contextmanager
def counting(place: Place) -> Iterator[Counter[str]]:
    """Counts connections, and the bytes that come over them before anything is answered; then closes them."""
    seen, ready, ends = Counter[str](), Event(), list[Callable[[], None]]()

    async def heard(stream: trio.SocketStream) -> None:
        seen["dials"] += 1
        async with stream:
            with suppress(trio.BrokenResourceError):
                seen["bytes"] += len(await stream.receive_some())

    async def listen() -> None:
        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_tcp, heard, PORT)
            ends.append(lambda: trio.from_thread.run_sync(nursery.cancel_scope.cancel, trio_token=token))
            ready.set()

    listening = place.within(listen)
    assert ready.wait(PATIENCE)
    try:
        yield seen
    finally:
        ends[0]()
        listening.result(PATIENCE)


@pytest.mark.slow
def test_squatters_and_hogs_of_a_relay_leave_room_for_others(
    internet: Internet, make_daemon: Callable[..., Any]
) -> None:
    """Attack T-REACH-02: squatting on reservations, and circuits that flood, at a daemon with its own settings, while
    two others need it.

    Defence: eight reservations of a line and sixteen of a block; the flood has its share of the bytes, and a node
    behind a router mirrors through the relay meanwhile.

    One operator's keys reserve and hold circuits to the limits of its addresses, and send what nobody reads.
    """
    relay = started(make_daemon, "relay", internet.public(), ODFD_P2P_RELAY="true")
    there = address_of(relay)
    home = started(make_daemon, "home", internet.home("symmetric"), there, ODFD_P2P_RELAYS=there)
    dataset, target = published(home), PeerId(home.ask("status")["peerId"])
    until(lambda: relay.ask("status")["reserved"] == 1)
    mallory = internet.public()
    sources = sources_at(mallory, 1, 10)
    got: Counter[tuple[str, object]] = Counter()

    def reads() -> None:
        reader = started(make_daemon, "reader", internet.home("symmetric"), there, ODFD_P2P_RELAYS=there)
        assert with_state(reader.ask("mirror", "add", dataset, "--as", "cities"))["state"] == "current"

    async def flood(stream: Any) -> None:
        with suppress(PeerFault, trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                await stream.send_all(bytes(1 << 16))
                got["sent", "MiB"] += 1

    async def attack() -> None:
        circuits = []
        async with AsyncExitStack() as stack:
            stranger = await stack.enter_async_context(connected(99, sources[0], there))
            got["stranger", await reserves(*stranger)] += 1
            for number in range(18):
                source = sources[max(0, number - 8)]
                member = await stack.enter_async_context(connected(number, source, there, TOWN))
                got["one line" if source == sources[0] else "its block", await reserves(*member)] += 1
                for _ in range(3 if number < 6 else 1):
                    status, stream = await hop(*member, HopMessage(kind=HopKind.CONNECT, peer=target))
                    got["circuit", status] += 1
                    if status == CircuitStatus.OK:
                        circuits.append(stream)
            async with trio.open_nursery() as nursery:
                for stream in circuits:
                    nursery.start_soon(flood, stream)
                await trio.to_thread.run_sync(reads)
                nursery.cancel_scope.cancel()

    mallory.within(attack).result(PATIENCE)
    assert got["stranger", False] == 1
    assert (got["one line", True], got["its block", True], got["its block", False]) == (8, 8, 1)
    assert got["circuit", CircuitStatus.OK] > 0
    assert got["circuit", CircuitStatus.RESOURCE_LIMIT_EXCEEDED] > 0
    assert got["sent", "MiB"] > 0


@pytest.mark.slow
def test_a_daemon_that_dials_back_is_no_weapon_and_serves_whom_strangers_name(
    internet: Internet, make_daemon: Callable[..., Any]
) -> None:
    """Attack T-REACH-01: aimed and unpaid dial-backs against a daemon with its own settings, from five subnets.

    Defence: the victim is dialled when it asks for itself, and once for each price of 30 kB or more; nothing for unpaid
    questions.

    Questions that are never paid are held open from many blocks; then one is paid.
    """
    there = address_of(started(make_daemon, "server", internet.public()))
    victim, mallory = internet.public(), internet.public()
    sources = sources_at(mallory, 5, 2)
    named = f"/ip4/{victim.address}/tcp/{PORT}"
    got: Counter[object] = Counter()

    async def asks_itself() -> None:
        async with connected(500, victim.address, there) as member:
            answer, paid = await asks_for_dial(*member, named)
            got["itself", answer.status, paid] += 1

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            members = [
                await stack.enter_async_context(connected(number, source, there))
                for number, source in enumerate(sources)
            ]
            for private in ("127.0.0.1", "10.0.0.1"):
                answer, _ = await asks_for_dial(*members[0], f"/ip4/{private}/tcp/{PORT}")
                got["private", answer.status] += 1
            held = await stack.enter_async_context(trio.open_nursery())
            for host, peer in members[:8]:
                answer, _ = await asks_for_dial(host, peer, named, pays=False, held=held)
                got["unpaid", type(answer)] += 1
            await trio.to_thread.run_sync(lambda: victim.within(asks_itself).result(PATIENCE))
            answer, got["bytes"] = await asks_for_dial(*members[-1], named)
            got["paid", answer.status] += 1
            held.cancel_scope.cancel()

    with counting(victim) as seen:
        mallory.within(attack).result(PATIENCE)
    assert got["private", ResponseStatus.DIAL_REFUSED] == 2
    assert got["unpaid", DialDataRequest] == 8, "they may pay, and do not"
    assert got["itself", ResponseStatus.OK, 0] == 1, "whoever is named may ask for itself meanwhile"
    assert seen["dials"] == 1 + got["paid", ResponseStatus.OK], "nothing for nothing"
    assert got["bytes"] >= LEAST_DATA * got["paid", ResponseStatus.OK] > 0
    assert seen["bytes"] < got["bytes"] / 10
