"""How a node learns where it is reached, and reaches others."""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from p2p.address import PeerAddress, line_of, network_of, parse_address, prefix_of
from p2p.driver.node_reach import NetworkChanges
from p2p.ip import Ip, is_global, parse_ip
from p2p.machines.dial_back import DialBackLimits, DialBacks, DialOrder
from p2p.machines.dial_order import HEAD_START, MAX_TRIED, Race, in_order, ips_in_order
from p2p.machines.hole_punch import MOST_WAIT, TRIES, Answerer, Dial, GiveUp, Opener, PunchBudget, SendPunch
from p2p.machines.reachability import COUNTS, LOOK, AddressWatch, Moved, Reachability, Reached
from p2p.machines.relay import Circuit, CircuitRelay, PeerPlace, RelayLimits
from p2p.ports import PeerId
from p2p.wire.circuit import CircuitStatus, Limit
from p2p.wire.reach import LEAST_DATA, MOST_DATA, PunchKind, ResponseStatus

# A machine that moves is noticed, once, and a lease that blinks is not a move.

HOME, CAFE, LOOPBACK = parse_ip("192.168.1.2"), parse_ip("10.7.0.9"), parse_ip("127.0.0.1")
sets = st.frozensets(st.integers(1, 5).map(lambda n: parse_ip(f"10.0.0.{n}")))


def test_what_blinks_is_no_move_and_what_moves_is_told_once() -> None:
    watch = AddressWatch([HOME, LOOPBACK])
    assert watch.look([LOOPBACK]) is None
    assert watch.look([HOME]) is None, "it was gone for a moment"
    assert watch.look([]) is None
    assert watch.look([CAFE]) == Moved(frozenset([CAFE]), frozenset([HOME]))
    assert watch.look([CAFE]) is None


@pytest.mark.slow
@given(sets, st.lists(sets, max_size=12))
def test_what_was_told_adds_up_to_what_is_there(first: frozenset[Ip], looks: list[frozenset[Ip]]) -> None:
    watch, known = AddressWatch(first), first
    for now in [*looks, *([looks[-1]] * 2 if looks else [])]:
        if (move := watch.look(now)) is not None:
            known = (known | move.came) - move.gone
    assert known == (looks[-1] if looks else first)


@pytest.mark.slow
async def test_dead_connections_are_dropped_within_five_seconds(autojump_clock: Any) -> None:
    """In virtual time, whenever between two looks the machine moves."""

    class Machine:
        at: frozenset[Ip] = frozenset([HOME])
        dropped: float | None = None

        def interfaces(self) -> frozenset[Ip]:
            return self.at

        async def interfaces_changed(self, known: frozenset[Ip]) -> None:
            while self.at == known:  # noqa: ASYNC110 - a stand-in of the kernel, in virtual time
                await trio.sleep(LOOK / 10)

        async def drop_from(self, gone: frozenset[Ip]) -> int:
            await trio.lowlevel.checkpoint()
            if HOME in gone:
                self.dropped = trio.current_time()
            return len(gone)

    for part in range(10):
        machine: Any = Machine()
        told: list[float] = []
        moves = NetworkChanges(machine, [lambda told=told: told.append(trio.current_time())])  # type: ignore[misc]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(moves.run)
            await trio.sleep(3 + part * LOOK / 10)
            machine.at, moved = frozenset([CAFE]), trio.current_time()
            await trio.sleep(5)
            assert machine.dropped is not None
            assert machine.dropped - moved <= 2 * LOOK + 1e-6
            assert told
            nursery.cancel_scope.cancel()


async def test_a_machine_that_stays_is_looked_at_once(autojump_clock: Any) -> None:
    class Machine:
        looks = 0

        def interfaces(self) -> frozenset[Ip]:
            self.looks += 1
            return frozenset([HOME])

        async def interfaces_changed(self, known: frozenset[Ip]) -> None:
            assert known == {HOME}
            await trio.sleep_forever()

    machine: Any = Machine()
    with trio.move_on_after(3600):
        await NetworkChanges(machine, ()).run()
    assert machine.looks == 1


