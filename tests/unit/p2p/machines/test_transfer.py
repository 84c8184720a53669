"""Single steps of a transfer that the simulator meets only by chance."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.machines.providers import DEPTH, FADES, LEAST_RATE, MISSES, PATIENCE, TRIED, TrackRecords
from p2p.machines.seeding import LONGEST, MAX_ASKERS, REST, SPREAD, STALL, WINDOW, WINDOWS, Seeding
from p2p.machines.swarm import ALONE, OF_ONE, SLOW, STRIKES, Leave, Swarm, SwarmPiece, TakePiece, pieces_of
from p2p.machines.swarm import AT_ONCE as PIECES_AT_ONCE
from p2p.machines.swarm import PATIENCE as SWARM_PATIENCE
from p2p.machines.transfer import (
    AT_ONCE,
    HEDGE,
    MAX_STILL,
    MAX_UNVERIFIED,
    SOON,
    STILL,
    Accepted,
    Arrived,
    Ask,
    Completed,
    Deliver,
    Denied,
    Finish,
    Finished,
    GaveUp,
    Joined,
    Left,
    PartRejected,
    PartTransfer,
    Penalise,
    Tick,
    TransferShape,
    WakeAt,
)
from p2p.ports import HeldParts, PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
SHAPE = TransferShape(most_units=10, most_bytes=10, window=80)


def made(target: int = 100, **more: Any) -> PartTransfer:
    return PartTransfer(0, target, SHAPE, Random(1), **more)


def only(effects: list[Any], kind: type[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def accept_all(machine: PartTransfer, effects: list[Any], now: float) -> list[Deliver]:
    """What is before the judge is good, and all that comes after it, which is returned."""
    shown, before = [], len(only(effects, Deliver))
    while before:
        shown += (more := only(machine.handle(Accepted(), now), Deliver))
        before += len(more) - 1
    return shown


def answer(ask: Ask, units: int | None = None, available: int = 100) -> Arrived:
    count = ask.units if units is None else units
    return Arrived(peer=ask.peer, ask=ask.ask, payload=bytes(count), units=count, bytes=count, available=available)


def test_first_questions_are_shared_and_bounded() -> None:
    asks = only(made().handle(Joined((A, B)), 0.0), Ask)
    assert [ask.start for ask in asks] == list(range(0, 80, 10)), "the window, and no more"
    assert {peer: sum(ask.peer == peer for ask in asks) for peer in (A, B)} == {A: DEPTH, B: DEPTH}


def test_parts_are_shown_in_order_and_those_that_wait_together() -> None:
    machine = made(30)
    first, second, third = only(machine.handle(Joined((A,)), 0.0), Ask)
    assert only(machine.handle(answer(third), 0.1), Deliver) == []
    (shown,) = only(machine.handle(answer(first), 0.1), Deliver)
    assert shown.start == 0
    (rest,) = only(machine.handle(answer(second), 0.1), Deliver)
    assert (rest.start, [len(payload) for payload in rest.payloads]) == (10, [10, 10])
    assert only(machine.handle(Accepted(), 0.2), Finish) == [], "the judge has not seen all"
    assert only(machine.handle(Accepted(), 0.2), Finish) == [Finish()]
    assert machine.handle(Finished(), 0.3) == [Completed()]
    assert machine.handle(Tick(), 9.0) == []


def test_a_short_answer_leaves_the_rest_to_be_asked() -> None:
    machine = made(10)
    (ask,) = only(machine.handle(Joined((A,)), 0.0), Ask)
    (rest,) = only(machine.handle(answer(ask, 4), 0.1), Ask)
    assert (rest.start, rest.units) == (4, 6)


def test_more_than_asked_is_an_offence() -> None:
    machine = made(10)
    (ask,) = only(machine.handle(Joined((A,)), 0.0), Ask)
    effects = machine.handle(answer(ask, 11), 0.1)
    assert [effect.peer for effect in only(effects, Penalise)] == [A]
    assert only(effects, GaveUp)


def test_none_of_what_it_says_to_have_is_an_offence() -> None:
    machine = made(10)
    (ask,) = only(machine.handle(Joined((A,)), 0.0), Ask)
    assert only(machine.handle(answer(ask, 0, available=5), 0.1), Penalise)


def test_one_contributor_is_to_blame_and_several_are_not() -> None:
    for peers, blamed in (((A,), [A]), ((A, B), [])):
        machine = made(20)
        for ask in only(machine.handle(Joined(peers), 0.0), Ask):
            machine.handle(answer(ask), 0.1)
        machine.handle(Accepted(), 0.2)
        effects = machine.handle(PartRejected("it does not follow", 0), 0.2)
        assert [effect.peer for effect in only(effects, Penalise)] == blamed
        assert len({ask.peer for ask in only(effects, Ask)}) == len(peers) - 1, "after doubt: one peer at a time"


def test_who_gave_what_was_not_judged_is_no_contributor() -> None:
    """Of two deliveries the first is bad: its giver alone is to blame, and what came after it is void."""
    machine = made(20)
    first, second = only(machine.handle(Joined((A, B)), 0.0), Ask)
    assert first.peer != second.peer
    shown = only(machine.handle(answer(first), 0.1), Deliver) + only(machine.handle(answer(second), 0.1), Deliver)
    assert len(shown) == MAX_UNVERIFIED
    effects = machine.handle(PartRejected("it does not follow", 0), 0.2)
    assert [effect.peer for effect in only(effects, Penalise)] == [first.peer]
    again = only(effects, Ask)
    assert {(ask.peer, ask.start) for ask in again} == {(second.peer, 0), (second.peer, 10)}
    anew = [part for ask in again for part in only(machine.handle(answer(ask), 0.3), Deliver)]
    assert [part.start for part in anew] == [0, 10]


def test_who_is_silent_alone_holds_up_nothing_while_another_answers() -> None:
    """A doubt that cannot be laid at one peer's door, and a peer that says nothing: those who answered come first."""
    machine = made(30)
    asks = only(machine.handle(Joined((A, B, C)), 0.0), Ask)
    silent, *answering = [ask.peer for ask in asks]
    for ask in asks[1:]:
        machine.handle(answer(ask, available=30), 0.1)
    (hedge,) = only(machine.handle(Tick(), HEDGE), Ask)
    accept_all(machine, machine.handle(answer(hedge, available=30), HEDGE), HEDGE)
    for peer in {*answering}:
        alone = only(machine.handle(PartRejected("wrong hash", 0), 3.0), Ask)
        assert {ask.peer for ask in alone} <= {*answering}
        accept_all(machine, [each for ask in alone for each in machine.handle(answer(ask, available=30), 3.1)], 3.1)
        assert peer in answering
    last = only(machine.handle(PartRejected("wrong hash", 0), 4.0), Ask)
    assert {ask.peer for ask in last} == {silent}, "nobody else is left"


