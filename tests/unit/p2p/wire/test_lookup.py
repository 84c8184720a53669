"""Messages of the lookup, presences, and those of a local network."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zeroconf import DNSOutgoing, DNSText  # type: ignore[attr-defined]

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.statements.keys import SigningKey
from p2p.address import PeerAddress, parse_address
from p2p.identity import peer_of_did, peer_of_seed
from p2p.wire import limits, presence
from p2p.wire import lookup as wire
from p2p.wire.contact import LookupContact, lookup_key
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
from p2p.wire.lookup import Find, Nodes, Store, StoreAnswer, StoreOutcome
from p2p.wire.presence import PeersAsk, Presence

# Messages of the lookup: what is written is read, what is changed is refused, garbage is only Invalid.

KEY = SigningKey(b"k" * 32)
ips = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6).filter(lambda ip: ip.ipv4_mapped is None))
packed = ips.map(lambda ip: ip.packed)
ports = st.integers(1, 65_535)
owns = st.one_of(st.none(), st.tuples(packed, ports))
keys = st.binary(min_size=32, max_size=32)
contacts = st.builds(LookupContact, keys, packed, ports)
records = st.binary(min_size=1, max_size=300)
providers = st.builds(
    Presence,
    key=st.just(KEY.public),
    issued=st.integers(0, 2**64 - 1),
    lifetime=st.integers(1, 7200),
    addresses=st.lists(st.builds("/ip4/{}/tcp/{}".format, st.ip_addresses(v=4), ports), min_size=1, max_size=8).map(
        tuple
    ),
)


@given(keys, owns, records)
def test_questions_round_trip(key: bytes, own: tuple[bytes, int] | None, record: bytes) -> None:
    find, store = Find(key=key, own=own), Store(key=key, own=own, record=record)
    assert wire.decode_lookup(wire.encode_find(find)) == find
    assert wire.decode_lookup(wire.encode_store(store)) == store


@given(st.lists(contacts, max_size=20), st.lists(records, max_size=16))
def test_answers_round_trip(told: list[LookupContact], kept: list[bytes]) -> None:
    answer = Nodes(contacts=tuple(told), records=tuple(kept))
    assert wire.decode_nodes(wire.encode_nodes(answer)) == answer


@given(st.sampled_from(StoreOutcome), st.lists(contacts, max_size=20))
def test_outcomes_round_trip(outcome: StoreOutcome, told: list[LookupContact]) -> None:
    answer = StoreAnswer(outcome=outcome, contacts=tuple(told))
    assert wire.decode_stored(wire.encode_stored(answer)) == answer


@given(st.lists(contacts, max_size=3), st.lists(records, max_size=3), st.binary(min_size=1, max_size=9))
def test_no_byte_more_or_less(told: list[LookupContact], kept: list[bytes], rest: bytes) -> None:
    body = wire.encode_nodes(Nodes(contacts=tuple(told), records=tuple(kept)))
    for wrong in (body + rest, body[:-1]):
        with pytest.raises(Invalid):
            wire.decode_nodes(wrong)
    stored = wire.encode_stored(StoreAnswer(outcome=StoreOutcome.FULL, contacts=tuple(told)))
    for wrong in (stored + rest, stored[:-1]):
        with pytest.raises(Invalid):
            wire.decode_stored(wrong)
    with pytest.raises(Invalid):
        wire.decode_lookup(wire.encode_find(Find(key=bytes(32))) + rest)


@given(st.binary(max_size=200), st.sampled_from([b"", b"\1", b"\2", b"\x81", b"\x82"]))
def test_garbage(raw: bytes, kind: bytes) -> None:
    for read in (wire.decode_lookup, wire.decode_nodes, wire.decode_stored, wire.decode_record):
        with suppress(Invalid):
            read(kind + raw)


@given(st.binary(max_size=200), st.sampled_from([b"\1", b"\2"]))
def test_what_is_read_is_written_the_same(raw: bytes, kind: bytes) -> None:
    """There is one encoding of each message, so that none is told twice in different bytes."""
    with suppress(Invalid):
        ask = wire.decode_lookup(kind + raw)
        assert (wire.encode_store(ask) if isinstance(ask, Store) else wire.encode_find(ask)) == kind + raw


def test_bounds() -> None:
    one = LookupContact(bytes(32), bytes([1, 2, 3, 4]), 1)
    for answer in (
        Nodes(contacts=(one,) * (limits.MAX_LOOKUP_CONTACTS + 1)),
        Nodes(records=(b"r",) * (limits.MAX_LOOKUP_RECORDS + 1)),
        Nodes(records=(bytes(limits.MAX_RECORD + 1),)),
    ):
        with pytest.raises(Invalid):
            wire.decode_nodes(wire.encode_nodes(answer))
    with pytest.raises(Invalid):
        wire.decode_lookup(wire.encode_store(Store(key=bytes(32), record=bytes(limits.MAX_RECORD + 1))))
    longest = Nodes(
        contacts=(LookupContact(bytes(32), bytes(range(16)), 1),) * limits.MAX_LOOKUP_CONTACTS,
        records=(bytes(limits.MAX_RECORD),) * limits.MAX_LOOKUP_RECORDS,
    )
    assert len(wire.encode_nodes(longest)) == limits.MAX_LOOKUP_ANSWER
    ask = Store(key=bytes(32), record=bytes(limits.MAX_RECORD), own=(bytes(range(16)), 1))
    assert len(wire.encode_store(ask)) == limits.MAX_LOOKUP_ASK


@pytest.mark.parametrize("at", [(bytes(10) + b"\xff\xff\1\2\3\4", 1), (bytes([1, 2, 3, 4]), 0)])
def test_an_address_has_one_spelling_and_a_port(at: tuple[bytes, int]) -> None:
    with pytest.raises(Invalid):
        wire.decode_lookup(wire.encode_find(Find(key=bytes(32), own=at)))


# Records


@given(providers, keys, keys)
def test_a_record_is_of_one_key_and_one_network(said: Presence, key: bytes, other: bytes) -> None:
    raw = wire.seal_record(said, "net", key, KEY)
    assert wire.decode_record(raw) == said
    assert wire.is_record_signed(raw, said, "net", key)
    assert not wire.is_record_signed(raw, said, "other", key)
    assert key == other or not wire.is_record_signed(raw, said, "net", other)


@pytest.mark.slow
@given(providers, st.data())
def test_a_changed_bit_of_a_record_is_noticed(said: Presence, data: st.DataObject) -> None:
    raw = bytearray(wire.seal_record(said, "net", bytes(32), KEY))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(Invalid):
        changed = wire.decode_record(bytes(raw))
        assert not wire.is_record_signed(bytes(raw), changed, "net", bytes(32))


@given(providers)
def test_a_presence_is_no_record_and_a_record_no_presence(said: Presence) -> None:
    """Otherwise whoever heard a node's presence could bring it as a record of any dataset."""
    raw = presence.seal(said, "net", KEY)
    assert not wire.is_record_signed(raw, said, "net", bytes(32))
    record = wire.seal_record(said, "net", bytes(32), KEY)
    assert not presence.is_signed(record, said, "net")


