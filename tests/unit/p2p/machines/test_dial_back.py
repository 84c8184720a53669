"""Dial-backs and what is made of them: no node is a weapon, and no single server decides."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from p2p.address import PeerAddress, network_of, prefix_of
from p2p.ip import is_global
from p2p.machines.dial_back import DialBackLimits, DialBacks, DialOrder
from p2p.machines.reachability import COUNTS, Reachability, Reached
from p2p.ports import PeerId
from p2p.wire.reach import LEAST_DATA, MOST_DATA, ResponseStatus

HERE = "198.18.0.1"
ASKER = "20.1.0.1"
VICTIM = PeerAddress("ip4", "20.9.0.1", 80)
PRIVATE = ["10.0.0.1", "192.168.1.1", "127.0.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1", "0.0.0.0"]
PRIVATE_6 = ["::1", "fe80::1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1"]


def backs() -> DialBacks:
    return DialBacks(DialBackLimits(), Random(1))


def peer(number: int) -> PeerId:
    return PeerId(f"peer{number}")


def test_whoever_asks_a_victim_is_dialled_seldom_and_for_more_bytes_than_it_gets() -> None:
    """A thousand keys at a thousand addresses, for a minute."""
    server, dials, paid = backs(), 0, 0
    for number in range(1000):
        host = f"20.{number % 250}.{number // 250}.7"
        found = server.begin(peer(number), host, [VICTIM], is_global, number * 0.06)
        if isinstance(found, DialOrder):
            assert LEAST_DATA <= found.data <= MOST_DATA
            if server.may_dial(found, number * 0.06, has_come=True):
                dials, paid = dials + 1, paid + found.data
                server.end()
    assert 0 < dials <= 4 + 60 / 30
    assert paid >= dials * LEAST_DATA
    assert server.refused == 1000 - dials


def test_one_asker_is_dialled_at_its_own_address_for_nothing_and_seldom() -> None:
    server = backs()
    found = [server.begin(peer(1), ASKER, [PeerAddress("ip4", ASKER, 4150)], is_global, 0.0) for _ in range(8)]
    dials = [each for each in found if isinstance(each, DialOrder)]
    assert [each.data for each in dials] == [0] * 4
    assert set(found[4:]) == {ResponseStatus.REQUEST_REJECTED}


def test_strangers_that_do_not_pay_keep_nobody_from_being_dialled() -> None:
    """Their questions wait for ever, or are given up: neither budgets nor places of dials are used up by them."""
    server, waiting = backs(), []
    for number in range(1000):
        found = server.begin(peer(number), f"20.{number % 250}.{number // 250}.7", [VICTIM], is_global, 0.0)
        if isinstance(found, DialOrder):
            waiting.append(found)
    assert len(waiting) == DialBackLimits().unpaid
    own = server.begin(peer(1001), VICTIM.host, [VICTIM], is_global, 0.0)
    assert isinstance(own, DialOrder), "whoever waits holds no place of a dial"
    assert not own.data
    server.end()
    for each in waiting:
        assert not server.may_dial(each, 1.0, has_come=False)
    found = server.begin(peer(1002), "21.0.0.1", [VICTIM], is_global, 1.0)
    assert isinstance(found, DialOrder)
    assert server.may_dial(found, 1.0, has_come=True), "nobody had used up its dials"


def test_strangers_that_pay_do_not_use_up_the_dials_of_whom_they_name() -> None:
    server, dials = backs(), 0
    for number in range(100):
        found = server.begin(peer(number), f"20.{number}.0.7", [VICTIM], is_global, 0.0)
        if isinstance(found, DialOrder) and server.may_dial(found, 0.0, has_come=True):
            dials += 1
            server.end()
    assert dials == 4
    assert isinstance(server.begin(peer(1001), VICTIM.host, [VICTIM], is_global, 0.0), DialOrder)


def test_one_block_of_addresses_keeps_few_questions_unpaid() -> None:
    server = backs()
    found = [server.begin(peer(number), f"20.1.0.{number}", [VICTIM], is_global, 0.0) for number in range(1, 8)]
    assert sum(isinstance(each, DialOrder) for each in found) == DialBackLimits().unpaid_of_prefix


def test_keys_of_one_block_of_addresses_are_one_asker() -> None:
    server, dials = backs(), 0
    for number in range(100):
        host = f"20.1.0.{number + 1}"
        if isinstance(server.begin(peer(number), host, [PeerAddress("ip4", host, 1)], is_global, 0.0), DialOrder):
            dials += 1
            server.end()
    assert dials <= 8


@given(
    st.sampled_from(
        [*(PeerAddress("ip4", each, 80) for each in PRIVATE), *(PeerAddress("ip6", e, 80) for e in PRIVATE_6)]
    )
)
def test_no_dial_back_goes_to_a_private_place(address: PeerAddress) -> None:
    assert backs().begin(peer(1), ASKER, [address, None], is_global, 0.0) is ResponseStatus.DIAL_REFUSED
    found = backs().begin(peer(1), ASKER, [address, None, VICTIM], is_global, 0.0)
    assert isinstance(found, DialOrder)
    assert (found.place, found.address) == (2, VICTIM), "the first that is fit, and no other"


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(0, 5), st.floats(0, 2)), max_size=150))
def test_bounds_hold_whatever_is_asked(asked: list[tuple[int, int, int, float]]) -> None:
    server, now = backs(), 0.0
    targets: Counter[str] = Counter()
    under_way = 0
    for who, source, target, wait in asked:
        now += wait
        address = PeerAddress("ip4", f"20.7.{target}.1", 80)
        found = server.begin(peer(who), f"20.{source}.0.1", [address], is_global, now)
        if isinstance(found, DialOrder):
            assert found.data > 0
            if server.may_dial(found, now, has_come=True):
                targets[prefix_of(address.host)] += 1
                under_way += 1
        if under_way and wait > 1:
            server.end()
            under_way -= 1
        assert under_way <= 4
    assert max(targets.values(), default=0) <= 4 + now / 30
    assert sum(targets.values()) <= 6 + now * 0.2


OURS = PeerAddress("ip4", HERE, 4150)


def known() -> Reachability:
    found = Reachability()
    found.watch([OURS])
    return found


def test_servers_of_one_network_decide_nothing() -> None:
    reach = known()
    for number in range(50):
        reach.note_report(OURS, network_of(f"20.1.0.{number}"), float(number), is_reached=True)
    assert reach.of(OURS, 50.0) is Reached.UNKNOWN
    reach.note_report(OURS, "20.2.0.0/16", 50.0, is_reached=True)
    assert reach.of(OURS, 50.0) is Reached.YES
    assert reach.of(OURS, 50.0 + COUNTS) is Reached.UNKNOWN, "what is old is not known"


def test_who_is_reached_over_ipv6_alone_is_not_reached_by_all() -> None:
    """Such a node keeps its relays, for peers that have only IPv4."""
    ip6 = PeerAddress("ip6", "2a00::1", 4150)
    reach = Reachability()
    reach.watch([ip6, OURS])
    for network in ("20.1.0.0/16", "20.2.0.0/16"):
        reach.note_report(ip6, network, 1.0, is_reached=True)
    assert (reach.whole(2.0), reach.is_reached_over(6, 2.0), reach.is_reached_over(4, 2.0)) == (
        Reached.YES,
        True,
        False,
    )
    for network in ("20.1.0.0/16", "20.2.0.0/16"):
        reach.note_report(OURS, network, 3.0, is_reached=True)
    assert reach.is_reached_over(4, 4.0)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=20))
def test_the_order_of_words_of_different_networks_does_not_matter(said: list[tuple[int, bool]]) -> None:
    words = dict(said)

    def told(order: list[int]) -> Reached:
        reach = known()
        for each in order:
            reach.note_report(OURS, f"20.{each}.0.0/16", 1.0, is_reached=words[each])
        return reach.of(OURS, 2.0)

    assert told(sorted(words)) is told(sorted(words, reverse=True))


def test_what_is_no_longer_ours_is_forgotten() -> None:
    reach = known()
    for number in (1, 2):
        reach.note_report(OURS, f"20.{number}.0.0/16", 1.0, is_reached=False)
    assert reach.whole(1.0) is Reached.NO
    assert reach.due("20.1.0.0/16", 2.0) == []
    assert reach.due("20.3.0.0/16", 2.0) == [OURS]
    reach.watch([])
    reach.note_report(OURS, "20.3.0.0/16", 2.0, is_reached=True)
    assert reach.addresses == []
    assert reach.whole(2.0) is Reached.UNKNOWN
