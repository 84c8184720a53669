"""Messages about pieces: what is written is read, what is changed is refused, garbage is only Invalid."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.ports import PiecesAsk
from p2p.wire.limits import MAX_PIECES_ANSWER, MAX_PIECES_ASK
from p2p.wire.swarm import (
    LARGE_OBJECT,
    MAX_PIECES,
    NONE,
    PieceList,
    PieceListAsk,
    decode_listed,
    decode_question,
    encode_list_ask,
    encode_listed,
    encode_pieces_ask,
    piece_count,
)

DATASET = DatasetId.from_public_key(bytes(range(32)))
NAME = Multihash.sha3_256(b"object")
sizes = st.integers(LARGE_OBJECT, 1 << 48)


@st.composite
def asks(draw: st.DrawFn) -> PiecesAsk:
    size, root = draw(sizes), draw(st.binary(min_size=32, max_size=32))
    have = draw(st.integers(0, (1 << piece_count(size)) - 1))
    return PiecesAsk(dataset=DATASET, name=NAME, size=size, root=root, have=have)


@given(asks())
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


@given(asks(), st.binary(min_size=1, max_size=9))
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
