"""Every bound of ``p2p/wire/limits.py`` is kept: at the bound is taken, one over is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chain.codec.blocks import MAX_BLOCK as CODEC_MAX_BLOCK
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from p2p.ports import HeldParts, PartsAsk, StatementRef, Tip, Topic
from p2p.wire import chains, limits, lookup, objects, presence, refusal, swarm, trust
from p2p.wire.chains import BlockRange, Blocks
from p2p.wire.contact import LookupContact
from p2p.wire.frames import FrameSplitter, frame
from p2p.wire.objects import ObjectBytes, ObjectPack, ObjectRange, ObjectsAsk
from p2p.wire.presence import PeersAsk, Presence
from p2p.wire.refusal import PeerRefusal, RefusalReason

DATASET = DatasetId.from_public_key(bytes(32))
NAME = Multihash.sha3_256(b"")
KEY = SigningKey(bytes(range(32)))


def sid(number: int) -> Multihash:
    return Multihash.from_digest(0x16, number.to_bytes(32, "big"))


def one_block(size: int) -> Any:
    return chains.decode_chain_reply(chains.encode_blocks(Blocks(request=0, size=1, start=0, blocks=(bytes(size),))))


def pack_of(*small: bytes) -> Any:
    return objects.decode_object_reply(objects.encode_pack(ObjectPack(request=0, objects=small)))


def blocks_asked(blocks: int, size: int) -> Any:
    ask = BlockRange(request=0, dataset=DATASET, start=0, max_blocks=blocks, max_bytes=size)
    return chains.decode_range(chains.encode_range(ask))


def parts_asked(count: int) -> Any:
    ask = PartsAsk(dataset=DATASET, tip=Tip(count, bytes(32)), start=0, count=count, have=0)
    return swarm.decode_parts(swarm.encode_parts(ask))


def trust_reply(size: int) -> Any:
    body = trust.encode(trust.Statements((), 1))
    return trust.decode_tell(body + b" " * (size - len(body)))


def trust_request(size: int) -> Any:
    body = trust.encode(trust.SumAsk())
    return trust.decode_ask(body + b" " * (size - len(body)))


def listing(count: int) -> Any:
    refs = [StatementRef(sid(number), DATASET) for number in range(count)]
    return trust.decode_tell(trust.encode(trust.page(refs, more=False)))


def presence_of(**fields: Any) -> Any:
    said = Presence(key=KEY.public, issued=1, **{"lifetime": 1, **fields})
    return presence.decode(presence.seal(said, "net", KEY))


def largest_presence(size: int) -> Any:
    """Eight names of 255 characters and all tags; one byte over is made by a byte too many."""
    label = "a" * 63
    address = f"/dns4/{label}.{label}.{label}.{'b' * 47}/tcp/65535"
    assert len(address) == 255
    said = Presence(
        key=KEY.public,
        issued=1,
        lifetime=1,
        addresses=(address,) * limits.MAX_PRESENCE_ADDRESSES,
        tags=tuple(range(limits.MAX_TAGS)),
    )
    raw = presence.seal(said, "net", KEY)
    return presence.decode(raw + bytes(max(0, size - len(raw))))


AT: dict[str, Callable[[int], Any]] = {
    "MAX_BLOCK": one_block,
    "MAX_RANGE_BYTES": lambda size: blocks_asked(1, size),
    "MAX_RANGE_BLOCKS": lambda count: blocks_asked(count, 1),
    "MAX_OBJECT_READ": lambda length: (
        objects.decode_request(objects.encode_read(ObjectRange(request=0, name=NAME, offset=0, length=length))),
        objects.decode_object_reply(
            objects.encode_bytes(ObjectBytes(request=0, size=length, offset=0, data=bytes(length)))
        ),
    ),
    "MAX_PACK": lambda count: objects.decode_request(objects.encode_some(ObjectsAsk(request=0, names=(NAME,) * count))),
    "MAX_PACKED": lambda size: pack_of(bytes(size)),
    "MAX_PACK_BYTES": lambda size: pack_of(*[bytes(limits.MAX_PACKED)] * (size // limits.MAX_PACKED), bytes(size % 2)),
    "MAX_REQUEST": lambda size: FrameSplitter(limits.MAX_REQUEST).feed(frame(bytes(size))),
    "MAX_REPLY": lambda size: FrameSplitter(limits.MAX_REPLY).feed(frame(bytes(size))),
    "MAX_REASON": lambda size: refusal.decode_refusal(
        refusal.encode_refusal(PeerRefusal(0, RefusalReason.BUSY)) + b"x" * size
    ),
    "MAX_ENVELOPE": lambda size: trust.decode_tell(
        trust.encode(trust.Statements((trust.TopicEnvelope(Topic.HEADS, bytes(size)),), 1))
    ),
    "MAX_TRUST_REQUEST": trust_request,
    "MAX_TRUST_REPLY": trust_reply,
    "BUCKETS": lambda count: trust.decode_ask(trust.encode(trust.ListAsk(buckets=(count - 1,)))),
    "MAX_SIDS": lambda count: trust.decode_ask(trust.encode(trust.GetAsk(tuple(map(sid, range(count)))))),
    "MAX_DATASETS": lambda count: trust.decode_ask(trust.encode(trust.ListAsk(datasets=(DATASET,) * count))),
    "MAX_LISTED": listing,
    "MAX_PRESENCE_ADDRESSES": lambda count: presence_of(addresses=("/ip4/1.2.3.4/tcp/1",) * count),
    "MAX_TAGS": lambda count: presence_of(tags=tuple(range(count))),
    "MAX_PRESENCE_LIFETIME": lambda seconds: presence_of(lifetime=seconds),
    "MAX_PRESENCES": lambda count: presence.decode_ask(presence.encode_ask(PeersAsk(wanted=count))),
    "MAX_TAGS_ASKED": lambda count: presence.decode_ask(presence.encode_ask(PeersAsk(wanted=1, tags=(0,) * count))),
    "MAX_PRESENCE": largest_presence,
    "MAX_LOOKUP_CONTACTS": lambda count: lookup.decode_nodes(
        lookup.encode_nodes(lookup.Nodes(contacts=(LookupContact(bytes(32), bytes(4), 1),) * count))
    ),
    "MAX_LOOKUP_RECORDS": lambda count: lookup.decode_nodes(lookup.encode_nodes(lookup.Nodes(records=(b"x",) * count))),
    "MAX_RECORD": lambda size: (
        lookup.decode_nodes(lookup.encode_nodes(lookup.Nodes(records=(bytes(size),)))),
        lookup.decode_lookup(lookup.encode_store(lookup.Store(key=bytes(32), record=bytes(size)))),
    ),
    "MAX_LOOKUP_ASK": lambda size: FrameSplitter(limits.MAX_LOOKUP_ASK).feed(frame(bytes(size))),
    "MAX_LOOKUP_ANSWER": lambda size: FrameSplitter(limits.MAX_LOOKUP_ANSWER).feed(frame(bytes(size))),
    "MAX_SWARM_BLOCKS": parts_asked,
    "MAX_SWARM_PEERS": lambda count: swarm.decode_told(
        swarm.encode_told(swarm.PartsTold(HeldParts(has=0, offers=0, given=0), (b"x",) * count), 1), 1
    ),
    "MAX_SWARM_ASK": lambda size: FrameSplitter(limits.MAX_SWARM_ASK).feed(frame(bytes(size))),
    "MAX_SWARM_ANSWER": lambda size: FrameSplitter(limits.MAX_SWARM_ANSWER).feed(frame(bytes(size))),
    "MAX_PIECES_ASK": lambda size: FrameSplitter(limits.MAX_PIECES_ASK).feed(frame(bytes(size))),
    "MAX_PIECES_ANSWER": lambda size: FrameSplitter(limits.MAX_PIECES_ANSWER).feed(frame(bytes(size))),
    "MAX_PEERS_ASK": lambda size: FrameSplitter(limits.MAX_PEERS_ASK).feed(frame(bytes(size))),
    "MAX_PEERS_ANSWER": lambda size: FrameSplitter(limits.MAX_PEERS_ANSWER).feed(frame(bytes(size))),
}
UNITS = {"KIB", "MIB"}


def test_every_limit_is_here() -> None:
    assert {name for name in vars(limits) if name.isupper()} == {*AT, *UNITS}


@pytest.mark.parametrize("name", AT)
def test_at_the_limit_and_one_over(name: str) -> None:
    limit = getattr(limits, name)
    AT[name](limit)
    with pytest.raises(Invalid):
        AT[name](limit + 1)


def test_a_block_that_can_be_written_can_be_sent() -> None:
    assert limits.MAX_BLOCK == CODEC_MAX_BLOCK


def test_the_largest_messages_fit_their_frames() -> None:
    refs = [StatementRef(sid(n), DatasetId.from_public_key(n.to_bytes(32, "big"))) for n in range(limits.MAX_LISTED)]
    assert len(trust.encode(trust.page(refs, more=True))) <= limits.MAX_TRUST_REPLY
    assert len(trust.encode(trust.GetAsk(tuple(map(sid, range(limits.MAX_SIDS)))))) <= limits.MAX_TRUST_REQUEST
    assert len(trust.encode(trust.ListAsk(datasets=(DATASET,) * limits.MAX_DATASETS))) <= limits.MAX_TRUST_REQUEST
