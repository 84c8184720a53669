"""The order in which addresses of a peer are dialled, and when each is."""

from __future__ import annotations

import ipaddress
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.address import parse_address
from p2p.machines.dial_order import HEAD_START, MAX_TRIED, Race, in_order, ips_in_order

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