# Dial-backs and what is made of them: no node is a weapon, and no single server decides.

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
    """Attack T-REACH-01: a dial-back aimed at a victim, with more bytes than the request (amplification).

    Defence: a dial to another address than the asker's costs the asker 30 to 100 kB first; limits by peer, by the
    asker's block, by the dialled block, and in all.

    A thousand keys at a thousand addresses, for a minute.
    """
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
    """Attack T-REACH-01: questions for dial-backs that are never paid, so that other peers are not dialled, or that use
    up the dials of the peer that they name.

    Defence: a slot and a budget of dials are taken when the price has come; two unpaid questions of a subnet, 64 in
    all; questions of other peers do not count against a node's own question.

    Their questions wait for ever, or are given up: neither budgets nor places of dials are used up by them.
    """
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
    """Attack T-REACH-01: a dial-back into a private network, or to this machine.

    Defence: addresses of the Internet only; mapped and translated IPv6 addresses are checked by the one that they
    contain.
    """
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
    """Attack T-REACH-01: dial-back servers that lie, or many of one operator.

    Defence: servers in two networks decide, one result for each network; a nonce counts only over a connection that the
    server made.
    """
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


# The order in which addresses of a peer are dialled, and when each is.

PEER = "12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh"
RELAY = "12D3KooWMbbPVGsZYh3ChQjue712NHHGNybRRXwnuSpezYjGbCDS"
CIRCUIT = f"/ip4/203.0.113.9/tcp/1/p2p/{RELAY}/p2p-circuit"


def ordered(*told: str) -> list[str]:
    return [each.transport for each in in_order(parse_address(f"{one}/p2p/{PEER}") for one in told)]


A4, B4, C4, D4, E4 = (f"/ip4/203.0.113.{at}/tcp/1" for at in range(1, 6))
A6, B6 = "/ip6/2001:db8::1/tcp/1", "/ip6/2001:db8::2/tcp/1"
LOCAL6 = "/ip6/fd00::1/tcp/1"
NAME, NAME4, NAME6 = "/dns/a.example/tcp/1", "/dns4/a.example/tcp/1", "/dns6/a.example/tcp/1"


@pytest.mark.parametrize(
    ("told", "dialled"),
    [
        ((A4, A6), [A6, A4]),
        ((A4, B4, A6, B6), [A6, A4, B6, B4]),
        ((A4, B4, C4, A6), [A6, A4, B4, C4]),
        ((A4, B4), [A4, B4]),
        ((A4, A6, A4), [A6, A4]),
        ((LOCAL6, A4), [A4, LOCAL6]),
        ((LOCAL6, A6, A4), [A6, A4, LOCAL6]),
        ((NAME4, NAME6), [NAME6, NAME4]),
        ((A4, NAME), [NAME, A4]),
        ((CIRCUIT, A4, A6), [A6, A4, CIRCUIT]),
        ((A4, B4, C4, D4, E4), [A4, B4, C4, D4]),
        ((A4, B4, C4, D4, E4, CIRCUIT), [A4, B4, C4, CIRCUIT]),
        ((), []),
    ],
)
def test_ipv6_is_first_and_the_families_take_turns(told: tuple[str, ...], dialled: list[str]) -> None:
    assert ordered(*told) == dialled


@pytest.mark.slow
@given(st.lists(st.ip_addresses(), max_size=12))
def test_of_the_addresses_of_a_name_both_families_are_tried(
    ips: list[ipaddress.IPv4Address | ipaddress.IPv6Address],
) -> None:
    found = ips_in_order(ips)
    assert len(found) == min(MAX_TRIED, len(set(ips)))
    assert set(found) <= set(ips)
    assert ips_in_order(found) == found
    is_local = [each.version == 6 and each in ipaddress.ip_network("fc00::/7") for each in ips]
    apart = {each.version for each, local in zip(ips, is_local, strict=True) if not local}
    assert apart <= {each.version for each in found}
    if 6 in apart:
        assert found[0].version == 6


