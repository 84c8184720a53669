"""Swarms: who gives which piece, and who stays to give."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.machines.seeding import LONGEST, MAX_ASKERS, REST, SPREAD, STALL, WINDOW, WINDOWS, Seeding
from p2p.machines.swarm import (
    ALONE,
    AT_ONCE,
    OF_ONE,
    PATIENCE,
    SLOW,
    STRIKES,
    Leave,
    Swarm,
    SwarmPiece,
    TakePiece,
    pieces_of,
)
from p2p.ports import HeldParts, PeerId

# What a mirror takes from whom: a publisher's offers first, then what is rare; who does not give is left.

PUBLISHER, ANNA, BERT = (PeerId(name) for name in ("publisher", "anna", "bert"))
COUNT = 12
ALL = (1 << COUNT) - 1


def swarm(seed: int = 1) -> Swarm:
    return Swarm([SwarmPiece(number, number + 1, 10) for number in range(COUNT)], [], Random(seed), PUBLISHER, 0.0)


def free(bits: int) -> HeldParts:
    return HeldParts(has=bits, offers=bits)


def test_offers_of_the_publisher_come_first_and_then_what_is_rare() -> None:
    plan = swarm()
    plan.take_parts(PUBLISHER, HeldParts(has=ALL, offers=0b11), 0.0)
    plan.take_parts(ANNA, free(0b1110_0000), 0.0)
    plan.take_parts(BERT, free(0b0110_0000), 0.0)
    steps = plan.plan(0.0)
    assert steps[:2] == [TakePiece(0, PUBLISHER), TakePiece(1, PUBLISHER)]
    assert steps[2] == TakePiece(7, ANNA), "the only copy but the publisher's"
    assert {step.piece for step in steps[3:]} == {5, 6}


def test_mirrors_with_the_same_word_take_different_pieces() -> None:
    firsts = set()
    for seed in range(20):
        plan = swarm(seed)
        plan.take_parts(ANNA, free(ALL), 0.0)
        plan.take_parts(BERT, free(ALL), 0.0)
        firsts.add(plan.plan(0.0)[0].piece)
    assert len(firsts) > COUNT // 2


def test_one_alone_is_asked_for_more_at_once() -> None:
    plan = swarm()
    plan.take_parts(ANNA, free(ALL), 0.0)
    assert len(plan.plan(0.0)) == AT_ONCE
    plan = swarm()
    plan.take_parts(ANNA, free(ALL), 0.0)
    plan.take_parts(BERT, free(ALL), 0.0)
    assert len(plan.plan(0.0)) == 2 * OF_ONE


def test_who_offers_and_does_not_give_is_left() -> None:
    plan = swarm()
    plan.take_parts(ANNA, free(ALL), 0.0)
    takes = [step for step in plan.plan(0.0) if isinstance(step, TakePiece)]
    for take in takes[:STRIKES]:
        plan.note_failure(take.piece, take.peer)
    assert plan.left == {ANNA}
    plan.take_parts(ANNA, free(ALL), 1.0)
    assert not plan.plan(1.0)


def test_a_piece_that_is_late_is_taken_from_another_that_is_idle() -> None:
    plan = Swarm([SwarmPiece(0, 1, 10)], [], Random(1), PUBLISHER, 0.0)
    plan.take_parts(ANNA, free(1), 0.0)
    assert plan.plan(0.0) == [TakePiece(0, ANNA)]
    plan.take_parts(BERT, free(1), 1.0)
    assert plan.plan(SLOW) == []
    assert plan.plan(SLOW + 1) == [Leave(0, ANNA), TakePiece(0, BERT)]
    plan.got(0, SLOW + 2)
    assert plan.done


def test_it_ends_when_nobody_gives_anything_for_long() -> None:
    plan = swarm()
    assert not plan.is_hopeless(ALONE)
    assert plan.is_hopeless(ALONE + 1), "nobody has said a word"
    plan.take_parts(PUBLISHER, HeldParts(has=ALL, offers=0, given=1), 2.0)
    plan.take_parts(ANNA, free(1 << 5), 3.0)
    assert not plan.is_hopeless(PATIENCE)
    assert plan.is_hopeless(PATIENCE + 3), "the word of a stranger is no news"
    plan.take_parts(PUBLISHER, HeldParts(has=ALL, offers=0, given=2), PATIENCE + 3)
    assert not plan.is_hopeless(PATIENCE + 4), "the publisher gives to others"


def test_who_goes_takes_its_pieces_along() -> None:
    plan = swarm()
    plan.take_parts(ANNA, free(ALL), 0.0)
    begun = sorted(step.piece for step in plan.plan(0.0))
    assert sorted(plan.went(ANNA)) == begun
    plan.take_parts(BERT, free(ALL), 1.0)
    assert len(plan.plan(1.0)) == AT_ONCE, "what was on its way is taken from another"


def test_pieces_are_runs_of_blocks_within_bounds() -> None:
    sizes = [[], [3], [4, 4], [], [100], [1], [1], [1]]
    found = pieces_of(sizes, 11, 2)
    assert found == [
        SwarmPiece(0, 2, 3),
        SwarmPiece(2, 4, 8),
        SwarmPiece(4, 5, 100),
        SwarmPiece(5, 7, 2),
        SwarmPiece(7, 8, 1),
    ]
    assert pieces_of([], 1, 1) == []


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(1, 50), max_size=2), min_size=1, max_size=40),
    st.integers(0, 2**32),
    st.lists(
        st.tuples(st.sampled_from([PUBLISHER, ANNA, BERT]), st.integers(0, 2**40), st.integers(0, 2**40)), max_size=9
    ),
)
def test_nothing_is_taken_twice_or_from_who_does_not_offer_it(
    sizes: list[list[int]], seed: int, words: list[tuple[PeerId, int, int]]
) -> None:
    pieces = pieces_of(sizes, 60, 8)
    whole = (1 << len(sizes)) - 1
    plan, lot, now = Swarm(pieces, [], Random(seed), PUBLISHER, 0.0), Random(seed), 0.0
    offers: dict[PeerId, int] = {}
    under_way: dict[int, PeerId] = {}
    got: set[int] = set()
    for peer, has, offered in words:
        now += 1.0
        offers[peer] = has & offered & whole
        plan.take_parts(peer, HeldParts(has=has & whole, offers=offers[peer]), now)
        for step in plan.plan(now):
            if isinstance(step, Leave):
                assert under_way.pop(step.piece) == step.peer
                continue
            start, stop, _ = pieces[step.piece]
            mask = ((1 << (stop - start)) - 1) << start
            assert step.piece not in under_way
            assert step.piece not in got
            assert step.peer in plan.left or offers[step.peer] & mask == mask
            under_way[step.piece] = step.peer
        for piece, giver in list(under_way.items()):
            if lot.random() < 0.5:
                del under_way[piece]
                if lot.random() < 0.7:
                    plan.got(piece, now)
                    got.add(piece)
                else:
                    plan.note_failure(piece, giver)
        for piece in [piece for piece, giver in under_way.items() if giver in plan.left]:
            del under_way[piece]
    assert plan.done == (got == set(range(len(pieces))))
    blocks = sum(((1 << (stop - start)) - 1) << start for start, stop, _ in (pieces[each] for each in got))
    assert plan.have() == blocks


# A publisher offers what nobody has to one asker at a time, and again what does not spread.

FIRST, SECOND, THIRD = (PeerId(name) for name in ("anna", "bert", "carl"))
HUNDRED = (1 << 100) - 1


def both(seeding: Seeding, now: float = 0.0) -> tuple[int, int]:
    seeding.offer(FIRST, 0, HUNDRED, now)
    return seeding.offer(FIRST, 0, HUNDRED, now), seeding.offer(SECOND, 0, HUNDRED, now)


def test_who_is_alone_is_offered_all() -> None:
    assert Seeding().offer(FIRST, 3, HUNDRED, 0.0) == HUNDRED & ~3


def test_two_are_offered_different_blocks() -> None:
    seeding = Seeding()
    seeding.offer(FIRST, 0, HUNDRED, 0.0)
    seeding.offer(SECOND, 0, HUNDRED, 0.0)
    one, other = seeding.offer(FIRST, 0, HUNDRED, 1.0), seeding.offer(SECOND, 0, HUNDRED, 1.0)
    assert one
    assert not one & other
    seeding.offer(FIRST, one, HUNDRED, 2.0)
    assert seeding.offer(SECOND, 0, HUNDRED, 2.0), "there is room for the second now"


def test_what_somebody_has_is_offered_again_only_if_it_does_not_spread() -> None:
    seeding = Seeding()
    one, _ = both(seeding)
    now = 0.0
    while now < 2 * SPREAD:
        now += 1.0
        seeding.offer(FIRST, one, one, now)
        assert not seeding.offer(SECOND, 0, one, now) or now > SPREAD
    seeding.offer(FIRST, one, one, now + SPREAD)
    assert seeding.offer(SECOND, 0, one, now + 2 * SPREAD) & one


def test_an_offer_that_is_not_taken_goes_to_another() -> None:
    seeding = Seeding()
    one, _ = both(seeding)
    seeding.offer(SECOND, 0, one, STALL)
    seeding.offer(FIRST, 0, one, STALL)
    seeding.offer(FIRST, 0, one, STALL + 1)
    assert seeding.offer(SECOND, 0, one, STALL + 1) == one & seeding.offer(SECOND, 0, one, STALL + 2)
    assert not seeding.offer(FIRST, 0, one, STALL + 3), "it rests"
    assert REST > STALL


def test_bytes_that_are_given_keep_an_offer_and_not_for_ever() -> None:
    seeding = Seeding()
    one, _ = both(seeding)
    now = 0.0
    while now < LONGEST:
        now += STALL / 2
        seeding.gave(FIRST, 1, now)
        assert seeding.offer(FIRST, 0, one, now)
        assert not seeding.offer(SECOND, 0, one, now)
    seeding.gave(FIRST, 1, now + 1)
    seeding.offer(SECOND, 0, one, now + 1)
    assert seeding.offer(SECOND, 0, one, now + 2)
    assert seeding.given == now / (STALL / 2) + 1


def test_strangers_cost_bounded_memory_and_bytes_of_others_count_for_nothing() -> None:
    seeding = Seeding()
    for number in range(3 * MAX_ASKERS):
        seeding.offer(PeerId(f"p{number}"), 0, HUNDRED, float(number))
    assert len(seeding._askers) == MAX_ASKERS
    seeding.gave(PeerId("p0"), 1, 0.0)
    assert not seeding.given


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from([FIRST, SECOND, THIRD]), st.integers(0, HUNDRED), st.floats(0, 30)), max_size=40)
)
def test_whatever_is_said(said: list[tuple[PeerId, int, float]]) -> None:
    """No block is on offer to two, no more than the window is, and nothing is offered that the asker has."""
    seeding, now = Seeding(), 0.0
    for peer, have, wait in said:
        now += wait
        assert not seeding.offer(peer, have, HUNDRED, now) & have
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
