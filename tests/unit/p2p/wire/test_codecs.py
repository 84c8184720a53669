"""Properties of every codec: round trips, any bytes become a value or Invalid, pieces make no difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import multibase
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.ports import StatementRef, Topic
from p2p.wire import chains, frames, objects, refusal, trust
from p2p.wire.chains import BlockRange, Blocks
from p2p.wire.frames import DelimitedReader
from p2p.wire.limits import MAX_DATASETS, MAX_OBJECT_READ, MAX_RANGE_BLOCKS, MAX_RANGE_BYTES
from p2p.wire.objects import MAX_SIZE, ObjectBytes, ObjectPack, ObjectRange, ObjectsAsk
from p2p.wire.refusal import PeerRefusal, RefusalReason

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