def test_the_next_begins_after_a_head_start_or_when_the_last_failed() -> None:
    race = Race(4)
    assert race.begins(10.0) == 0
    assert race.begins(10.0) is None
    assert race.wakes == 10.0 + HEAD_START
    assert race.begins(10.0 + HEAD_START / 2) is None
    assert race.begins(10.0 + HEAD_START) == 1
    race.note_failure(0)
    assert race.begins(10.3) is None, "the second has just begun"
    race.note_failure(1)
    assert race.begins(10.3) == 2
    assert race.wakes == 10.3 + HEAD_START
    assert race.begins(11.0) == 3
    race.note_failure(3)
    assert race.begins(99.0) is None
    assert race.wakes == math.inf
    assert Race(0).begins(0.0) is None


@given(st.integers(0, 6), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5))))
def test_each_attempt_begins_once_and_in_order(attempts: int, steps: list[tuple[float, int]]) -> None:
    race, now, begun = Race(attempts), 0.0, 0
    for passed, failed in [*steps, *[(HEAD_START, 9)] * attempts]:
        now += passed
        while (number := race.begins(now)) is not None:
            assert number == begun
            begun += 1
        if failed < begun:
            race.note_failure(failed)
    assert begun == attempts


# Hole punching: both sides dial at the same moment, few times, and seldom where strangers say.

ALICE, BOB = PeerAddress("ip4", "20.1.0.1", 4150), PeerAddress("ip4", "20.2.0.1", 4150)
kinds = st.sampled_from(PunchKind)


@pytest.mark.parametrize("seed", range(50))
def test_both_dial_at_the_same_moment_whatever_the_way_takes(seed: int) -> None:
    """The opener's clock reads otherwise than the answerer's: only its differences count."""
    lot = Random(seed)
    way = lot.uniform(0.001, 0.8)
    opener, answerer = Opener(PunchBudget(is_global)), Answerer(PunchBudget(is_global))
    now = lot.uniform(0, 1e6)
    for _ in range(TRIES):
        assert opener.begin(now) == [SendPunch(PunchKind.CONNECT)]
        assert answerer.receive(PunchKind.CONNECT, [ALICE], now + way) == [SendPunch(PunchKind.CONNECT)]
        say, dial = opener.receive(PunchKind.CONNECT, [BOB], now + 2 * way)
        assert say == SendPunch(PunchKind.SYNC)
        assert isinstance(dial, Dial)
        (other,) = answerer.receive(PunchKind.SYNC, [], now + 3 * way)
        assert isinstance(other, Dial)
        assert abs(dial.at - other.at) < 1e-6
        assert (dial.as_client, other.as_client) == (False, True)
        assert (dial.targets, other.targets) == ([BOB], [ALICE])
        now += 10
    assert opener.begin(now) == [GiveUp("3 tries failed")]
    assert isinstance(answerer.receive(PunchKind.CONNECT, [ALICE], now)[0], GiveUp)


@given(st.lists(st.tuples(kinds, st.floats(0, 20)), max_size=40))
def test_any_talk_ends_after_three_tries(said: list[tuple[PunchKind, float]]) -> None:
    """Attack T-REACH-01: hole-punch messages out of order, or without end.

    Defence: each side has three tries; any message out of order ends it.
    """
    opener, answerer = Opener(PunchBudget(is_global)), Answerer(PunchBudget(is_global))
    opener.begin(0.0)
    now, dials = 0.0, Counter[str]()
    for side in (opener, answerer):
        for kind, wait in said:
            now += wait
            effects = side.receive(kind, [BOB], now)
            for effect in effects:
                if isinstance(effect, Dial):
                    dials[type(side).__name__] += 1
                    assert effect.at - now <= MOST_WAIT + 1e-6
            if any(isinstance(each, GiveUp) for each in effects):
                break
            if side is opener and isinstance(opener.begin(now)[0], GiveUp):
                break
    assert max(dials.values(), default=0) <= TRIES


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255), st.floats(0, 1)), max_size=200))
def test_forged_addresses_are_dialled_seldom_whoever_names_them(named: list[tuple[int, int, float]]) -> None:
    """Attack T-REACH-01: forged addresses in a hole punch, to make a node dial a victim.

    Defence: addresses of the Internet only, four in a try, three tries; limits by dialled block, regardless of the
    naming peer, and in all.

    Many peers name one block of addresses, and places that are not of the Internet.
    """
    budget, now, dials = PunchBudget(is_global), 0.0, 0
    for who, last, wait in named:
        now += wait
        if not budget.may_begin(PeerId(f"peer{who}"), now):
            continue
        victims = [PeerAddress("ip4", f"20.9.0.{last}", port) for port in range(1, 9)]
        inside = [PeerAddress("ip4", "192.168.1.1", 80), PeerAddress("ip6", "::1", 80), None]
        found = budget.fit([*inside, *victims], now)
        assert len(found) <= 4
        assert all(prefix_of(each.host) == "20.9.0.0/24" for each in found)
        dials += len(found)
    assert dials <= 6 + now / 10


