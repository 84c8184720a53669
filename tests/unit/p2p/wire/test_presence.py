"""Presences: what is written is read, what was changed on the way is not, and nothing but Invalid comes of garbage."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.statements.keys import SigningKey
from p2p.identity import peer_of_did
from p2p.wire import presence
from p2p.wire.presence import PeersAsk, Presence

KEY = SigningKey(bytes(32))
ports = st.integers(1, 65_535)
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
    key=st.just(KEY.public),
    issued=st.integers(0, 2**64 - 1),
    lifetime=st.integers(1, 7200),
    addresses=st.lists(addresses, max_size=8).map(tuple),
    tags=tags,
    more=st.booleans(),
)


@given(presences)
def test_round_trip(said: Presence) -> None:
    raw = presence.seal(said, "net", KEY)
    assert presence.decode(raw) == said
    assert presence.is_signed(raw, said, "net")


@given(presences, st.data())
def test_a_changed_bit_is_noticed(said: Presence, data: st.DataObject) -> None:
    raw = bytearray(presence.seal(said, "net", KEY))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        changed = presence.decode(bytes(raw))
    except Invalid:
        return
    assert not presence.is_signed(bytes(raw), changed, "net")


@given(presences, st.binary(max_size=8))
def test_no_byte_more_or_less(said: Presence, rest: bytes) -> None:
    raw = presence.seal(said, "net", KEY)
    for wrong in (raw + rest if rest else raw[:-1], raw[: len(raw) // 2]):
        with suppress(Invalid):
            assert not presence.is_signed(wrong, presence.decode(wrong), "net")


@given(st.binary(max_size=300), st.binary(max_size=60))
def test_garbage(raw: bytes, more: bytes) -> None:
    for decode in (
        presence.decode,
        presence.decode_ask,
        lambda body: presence.decode_answer(body, PeersAsk(wanted=64)),
    ):
        for body in (raw, b"\1" + raw, b"\x81" + raw, presence.seal(SMALL, "net", KEY)[:45] + more):
            with suppress(Invalid):
                decode(body)


SMALL = Presence(key=KEY.public, issued=1, lifetime=1, addresses=("/ip4/1.2.3.4/tcp/1",))
