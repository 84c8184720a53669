"""What is said on a LAN, read back and torn apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zeroconf import DNSOutgoing, DNSText  # type: ignore[attr-defined]

from p2p.address import PeerAddress, parse_address
from p2p.identity import peer_of_seed
from p2p.wire.lan import (
    MAX_ADDRESSES,
    MAX_PACKET,
    SERVICE,
    LanPacket,
    decode,
    encode_presence,
    encode_question,
    is_on_lan,
)

PEER = peer_of_seed(bytes(32))
HERE = "192.168.1.7"
ips = st.integers(0, 255).map(lambda last: f"192.168.1.{last}")
names = st.text("abcdefghij-0123456789", min_size=1, max_size=60)


def texts(*strings: bytes, name: str = f"x.{SERVICE}") -> bytes:
    raw = b"".join(bytes([len(each)]) + each for each in strings)
    out = DNSOutgoing(0x8400)
    out.add_answer_at_time(DNSText(name, 16, 1, 120, raw), 0)
    return bytes(out.packets()[0])


def test_a_question_is_known() -> None:
    assert decode(encode_question(), "home", HERE) == LanPacket(asks=True)


@given(names, ips, st.lists(st.tuples(ips, st.integers(1, 65535)), max_size=20))
def test_where_the_sender_is_comes_back_and_nothing_else(
    network: str, source: str, places: list[tuple[str, int]]
) -> None:
    addresses = [PeerAddress("ip4", ip, port) for ip, port in places]
    packet = encode_presence(PEER, network, addresses)
    told = [PeerAddress("ip4", ip, port, PEER) for ip, port in places[:MAX_ADDRESSES] if ip == source]
    assert decode(packet, network, source) == LanPacket(told=tuple(told))
    assert decode(packet, network + "x", source) == LanPacket()


@given(st.binary(max_size=600))
def test_noise_is_nothing(packet: bytes) -> None:
    assert decode(packet, "home", HERE).told == ()


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_torn_packet_tells_no_third(place: int, byte: int) -> None:
    packet = bytearray(encode_presence(PEER, "home", [PeerAddress("ip4", HERE, 4150)]))
    packet[place % len(packet)] = byte
    assert all(one.host == HERE and one.peer for one in decode(bytes(packet), "home", HERE).told)


@pytest.mark.parametrize(
    "string",
    [
        b"dnsaddr=/ip4/8.8.8.8/tcp/1/p2p/" + PEER.encode(),
        b"dnsaddr=/ip4/192.168.1.7/tcp/1",
        b"dnsaddr=/dns4/victim.example/tcp/1/p2p/" + PEER.encode(),
        b"dnsaddr=/ip4/192.168.1.7/tcp/99999/p2p/" + PEER.encode(),
        b"dnsaddr=\xff\xfe",
        b"addr=/ip4/192.168.1.7/tcp/1/p2p/" + PEER.encode(),
    ],
)
def test_what_names_a_third_or_nobody_is_passed_over(string: bytes) -> None:
    good = b"dnsaddr=/ip4/192.168.1.7/tcp/1/p2p/" + PEER.encode()
    heard = decode(texts(b"network=home", string, good), "home", HERE)
    assert [str(one) for one in heard.told] == [good[8:].decode()]
    assert decode(texts(b"network=home", good, name="x._p2p._udp.local."), "home", HERE) == LanPacket()


def test_many_addresses_and_long_packets_are_cut() -> None:
    many = [b"dnsaddr=/ip4/192.168.1.7/tcp/%d/p2p/%s" % (port, PEER.encode()) for port in range(1, 60)]
    assert len(decode(texts(b"network=home", *many), "home", HERE).told) == MAX_ADDRESSES
    assert decode(encode_question() + bytes(MAX_PACKET), "home", HERE) == LanPacket()


def test_private_addresses_are_told() -> None:
    said = ["/ip4/192.168.1.7/tcp/1", "/ip4/127.0.0.1/tcp/1", "/ip4/203.0.113.9/tcp/1", "/ip4/8.8.8.8/tcp/1"]
    assert [is_on_lan(parse_address(text)) for text in said] == [True, True, True, False]


def test_of_ipv6_all_addresses_are_told_but_those_of_a_link() -> None:
    said = ["/ip6/::1/tcp/1", "/ip6/fd00::7/tcp/1", "/ip6/2600::7/tcp/1", "/ip6/fe80::7/tcp/1", "/dns6/x.example/tcp/1"]
    assert [is_on_lan(parse_address(text)) for text in said] == [True, True, True, False, False]


@pytest.mark.parametrize("source, told", [("fd00::7", True), ("fd00:0::0007", True), ("fd00::8", False), (HERE, False)])
def test_an_ipv6_address_counts_from_itself(source: str, told: bool) -> None:
    packet = encode_presence(PEER, "home", [PeerAddress("ip6", "fd00::7", 4150)])
    assert bool(decode(packet, "home", source).told) is told
    nowhere = encode_presence(PEER, "home", [PeerAddress("ip6", "fe80::7", 4150)])
    assert decode(nowhere, "home", "fe80::7") == LanPacket()
