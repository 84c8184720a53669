"""Hole punching: both sides dial at the same moment, few times, and seldom where strangers say."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.address import PeerAddress, prefix_of
from p2p.ip import is_global
from p2p.machines.hole_punch import MOST_WAIT, TRIES, Answerer, Dial, GiveUp, Opener, PunchBudget, SendPunch
from p2p.ports import PeerId
from p2p.wire.reach import PunchKind

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
    """Many peers name one block of addresses, and places that are not of the Internet."""
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
