"""What two peers hold is reconciled, and what a mirror wants is implied."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.driver.forwarding import LASTS, MAX_ASKED, MAX_PEERS, ImpliedSubscriptions
from p2p.machines import reconcile
from p2p.machines.declined import Seen
from p2p.machines.reconcile import Done, Fetch, Reconcile, Show
from p2p.ports import PeerId, StatementRef, Topic
from p2p.wire import trust
from p2p.wire.limits import MAX_LISTED, MAX_TRUST_REPLY

# One asks, the other answers: afterwards the asker has seen all that it lacked.


def ref(number: int) -> StatementRef:
    return StatementRef(
        Multihash.from_digest(0x16, number.to_bytes(32, "big")), DatasetId.from_public_key(bytes([number % 7]) * 32)
    )


def met(
    mine: list[StatementRef], theirs: dict[Multihash, bytes], datasets: list[DatasetId] | None = None
) -> list[bytes]:
    """What a round shows, with every message through its codec."""
    refs = {sid: ref(int.from_bytes(sid.digest, "big")) for sid in theirs}

    def held(wanted: object) -> list[StatementRef]:
        return [one for one in refs.values() if not wanted or one.dataset in wanted]

    def envelope(sid: Multihash) -> tuple[Topic, bytes] | None:
        return (Topic.HEADS, theirs[sid]) if sid in theirs else None

    machine = Reconcile(mine, datasets)
    effects, shown = machine.start(), []
    for _ in range(3000):
        effect, *effects = effects
        match effect:
            case Fetch(ask):
                told = trust.encode(reconcile.answer(trust.decode_ask(trust.encode(ask)), held, envelope))
                assert len(told) <= MAX_TRUST_REPLY
                effects = machine.handle(trust.decode_tell(told))
            case Show(statements):
                shown += [signed.envelope for signed in statements]
            case Done():
                return shown
    raise AssertionError("it never ends")


@given(st.sets(st.integers(0, 400)), st.sets(st.integers(0, 400)))
def test_prop_all_that_was_lacking_and_nothing_else(mine: set[int], theirs: set[int]) -> None:
    shown = met([ref(number) for number in mine], {ref(number).sid: b"%d" % number for number in theirs})
    assert sorted(shown) == sorted(b"%d" % number for number in theirs - mine)


@pytest.mark.slow
def test_many_and_large() -> None:
    """More than a page of names, and envelopes of which few fit a reply."""
    count = MAX_LISTED + 500
    assert len(met([], {ref(number).sid: b"x" for number in range(count)})) == count
    assert len(met([], {ref(number).sid: bytes(90_000) for number in range(40)})) == 40


def test_some_datasets_only() -> None:
    wanted = ref(3).dataset
    shown = met([ref(3)], {ref(number).sid: b"%d" % number for number in range(30)}, [wanted])
    assert sorted(shown) == [b"10", b"17", b"24"]


@pytest.mark.parametrize(
    "page",
    [
        trust.page([ref(5)], more=False),
        trust.Listing({str(ref(3).dataset): (ref(3).sid,)}, more=ref(10).sid),
        trust.Listing({}, more=ref(3).sid),
        trust.Statements((), done=1),
    ],
)
def test_listings_that_were_not_asked_for(page: trust.TrustTell) -> None:
    machine = Reconcile([], [ref(3).dataset])
    machine.start()
    with pytest.raises(Invalid):
        machine.handle(page)


def test_a_refusal_ends_the_round() -> None:
    machine = Reconcile([])
    machine.start()
    assert machine.handle(trust.TrustRefusal("too many questions")) == [Done(refused="too many questions")]


def test_seen_forgets_the_longest_unmet() -> None:
    seen = Seen(2)
    assert seen.add(b"1")
    assert seen.add(b"2")
    assert not seen.add(b"1")
    assert seen.add(b"3")
    assert (b"1" in seen, b"2" in seen, len(seen)) == (True, False, 2)


# Who asked for a dataset lately is remembered, within bounds.

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
