"""Work is charged to connection, key, address and all strangers; keys buy nothing, chosen peers have room."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.address import prefix_of
from p2p.budget.buckets import Rate
from p2p.budget.work import SECOND, Party, WorkBudget, WorkShares
from p2p.ports import PeerId

SHARES = WorkShares()
PIECE = 1_000.0
"""A millisecond of work."""


def party(key: int, host: str = "203.0.113.7", connection: int = 0) -> Party:
    return Party(connection or key, PeerId(f"key{key}"), host)


def done(budget: WorkBudget, parties: Sequence[Party], seconds: float) -> dict[Party, float]:
    """Microseconds of work that each gets done, who ask for more whenever they may."""
    clocks = dict.fromkeys(parties, 0.0)
    got = dict.fromkeys(parties, 0.0)
    while min(clocks.values()) < seconds:
        one = min(clocks, key=clocks.__getitem__)
        clocks[one] += budget.charge(one, PIECE, clocks[one])
        got[one] += PIECE
    return got


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "share"),
    [
        (["203.0.113.7"], SHARES.host),
        ([f"203.0.113.{number}" for number in range(50)], SHARES.prefix),
        (["2001:db8::1", "2001:db8::2"], SHARES.prefix),
        ([f"10.0.{number}.1" for number in range(50)], SHARES.strangers),
    ],
)
def test_a_hundred_free_keys_get_no_more_than_their_addresses(hosts: list[str], share: object) -> None:
    parties = [party(key, hosts[key % len(hosts)]) for key in range(100)]
    assert share in (SHARES.host, SHARES.prefix, SHARES.strangers)
    total = sum(done(WorkBudget(), parties, 10.0).values())
    assert total <= share.burst + 10.0 * share.per_second + len(parties) * PIECE
    assert total >= 0.9 * (share.burst + 9.0 * share.per_second)


@pytest.mark.parametrize(
    ("spenders", "level", "next_one", "beside"),
    [
        ([party(1)] * 9, SHARES.connection, party(1), party(2, "198.51.100.7")),
        (
            [party(1, connection=n + 1) for n in range(9)],
            SHARES.peer,
            party(1, connection=99),
            party(2, "198.51.100.7"),
        ),
        ([party(n) for n in range(9)], SHARES.host, party(99), party(99, "198.51.100.7")),
        (
            [party(n, f"203.0.113.{n}") for n in range(9)],
            SHARES.prefix,
            party(99, "203.0.113.99"),
            party(99, "10.0.0.1"),
        ),
        ([party(n, f"10.{n}.0.1") for n in range(99)], SHARES.strangers, party(999, "203.0.113.7"), None),
    ],
    ids=["connection", "key", "address", "block", "all"],
)
def test_work_is_charged_at_each_level(
    spenders: list[Party], level: Rate, next_one: Party, beside: Party | None
) -> None:
    """Those who share one level alone use it up, and the next of it waits; who does not share it is let on."""
    budget = WorkBudget()
    for one in spenders:
        assert budget.allows(next_one, 0.0)
        budget.charge(one, level.burst / len(spenders) + 1, 0.0)
    assert not budget.allows(next_one, 0.0)
    assert beside is None or budget.allows(beside, 0.0)


@pytest.mark.slow
def test_no_stranger_touches_the_room_of_chosen_peers() -> None:
    budget = WorkBudget()
    budget.chosen = frozenset({PeerId("key0")})
    friend = party(0)
    for number in range(10_000):
        budget.charge(party(1 + number, f"10.{number % 250}.{number % 7}.1"), PIECE, 0.0)
    assert not budget.allows(party(99_999), 0.0)
    assert budget.charge(friend, PIECE, 0.0) == 0.0
    assert done(budget, [friend], 1.0)[friend] >= SHARES.peer.per_second


def test_who_waits_has_paid() -> None:
    budget = WorkBudget()
    one = party(1)
    wait = budget.charge(one, SHARES.connection.burst + 50_000.0, 0.0)
    assert wait == pytest.approx(50_000.0 / SHARES.connection.per_second)
    assert not budget.allows(one, wait * 0.99)
    assert budget.allows(one, wait * 1.01)


def test_mapped_addresses_and_zones_are_no_other_block() -> None:
    assert prefix_of("::ffff:203.0.113.9") == prefix_of("203.0.113.200") == "203.0.113.0/24"
    assert prefix_of("fe80::1%eth0") == "fe80::/48"
    assert prefix_of("") == ""


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 300_000), st.integers(0, 2_000_000)), max_size=60
    )
)
def test_prop_over_no_stretch_of_time_do_strangers_get_more_than_their_share(steps: list[tuple[int, ...]]) -> None:
    """Whoever waits as told: what is begun before a time was paid for by then."""
    budget, now, begun = WorkBudget(), 0.0, []
    for key, host, cost, pause in steps:
        now += pause / SECOND
        begun.append((now + budget.charge(party(key, f"10.0.{host}.1"), float(cost), now), cost))
    for until, _ in begun:
        paid = sum(cost for at, cost in begun if at <= until)
        assert paid <= SHARES.strangers.burst + until * SHARES.strangers.per_second + 1.0


def test_who_is_turned_away_at_the_door_owes_nothing() -> None:
    """Else one who knocks without end would shut out all others of its block."""
    budget = WorkBudget()
    let_in = sum(budget.admit("203.0.113.7", 10_000.0, 0.0, 3.0) is not None for _ in range(10_000))
    assert let_in == pytest.approx((SHARES.host.burst + 3.0 * SHARES.host.per_second) / 10_000.0, abs=1)
    assert budget.admit("203.0.113.7", 10_000.0, 1.0, 3.0) is not None
    budget.chosen_hosts = frozenset({"203.0.113.8"})
    assert budget.admit("203.0.113.8", 10_000.0, 0.0, 0.0) == 0.0


@pytest.mark.slow
def test_five_blocks_leave_room_at_the_door_for_others() -> None:
    budget = WorkBudget()
    for second in range(60):
        for number in range(500):
            budget.admit(f"198.51.{number % 5}.{number % 100}", 10_000.0, float(second), 3.0)
        assert budget.admit("203.0.113.7", 10_000.0, float(second), 3.0) == 0.0


@pytest.mark.slow
def test_publishers_of_what_is_mirrored_have_a_room_of_their_own_and_share_it() -> None:
    """A person chose to follow them, and not to trust them."""
    budget = WorkBudget()
    publishers = [party(number, f"10.{number}.0.1") for number in range(50)]
    budget.publishers = frozenset(each.peer for each in publishers)
    for number in range(10_000):
        budget.charge(party(1_000 + number, f"10.{number % 250}.{number % 7}.1"), PIECE, 0.0)
    assert budget.charge(publishers[0], PIECE, 0.0) == 0.0
    total = sum(done(budget, publishers, 10.0).values())
    assert total <= SHARES.publishers.burst + 10.0 * SHARES.publishers.per_second + len(publishers) * PIECE
    assert sum(done(WorkBudget(), [publishers[0]], 1.0).values()) <= SHARES.peer.burst + SHARES.peer.per_second + PIECE


def test_what_is_at_a_chosen_address_pays_too() -> None:
    """With more room; it may be another who speaks from there, or what a publisher says of where it is."""
    budget = WorkBudget()
    budget.chosen_hosts = frozenset({"203.0.113.8"})
    let_in = sum(budget.admit("203.0.113.8", 10_000.0, 0.0, 0.0) is not None for _ in range(10_000))
    assert let_in == pytest.approx(SHARES.chosen * SHARES.host.burst / 10_000.0, abs=1)
    assert budget.admit("203.0.113.9", 10_000.0, 0.0, 0.0) == 0.0, "its block owes nothing for it"
