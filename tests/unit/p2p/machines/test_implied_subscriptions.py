"""Who asked for a dataset lately is remembered, within bounds."""

from __future__ import annotations

from chain.ids import DatasetId
from p2p.driver.forwarding import LASTS, MAX_ASKED, MAX_PEERS, ImpliedSubscriptions
from p2p.ports import PeerId

A, B = PeerId("a"), PeerId("b")


def named(number: int) -> DatasetId:
    return DatasetId.from_public_key(number.to_bytes(32, "big"))


def test_a_question_counts_for_an_hour_and_for_who_is_there() -> None:
    subscriptions = ImpliedSubscriptions()
    subscriptions.note(A, [named(1), named(2)], 0.0)
    subscriptions.note(B, [named(2)], 10.0)
    assert subscriptions.of([named(2), named(9)], [A, B], 20.0) == {A, B}
    assert subscriptions.of([named(1)], [A, B], 20.0) == {A}
    assert subscriptions.of([named(2)], [A], 20.0) == {A}, "of whom is connected"
    assert subscriptions.of([named(2)], [A, B], LASTS + 1) == {B}
    subscriptions.note(A, [named(2)], LASTS)
    assert subscriptions.of([named(2)], [A, B], LASTS + 11) == {A}


def test_who_asks_for_everything_is_remembered_for_the_latest() -> None:
    subscriptions = ImpliedSubscriptions()
    for first in range(0, 4 * MAX_ASKED, 256):
        subscriptions.note(A, map(named, range(first, first + 256)), 0.0)
    asked = [number for number in range(4 * MAX_ASKED) if subscriptions.of([named(number)], [A], 1.0)]
    assert asked == list(range(3 * MAX_ASKED, 4 * MAX_ASKED))


def test_keys_push_out_nobody_who_goes_on_asking() -> None:
    subscriptions = ImpliedSubscriptions()
    for number in range(4 * MAX_PEERS):
        subscriptions.note(PeerId(f"free{number}"), [named(1)], 0.0)
        if number % 100 == 0:
            subscriptions.note(A, [named(1)], 0.0)
    everybody = [A, *(PeerId(f"free{number}") for number in range(4 * MAX_PEERS))]
    found = subscriptions.of([named(1)], everybody, 1.0)
    assert A in found
    assert len(found) == MAX_PEERS
