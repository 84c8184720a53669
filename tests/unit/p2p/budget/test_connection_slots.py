"""Who keeps a place when there are too few: keys buy none, the longest here and the most useful stay."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2p.address import prefix_of
from p2p.budget.connection_slots import FEW, ConnectionSlots
from p2p.budget.work import Party
from p2p.ports import PeerId
from worlds.depth import share

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
    door = Door()
    honest = [door.comes(far(number)) for number in range(30)]
    for number in range(400):
        door.comes(f"198.51.{number % 5}.9")
    assert all(door.holds(one) for one in honest)
    assert door.holds(door.comes(far(99))), "and another is let in"


@pytest.mark.parametrize("seed", range(20))
def test_a_thousand_addresses_push_out_neither_the_oldest_nor_the_most_useful(seed: int) -> None:
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
    """Those who are listed all of them, of publishers an eighth; they come in when strangers have everything."""
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