def test_a_record_names_an_address_and_no_dataset() -> None:
    said = Presence(key=KEY.public, issued=1, lifetime=1, addresses=("/ip4/1.2.3.4/tcp/1",))
    for wrong in (
        Presence(key=said.key, issued=1, lifetime=1),
        Presence(key=said.key, issued=1, lifetime=1, addresses=said.addresses, tags=(1,)),
        Presence(key=said.key, issued=1, lifetime=1, addresses=said.addresses, more=True),
    ):
        with pytest.raises(Invalid):
            wire.decode_record(wire.seal_record(wrong, "net", bytes(32), KEY))


def test_a_key_does_not_tell_its_dataset_or_network() -> None:
    dataset = DatasetId.from_public_key(KEY.public)
    key = lookup_key("net", dataset)
    assert len(key) == 32
    assert dataset not in key
    assert KEY.public not in key
    assert key != lookup_key("other", dataset)
    assert key != lookup_key("net", DatasetId.from_public_key(SigningKey(b"l" * 32).public))


# Presences: what is written is read, what was changed on the way is not, and nothing but Invalid comes of garbage.

NOBODY = SigningKey(bytes(32))
RELAY = peer_of_did(SigningKey(b"r" * 32).did)
addresses = st.one_of(
    st.builds("/ip4/{}/tcp/{}".format, st.ip_addresses(v=4), ports),
    st.builds("/ip6/{}/tcp/{}".format, st.ip_addresses(v=6), ports),
    st.builds("/dns4/node.example/tcp/{}".format, ports),
    st.builds("/ip4/{}/tcp/{}/p2p/{}/p2p-circuit".format, st.ip_addresses(v=4), ports, st.just(RELAY)),
)
tags = st.sets(st.integers(0, 2**32 - 1), max_size=20).map(sorted).map(tuple)
presences = st.builds(
    Presence,
    key=st.just(NOBODY.public),
    issued=st.integers(0, 2**64 - 1),
    lifetime=st.integers(1, 7200),
    addresses=st.lists(addresses, max_size=8).map(tuple),
    tags=tags,
    more=st.booleans(),
)


