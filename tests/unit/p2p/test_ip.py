"""Which addresses are of the Internet, whatever they are written as."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.ip import is_global, parse_ip, stands_for, within

INSIDE = (
    "127.0.0.1",
    "10.1.2.3",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
)
OUTSIDE = ("93.184.216.34", "1.1.1.1", "8.8.8.8", "192.0.0.9")


def wrapped(text: str) -> dict[str, str]:
    """An address of IPv4, in all that IPv6 carries it in."""
    number = int(ipaddress.IPv4Address(text))
    high, low = number >> 16, number & 0xFFFF
    return {
        "mapped": f"::ffff:{text}",
        "6to4": f"2002:{high:x}:{low:x}::1",
        "nat64": f"64:ff9b::{high:x}:{low:x}",
        "compatible": f"::{high:x}:{low:x}",
        "teredo": f"2001:0:{high:x}:{low:x}::1",
    }


@pytest.mark.parametrize("text", [*INSIDE, "::", "::1", "fe80::1%eth0", "fd00::1", "fec0::1", "ff02::1", "2001:db8::1",
                                  "3fff::1", "5f00::1", "4000::1", "100::1", "64:ff9b:1::a00:1"])  # fmt: skip
def test_what_is_not_of_the_internet(text: str) -> None:
    assert not is_global(parse_ip(text))


@pytest.mark.parametrize("text", [*OUTSIDE[:3], "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_what_is_of_the_internet(text: str) -> None:
    assert is_global(parse_ip(text))


@pytest.mark.parametrize("text", INSIDE)
@pytest.mark.parametrize("way", wrapped("0.0.0.1"))
def test_no_wrapping_makes_an_address_one_of_the_internet(text: str, way: str) -> None:
    ip = parse_ip(wrapped(text)[way])
    assert not is_global(ip)
    assert way == "compatible" or ipaddress.ip_address(text) in stands_for(ip)


@given(st.ip_addresses())
def test_what_is_of_the_internet_is_so_by_all_that_it_stands_for(ip: ipaddress.IPv4Address) -> None:
    if is_global(parse_ip(str(ip))):
        for each in stands_for(ip):
            assert not any((each.is_loopback, each.is_link_local, each.is_multicast, each.is_unspecified))
            assert each.version == 6 or not each.is_private


def test_a_network_that_is_named_is_allowed_and_no_other() -> None:
    allows = within((ipaddress.ip_network("192.168.1.0/24"), ipaddress.ip_network("fd00::/64")))
    assert [text for text in ("192.168.1.7", "192.168.2.7", "fd00::1", "fd01::1", "127.0.0.1", "8.8.8.8")
            if allows(parse_ip(text))] == ["192.168.1.7", "fd00::1", "8.8.8.8"]  # fmt: skip
