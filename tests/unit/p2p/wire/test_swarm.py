"""Messages of a swarm: what is written is read, what is changed is refused, garbage is only Invalid."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.ids import DatasetId
from p2p.ports import HeldParts, PartsAsk, Tip
from p2p.wire import limits
from p2p.wire.swarm import PartsTold, decode_parts, decode_told, encode_parts, encode_told

DATASET = DatasetId.from_public_key(bytes(range(32)))
counts = st.integers(1, 300)


@st.composite
def asks(draw: st.DrawFn) -> PartsAsk:
    count, start = draw(counts), draw(st.integers(0, 1 << 40))
    tip = Tip(start + count + draw(st.integers(0, 9)), draw(st.binary(min_size=32, max_size=32)))
    have = draw(st.integers(0, (1 << count) - 1))
    return PartsAsk(dataset=DATASET, tip=tip, start=start, count=count, have=have)


@st.composite
def answers(draw: st.DrawFn) -> tuple[PartsTold, int]:
    count = draw(counts)
    whole = (1 << count) - 1
    has = draw(st.integers(0, whole))
    parts = HeldParts(has=has, offers=has & draw(st.integers(0, whole)), given=draw(st.integers(0, 2**64 - 1)))
    presences = draw(st.lists(st.binary(min_size=1, max_size=300), max_size=8))
    return (PartsTold(parts, tuple(presences)) if draw(st.booleans()) else PartsTold(None)), count


@pytest.mark.slow
@given(asks())
def test_questions_round_trip(ask: PartsAsk) -> None:
    assert decode_parts(encode_parts(ask)) == ask


@pytest.mark.slow
@given(answers())
def test_answers_round_trip(answer: tuple[PartsTold, int]) -> None:
    told, count = answer
    assert decode_told(encode_told(told, count), count) == told


@pytest.mark.slow
@given(asks(), answers(), st.binary(min_size=1, max_size=9))
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
