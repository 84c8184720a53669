"""What is known of peers."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.backoff import Backoff
from chain.errors import Invalid
from p2p.budget.buckets import MAX_KEYS, Budget, Rate
from p2p.ip import parse_ip
from p2p.peers.book import BAD_BYTES, HALF_LIFE, MAX_ADDRESSES, MAX_PEERS, SHUT_OUT, PeerBook, Score
from p2p.peers.directory import AddressFilter
from p2p.ports import PeerId

# Scores fade, budgets refill, waits grow, the book is bounded and survives in its snapshot.

ANNA = PeerId("anna")


def test_a_penalty_fades_by_half() -> None:
    score = Score().lower(BAD_BYTES, 100.0)
    assert score.as_of(100.0 + HALF_LIFE).value == pytest.approx(-BAD_BYTES / 2)


def test_shut_out_at_the_threshold_and_let_in_later() -> None:
    score = Score()
    for _ in range(10):
        assert not score.shut_out
        score = score.lower(-SHUT_OUT / 10, 0.0)
    assert score.shut_out
    assert score.as_of(HALF_LIFE * 0.9).shut_out
    assert not score.as_of(HALF_LIFE * 1.1).shut_out


@given(st.floats(allow_nan=False), st.floats(0, 1e9))
def test_prop_no_weight_is_a_reward_or_for_ever(weight: float, now: float) -> None:
    score = Score().lower(weight, now)
    assert 10 * SHUT_OUT <= score.value <= 0
    assert not score.as_of(now + 6 * HALF_LIFE).shut_out


@given(st.integers(1, 10_000), st.integers())
def test_prop_waits_stay_within_bounds(failures: int, seed: int) -> None:
    backoff = Backoff(first=1.0, most=300.0)
    whole = min(300.0, 2.0 ** min(failures - 1, 16))
    assert backoff.whole(failures) == whole
    assert 0.5 * whole <= backoff.wait(failures, Random(seed)) <= whole


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 20)), max_size=60))
def test_prop_a_budget_is_never_overdrawn(spending: list[tuple[float, float]]) -> None:
    budget: Budget[str] = Budget(Rate(per_second=2.0, burst=10.0))
    now = spent = 0.0
    for wait, amount in spending:
        now += wait
        spent += amount if budget.spend("k", now, amount) else 0.0
        assert spent <= 10.0 + 2.0 * now + 1e-6


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1)), max_size=200),
    st.floats(0.9, 1.1),
)
def test_prop_who_keeps_to_a_rate_is_never_over_it(asking: list[tuple[float, float]], clock: float) -> None:
    """Whatever the line does to what was asked in time, and however the clocks run."""
    rate = Rate(per_second=2.0, burst=20.0)
    ours: Budget[str] = Budget(rate.within_limit())
    theirs: Budget[str] = Budget(rate)
    now, arrivals = 0.0, []
    for pause, delay in asking:
        now += pause
        now += ours.reserve("k", now, 60.0) or 0.0
        arrivals.append((now + delay) * clock)
    assert all(theirs.spend("k", arrival) for arrival in sorted(arrivals))


def test_who_gives_up_waiting_owes_no_more_than_its_patience() -> None:
    budget: Budget[str] = Budget(Rate(per_second=2.0, burst=1.0))
    waits = [budget.reserve("k", 0.0, 1.0) for _ in range(100)]
    assert waits == [0.0, 0.5, 1.0, *[None] * 97]
    assert budget.reserve("k", 1.5, 0.0) == 0.0


def test_a_budget_forgets_the_longest_silent() -> None:
    budget: Budget[int] = Budget(Rate(per_second=0.0, burst=1.0))
    assert budget.spend(0, 0.0)
    assert not budget.spend(0, 0.0)
    for key in range(1, MAX_KEYS + 1):
        budget.spend(key, 0.0)
    assert budget.spend(0, 0.0)


def test_the_book_keeps_the_newest_addresses() -> None:
    book = PeerBook(Random(1))
    for number in range(20):
        book.learn(ANNA, [f"/a/{number}", "x" * 300])
    assert book.get(ANNA).addresses == tuple(f"/a/{number}" for number in range(19, 19 - MAX_ADDRESSES, -1))


def test_the_book_is_bounded_and_keeps_who_matters() -> None:
    book = PeerBook(Random(1))
    book.note_connected(PeerId("connected"), 0)
    book.learn(PeerId("boot"), ["/a"], bootstrap=True)
    book.penalise(PeerId("bad"), 50.0, 0.0)
    for number in range(MAX_PEERS + 10):
        book.learn(PeerId(f"p{number}"), ["/a"])
    assert len(book) == MAX_PEERS
    assert book.connected_peers() == ["connected"]
    assert book.get(PeerId("bad")).score.value == -50
    assert book.get(PeerId("boot")).bootstrap


def test_dialling_waits_and_starts_anew_when_connected() -> None:
    book = PeerBook(Random(1))
    book.learn(ANNA, ["/a"], bootstrap=True)
    assert book.get(ANNA).dial_after <= 0
    waits = [book.dial_failed(ANNA, 0.0) for _ in range(5)]
    assert waits[4] > waits[0]
    assert (book.get(ANNA).dial_after, book.get(ANNA).failures) == (waits[4], 5)
    book.note_connected(ANNA, 5)
    book.note_disconnected(ANNA, 6)
    assert book.get(ANNA).failures == 0
    assert book.get(ANNA).dial_after <= 6


def test_a_snapshot_keeps_what_outlives_the_process() -> None:
    book = PeerBook(Random(1))
    book.note_connected(ANNA, 77)
    book.learn(ANNA, ["/a"])
    book.penalise(PeerId("bad"), 500.0, 1000.0)
    book.note_connected(PeerId("nobody in particular"), 5)
    again = PeerBook(Random(2))
    again.restore(book.snapshot(1000.0), 3.0)
    assert len(again) == 2
    assert (again.get(ANNA).addresses, again.get(ANNA).last_seen, again.get(ANNA).connected) == (("/a",), 77, False)
    assert again.is_shut_out(PeerId("bad"), 3.0)


@pytest.mark.parametrize("snapshot", [b"", b"{}", b'[{"peer":3}]', b"\xff", b"[" * 100_000])
def test_a_snapshot_that_is_none(snapshot: bytes) -> None:
    book = PeerBook(Random(1))
    with pytest.raises(Invalid, match="peer book"):
        book.restore(snapshot, 0.0)
    assert len(book) == 0


# Where others may lead a node, by what its owner named.

HERE = ["/ip4/127.0.0.1/tcp/4150"]
LAN = ["/ip4/192.168.1.5/tcp/4150"]
PEER = "/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


def told(reach: AddressFilter, ours: list[str], *texts: str) -> list[str]:
    allows = reach.allows(ours)
    return [text for text in texts if allows(parse_ip(text))]


ALL = ("127.0.0.1", "::1", "192.168.1.1", "8.8.8.8")


@pytest.mark.parametrize(
    "inside, bootstrap, ours, allowed",
    [
        (None, [], HERE, ["127.0.0.1", "::1", "8.8.8.8"]),
        (None, ["/ip4/127.0.0.1/tcp/1" + PEER], HERE, ["127.0.0.1", "::1", "8.8.8.8"]),
        (None, ["/dns4/localhost/tcp/1" + PEER], [], ["127.0.0.1", "::1", "8.8.8.8"]),
        (None, ["/ip4/203.0.113.7/tcp/1" + PEER], HERE, ["8.8.8.8"]),
        (None, ["/dns4/node.example/tcp/1" + PEER], HERE, ["8.8.8.8"]),
        (None, [], LAN, ["8.8.8.8"]),
        (None, ["/ip4/127.0.0.1/tcp/1" + PEER], LAN, ["8.8.8.8"]),
        (("192.168.1.0/24",), [], LAN, ["192.168.1.1", "8.8.8.8"]),
        (("192.168.1.0/24",), [], HERE, ["192.168.1.1", "8.8.8.8"]),
        ((), [], HERE, ["8.8.8.8"]),
    ],
)
def test_others_lead_where_the_owner_says(
    inside: tuple[str, ...] | None, bootstrap: list[str], ours: list[str], allowed: list[str]
) -> None:
    assert told(AddressFilter(inside, bootstrap), ours, *ALL) == allowed


def test_a_peer_elsewhere_that_is_named_later_ends_what_was_allowed() -> None:
    reach = AddressFilter(None, [])
    assert told(reach, HERE, *ALL) == ["127.0.0.1", "::1", "8.8.8.8"]
    reach.name("/ip4/127.0.0.1/tcp/9" + PEER)
    assert told(reach, HERE, "127.0.0.1")
    reach.name("/ip4/8.8.4.4/tcp/9" + PEER)
    assert told(reach, HERE, *ALL) == ["8.8.8.8"]


def test_a_peer_is_dialled_again_where_it_was_met_and_nowhere_else() -> None:
    allows = AddressFilter(None, []).again(["/ip4/192.168.1.7/tcp/1", "/dns4/nas.example/tcp/1", "/memory/x"], LAN)
    assert allows(parse_ip("192.168.1.7"))
    assert not allows(parse_ip("192.168.1.8"))
    assert not allows(parse_ip("127.0.0.1"))