@given(presences)
def test_round_trip(said: Presence) -> None:
    raw = presence.seal(said, "net", NOBODY)
    assert presence.decode(raw) == said
    assert presence.is_signed(raw, said, "net")


@given(presences, st.data())
def test_a_changed_bit_is_noticed(said: Presence, data: st.DataObject) -> None:
    raw = bytearray(presence.seal(said, "net", NOBODY))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        changed = presence.decode(bytes(raw))
    except Invalid:
        return
    assert not presence.is_signed(bytes(raw), changed, "net")


@given(presences, st.binary(max_size=8))
def test_a_presence_has_no_byte_more_or_less(said: Presence, rest: bytes) -> None:
    raw = presence.seal(said, "net", NOBODY)
    for wrong in (raw + rest if rest else raw[:-1], raw[: len(raw) // 2]):
        with suppress(Invalid):
            assert not presence.is_signed(wrong, presence.decode(wrong), "net")


@given(st.binary(max_size=300), st.binary(max_size=60))
def test_garbage_is_no_presence(raw: bytes, more: bytes) -> None:
    for read in (
        presence.decode,
        presence.decode_ask,
        lambda body: presence.decode_answer(body, PeersAsk(wanted=64)),
    ):
        for body in (raw, b"\1" + raw, b"\x81" + raw, presence.seal(SMALL, "net", NOBODY)[:45] + more):
            with suppress(Invalid):
                read(body)


SMALL = Presence(key=NOBODY.public, issued=1, lifetime=1, addresses=("/ip4/1.2.3.4/tcp/1",))


# What is said on a LAN, read back and torn apart.

PEER = peer_of_seed(bytes(32))
HERE = "192.168.1.7"
local_ips = st.integers(0, 255).map(lambda last: f"192.168.1.{last}")
names = st.text("abcdefghij-0123456789", min_size=1, max_size=60)


def texts(*strings: bytes, name: str = f"x.{SERVICE}") -> bytes:
    raw = b"".join(bytes([len(each)]) + each for each in strings)
    out = DNSOutgoing(0x8400)
    out.add_answer_at_time(DNSText(name, 16, 1, 120, raw), 0)
    return bytes(out.packets()[0])


def test_a_question_is_known() -> None:
    assert decode(encode_question(), "home", HERE) == LanPacket(asks=True)


@given(names, local_ips, st.lists(st.tuples(local_ips, st.integers(1, 65535)), max_size=20))
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
    """Attack T-REACH-01: a link-local IPv6 address, or that of a third node, announced by multicast.

    Defence: an address counts only if it is the packet's source; link-local ones are neither announced nor dialled.
    """
    packet = encode_presence(PEER, "home", [PeerAddress("ip6", "fd00::7", 4150)])
    assert bool(decode(packet, "home", source).told) is told
    nowhere = encode_presence(PEER, "home", [PeerAddress("ip6", "fe80::7", 4150)])
    assert decode(nowhere, "home", "fe80::7") == LanPacket()