def test_who_is_silent_alone_is_left_at_the_first_silence() -> None:
    """Attack T-PEER-06: a peer that sends wrong bytes together with a silent one.

    Defence: when a single peer is asked, those that answered before come first, and a silent one is left at once.
    """
    machine = made(20, inherited=True)
    now, asks = 0.0, only(machine.handle(Joined((A, B, C)), 0.0), Ask)
    machine.handle(answer(asks[0]), 0.1)
    machine.handle(answer(asks[1]), 0.1)
    machine.handle(Accepted(), 0.2)
    asked, effects = [], machine.handle(PartRejected("wrong hash", 0), 0.2)
    while len(asked) < 3:
        asked += sorted({ask.peer for ask in only(effects, Ask)})
        (wake,) = only(effects, WakeAt)
        now, effects = wake.at, machine.handle(Tick(), wake.at)
    assert sorted(asked) == [A, B, C]
    assert now < 4 * PATIENCE


def test_inherited_bytes_excuse() -> None:
    machine = PartTransfer(10, 20, SHAPE, Random(1), inherited=True)
    (ask,) = only(machine.handle(Joined((A,)), 0.0), Ask)
    machine.handle(answer(ask), 0.1)
    effects = machine.handle(PartRejected("wrong hash", 0), 0.2)
    assert only(effects, Penalise) == []
    assert [ask.start for ask in only(effects, Ask)] == [0, 10]


def test_the_late_part_is_asked_of_an_idle_peer() -> None:
    machine = made(10)
    effects = machine.handle(Joined((A, B)), 0.0)
    (first,) = only(effects, Ask)
    (wake,) = only(effects, WakeAt)
    assert wake.at == STILL
    (second,) = only(machine.handle(Tick(), wake.at), Ask)
    assert (second.start, {first.peer, second.peer}) == (0, {A, B})
    assert only(machine.handle(answer(second), 2.1), Deliver)
    assert machine.handle(answer(first), 2.2) == [], "the loser's answer is dropped"


def test_an_answer_that_moves_is_waited_for_longer() -> None:
    machine = made(10)
    (first,) = only(machine.handle(Joined((A, B)), 0.0), Ask)
    here = 0
    for number in range(1, int(HEDGE / STILL)):
        here += int(LEAST_RATE * STILL)
        effects = machine.handle(Tick({first.peer: here}), number * STILL)
        assert only(effects, WakeAt)[0].at == (number + 1) * STILL
        assert only(effects, Ask) == []
    assert only(machine.handle(Tick({first.peer: here + (1 << 20)}), HEDGE), Ask), "and no longer than that"
    machine = made(10)
    (first,) = only(machine.handle(Joined((A, B)), 0.0), Ask)
    assert only(machine.handle(Tick({first.peer: int(LEAST_RATE * STILL) - 1}), STILL), Ask), "it drips"