def test_nothing_is_dialled_for_a_peer_that_names_nothing_fit() -> None:
    opener = Opener(PunchBudget(is_global))
    opener.begin(0.0)
    (end,) = opener.receive(PunchKind.CONNECT, [PeerAddress("ip4", "10.0.0.1", 1), None], 1.0)
    assert isinstance(end, GiveUp)


# The relay: what strangers take of it is bounded by their addresses, and no circuit ends another.

LIMITS = RelayLimits(reservations=16, circuits=16, of_line=2, of_prefix=4, of_peer=6, circuit=Limit(60, 100))
HOSTS = [f"198.51.{net}.{host}" for net in range(6) for host in range(3)] + ["2001:db8:0:1::1", "2001:db8:0:12::1"]
places = st.builds(PeerPlace, st.integers(0, 60).map(lambda n: PeerId(f"peer{n}")), st.sampled_from(HOSTS))


def place(number: int, host: str = "") -> PeerPlace:
    return PeerPlace(PeerId(f"peer{number}"), host or f"203.{number // 200}.{number % 200}.1")


def relay_with(*targets: PeerPlace, limits: RelayLimits = LIMITS) -> CircuitRelay:
    relay = CircuitRelay(limits)
    for target in targets:
        assert relay.reserve(target, 0.0) is CircuitStatus.OK
    return relay


@given(st.lists(places, max_size=200))
def test_free_keys_do_not_multiply_reservations(asking: list[PeerPlace]) -> None:
    """Attack T-REACH-02: reservations by a thousand keys, or for invented peers.

    Defence: a peer reserves for itself only; limits by address, block and in all, with room for chosen peers.

    Whatever keys ask: so many of one line, of one block, and in all; and a place for a chosen peer is left.
    """
    relay = CircuitRelay(LIMITS)
    relay.chosen = frozenset({PeerId("friend")})
    held = {each.peer: each for each in asking if relay.reserve(each, 0.0) is CircuitStatus.OK}
    assert relay.reservations == len(held) <= 12
    assert max(Counter(line_of(each.host) for each in held.values()).values(), default=0) <= 2
    assert max(Counter(prefix_of(each.host) for each in held.values()).values(), default=0) <= 4
    assert relay.reserve(PeerPlace(PeerId("friend"), HOSTS[0]), 0.0) is CircuitStatus.OK


