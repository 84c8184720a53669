"""Messages as others wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from p2p.host.noise import AES, Cipher
from p2p.ports import HeldParts, PartsAsk, Tip, Topic
from p2p.wire import chains, frames, invite, lookup, objects, presence, refusal, swarm, trust
from p2p.wire.chains import BlockRange, Blocks
from p2p.wire.contact import LookupContact, lookup_key
from p2p.wire.objects import ObjectBytes, ObjectPack, ObjectRange, ObjectsAsk
from p2p.wire.presence import PeersAsk, Presence
from p2p.wire.refusal import PeerRefusal, RefusalReason

# The bytes of the specification. ``messages.json`` was written from it with nothing but Python's own modules.

BYTES = {
    name: bytes.fromhex(text)
    for name, text in json.loads(Path(__file__).with_name("messages.json").read_text()).items()
}
DATASET = DatasetId.from_public_key(bytes(range(32)))
NAME = Multihash.sha3_256(b"object")
KEY = SigningKey(bytes(range(32)))
PRESENCE = Presence(
    key=KEY.public,
    issued=1_700_000_000_000,
    lifetime=3600,
    addresses=("/ip4/203.0.113.7/tcp/4150", "/dns4/node.example/tcp/4150"),
    tags=(presence.tag_of(DATASET),),
    more=True,
)
LOOKUP = lookup_key("demo", DATASET)
AT = (bytes([203, 0, 113, 7]), 4150)
AT6 = (bytes.fromhex("20010db8000000000000000000000007"), 4150)
PROVIDER = Presence(key=KEY.public, issued=1_700_000_000_000, lifetime=5400, addresses=PRESENCE.addresses[:1])
ASK = PeersAsk(wanted=32, tags=PRESENCE.tags, own=BYTES["peers.presence"])


CASES: dict[str, tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "chain.range": (
        BlockRange(request=7, dataset=DATASET, start=256, max_blocks=1024, max_bytes=65536),
        chains.encode_range,
        chains.decode_range,
    ),
    "chain.blocks": (
        Blocks(request=7, size=259, start=256, blocks=(b"a", b"bb", b"ccc")),
        chains.encode_blocks,
        chains.decode_chain_reply,
    ),
    "chain.size": (
        Blocks(request=8, size=259, start=0, blocks=()),
        chains.encode_blocks,
        chains.decode_chain_reply,
    ),
    "refusal.busy": (
        PeerRefusal(9, RefusalReason.BUSY, "come back later…"),
        refusal.encode_refusal,
        objects.decode_object_reply,
    ),
    "object.read": (
        ObjectRange(request=10, name=NAME, offset=1 << 20, length=1 << 19),
        objects.encode_read,
        objects.decode_request,
    ),
    "object.bytes": (
        ObjectBytes(request=10, size=(1 << 20) + 4, offset=1 << 20, data=b"tail"),
        objects.encode_bytes,
        objects.decode_object_reply,
    ),
    "object.some": (
        ObjectsAsk(request=11, names=(NAME, Multihash.sha3_256(b"other"))),
        objects.encode_some,
        objects.decode_request,
    ),
    "object.pack": (
        ObjectPack(request=11, objects=(b"object", b"other")),
        objects.encode_pack,
        objects.decode_object_reply,
    ),
    "trust.sum": (trust.SumAsk(), trust.encode, trust.decode_ask),
    "trust.sums": (
        trust.Sums(
            {f"{number:02x}": value for number, value in trust.sums([trust.StatementRef(NAME, DATASET)]).items()}
        ),
        trust.encode,
        trust.decode_tell,
    ),
    "trust.list": (trust.ListAsk(datasets=(DATASET,), after=NAME), trust.encode, trust.decode_ask),
    "trust.list.private": (trust.ListAsk(datasets=(DATASET,), private=True), trust.encode, trust.decode_ask),
    "trust.listing": (trust.page([trust.StatementRef(NAME, DATASET)], more=True), trust.encode, trust.decode_tell),
    "trust.get": (trust.GetAsk((NAME,)), trust.encode, trust.decode_ask),
    "trust.statements": (
        trust.Statements((trust.TopicEnvelope(Topic.HEADS, b"{}"),), done=1),
        trust.encode,
        trust.decode_tell,
    ),
    "trust.refused": (trust.TrustRefusal("too many questions"), trust.encode, trust.decode_tell),
    "trust.prove": (
        trust.ProveAsk(dataset=DATASET, size=1_000_000, old=50_000),
        trust.encode,
        trust.decode_ask,
    ),
    "trust.proof": (trust.ProofAnswer(("ab" * 32, "cd" * 32)), trust.encode, trust.decode_tell),
    "invite.redeem": (bytes(range(32)), invite.encode_redeem, invite.decode_redeem),
    "invite.answer": (invite.Redemption.USED, invite.encode_redemption, invite.decode_redemption),
    "lookup.find": (lookup.Find(key=LOOKUP, own=AT), lookup.encode_find, lookup.decode_lookup),
    "lookup.nodes": (
        lookup.Nodes(
            contacts=(LookupContact(KEY.public, *AT), LookupContact(bytes(32), *AT6)), records=(BYTES["lookup.record"],)
        ),
        lookup.encode_nodes,
        lookup.decode_nodes,
    ),
    "lookup.store": (
        lookup.Store(key=LOOKUP, record=BYTES["lookup.record"]),
        lookup.encode_store,
        lookup.decode_lookup,
    ),
    "lookup.stored": (
        lookup.StoreAnswer(
            outcome=lookup.StoreOutcome.FAR, contacts=(LookupContact(KEY.public, *AT), LookupContact(bytes(32), *AT6))
        ),
        lookup.encode_stored,
        lookup.decode_stored,
    ),
    "lookup.record": (
        PROVIDER,
        lambda said: lookup.seal_record(said, "demo", LOOKUP, KEY),
        lookup.decode_record,
    ),
    "swarm.parts": (
        PartsAsk(dataset=DATASET, tip=Tip(259, bytes(range(32, 64))), start=250, count=9, have=0b1_0000_1001),
        swarm.encode_parts,
        swarm.decode_parts,
    ),
    "swarm.told": (
        swarm.PartsTold(HeldParts(has=0b1_1111_1111, offers=0b110, given=4096), (BYTES["peers.presence"],)),
        lambda told: swarm.encode_told(told, 9),
        lambda body: swarm.decode_told(body, 9),
    ),
    "swarm.none": (
        swarm.PartsTold(None),
        lambda told: swarm.encode_told(told, 9),
        lambda body: swarm.decode_told(body, 9),
    ),
    "peers.presence": (PRESENCE, lambda said: presence.seal(said, "demo", KEY), presence.decode),
    "peers.ask": (ASK, presence.encode_ask, presence.decode_ask),
    "peers.answer": (
        [BYTES["peers.presence"]],
        presence.encode_answer,
        lambda body: presence.decode_answer(body, ASK),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_message(name: str) -> None:
    message, encode, decode = CASES[name]
    assert encode(message) == BYTES[name]
    assert decode(BYTES[name]) == message


def test_a_presence_is_signed_for_one_network() -> None:
    raw = BYTES["peers.presence"]
    assert presence.is_signed(raw, PRESENCE, "demo")
    assert not presence.is_signed(raw, PRESENCE, "other")


def test_frame() -> None:
    assert frames.frame(b"hello") == BYTES["frame"]


def test_every_vector_is_used() -> None:
    assert set(BYTES) == {*CASES, "frame"}


# Messages of the suite of ADR 17. ``sealed.json`` was written by its rules with the ``crypto`` module of Node.

SEALED = {
    name: bytes.fromhex(text)
    for name, text in json.loads(Path(__file__).with_name("sealed.json").read_text()).items()
}  # fmt: skip
SECRET = bytes(range(32))


@pytest.mark.parametrize(
    ("name", "before", "messages"),
    [("first", 0, [b"hello"]), ("turn", (1 << 20) - 1, [b"the last of its key", b"the first of the next"])],
)
def test_sealed(name: str, before: int, messages: list[bytes]) -> None:
    assert bytes(Cipher(AES, SECRET, before).seal(messages)) == SEALED[name]
    cipher, at = Cipher(AES, SECRET, before), 0
    for message in messages:
        end = at + 2 + int.from_bytes(SEALED[name][at : at + 2], "big")
        plain = memoryview(bytearray(len(message)))
        assert cipher.open(memoryview(SEALED[name])[at + 2 : end], plain) == len(message)
        assert plain == message
        at = end
