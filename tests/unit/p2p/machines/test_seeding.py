"""A publisher offers what nobody has to one asker at a time, and again what does not spread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.machines.seeding import LONGEST, MAX_ASKERS, REST, SPREAD, STALL, WINDOW, WINDOWS, Seeding
from p2p.ports import PeerId

ANNA, BERT, CARL = (PeerId(name) for name in ("anna", "bert", "carl"))
ALL = (1 << 100) - 1


def both(seeding: Seeding, now: float = 0.0) -> tuple[int, int]:
    seeding.offer(ANNA, 0, ALL, now)
    return seeding.offer(ANNA, 0, ALL, now), seeding.offer(BERT, 0, ALL, now)


def test_who_is_alone_is_offered_all() -> None:
    assert Seeding().offer(ANNA, 3, ALL, 0.0) == ALL & ~3


def test_two_are_offered_different_blocks() -> None:
    seeding = Seeding()
    seeding.offer(ANNA, 0, ALL, 0.0)
    seeding.offer(BERT, 0, ALL, 0.0)
    one, other = seeding.offer(ANNA, 0, ALL, 1.0), seeding.offer(BERT, 0, ALL, 1.0)
    assert one
    assert not one & other
    seeding.offer(ANNA, one, ALL, 2.0)
    assert seeding.offer(BERT, 0, ALL, 2.0), "there is room for the second now"


def test_what_somebody_has_is_offered_again_only_if_it_does_not_spread() -> None:
    seeding = Seeding()
    one, _ = both(seeding)
    now = 0.0
    while now < 2 * SPREAD:
        now += 1.0
        seeding.offer(ANNA, one, one, now)
        assert not seeding.offer(BERT, 0, one, now) or now > SPREAD
    seeding.offer(ANNA, one, one, now + SPREAD)
    assert seeding.offer(BERT, 0, one, now + 2 * SPREAD) & one


def test_an_offer_that_is_not_taken_goes_to_another() -> None:
    seeding = Seeding()
    one, _ = both(seeding)
    seeding.offer(BERT, 0, one, STALL)
    seeding.offer(ANNA, 0, one, STALL)
    seeding.offer(ANNA, 0, one, STALL + 1)
    assert seeding.offer(BERT, 0, one, STALL + 1) == one & seeding.offer(BERT, 0, one, STALL + 2)
    assert not seeding.offer(ANNA, 0, one, STALL + 3), "it rests"
    assert REST > STALL


def test_bytes_that_are_given_keep_an_offer_and_not_for_ever() -> None:
    seeding = Seeding()
    one, _ = both(seeding)
    now = 0.0
    while now < LONGEST:
        now += STALL / 2
        seeding.gave(ANNA, 1, now)
        assert seeding.offer(ANNA, 0, one, now)
        assert not seeding.offer(BERT, 0, one, now)
    seeding.gave(ANNA, 1, now + 1)
    seeding.offer(BERT, 0, one, now + 1)
    assert seeding.offer(BERT, 0, one, now + 2)
    assert seeding.given == now / (STALL / 2) + 1


def test_strangers_cost_bounded_memory_and_bytes_of_others_count_for_nothing() -> None:
    seeding = Seeding()
    for number in range(3 * MAX_ASKERS):
        seeding.offer(PeerId(f"p{number}"), 0, ALL, float(number))
    assert len(seeding._askers) == MAX_ASKERS
    seeding.gave(PeerId("p0"), 1, 0.0)
    assert not seeding.given


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from([ANNA, BERT, CARL]), st.integers(0, ALL), st.floats(0, 30)), max_size=40))
def test_whatever_is_said(said: list[tuple[PeerId, int, float]]) -> None:
    """No block is on offer to two, no more than the window is, and nothing is offered that the asker has."""
    seeding, now = Seeding(), 0.0
    for peer, have, wait in said:
        now += wait
        assert not seeding.offer(peer, have, ALL, now) & have
        offers = [asker.offered for asker in seeding._askers.values() if now - asker.at < STALL]
        assert sum(each.bit_count() for each in offers) <= max(WINDOW, seeding._window)
        assert WINDOWS[0] <= seeding._window <= WINDOWS[1]


@pytest.mark.parametrize("count", [0, 1, 7, 200])
def test_the_lowest_bits(count: int) -> None:
    from p2p.machines.seeding import _lowest

    bits = 0b1011_0110 << 60 | 0b101
    found = _lowest(bits, count)
    assert found & bits == found
    assert found.bit_count() == min(count, bits.bit_count())
    assert not found or found <= bits & ~(bits & ~found) or found == bits
