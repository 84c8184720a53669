"""Messages between peers: those that are whole come back, and any bytes are a message or Invalid."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import multibase
from chain.codec.blocks import MAX_BLOCK as CODEC_MAX_BLOCK
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from p2p.identity import peer_of_did
from p2p.ports import HeldParts, PartsAsk, PeerId, PiecesAsk, StatementRef, Tip, Topic
from p2p.wire import chains, circuit, frames, limits, lookup, objects, presence, refusal, swarm, trust
from p2p.wire.chains import BlockRange, Blocks
from p2p.wire.circuit import CircuitStatus, HopKind, HopMessage, Limit, Reservation, StopKind, StopMessage
from p2p.wire.contact import LookupContact
from p2p.wire.frames import DelimitedReader, FrameSplitter, frame
from p2p.wire.limits import (
    MAX_DATASETS,
    MAX_OBJECT_READ,
    MAX_PIECES_ANSWER,
    MAX_PIECES_ASK,
    MAX_RANGE_BLOCKS,
    MAX_RANGE_BYTES,
)
from p2p.wire.objects import MAX_SIZE, ObjectBytes, ObjectPack, ObjectRange, ObjectsAsk
from p2p.wire.presence import PeersAsk, Presence
from p2p.wire.refusal import PeerRefusal, RefusalReason
from p2p.wire.swarm import (
    LARGE_OBJECT,
    MAX_PIECES,
    NONE,
    PartsTold,
    PieceList,
    PieceListAsk,
    decode_listed,
    decode_parts,
    decode_question,
    decode_told,
    encode_list_ask,
    encode_listed,
    encode_parts,
    encode_pieces_ask,
    encode_told,
    piece_count,
)

# Properties of every codec: round trips, any bytes become a value or Invalid, pieces make no difference.

u32 = st.integers(0, 2**32 - 1)
u63 = st.integers(0, 2**63)
datasets = st.binary(min_size=32, max_size=32).map(DatasetId.from_public_key)
sids = st.binary(max_size=8).map(Multihash.sha3_256)
refs = st.lists(st.builds(StatementRef, sids, datasets), max_size=12, unique_by=lambda ref: ref.sid).map(
    lambda found: sorted(found, key=lambda ref: ref.sid)
)
ranges = st.builds(
    BlockRange,
    request=u32,
    dataset=datasets,
    start=u63,
    max_blocks=st.integers(0, MAX_RANGE_BLOCKS),
    max_bytes=st.integers(0, MAX_RANGE_BYTES),
)
answers = st.builds(
    lambda request, start, blocks, beyond: Blocks(
        request=request, size=start + len(blocks) + beyond, start=start, blocks=tuple(blocks)
    ),
    u32,
    st.integers(0, 2**40),
    st.lists(st.binary(min_size=1, max_size=40), max_size=9),
    st.integers(0, 2**40),
)
refusals = st.builds(PeerRefusal, u32, st.sampled_from(RefusalReason), st.text(max_size=40))
reads = st.builds(
    ObjectRange,
    request=u32,
    name=sids,
    offset=st.integers(0, MAX_SIZE),
    length=st.integers(0, MAX_OBJECT_READ),
)
parts = st.builds(
    lambda request, offset, data, beyond: ObjectBytes(
        request=request, size=offset + len(data) + beyond, offset=offset, data=data
    ),
    u32,
    st.integers(0, 2**40),
    st.binary(max_size=60),
    st.integers(0, 2**40),
)
somes = st.builds(ObjectsAsk, request=u32, names=st.lists(sids, min_size=1, max_size=9).map(tuple))
packed = st.builds(ObjectPack, request=u32, objects=st.lists(st.binary(max_size=40), min_size=1, max_size=9).map(tuple))
asks = st.one_of(
    st.just(trust.SumAsk()),
    st.builds(trust.ListAsk, buckets=st.lists(st.integers(0, 255), min_size=1, max_size=9).map(tuple)),
    st.builds(
        trust.ListAsk,
        datasets=st.lists(datasets, min_size=1, max_size=5).map(tuple),
        after=st.none() | sids,
    ),
    st.builds(trust.GetAsk, st.lists(sids, min_size=1, max_size=9).map(tuple)),
)
tells = st.one_of(
    refs.map(lambda found: trust.Sums({f"{n:02x}": value for n, value in trust.sums(found).items()})),
    st.builds(trust.page, refs, st.booleans()),
    st.builds(
        trust.Statements,
        st.lists(st.builds(trust.TopicEnvelope, st.sampled_from(Topic), st.binary(max_size=30)), max_size=5).map(tuple),
        st.integers(1, 256),
    ),
    st.builds(trust.TrustRefusal, st.text(max_size=256)),
)
CODECS: list[tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any]]] = [
    (ranges, chains.encode_range, chains.decode_range),
    (answers, chains.encode_blocks, chains.decode_chain_reply),
    (refusals, refusal.encode_refusal, chains.decode_chain_reply),
    (refusals, refusal.encode_refusal, objects.decode_object_reply),
    (parts, objects.encode_bytes, objects.decode_object_reply),
    (reads, objects.encode_read, objects.decode_request),
    (somes, objects.encode_some, objects.decode_request),
    (packed, objects.encode_pack, objects.decode_object_reply),
    (asks, trust.encode, trust.decode_ask),
    (tells, trust.encode, trust.decode_tell),
]


@pytest.mark.slow
@given(st.data())
def test_prop_decode_of_encode_is_the_message(data: st.DataObject) -> None:
    for messages, encode, decode in CODECS:
        message = data.draw(messages)
        assert decode(encode(message)) == message


@pytest.mark.slow
@given(st.binary(max_size=300), st.data())
def test_prop_any_bytes_are_a_message_or_invalid(raw: bytes, data: st.DataObject) -> None:
    """Also bytes that are nearly a message: one byte changed, some cut off."""
    for messages, encode, decode in CODECS:
        nearly = bytearray(encode(data.draw(messages)))
        nearly[data.draw(st.integers(0, len(nearly) - 1))] = data.draw(st.integers(0, 255))
        for body in (raw, bytes(nearly), bytes(nearly[: data.draw(st.integers(0, len(nearly)))])):
            try:
                message = decode(body)
            except Invalid:
                continue
            assert decode(encode(message)) == message


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.lists(st.integers(1, 30), min_size=1))
def test_prop_frames_do_not_depend_on_pieces(bodies: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(map(frames.frame, bodies))
    reader, got, at, turn = frames.FrameSplitter(50), [], 0, 0
    while at < len(whole):
        size = sizes[turn % len(sizes)]
        got += reader.feed(whole[at : at + size])
        at, turn = at + size, turn + 1
        assert reader.held <= 50 + max(sizes)
    reader.end()
    assert got == bodies == frames.FrameSplitter(50).feed(whole)


@pytest.mark.parametrize("length", [0, 51, 2**32 - 1])
def test_a_bad_length_is_known_before_the_body(length: int) -> None:
    reader = frames.FrameSplitter(50)
    assert reader.feed(length.to_bytes(4, "big")[:3]) == []
    with pytest.raises(Invalid, match=f"frame of {length} bytes"):
        reader.feed(length.to_bytes(4, "big")[3:])


def delimited(body: bytes) -> bytes:
    return multibase.varint(len(body)) + body


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 30), min_size=1))
def test_prop_delimited_frames_do_not_depend_on_pieces(bodies: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(map(delimited, bodies))
    reader, got, at, turn = DelimitedReader(300), [], 0, 0
    while at < len(whole):
        size = sizes[turn % len(sizes)]
        got += reader.feed(whole[at : at + size])
        at, turn = at + size, turn + 1
    assert got == bodies == DelimitedReader(300).feed(whole)


@pytest.mark.parametrize("length", [multibase.varint(301), b"\x80" * 10], ids=["over", "no-end"])
def test_a_bad_delimiter_is_known_before_the_body(length: bytes) -> None:
    reader = DelimitedReader(300)
    assert reader.feed(length[:-1]) == []
    with pytest.raises(Invalid, match=r"frame of|a length of"):
        reader.feed(length[-1:])


@pytest.mark.parametrize("cut", [1, 4, 6])
def test_an_end_inside_a_frame(cut: int) -> None:
    reader = frames.FrameSplitter(50)
    reader.feed(frames.frame(b"hello")[:cut])
    with pytest.raises(Invalid, match="inside a frame"):
        reader.end()


@given(st.lists(st.binary(min_size=1, max_size=90), min_size=1, max_size=20), st.integers(0, 20), st.integers(0, 900))
def test_prop_fit_is_the_longest_allowed_beginning(blocks: list[bytes], count: int, size: int) -> None:
    kept = chains.fit(blocks, count, size)
    assert list(kept) == blocks[: len(kept)]
    if size == 0 or count == 0:
        assert len(kept) == 0
        return
    assert 1 <= len(kept) <= count
    assert len(kept) == 1 or sum(map(len, kept)) <= size
    if len(kept) < min(count, len(blocks)):
        assert sum(map(len, blocks[: len(kept) + 1])) > size


@given(refs, refs)
def test_prop_sums_differ_where_the_other_has_more(mine: list[StatementRef], theirs: list[StatementRef]) -> None:
    told = trust.Sums({f"{n:02x}": value for n, value in trust.sums(theirs).items()})
    differing = set(trust.differing(trust.sums(mine), told))
    held = {ref.sid for ref in mine}
    assert {trust.bucket(ref.dataset) for ref in theirs if ref.sid not in held} <= differing
    assert not trust.differing(trust.sums(list(reversed(theirs))), told)


@pytest.mark.parametrize(
    "body",
    [
        b'{"ask":"list"}',
        b'{"ask":"list","buckets":[1],"datasets":["did:odf:fed01' + b"00" * 32 + b'"]}',
        b'{"ask":"list","buckets":[256]}',
        b'{"ask":"get","sids":[]}',
        b'{"ask":"get","sids":[1]}',
        b'{"ask":"get","sids":["f1620"]}',
        b'{"ask":"prove"}',
        b"[" * 60_000,
        b'"\xff"',
        b"",
    ],
)
def test_questions_that_are_none(body: bytes) -> None:
    with pytest.raises(Invalid):
        trust.decode_ask(body)


def test_unknown_fields_are_for_later_versions() -> None:
    assert trust.decode_ask(b'{"ask":"sum","since":5}') == trust.SumAsk()


def test_lists_of_one_too_many() -> None:
    did = str(DatasetId.from_public_key(bytes(32)))
    with pytest.raises(Invalid, match="datasets"):
        trust.decode_ask(trust._ENCODER.encode({"ask": "list", "datasets": [did] * (MAX_DATASETS + 1)}))


@given(answers, ranges)
def test_prop_an_accepted_answer_is_one_that_was_asked_for(answer: Blocks, ask: BlockRange) -> None:
    try:
        chains.check_answer(ask, answer)
    except Invalid:
        return
    assert answer.start == ask.start
    assert len(answer.blocks) <= ask.max_blocks
    assert answer.blocks or answer.start >= answer.size or not (ask.max_bytes and ask.max_blocks)


# Messages of circuit relays: what is written is read, as others write it too, and garbage is refused by name.

RELAY, KEY = SigningKey(b"r" * 32), SigningKey(b"k" * 32)
RELAY_ID, PEER = peer_of_did(RELAY.did), peer_of_did(KEY.did)
numbers = st.integers(0, 2**64 - 1)
peers = st.none() | st.binary(min_size=32, max_size=32).map(lambda seed: peer_of_did(SigningKey(seed).did))
circuit_limits = st.builds(Limit, numbers, numbers)
hops = st.builds(
    HopMessage,
    kind=st.sampled_from(HopKind),
    peer=peers,
    reservation=st.none()
    | st.builds(
        Reservation, expires=numbers, addresses=st.lists(st.binary(max_size=80)).map(tuple), voucher=st.binary()
    ),
    limit=circuit_limits,
    status=st.none() | numbers,
)
stops = st.builds(
    StopMessage,
    kind=st.sampled_from(StopKind),
    peer=peers,
    limit=circuit_limits,
    status=st.none() | st.sampled_from(CircuitStatus),
)


def body(raw: bytes) -> bytes:
    (one,) = DelimitedReader(circuit.MAX_MESSAGE).feed(raw)
    return one


@given(hops, stops)
def test_round_trip(hop: HopMessage, stop: StopMessage) -> None:
    assert circuit.decode_hop(body(circuit.encode_hop(hop))) == hop
    assert circuit.decode_stop(body(circuit.encode_stop(stop))) == stop


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for decode in (circuit.decode_hop, circuit.decode_stop, lambda raw: circuit.check_voucher(raw, RELAY_ID, PEER)):
        for each in (raw, b"\x08\x02" + raw, b"\x08\x01\x12" + raw, b"\x08\x01\x12\x03\x0a\x01" + raw):
            with suppress(Invalid):
                decode(each)


def test_bytes_of_other_implementations() -> None:
    """Written down from the specification, by hand."""
    assert circuit.encode_hop(HopMessage(kind=HopKind.RESERVE)) == bytes.fromhex("02 0800")
    raw_peer = bytes.fromhex("00240801 1220") + KEY.public
    assert circuit.decode_hop(b"\x08\x01\x12\x28\x0a\x26" + raw_peer) == HopMessage(kind=HopKind.CONNECT, peer=PEER)
    refused = circuit.encode_stop(StopMessage(kind=StopKind.STATUS, status=CircuitStatus.PERMISSION_DENIED))
    assert refused == bytes.fromhex("05 0801 20ca01")


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x10\x01", b"\x08\x03", b"\x08\x00\x12\x00", b"\x08\x00\x28", b"\x0d\0\0\0", b"\x08" + b"\xff" * 10,
     b"\x08\x00\x12\x44\x0a\x42" + bytes(66), b"\x08\x00" * 2049],
    ids=["empty", "no kind", "unknown kind", "no peer id", "cut", "fixed32 cut", "number", "peer id", "size"],
)  # fmt: skip
def test_what_is_refused(raw: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        circuit.decode_hop(raw)
    assert refused.value.rule == "circuit-message"


def test_a_voucher_is_the_relays_word_of_one_peer() -> None:
    raw = circuit.seal_voucher(RELAY, RELAY_ID, PEER, 1_800_000_000)
    circuit.check_voucher(raw, RELAY_ID, PEER)
    by_another = circuit.seal_voucher(KEY, RELAY_ID, PEER, 1_800_000_000)
    cases: list[tuple[bytes, PeerId, PeerId]] = [
        (by_another, RELAY_ID, PEER),
        (raw, PEER, PEER),
        (raw, RELAY_ID, RELAY_ID),
    ]
    for wrong, relay, peer in [*cases, (raw[:-1] + b"\0", RELAY_ID, PEER)]:
        with pytest.raises(Invalid, match="voucher"):
            circuit.check_voucher(wrong, relay, peer)


# Messages about pieces: what is written is read, what is changed is refused, garbage is only Invalid.

DATASET = DatasetId.from_public_key(bytes(range(32)))
NAME = Multihash.sha3_256(b"object")
sizes = st.integers(LARGE_OBJECT, 1 << 48)


@st.composite
def piece_asks(draw: st.DrawFn) -> PiecesAsk:
    size, root = draw(sizes), draw(st.binary(min_size=32, max_size=32))
    have = draw(st.integers(0, (1 << piece_count(size)) - 1))
    return PiecesAsk(dataset=DATASET, name=NAME, size=size, root=root, have=have)


@given(piece_asks())
def test_questions_round_trip(ask: PiecesAsk) -> None:
    body = encode_pieces_ask(ask)
    assert decode_question(body) == ask
    assert len(body) <= MAX_PIECES_ASK


@given(sizes)
def test_lists_round_trip(size: int) -> None:
    ask = PieceListAsk(DATASET, NAME, size)
    assert decode_question(encode_list_ask(ask)) == ask
    made = PieceList(NAME, size, b"h" * 32 * piece_count(size), b"s" * 64)
    body = encode_listed(made)
    assert decode_listed(body, ask) == made
    assert len(body) <= MAX_PIECES_ANSWER
    assert decode_listed(NONE, ask) is None
    assert MAX_PIECES_ANSWER == 65 + 32 * MAX_PIECES
    with pytest.raises(Invalid):
        decode_listed(body[:-1], ask)


@given(piece_asks(), st.binary(min_size=1, max_size=9))
def test_more_or_less_is_refused(ask: PiecesAsk, more: bytes) -> None:
    body = encode_pieces_ask(ask)
    for changed in (body + more, body[: -len(more)]):
        with pytest.raises(Invalid):
            decode_question(changed)


def test_bits_beyond_the_last_piece_and_small_objects_are_refused() -> None:
    ask = PiecesAsk(dataset=DATASET, name=NAME, size=LARGE_OBJECT + 1, root=bytes(32), have=0)
    with pytest.raises(Invalid, match="map"):
        decode_question(encode_pieces_ask(ask)[:-1] + b"\xff")
    with pytest.raises(Invalid, match="size"):
        decode_question(encode_list_ask(PieceListAsk(DATASET, NAME, LARGE_OBJECT - 1)))


@given(st.binary(max_size=200))
def test_garbage_is_invalid(body: bytes) -> None:
    with suppress(Invalid):
        decode_question(body)
    with suppress(Invalid):
        decode_listed(body, PieceListAsk(DATASET, NAME, LARGE_OBJECT))


# Messages of a swarm: what is written is read, what is changed is refused, garbage is only Invalid.

counts = st.integers(1, 300)


@st.composite
def part_asks(draw: st.DrawFn) -> PartsAsk:
    count, start = draw(counts), draw(st.integers(0, 1 << 40))
    tip = Tip(start + count + draw(st.integers(0, 9)), draw(st.binary(min_size=32, max_size=32)))
    have = draw(st.integers(0, (1 << count) - 1))
    return PartsAsk(dataset=DATASET, tip=tip, start=start, count=count, have=have)


@st.composite
def part_answers(draw: st.DrawFn) -> tuple[PartsTold, int]:
    count = draw(counts)
    whole = (1 << count) - 1
    has = draw(st.integers(0, whole))
    parts = HeldParts(has=has, offers=has & draw(st.integers(0, whole)), given=draw(st.integers(0, 2**64 - 1)))
    presences = draw(st.lists(st.binary(min_size=1, max_size=300), max_size=8))
    return (PartsTold(parts, tuple(presences)) if draw(st.booleans()) else PartsTold(None)), count


@pytest.mark.slow
@given(part_asks())
def test_questions_of_parts_round_trip(ask: PartsAsk) -> None:
    assert decode_parts(encode_parts(ask)) == ask


@pytest.mark.slow
@given(part_answers())
def test_answers_round_trip(answer: tuple[PartsTold, int]) -> None:
    told, count = answer
    assert decode_told(encode_told(told, count), count) == told


@pytest.mark.slow
@given(part_asks(), part_answers(), st.binary(min_size=1, max_size=9))
def test_no_byte_more_or_less(ask: PartsAsk, answer: tuple[PartsTold, int], rest: bytes) -> None:
    told, count = answer
    for wrong in (encode_parts(ask) + rest, encode_parts(ask)[:-1]):
        with pytest.raises(Invalid):
            decode_parts(wrong)
    for wrong in (encode_told(told, count) + rest, encode_told(told, count)[:-1]):
        with pytest.raises(Invalid):
            decode_told(wrong, count)


@pytest.mark.slow
@given(st.binary(max_size=200), st.sampled_from([b"", b"\1", b"\x81", b"\x82"]), counts)
def test_garbage(raw: bytes, kind: bytes, count: int) -> None:
    with suppress(Invalid):
        decode_parts(kind + raw)
    with suppress(Invalid):
        decode_told(kind + raw, count)


def test_a_map_has_a_bit_for_each_block_and_no_other() -> None:
    ask = PartsAsk(dataset=DATASET, tip=Tip(9, bytes(32)), start=0, count=9, have=0)
    with pytest.raises(Invalid, match="map"):
        decode_parts(encode_parts(ask)[:-1] + b"\x02")
    with pytest.raises(Invalid, match="offer"):
        decode_told(encode_told(PartsTold(HeldParts(has=1, offers=2)), 9), 9)


@pytest.mark.parametrize(
    ("start", "count", "size"), [(0, 0, 1), (0, 65_537, 65_537), (1, 2, 2), (0, 1, 0), (0, 1, 1 << 63)]
)
def test_blocks_outside_of_the_history_or_too_many(start: int, count: int, size: int) -> None:
    ask = PartsAsk(dataset=DATASET, tip=Tip(size, bytes(32)), start=start, count=count, have=0)
    with pytest.raises(Invalid):
        decode_parts(encode_parts(ask))


def test_bounds() -> None:
    count = limits.MAX_SWARM_BLOCKS
    whole = (1 << count) - 1
    ask = PartsAsk(dataset=DATASET, tip=Tip(count, bytes(32)), start=0, count=count, have=whole)
    assert len(encode_parts(ask)) == limits.MAX_SWARM_ASK
    one = bytes(limits.MAX_PRESENCE)
    told = PartsTold(HeldParts(has=whole, offers=whole), (one,) * limits.MAX_SWARM_PEERS)
    assert len(encode_told(told, count)) == limits.MAX_SWARM_ANSWER
    for wrong in (PartsTold(told.parts, (one,) * (limits.MAX_SWARM_PEERS + 1)), PartsTold(told.parts, (one + b"?",))):
        with pytest.raises(Invalid):
            decode_told(encode_told(wrong, count), count)


# Every bound of ``p2p/wire/limits.py`` is kept: at the bound is taken, one over is refused.

LIMITED = DatasetId.from_public_key(bytes(32))
NO_BYTES = Multihash.sha3_256(b"")
OWNER = SigningKey(bytes(range(32)))


def sid(number: int) -> Multihash:
    return Multihash.from_digest(0x16, number.to_bytes(32, "big"))


def one_block(size: int) -> Any:
    return chains.decode_chain_reply(chains.encode_blocks(Blocks(request=0, size=1, start=0, blocks=(bytes(size),))))


def pack_of(*small: bytes) -> Any:
    return objects.decode_object_reply(objects.encode_pack(ObjectPack(request=0, objects=small)))


def blocks_asked(blocks: int, size: int) -> Any:
    ask = BlockRange(request=0, dataset=LIMITED, start=0, max_blocks=blocks, max_bytes=size)
    return chains.decode_range(chains.encode_range(ask))


def parts_asked(count: int) -> Any:
    ask = PartsAsk(dataset=LIMITED, tip=Tip(count, bytes(32)), start=0, count=count, have=0)
    return swarm.decode_parts(swarm.encode_parts(ask))


def trust_reply(size: int) -> Any:
    body = trust.encode(trust.Statements((), 1))
    return trust.decode_tell(body + b" " * (size - len(body)))


def trust_request(size: int) -> Any:
    body = trust.encode(trust.SumAsk())
    return trust.decode_ask(body + b" " * (size - len(body)))


def listing(count: int) -> Any:
    refs = [StatementRef(sid(number), LIMITED) for number in range(count)]
    return trust.decode_tell(trust.encode(trust.page(refs, more=False)))


def presence_of(**fields: Any) -> Any:
    said = Presence(key=OWNER.public, issued=1, **{"lifetime": 1, **fields})
    return presence.decode(presence.seal(said, "net", OWNER))


def largest_presence(size: int) -> Any:
    """Eight names of 255 characters and all tags; one byte over is made by a byte too many."""
    label = "a" * 63
    address = f"/dns4/{label}.{label}.{label}.{'b' * 47}/tcp/65535"
    assert len(address) == 255
    said = Presence(
        key=OWNER.public,
        issued=1,
        lifetime=1,
        addresses=(address,) * limits.MAX_PRESENCE_ADDRESSES,
        tags=tuple(range(limits.MAX_TAGS)),
    )
    raw = presence.seal(said, "net", OWNER)
    return presence.decode(raw + bytes(max(0, size - len(raw))))


AT: dict[str, Callable[[int], Any]] = {
    "MAX_BLOCK": one_block,
    "MAX_RANGE_BYTES": lambda size: blocks_asked(1, size),
    "MAX_RANGE_BLOCKS": lambda count: blocks_asked(count, 1),
    "MAX_OBJECT_READ": lambda length: (
        objects.decode_request(objects.encode_read(ObjectRange(request=0, name=NO_BYTES, offset=0, length=length))),
        objects.decode_object_reply(
            objects.encode_bytes(ObjectBytes(request=0, size=length, offset=0, data=bytes(length)))
        ),
    ),
    "MAX_PACK": lambda count: objects.decode_request(
        objects.encode_some(ObjectsAsk(request=0, names=(NO_BYTES,) * count))
    ),
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
    "MAX_DATASETS": lambda count: trust.decode_ask(trust.encode(trust.ListAsk(datasets=(LIMITED,) * count))),
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
    assert len(trust.encode(trust.ListAsk(datasets=(LIMITED,) * limits.MAX_DATASETS))) <= limits.MAX_TRUST_REQUEST
