"""A host: who it is, and of what parts."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import ipaddress
import itertools
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import p2p.host  # noqa: F401  it prepares the library for what follows

# isort: split
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V12
from multiaddr import Multiaddr
from noise.connection import Keypair, NoiseConnection

from chain.errors import Invalid
from chain.statements.keys import SigningKey
from p2p.address import PeerAddress, network_of, parse_address
from p2p.budget import connection_slots
from p2p.budget.connection_slots import SilentConnections
from p2p.errors import BadAddress, Misbehaviour, PeerUnreachable, UnsupportedLibrary
from p2p.host import library
from p2p.host.direct import Circuits
from p2p.host.hardening import ID, MAX_PEERS, assemble, ed25519_pair
from p2p.host.host import Notices, PeerConnected, PeerDisconnected
from p2p.host.interfaces import can_listen, local_ips, reachable_at
from p2p.host.limits import HostLimits, UnreadBudget
from p2p.host.noise import AES, CHACHA, MAX_SEALED, RECEIVE, Cipher, NoiseStream, Scratch, Suite, Unsealer, computes_aes
from p2p.host.pubsub import HEARTBEAT, SteadyGossipSub
from p2p.identity import did_of_peer, did_of_seed, parse_peer, peer_of_did, peer_of_seed
from p2p.pace import LineTraffic, Traffic
from p2p.ports import PeerId
from p2p.wire.circuit import CircuitStatus, HopKind, HopMessage, StopKind, StopMessage, encode_hop, encode_stop

# Who a host is, where it is, and whom it knows.


# One key, three spellings; addresses are understood or explained.

# RFC 8032 section 7.1, test 1; the peer id is what go-libp2p makes of the key.
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


def test_the_seed_of_the_rfc() -> None:
    did = did_of_seed(SEED)
    assert did.public_key.hex() == PUBLIC
    assert str(did).startswith("did:key:z6Mk")
    assert peer_of_seed(SEED).startswith("12D3KooW")


def test_the_library_gives_the_same_peer_id() -> None:
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID

    assert str(ID.from_pubkey(create_new_key_pair(SEED).public_key)) == peer_of_seed(SEED)


@given(st.binary(min_size=32, max_size=32))
def test_there_and_back(seed: bytes) -> None:
    did = did_of_seed(seed)
    peer = peer_of_did(did)
    assert did_of_peer(peer) == did
    assert parse_peer(peer) == peer
    address = f"/ip4/192.0.2.1/tcp/4001/p2p/{peer}"
    assert str(parse_address(address)) == address


@pytest.mark.slow
@given(st.text(max_size=80))
def test_any_text_is_a_peer_id_or_invalid(text: str) -> None:
    try:
        peer = parse_peer(text)
    except Invalid:
        return
    assert peer == text


def test_an_address_by_way_of_a_relay() -> None:
    relay, peer = peer_of_seed(SEED), peer_of_seed(bytes(32))
    text = f"/ip4/192.0.2.1/tcp/4001/p2p/{relay}/p2p-circuit/p2p/{peer}"
    address = parse_address(text)
    assert (str(address), address.relay, address.peer, address.host) == (text, relay, peer, "192.0.2.1")
    assert str(address.of_relay) == f"/ip4/192.0.2.1/tcp/4001/p2p/{relay}"
    assert parse_address(address.transport) == PeerAddress("ip4", "192.0.2.1", 4001, None, relay)
    assert address.ip is not None
    assert address.at(address.ip) == address


@pytest.mark.parametrize(
    "text",
    ["/p2p-circuit/p2p/{0}", "/ip4/1.2.3.4/tcp/1/p2p-circuit/p2p/{0}", "/ip4/1.2.3.4/tcp/1/p2p/{0}/p2p-circuit/p2p/{0}",
     "/ip4/1.2.3.4/tcp/1/p2p/{1}/p2p-circuit/p2p/{0}/p2p-circuit/p2p/{0}", "/ip4/1.2.3.4/tcp/1/p2p/x/p2p-circuit",
     "/ip4/1.2.3.4/tcp/1/p2p/{1}/p2p-circuit/p2p-circuit"],
)  # fmt: skip
def test_a_circuit_goes_by_one_relay_that_is_named(text: str) -> None:
    with pytest.raises(BadAddress) as refused:
        parse_address(text.format(peer_of_seed(SEED), peer_of_seed(bytes(32))))
    assert refused.value.hint


@given(st.text(alphabet="/ip46dnstcp2.:0123456789ab", max_size=60))
def test_any_text_is_an_address_or_explained(text: str) -> None:
    """Attack T-PEER-02: addresses made to confuse.

    Defence: few forms are accepted, under limits; an error explains each refusal.
    """
    try:
        address = parse_address(text)
    except BadAddress as error:
        assert error.hint  # noqa: PT017 - a refusal is one of two right answers
        return
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_seed_of_another_size(size: int) -> None:
    with pytest.raises(Invalid, match=f"{size} bytes"):
        did_of_seed(bytes(size))


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("203.0.113.7", "203.0.0.0/16"),
        ("2001:db8:1::7", "2001:db8::/32"),
        ("::ffff:203.0.113.7", "203.0.0.0/16"),
        ("fe80::1%eth0", "fe80::/32"),
        ("node.example", ""),
        ("", ""),
    ],
)
def test_the_network_of_an_address(host: str, network: str) -> None:
    """An operator can have a /16, or a /32 of IPv6, to itself."""
    assert network_of(host) == network


# What others are told of where we are.

IPS = [
    ipaddress.ip_address(one)
    for one in ("127.0.0.1", "192.168.1.7", "203.0.113.7", "8.8.4.4", "169.254.3.4", "::1", "fe80::1", "2001:4860::7")
]


def reached(listening: list[str], announce: list[str] | None = None, ips: list = IPS) -> list[str]:  # type: ignore[type-arg]
    return [str(one) for one in reachable_at(listening, announce or [], lambda: ips)]


def test_every_interface_stands_for_it_and_the_open_internet_comes_first() -> None:
    found = reached(["/ip4/0.0.0.0/tcp/4150"])
    assert found[0] == "/ip4/8.8.4.4/tcp/4150"
    assert set(found) == {f"/ip4/{ip}/tcp/4150" for ip in ("8.8.4.4", "192.168.1.7", "203.0.113.7")}
    assert reached(["/ip6/::/tcp/4150"]) == ["/ip6/2001:4860::7/tcp/4150"]


def test_both_families_are_told_the_open_internet_first() -> None:
    ips = [*IPS, ipaddress.ip_address("fd00::7")]
    assert reached(["/ip6/::/tcp/4150", "/ip4/0.0.0.0/tcp/4150"], ips=ips) == [
        "/ip6/2001:4860::7/tcp/4150", "/ip4/8.8.4.4/tcp/4150",
        "/ip6/fd00::7/tcp/4150", "/ip4/192.168.1.7/tcp/4150", "/ip4/203.0.113.7/tcp/4150",
    ]  # fmt: skip


def test_loopback_is_told_when_there_is_nothing_else() -> None:
    assert reached(["/ip4/127.0.0.1/tcp/1"]) == ["/ip4/127.0.0.1/tcp/1"]
    assert reached(["/ip4/0.0.0.0/tcp/1"], ips=IPS[:1]) == ["/ip4/127.0.0.1/tcp/1"]
    assert reached(["/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.7/tcp/1"]) == ["/ip4/192.168.1.7/tcp/1"]


def test_what_a_person_says_stands_in_place_of_all() -> None:
    assert reached(["/ip4/0.0.0.0/tcp/1"], ["/dns4/node.example/tcp/9"]) == ["/dns4/node.example/tcp/9"]
    with pytest.raises(BadAddress):
        reached([], ["node.example:9"])


def test_a_machine_without_ipv6_listens_on_ipv4_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = socket.socket

    def without_ip6(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return made(family, kind)

    monkeypatch.setattr("p2p.host.interfaces.socket.socket", without_ip6)
    assert [can_listen(each) for each in ("/ip6/::/tcp/4150", "/ip4/0.0.0.0/tcp/4150")] == [False, True]


def test_this_machine_has_a_loopback() -> None:
    assert any(one.is_loopback for one in local_ips())


# What is reported of connections: one notice a peer, and one more when a connection took the place of a silent one.


def connection(address: str, *, is_replaced: bool = False) -> Any:
    muxed = SimpleNamespace(peer_id="a", is_initiator=True, is_replaced=is_replaced, fault=None)
    return SimpleNamespace(muxed_conn=muxed, get_transport_addresses=lambda: [address])


async def told(notices: Notices) -> list[Any]:
    found = []
    while True:
        try:
            found.append(notices.channel.receive_nowait())
        except trio.WouldBlock:
            return found


async def test_who_comes_by_another_connection_is_met_again_if_the_first_was_silent() -> None:
    """A machine that moved is connected anew before anybody knows that its old connection is dead: what was sent there
    is lost, and both ends have to exchange it again."""
    notices = Notices(8)
    old, new = connection("/ip4/192.0.2.1/tcp/1", is_replaced=True), connection("/ip4/192.0.2.2/tcp/2")
    await notices.connected(None, old)
    await notices.connected(None, new)
    assert [type(each) for each in await told(notices)] == [PeerConnected], "one notice for all its connections"
    await notices.disconnected(None, old)
    assert [type(each) for each in await told(notices)] == [PeerConnected]
    await notices.connected(None, connection("/ip4/192.0.2.3/tcp/3"))
    await notices.disconnected(None, connection("/ip4/192.0.2.3/tcp/3"))
    assert await told(notices) == [], "one that ends in order loses nothing"
    await notices.disconnected(None, new)
    assert [type(each) for each in await told(notices)] == [PeerDisconnected]


# What the library knows of peers: bounded, without losing this node itself or anybody who is connected.


def free_key(number: int) -> tuple[Any, Any]:
    public = ed25519_pair(number.to_bytes(32, "big")).public_key
    return ID.from_pubkey(public), public


@pytest.mark.slow
def test_free_keys_do_not_push_out_the_node_itself_nor_who_is_connected() -> None:
    """Attack T-PEER-03: a thousand keys that connect one after the other, so that the library's peer store evicts the
    node's own key and it can sign no announcement.

    Defence: this node and connected peers stay; others are evicted, oldest first.

    As they come in, with a key, protocols, and now and then an address.
    """
    host = assemble(b"n" * 32, HostLimits())
    store, swarm = host.get_peerstore(), host.get_network()
    honest, key = free_key(1)
    store.add_pubkey(honest, key)
    swarm.connections[honest] = []
    for number in range(2, 2 * MAX_PEERS):
        peer, public = free_key(number)
        store.add_pubkey(peer, public)
        store.add_protocols(peer, ["/odf/1/chain"])
        if not number % 3:
            store.add_addrs(peer, [Multiaddr("/ip4/192.0.2.7/tcp/1")], 60)
    assert host.get_public_key().to_bytes() == SigningKey(b"n" * 32).public
    assert store.has_peer(honest)
    assert store.has_peer(peer), "the newest is there"
    assert len(store.peer_ids()) <= MAX_PEERS


# The parts of a host that are ours.


# The pure parts of the host: the doorway, the seal, and the check of the library.

KEY = bytes(range(32))
BOTH = pytest.mark.parametrize("suite", [CHACHA, AES], ids=lambda suite: suite.noise.decode())


class Scope:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def test_the_oldest_of_the_most_numerous_address_leaves() -> None:
    door = SilentConnections(4)
    crowd, lone, new = [Scope() for _ in range(3)], Scope(), Scope()
    with ExitStack() as inside:
        for address, scope in [("lone", lone), *(("crowd", one) for one in crowd), ("new", new)]:
            inside.enter_context(door.silent(address, scope))
        assert [one.cancelled for one in (lone, *crowd, new)] == [False, True, False, False, False]
        assert len(door) == 4
    assert len(door) == 0


def test_a_newcomer_costs_no_look_at_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(connection_slots, "prefix_of", lambda address: parsed.append(address) or address[:-2])
    door = SilentConnections(64)
    for number in range(500):
        door.add(f"address {number}", Scope())
    assert len(parsed) == 500


def unsealed(*pieces: bytes, suite: Suite = CHACHA) -> bytes:
    """The plaintext, however the pieces came."""
    unsealer, plain = Unsealer(Cipher(suite, KEY), Scratch()), b""
    for piece in pieces:
        unsealer.room()[: len(piece)] = piece
        plain += unsealer.take(len(piece))
    return plain


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 90)), max_size=60), st.binary(min_size=1, max_size=200))
def test_connections_that_share_a_scratch_do_not_hear_each_other(turns: list[tuple[bool, int]], said: bytes) -> None:
    """Attack T-PEER-01: bytes of another connection in the shared buffer.

    Defence: received bytes are decrypted and copied out before another task runs.
    """
    keys, scratch = {False: KEY, True: KEY[::-1]}, Scratch()
    wires = {who: bytes(Cipher(CHACHA, key).seal([bytes([who]) + said] * 9)) for who, key in keys.items()}
    unsealers = {who: Unsealer(Cipher(CHACHA, key), scratch) for who, key in keys.items()}
    heard = {False: b"", True: b""}
    for who, count in turns:
        piece, wires[who] = wires[who][:count], wires[who][count:]
        unsealers[who].room()[: len(piece)] = piece
        heard[who] += unsealers[who].take(len(piece))
    for who in keys:
        assert ((bytes([who]) + said) * 9).startswith(heard[who])


@BOTH
@given(st.lists(st.binary(max_size=300), max_size=10), st.lists(st.integers(0, 5000), max_size=8))
def test_sealed_messages_open_however_they_are_split(suite: Suite, messages: list[bytes], cuts: list[int]) -> None:
    wire = bytes(Cipher(suite, KEY).seal(messages[:5]))
    cipher = Cipher(suite, KEY, len(messages[:5]))
    wire += bytes(cipher.seal(messages[5:]))
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    pieces = (wire[start:end] for start, end in itertools.pairwise(edges))
    assert unsealed(*pieces, suite=suite) == b"".join(messages)


@BOTH
def test_what_is_sealed_is_what_the_noise_library_opens(suite: Suite) -> None:
    """Two ends of a handshake by it: the keys are theirs, and its own cipher opens ours and seals for ours."""
    ends = [NoiseConnection.from_name(suite.noise) for _ in range(2)]
    ends[0].set_as_initiator()
    ends[1].set_as_responder()
    for end, key in zip(ends, (KEY, KEY[::-1]), strict=True):
        end.set_keypair_from_private_bytes(Keypair.STATIC, key)
        end.start_handshake()
    for teller, listener in ((0, 1), (1, 0), (0, 1)):
        ends[listener].read_message(ends[teller].write_message())
    initiator = ends[0].noise_protocol
    out = Cipher(suite, initiator.cipher_state_encrypt.k)
    wire = bytes(out.seal([b"hello", b"world"]))
    assert [ends[1].decrypt(wire[2:23]), ends[1].decrypt(wire[25:])] == [b"hello", b"world"]
    into, plain = Cipher(suite, initiator.cipher_state_decrypt.k), memoryview(bytearray(5))
    assert into.open(memoryview(ends[1].encrypt(b"again")), plain) == 5
    assert plain == b"again"


def test_a_key_seals_so_many_messages_and_the_next_comes_of_it() -> None:
    """Attack T-PEER-01: more messages under one AES key than GCM allows.

    Defence: both ends rekey after 2^20 messages, at most 64 GiB.

    REKEY of the Noise specification, section 4.2, as its library computes it; the other end does the same.
    """
    suite = dataclasses.replace(AES, lifetime=3)
    library = NoiseConnection.from_name(AES.noise).noise_protocol.cipher_class()
    key, wire = KEY, b""
    for count in range(8):
        library.initialize(key)
        sealed = library.encrypt(key, count, b"", b"said")
        wire += len(sealed).to_bytes(2, "big") + sealed
        key = library.rekey(key) if count % 3 == 2 else key
    assert bytes(Cipher(suite, KEY).seal([b"said"] * 8)) == wire
    assert unsealed(wire, suite=suite) == b"said" * 8


@pytest.mark.parametrize(
    ("said", "has"),
    [
        ("processor: 0\nflags\t\t: fpu aes avx pclmulqdq\n", True),
        ("processor: 0\nFeatures\t: fp asimd aes pmull sha1\n", True),
        ("flags: fpu pclmulqdq vaes\n", False),
        ("flags: fpu aes\n", False),
        ("Features: half thumb\nmodel name: aes pmull\n", False),
        ("", False),
    ],
)
def test_aes_is_offered_where_the_processor_computes_it(said: str, has: bool) -> None:
    assert computes_aes(said) is has


def test_as_much_as_is_received_at_once_is_opened_beside_an_unfinished_message() -> None:
    messages = [bytes([number]) * 65_519 for number in range(5)]
    wire = bytes(Cipher(CHACHA, KEY).seal(messages))
    begun = MAX_SEALED - 1
    assert unsealed(wire[:begun], wire[begun : begun + RECEIVE], wire[begun + RECEIVE :]) == b"".join(messages)


@pytest.mark.parametrize("size", range(16))
def test_a_message_without_a_tag_is_a_violation(size: int) -> None:
    with pytest.raises(Misbehaviour, match="does not open"):
        unsealed(size.to_bytes(2, "big") + bytes(size))


@given(st.integers(0, 10_000))
def test_a_flipped_bit_is_a_violation(position: int) -> None:
    wire = Cipher(CHACHA, KEY).seal([b"hello", b"world"])
    at = 2 + position % 21
    wire[at] ^= 1
    with pytest.raises(Misbehaviour, match="does not open"):
        unsealed(bytes(wire))


def test_messages_in_another_order_do_not_open() -> None:
    first, second = (bytes(one) for one in (Cipher(CHACHA, KEY).seal([b"1"]), Cipher(CHACHA, KEY, 1).seal([b"2"])))
    with pytest.raises(Misbehaviour):
        unsealed(second + first)


def test_another_version_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "version", lambda _: "0.9.0")
    with pytest.raises(UnsupportedLibrary, match=r"0\.9\.0") as caught:
        library.check_version()
    assert "libp2p==0.8.1" in caught.value.hint


def test_ecdsa_is_refused_by_name() -> None:
    from fastecdsa.encoding.sec1 import SEC1Encoder  # type: ignore[import-not-found]

    with pytest.raises(UnsupportedLibrary, match="ECDSA keys"):
        SEC1Encoder.decode_public_key(b"", None)


ABSENT_NAMES = [
    (part, module, name) for part in library.ABSENT for module, names in part.modules.items() for name in names
]


@pytest.mark.parametrize(
    ("part", "module", "name"), ABSENT_NAMES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_absent_names_say_why_they_are_absent(part: library.LibraryPart, module: str, name: str) -> None:
    stand_in = getattr(importlib.import_module(module), name)
    if not part.instances:
        with pytest.raises(UnsupportedLibrary, match=re.escape(part.reason)):
            stand_in()
    with pytest.raises(UnsupportedLibrary, match=re.escape(part.reason)):
        stand_in.attribute  # noqa: B018 - what is asked for is not what matters


def test_absent_names_are_names_of_the_library() -> None:
    folder = Path(next(iter(importlib.import_module("libp2p").__path__))).parent
    for part, module, name in ABSENT_NAMES:
        if part is not library.ECDSA:
            place = folder.joinpath(*module.split("."))
            source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            assert re.search(rf"^(class|def|async def|from .*) {name}\b|, {name}\b", source.read_text(), re.MULTILINE)


@pytest.mark.slow
def test_a_host_loads_neither_quic_nor_discoveries() -> None:
    program = "import sys, p2p.host.host; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "libp2p" in done.stdout.split()
    assert not {"aioquic", "dns", "zeroconf", "requests", "httpx", "miniupnpc"} & set(done.stdout.split())


@pytest.mark.slow
def test_the_library_can_be_had_as_it_is() -> None:
    program = "from p2p.host import library; library.restore(); import libp2p; print(libp2p.new_host.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "new_host\n"


# A relay that hangs up as soon as it has answered costs the circuit, and is told as a fault of the relay.

RELAY = PeerId("12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5")
TARGET = PeerId("12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq")


class Answered:
    """A stream on which everything came already."""

    def __init__(self, incoming: bytes) -> None:
        self.incoming, self.was_reset = incoming, False

    async def send_all(self, data: bytes) -> None:
        pass

    async def receive_some(self, limit: int) -> bytes:
        part, self.incoming = self.incoming[:limit], self.incoming[limit:]
        return part

    async def reset(self) -> None:
        self.was_reset = True


def circuits(stream: Answered) -> Circuits:
    async def open_stream(_peer: PeerId, _protocol: str) -> Any:
        return stream

    swarm = cast(Any, SimpleNamespace(connections={}, blocked=frozenset()))
    made = Circuits(swarm, open_stream)
    made.relays = {RELAY: "/ip4/127.0.0.1/tcp/1"}
    return made


async def test_a_relay_that_answers_a_dial_and_is_gone_is_unreachable() -> None:
    stream = Answered(encode_hop(HopMessage(kind=HopKind.STATUS, status=CircuitStatus.OK)))
    with pytest.raises(PeerUnreachable, match="hung up"):
        await circuits(stream).dial(RELAY, TARGET)
    assert stream.was_reset


async def test_a_relay_that_brings_a_circuit_and_is_gone_is_unreachable() -> None:
    stream = Answered(encode_stop(StopMessage(kind=StopKind.CONNECT, peer=TARGET)))
    with pytest.raises(PeerUnreachable, match="hung up"):
        await circuits(cast(Any, stream)).accept(cast(Any, stream), RELAY)


# A connection whose socket was closed here ends like any other that broke.


@pytest.mark.slow
async def test_a_socket_that_was_closed_is_a_broken_connection_and_no_fault_of_ours() -> None:
    here, there = socket.socketpair()
    with there:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(here))
        cipher: Any = None
        line = NoiseStream(stream, cipher, cipher, LineTraffic(Traffic()))
        stream.socket.close()
        with pytest.raises(trio.ClosedResourceError):
            await line.receive()
        with pytest.raises(trio.ClosedResourceError):
            await line.wait_for_room()


# The gossip router rests while it has nobody to talk to.


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


# The bound on unread bytes of all connections together.


class Connection:
    """Streams by their unread bytes."""

    def __init__(self, budget: UnreadBudget) -> None:
        self.streams: list[int] = []
        self.lost = 0
        self.budget = budget
        budget.join(self)

    @property
    def unread(self) -> int:
        return sum(self.streams)

    def shed(self) -> None:
        if self.streams:
            self.lost += max(self.streams)
            self.streams.remove(max(self.streams))

    def hear(self, size: int) -> None:
        self.streams.append(size)
        self.budget.grew(self)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60), st.booleans()), max_size=60))
def test_the_sum_is_never_more_and_who_holds_most_pays(steps: list[tuple[int, int, bool]]) -> None:
    budget = UnreadBudget(100)
    connections = [Connection(budget) for _ in range(5)]
    for number, size, reads in steps:
        one = connections[number]
        if reads:
            one.streams.clear()
            continue
        before = [each.unread for each in connections]
        before[number] += size
        losses = [each.lost for each in connections]
        one.hear(size)
        assert sum(each.unread for each in connections) <= 100
        paid = [each.lost > lost for each, lost in zip(connections, losses, strict=True)]
        if any(paid):
            assert sum(before) > 100, "nobody pays while there is room"
            assert paid[before.index(max(before))] or before.count(max(before)) > 1


def test_who_left_counts_no_more() -> None:
    budget = UnreadBudget(100)
    gone, here = Connection(budget), Connection(budget)
    gone.hear(90)
    budget.leave(gone)
    budget.grew(gone)
    here.hear(100)
    assert (here.lost, here.unread) == (0, 100)
    here.hear(1)
    assert (here.lost, here.unread) == (100, 1)
