"""How much of a mirror's data is kept, as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.instant import SECOND, Instant
from odfd.mirrors.data_retention import RetainedRange, replanned
from odfd.resources.manifest import parse_size
from odfd.store.retention import Keep, Piece, first_kept, oldest_kept, parse_keep

DAY = 86_400 * SECOND


@pytest.mark.parametrize(
    ("text", "span", "size"),
    [
        ("all", None, None),
        ("30d", 30 * DAY, None),
        ("12h", DAY // 2, None),
        ("2w", 14 * DAY, None),
        ("10GiB", None, 10 << 30),
        ("1.5kB", None, 1500),
        ("0B", None, 0),
        ("30d,10MB", 30 * DAY, 10_000_000),
        ("10MB,30d", 30 * DAY, 10_000_000),
    ],
)
def test_bounds_are_read(text: str, span: int | None, size: int | None) -> None:
    assert parse_keep(text) == Keep(span=span, bytes=size)


@pytest.mark.parametrize(
    "text", ["", "0d", "30", "30 d", "-1d", "10GiB,5GiB", "1d,1d", "all,1d", "١d", "1e9B", "9" * 99]
)
def test_what_says_nothing_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(Invalid, match="how much data") as caught:
        parse_keep(text)
    assert "30d" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["", "10", "GB", "1.5.5GB", "10 GB"])
def test_sizes_have_units(text: str) -> None:
    with pytest.raises(Invalid, match="not a size"):
        parse_size(text)


def test_days_are_counted_from_the_newest_block() -> None:
    pieces = [Piece(number, Instant(number * DAY), 10) for number in range(10)]
    newest = Instant(9 * DAY)
    assert oldest_kept(Keep(span=3 * DAY), newest, reversed(pieces), 10) == 6
    assert oldest_kept(Keep(bytes=25), newest, reversed(pieces), 10) == 8
    assert oldest_kept(Keep(bytes=9), newest, reversed(pieces), 10) == 10
    assert oldest_kept(Keep(), newest, reversed(pieces), 10) == 0


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(0, 100)), min_size=1),
    st.none() | st.integers(0, 60),
    st.none() | st.integers(0, 2000),
)
def test_from_either_end_the_same_is_kept(
    steps: list[tuple[int, int, int]], span: int | None, size: int | None
) -> None:
    """What is kept is an end of the chain within both bounds, and one piece more would break one."""
    time = number = -1
    pieces = []
    for later, further, count in steps:
        time, number = time + later, number + further
        pieces.append(Piece(number, Instant(time), count))
    keep, newest, length = Keep(span=span, bytes=size), Instant(time), number + 1
    first = oldest_kept(keep, newest, reversed(pieces), length)
    kept = [piece for piece in pieces if piece.sequence >= first]
    total = sum(piece.bytes for piece in pieces)
    again = first_kept(keep, newest, iter(pieces), total, 0)
    assert [piece for piece in pieces if piece.sequence >= again] == kept
    assert first_kept(keep, newest, iter(()), 0, 3) == 3, "of nothing nothing is let go"
    assert size is None or sum(piece.bytes for piece in kept) <= size
    assert span is None or all(newest - piece.time <= span for piece in kept)
    if before := [piece for piece in pieces if piece.sequence < first]:
        more = sum(piece.bytes for piece in [before[-1], *kept])
        assert not keep.holds(before[-1], newest, more)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 12))
def test_a_plan_claims_nothing_that_was_not_looked_at(seen: int, first: int, data: int, wanted: int) -> None:
    """Blocks from ``seen`` to ``data`` were looked at, and stay so; nothing asked for is left out."""
    seen, first, data = sorted((seen, first, data))
    after = replanned(RetainedRange(first, data, seen), wanted)
    assert after.seen <= after.first <= after.data
    looked_at = set(range(seen, data))
    assert set(range(after.seen, after.data)) <= looked_at
    here = set(range(first, data))
    assert set(range(after.first, after.data)) <= here
    assert after.data >= min(wanted, data)
    assert after.first <= max(wanted, first)


def test_a_plan_that_is_damaged_is_begun_anew() -> None:
    assert replanned(RetainedRange(0, 7, 1 << 62), 3) == RetainedRange(3, 3, 3)
