"""Work for others is shared fairly and ends; of places that are too few, the longest here and most useful stay."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2p.address import prefix_of
from p2p.budget.buckets import LEAST, LENT, Budget, Rate, Relaying
from p2p.budget.connection_slots import FEW, ConnectionSlots
from p2p.budget.unfinished import Unfinished
from p2p.budget.work import SECOND, Party, WorkBudget, WorkShares
from p2p.ports import PeerId
from worlds.depth import share

# Work for others is shared fairly and ends.


# Work is charged to connection, key, address and all strangers; keys buy nothing, chosen peers have room.

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
    """Attack T-PEER-04: hundreds of keys that each use the limits of one peer.

    Defence: work is charged to connection, key, address, subnet (a /24, a /48) and all unlisted peers together: half of
    a core.
    """
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
    """Attack T-PEER-03: a publisher of a mirrored dataset that uses its reserve to the full.

    Defence: all publishers share one reserve; connections from addresses that they name are charged too.

    A person chose to follow them, and not to trust them.
    """
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


# What is passed on never exceeds what a neighbour looks at, and leaves each block of addresses a share.

RATE = Rate(per_second=50.0, burst=500.0)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.integers(0, 300), st.integers(1, 3), st.integers(1, 200)),
        min_size=1,
        max_size=20,
    )
)
def test_a_neighbour_looks_at_all_that_is_passed_on(bursts: list[tuple[float, int, int, int]]) -> None:
    """Attack T-PEER-05: a flood through honest relays from many subnets one after the other, each with a share of what
    is forwarded.

    Defence: all shares together have a limit too.

    Blocks that come one after the other had each as much at once as the one before, divided by their number.
    """
    relaying, neighbour, now = Relaying(RATE), Budget[str](RATE), 0.0
    for wait, first, times, blocks in bursts:
        now += wait
        for number in range(blocks * times * 5):
            if relaying.passes(f"block{first + number % blocks}", now):
                assert neighbour.spend("us", now)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 5, 50])
def test_whoever_says_little_is_passed_on_beside_a_flood(blocks: int) -> None:
    relaying, passed = Relaying(RATE), 0
    for tick in range(12_000):
        now = tick / 100
        for _ in range(5):
            relaying.passes(f"flood{tick % blocks}", now)
        if tick % 400 == 0:
            passed += relaying.passes("quiet", now)
    assert passed == 30


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 39), st.integers(1, 40), st.integers(1, 4)), max_size=6))
@example([(0.0, 0, 40, 9)] * 3)
def test_what_is_lent_is_nobodys_share(bursts: list[tuple[float, int, int, int]]) -> None:
    """Forty blocks say as much as they like; whoever says what is its own has all of it passed on."""
    relaying, now, own, last = Relaying(RATE), 0.0, float(LEAST), 0.0
    for wait, first, blocks, times in bursts:
        now += wait
        for number in range(blocks * times):
            relaying.passes(f"block{(first + number % blocks) % 40}", now)
        own, last = min(LEAST, own + (now - last) * RATE.within_limit().per_second / 2 / 41), now
        while own >= 1:
            assert relaying.passes("quiet", now)
            own -= 1


def test_a_block_of_many_that_says_more_at_once_is_lent_what_nobody_uses() -> None:
    relaying = Relaying(RATE)
    for tick in range(601):
        for number in range(16):
            relaying.passes(f"flood{number % 5}" if tick else f"block{number}", tick / 10)
    passed = [relaying.passes("quiet", 60.0) for _ in range(LEAST + LENT + 2)]
    assert passed == [True] * (LEAST + LENT) + [False] * 2


# What all leave unfinished is bounded, and more keys make the block of addresses that they are in the heavier one.


def test_the_heaviest_of_the_heaviest_block_lets_go() -> None:
    share = Unfinished[str](100)
    for number in range(10):
        assert share.note(f"free{number}", "198.51", 6 + (number == 7)) is None
    assert share.note("honest", "203.0", 30) is None
    assert share.note("another", "192.0", 20) == "free7", "not the one who holds most of all"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=80))
def test_prop_it_never_holds_more_than_allowed(steps: list[tuple[int, int]]) -> None:
    share, held = Unfinished[int](100), dict[int, int]()
    for holder, amount in steps:
        held[holder] = amount
        while (loser := share.note(holder, str(holder % 3), amount)) is not None:
            share.leave(loser)
            del held[loser]
            if loser == holder:
                break
        assert share.total == sum(held.values()) <= 100


# Who keeps a place when there are too few: keys buy none, the longest here and the most useful stay.


MOST = 64
"""As the daemon has by default."""


class Door:
    """A host as far as places go."""

    def __init__(self, most: int = MOST) -> None:
        self.places = ConnectionSlots(most)
        self.inside: dict[int, Party] = {}
        self.count = 0

    def comes(self, host: str, peer: str = "", *, dialled: bool = False) -> Party:
        self.count += 1
        party = Party(self.count, PeerId(peer or f"key{self.count}"), host)
        leaving = self.places.take(party, dialled=dialled)
        self.inside[party.connection] = party
        if leaving is not None:
            del self.inside[leaving.connection]
            self.places.leave(leaving.connection)
        assert len(self.places) == len(self.inside) <= self.places._most
        return party

    def holds(self, party: Party) -> bool:
        return party.connection in self.inside


def far(number: int) -> str:
    """An address in a block of its own."""
    return f"{10 + number // 60_000}.{number // 250 % 240}.{number % 250}.1"


def test_free_keys_of_one_address_and_of_one_block_take_few_places() -> None:
    door = Door()
    for _ in range(500):
        door.comes("203.0.113.7")
    assert len(door.inside) == 12
    for number in range(500):
        door.comes(f"203.0.113.{number % 250}")
    assert len(door.inside) == 24
    for number in range(20):
        assert door.holds(door.comes(far(number)))


def test_who_comes_where_all_are_settled_is_refused() -> None:
    """The oldest of all came from one address: whoever comes from there next has a place over none of them."""
    door = Door()
    first = [door.comes("203.0.113.7") for _ in range(12)]
    assert not door.holds(door.comes("203.0.113.7"))
    assert all(map(door.holds, first))


def test_forty_keys_of_five_addresses_push_out_no_honest_peer() -> None:
    """Attack T-PEER-03: newcomers without end, of few addresses, to displace honest peers.

    Defence: a connection is closed in the subnet that has most of them.
    """
    door = Door()
    honest = [door.comes(far(number)) for number in range(30)]
    for number in range(400):
        door.comes(f"198.51.{number % 5}.9")
    assert all(door.holds(one) for one in honest)
    assert door.holds(door.comes(far(99))), "and another is let in"


@pytest.mark.parametrize("seed", range(20))
def test_a_thousand_addresses_push_out_neither_the_oldest_nor_the_most_useful(seed: int) -> None:
    """Attack T-PEER-03: newcomers without end, of a thousand addresses.

    Defence: the quarter connected longest and the quarter that provided most stay; **others are displaced** until they
    have provided data.
    """
    door, rng = Door(), Random(seed)
    oldest = [door.comes(far(number)) for number in range(12)]
    others = [door.comes(far(100 + number)) for number in range(30)]
    useful = rng.sample(others, 12)
    for one in useful:
        door.places.gave(one.peer, rng.randint(1, 1 << 20))
    for _ in range(300):
        door.comes(far(1000 + rng.randrange(1000)))
    assert all(door.holds(one) for one in [*oldest, *useful])


@pytest.mark.slow
def test_places_for_chosen_peers_and_for_those_we_dial_are_kept_free() -> None:
    door = Door()
    friends = [f"friend{number}" for number in range(8)]
    door.places.chosen = frozenset(map(PeerId, friends))
    for number in range(1000):
        door.comes(far(number))
    assert len(door.inside) == 48
    dialled = [door.comes(far(2000 + number), dialled=True) for number in range(8)]
    chosen = [door.comes("203.0.113.7", friend) for friend in friends]
    for number in range(1000):
        door.comes(far(number))
    assert len(door.inside) == MOST
    assert all(door.holds(one) for one in [*dialled, *chosen])


def test_chosen_peers_find_room_however_many_they_are() -> None:
    door = Door(16)
    door.places.chosen = frozenset(PeerId(f"friend{number}") for number in range(40))
    for number in range(100):
        door.comes(far(number))
    friends = [door.comes(far(200 + number), f"friend{number}") for number in range(16)]
    assert all(door.holds(one) for one in friends)


@pytest.mark.slow
def test_what_we_dial_beyond_the_kept_places_is_as_good_as_what_dials_us() -> None:
    door = Door()
    for number in range(1000):
        door.comes(far(number), dialled=True)
    assert len(door.inside) == 8 + 48


@pytest.mark.parametrize("most", [1, 2, 4, 9])
def test_small_nodes_have_places_too(most: int) -> None:
    door = Door(most)
    for number in range(20):
        door.comes(far(number))
        door.comes("127.0.0.1")
        assert sum(prefix_of(one.host) == "127.0.0.0/24" for one in door.inside.values()) <= max(FEW, most)
    assert len(door.inside) == max(1, most - 2 * (most // 8))


@pytest.mark.slow
def test_listed_validators_and_publishers_have_room_that_no_stranger_touches() -> None:
    """Attack T-PEER-03: all connections or handshakes taken from listed validators, witnesses, and publishers of
    mirrored datasets.

    Defence: the first two are chosen peers; writers of mirrored datasets have an eighth of the connections and a fifth
    of a core.

    Those who are listed all of them, of publishers an eighth; they come in when strangers have everything.
    """
    door = Door()
    for number in range(300):
        door.comes(far(number))
    door.places.chosen = frozenset(PeerId(f"validator{number}") for number in range(10))
    door.places.publishers = frozenset(PeerId(f"publisher{number}") for number in range(30))
    listed = [door.comes("203.0.113.7", f"validator{number}") for number in range(10)]
    publishers = [door.comes("198.51.100.7", f"publisher{number}") for number in range(30)]
    assert all(door.holds(each) for each in listed)
    kept = [each for each in publishers if door.holds(each)]
    assert MOST // 8 <= len(kept) <= MOST // 8 + 12, "the rest are strangers like others of their address"
    for number in range(300, 900):
        door.comes(far(number))
    assert all(door.holds(each) for each in listed)
    assert sum(door.holds(each) for each in publishers) >= MOST // 8


class Bursts(RuleBasedStateMachine):
    """Connections that come, end and give in any order; who is displaced may not have been told yet."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = ConnectionSlots(16)
        self.seated: dict[int, Party] = {}
        self.count = 0

    @rule(block=st.integers(0, 6), host=st.integers(1, 3), peer=st.integers(0, 12), dialled=st.booleans())
    def one_comes(self, block: int, host: int, peer: int, dialled: bool) -> None:
        self.count += 1
        party = Party(self.count, PeerId(f"key{peer}"), f"198.51.{block}.{host}")
        leaving = self.slots.take(party, dialled=dialled)
        if leaving is not party:
            self.seated[party.connection] = party
        if leaving is not None and leaving is not party:
            assert self.seated.pop(leaving.connection) == leaving, "only who has a slot gives it up"
            assert leaving.peer not in self.slots.chosen

    @rule(number=st.integers(0, 40))
    def one_ends(self, number: int) -> None:
        """Or one that has no slot any more, since its end is told late."""
        connection = max(1, self.count - number)
        self.slots.leave(connection)
        self.seated.pop(connection, None)

    @rule(peer=st.integers(0, 12), amount=st.integers(1, 1000))
    def one_gives(self, peer: int, amount: int) -> None:
        self.slots.gave(PeerId(f"key{peer}"), amount)

    @rule(peers=st.frozensets(st.integers(0, 12).map(lambda number: PeerId(f"key{number}")), max_size=2))
    def a_person_chooses(self, peers: frozenset[PeerId]) -> None:
        self.slots.chosen = peers

    @invariant()
    def nobody_is_in_without_a_slot_and_slots_are_so_many(self) -> None:
        assert self.slots._taken.keys() == self.seated.keys()
        assert len(self.slots) <= 16
        assert self.slots._given.keys() <= {party.peer for party in self.seated.values()}


Bursts.TestCase.settings = settings(max_examples=share(60), stateful_step_count=50, deadline=None)
TestBursts = pytest.mark.slow(Bursts.TestCase)