def test_as_many_again_are_asked_where_nothing_moves() -> None:
    """Of forty that say nothing and one that gives, nobody known before, that one is asked soon."""
    peers = tuple(PeerId(f"silent{number:02}") for number in range(40))
    machine = made(10)
    asked = [len(only(machine.handle(Joined(peers), 0.0), Ask))]
    for number in range(1, 6):
        asked.append(len(only(machine.handle(Tick(), number * STILL), Ask)))
    assert asked == [1, 1, 2, 4, 8, 0]
    assert sum(asked) == MAX_STILL


@pytest.mark.slow
def test_those_who_are_left_make_room_for_others() -> None:
    """Of sixty that say nothing and one that gives, nobody known before, that one is asked within seconds."""
    for seed in range(20):
        machine, now = PartTransfer(0, 10, SHAPE, Random(seed)), 0.0
        effects = machine.handle(Joined((*(PeerId(f"silent{number:02}") for number in range(60)), A)), now)
        while A not in {ask.peer for ask in only(effects, Ask)}:
            (wake,) = only(effects, WakeAt)
            effects, now = machine.handle(Tick(), wake.at), wake.at
        assert now <= 4 * (4 * STILL + HEDGE)


def records(*gave: PeerId, at: str = "203.0.0.0/16") -> TrackRecords:
    """All strangers are in one block of addresses."""
    made = TrackRecords(lambda _: at)
    for peer in gave:
        made.gave(peer, 0.01)
    return made


def first_asked(known: TrackRecords, seed: int, peers: tuple[PeerId, ...], now: float) -> PeerId:
    machine = PartTransfer(0, 10, SHAPE, Random(seed), known)
    (ask,) = only(machine.handle(Joined(peers), now), Ask)
    return ask.peer


def test_who_let_us_wait_is_not_asked_again_before_others() -> None:
    """Not its next key either: each stands for its block of addresses while it gave nothing."""
    known, seed, waited = records(A), 0, 0.0
    for number in range(40):
        strangers = tuple(PeerId(f"{number}-{each}") for each in range(12))
        machine, now = PartTransfer(0, 10, SHAPE, Random(seed := seed + 1), known), 100.0 * (1 + number) / 40
        effects = machine.handle(Joined((*strangers, A)), now)
        (ask,) = only(effects, Ask)
        while ask.peer != A:
            (wake,) = only(effects, WakeAt)
            waited += wake.at - now
            effects, now = machine.handle(Tick(), wake.at), wake.at
            (ask,) = only(effects, Ask)
        effects = machine.handle(answer(ask, available=10), now + 0.01)
        accept_all(machine, effects, now + 0.01)
        assert machine.handle(Finished(), now + 0.01) == [Completed()]
    assert SOON <= waited < 2 * SOON + 0.01, "one of them was tried, once"


def test_some_without_a_record_are_tried_and_a_miss_fades() -> None:
    known, now = records(A), 100.0
    tried = sum(first_asked(known, seed, (A, B), now) == B for seed in range(200))
    assert 0.5 * TRIED < tried / 200 < 1.5 * TRIED
    known.note_missed(B, now)
    assert {first_asked(known, seed, (A, B, C), now) for seed in range(200)} == {A}
    assert {first_asked(known, seed, (A, B, C), now + FADES) for seed in range(200)} > {A, B}


def test_who_gave_before_and_stalls_comes_last_until_it_gives_again() -> None:
    known = records(A, B)
    for number in range(MISSES):
        assert known.is_proven(A, 1.0 + number)
        known.note_missed(A, 1.0 + number)
    assert {first_asked(known, seed, (A, B), 5.0) for seed in range(50)} == {B}
    known.gave(A, 0.01)
    assert {first_asked(known, seed, (A, B), 5.0) for seed in range(50)} == {A, B}, "the quick ones share the load"
    known.gave(A, 9.0)
    assert {first_asked(known, seed, (A, B), 5.0) for seed in range(50)} == {B}


def test_silence_is_waited_out_exactly_once() -> None:
    """Waking at the very moment that was asked for always brings something about, whatever floats do."""
    for start in (0.1, 0.3, 1e6 + 0.7, 29.08):
        machine = made(10)
        now, wakes = start, 0
        effects = machine.handle(Joined((A,)), now)
        while not only(effects, GaveUp):
            (wake,) = only(effects, WakeAt)
            assert wake.at > now
            now, wakes = wake.at, wakes + 1
            effects = machine.handle(Tick(), now)
        assert wakes < 30
        assert now - start > 5 * PATIENCE