@given(st.lists(st.tuples(places, st.integers(0, 5), st.booleans()), max_size=120))
def test_circuits_are_bounded_and_each_ends_alone(asked: list[tuple[PeerPlace, int, bool]]) -> None:
    """Attack T-REACH-02: circuits that fill a relay, or that end each other.

    Defence: limits by address, block, pair, end and in all; each ends by its own number.
    """
    targets = [place(100 + number) for number in range(6)]
    relay = relay_with(*targets)
    open_now: list[Circuit] = []
    for source, target, closes in asked:
        if closes and open_now:
            relay.close(open_now.pop(0))
        made = relay.open(source, targets[target].peer, 1.0)
        if isinstance(made, Circuit):
            open_now.append(made)
        else:
            assert made is CircuitStatus.RESOURCE_LIMIT_EXCEEDED
        assert relay.circuits == len(open_now) <= 12
        assert len({each.number for each in open_now}) == len(open_now)
        assert max(Counter(each.target for each in open_now).values(), default=0) <= 6
        assert max(Counter((each.source.peer, each.target) for each in open_now).values(), default=0) <= 2
        assert max(Counter(line_of(each.source.host) for each in open_now).values(), default=0) <= 2
        assert max(Counter(prefix_of(each.source.host) for each in open_now).values(), default=0) <= 4


def test_a_reservation_is_of_who_asks_and_ends_with_its_connection_or_its_time() -> None:
    relay = relay_with(place(1), place(2))
    assert relay.open(place(3), place(4).peer, 1.0) is CircuitStatus.NO_RESERVATION, "nobody asked for it"
    relay.keep({place(2).peer}, 1.0)
    assert relay.open(place(3), place(1).peer, 1.0) is CircuitStatus.NO_RESERVATION, "its connection is gone"
    assert relay.open(place(2), place(2).peer, 1.0) is CircuitStatus.NO_RESERVATION, "to itself"
    assert isinstance(relay.open(place(3), place(2).peer, 3599.0), Circuit)
    assert relay.open(place(3), place(2).peer, 3600.0) is CircuitStatus.NO_RESERVATION, "its time is over"
    relay.keep({place(2).peer}, 3600.0)
    assert relay.reservations == 0


def test_a_reservation_that_is_renewed_takes_no_second_place() -> None:
    relay = relay_with(*[place(number, "203.0.113.1") for number in (1, 2)])
    assert relay.reserve(place(1, "203.0.113.1"), 3000.0) is CircuitStatus.OK
    assert relay.reserve(place(3, "203.0.113.1"), 3000.0) is CircuitStatus.RESERVATION_REFUSED
    assert isinstance(relay.open(place(4), place(1).peer, 6000.0), Circuit)


def test_two_circuits_of_one_dialer_end_apart() -> None:
    """In py-libp2p's relay the second died with the first."""
    relay = relay_with(place(1))
    one, other = (relay.open(place(2), place(1).peer, 1.0) for _ in range(2))
    assert isinstance(one, Circuit)
    assert isinstance(other, Circuit)
    relay.close(one)
    relay.close(one)
    assert relay.circuits == 1
    relay.close(other)
    assert relay.circuits == 0


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 60)), max_size=20))
def test_a_circuit_carries_so_many_bytes_each_way(pieces: list[tuple[int, int]]) -> None:
    circuit = relay_with(place(1)).open(place(2), place(1).peer, 1.0)
    assert isinstance(circuit, Circuit)
    carried = Counter[int]()
    for way, size in pieces:
        carried[way] += circuit.take(way, size)
    asked = Counter[int]()
    for way, size in pieces:
        asked[way] += size
    assert all(carried[way] == min(asked[way], 100) for way in (0, 1))


def test_a_half_closed_circuit_ends_in_time() -> None:
    """Attack T-REACH-02: a circuit closed at one end and kept open at the other.

    Defence: it ends ten seconds later.

    In py-libp2p's relay it stayed for as long as the other end said nothing.
    """
    circuit = relay_with(place(1)).open(place(2), place(1).peer, 1.0)
    assert isinstance(circuit, Circuit)
    assert circuit.deadline == 61.0
    circuit.note_end(5.0)
    assert circuit.deadline == 15.0
    circuit.note_end(12.0)
    assert circuit.deadline == 15.0, "and no later for what comes after"


def test_the_default_limits_leave_room_for_others() -> None:
    """One block of addresses takes an eighth of the places at most, of reservations and of circuits."""
    limits = msgspec.structs.asdict(RelayLimits())
    assert limits["of_line"] <= limits["of_prefix"] <= min(limits["reservations"], limits["circuits"]) // 8
