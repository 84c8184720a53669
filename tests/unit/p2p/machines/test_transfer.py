"""Single steps of a transfer that the simulator meets only by chance."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.machines.providers import DEPTH, FADES, LEAST_RATE, MISSES, PATIENCE, TRIED, TrackRecords
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
from p2p.ports import PeerId

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