def test_leaving_and_refusing() -> None:
    machine = made(40)
    effects = machine.handle(Joined((A, B)), 0.0)
    of_a = [ask for ask in only(effects, Ask) if ask.peer == A]
    moved = machine.handle(Left(A), 0.1)
    assert {ask.peer for ask in only(moved, Ask)} <= {B}
    assert machine.handle(Denied(A, of_a[0].ask, "late"), 0.2) is not None
    of_b = [ask for ask in only(effects, Ask) if ask.peer == B]
    (end,) = only(machine.handle(Denied(B, of_b[0].ask, "does not serve it", final=True), 0.3), GaveUp)
    assert dict(end.reasons) == {A: "it cannot be reached", B: "does not serve it"}


def test_parts_of_several_peers_are_shown_apart() -> None:
    """So that each answers for its own."""
    machine = made(40)
    asks = only(machine.handle(Joined((A, B)), 0.0), Ask)
    for ask in reversed(asks):
        effects = machine.handle(answer(ask), 0.1)
    shown = only(effects, Deliver)
    shown += accept_all(machine, effects, 0.2)
    assert [part.start for part in shown] == [ask.start for ask in asks]
    assert [part.peer for part in shown] == [ask.peer for ask in asks]
    assert {part.peer for part in shown} == {A, B}


def test_no_more_than_so_many_bytes_are_shown_together() -> None:
    machine = PartTransfer(0, 12, TransferShape(most_units=1, most_bytes=1 << 20), Random(0))
    asks = only(machine.handle(Joined((A,)), 0.0), Ask)
    for ask in asks[1:]:
        big = Arrived(peer=A, ask=ask.ask, payload=bytes(1 << 20), units=1, bytes=AT_ONCE // 2, available=12)
        asks += only(machine.handle(big, 0.1), Ask)
    shown = only(machine.handle(answer(asks[0], 1), 0.1), Deliver)
    assert [len(part.payloads) for part in shown] == [2, 2]


@pytest.mark.slow
@given(st.data())
def test_prop_whatever_the_order_of_answers_all_is_shown_once(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 150))
    machine = made(size)
    waiting = only(machine.handle(Joined((A, B, C)), 0.0), Ask)
    shown, now, judging = 0, 0.0, 0
    for _ in range(2000):
        now += 0.01
        choices = [*waiting, *([None] if judging else [])]
        chosen = data.draw(st.sampled_from(choices))
        if chosen is None:
            effects = machine.handle(Accepted(), now)
            judging -= 1
        else:
            waiting.remove(chosen)
            units = data.draw(st.integers(0, chosen.units))
            event = answer(chosen, units, 1000) if units else Denied(chosen.peer, chosen.ask, "busy")
            effects = machine.handle(event, now)
        while not waiting and not judging and [type(effect) for effect in effects] == [WakeAt]:
            now = only(effects, WakeAt)[0].at
            effects = machine.handle(Tick(), now)
        waiting += only(effects, Ask)
        for part in only(effects, Deliver):
            assert part.start == shown
            judging += 1
            assert judging <= MAX_UNVERIFIED
            shown += sum(map(len, part.payloads))
        assert machine.held <= SHAPE.window
        if only(effects, Finish):
            assert shown == size
            return
        if only(effects, GaveUp):
            return
    raise AssertionError("it never ends")


# Swarms: who gives which piece, and who stays to give.


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
    assert len(plan.plan(0.0)) == PIECES_AT_ONCE
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
    assert not plan.is_hopeless(SWARM_PATIENCE)
    assert plan.is_hopeless(SWARM_PATIENCE + 3), "the word of a stranger is no news"
    plan.take_parts(PUBLISHER, HeldParts(has=ALL, offers=0, given=2), SWARM_PATIENCE + 3)
    assert not plan.is_hopeless(SWARM_PATIENCE + 4), "the publisher gives to others"


def test_who_goes_takes_its_pieces_along() -> None:
    plan = swarm()
    plan.take_parts(ANNA, free(ALL), 0.0)
    begun = sorted(step.piece for step in plan.plan(0.0))
    assert sorted(plan.went(ANNA)) == begun
    plan.take_parts(BERT, free(ALL), 1.0)
    assert len(plan.plan(1.0)) == PIECES_AT_ONCE, "what was on its way is taken from another"


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
    """Attack T-PEER-07: an asker that takes a publisher's offers and passes nothing on.

    Defence: what does not spread is offered to others; an offer without bytes lapses, and its asker rests for a minute
    and longer each time.
    """
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
