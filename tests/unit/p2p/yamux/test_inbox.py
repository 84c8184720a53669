"""Bytes come out as they went in, whatever the pieces, and small ones do not stay for themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2p.yamux.stream import LARGE, Inbox

steps = st.lists(
    st.tuples(st.booleans(), st.one_of(st.integers(0, 40), st.sampled_from([LARGE - 1, LARGE, LARGE + 7]))), max_size=40
)


@given(steps)
def test_what_goes_in_comes_out_in_order(steps: list[tuple[bool, int]]) -> None:
    inbox, given, taken = Inbox(), b"", b""
    for number, (is_added, size) in enumerate(steps):
        if is_added:
            piece = bytes([number]) * size
            inbox.add(memoryview(piece))
            given += piece
        else:
            data = inbox.take(size)
            assert bool(data) == bool(size and len(given) > len(taken))
            assert len(data) <= size
            taken += data
        assert len(inbox) == len(given) - len(taken)
    while data := inbox.take(1 << 20):
        taken += data
    assert taken == given


def test_small_pieces_are_kept_together() -> None:
    inbox = Inbox()
    for _ in range(100_000):
        inbox.add(memoryview(b"x"))
    assert len(inbox._pieces) == 0
    assert inbox.take(1 << 20) == b"x" * 100_000


def test_a_piece_is_a_copy() -> None:
    inbox, scratch = Inbox(), bytearray(b"a" * LARGE)
    inbox.add(memoryview(scratch))
    scratch[:] = b"b" * LARGE
    assert inbox.take(LARGE) == b"a" * LARGE


def test_nothing_is_left_when_it_is_cleared() -> None:
    inbox = Inbox()
    inbox.add(memoryview(bytes(LARGE)))
    inbox.take(5)
    inbox.add(memoryview(b"tail"))
    inbox.clear()
    assert (len(inbox), inbox.take(9)) == (0, b"")
    inbox.add(memoryview(b"new"))
    assert inbox.take(9) == b"new"
