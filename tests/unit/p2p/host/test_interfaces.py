"""What others are told of where we are."""

from __future__ import annotations

import errno
import ipaddress
import socket

import pytest

from p2p.errors import BadAddress
from p2p.host.interfaces import can_listen, local_ips, reachable_at

IPS = [
    ipaddress.ip_address(one)
    for one in ("127.0.0.1", "192.168.1.7", "203.0.113.7", "8.8.4.4", "169.254.3.4", "::1", "fe80::1", "2001:4860::7")
]


def told(listening: list[str], announce: list[str] | None = None, ips: list = IPS) -> list[str]:  # type: ignore[type-arg]
    return [str(one) for one in reachable_at(listening, announce or [], lambda: ips)]


def test_every_interface_stands_for_it_and_the_open_internet_comes_first() -> None:
    found = told(["/ip4/0.0.0.0/tcp/4150"])
    assert found[0] == "/ip4/8.8.4.4/tcp/4150"
    assert set(found) == {f"/ip4/{ip}/tcp/4150" for ip in ("8.8.4.4", "192.168.1.7", "203.0.113.7")}
    assert told(["/ip6/::/tcp/4150"]) == ["/ip6/2001:4860::7/tcp/4150"]


def test_both_families_are_told_the_open_internet_first() -> None:
    ips = [*IPS, ipaddress.ip_address("fd00::7")]
    assert told(["/ip6/::/tcp/4150", "/ip4/0.0.0.0/tcp/4150"], ips=ips) == [
        "/ip6/2001:4860::7/tcp/4150", "/ip4/8.8.4.4/tcp/4150",
        "/ip6/fd00::7/tcp/4150", "/ip4/192.168.1.7/tcp/4150", "/ip4/203.0.113.7/tcp/4150",
    ]  # fmt: skip


def test_loopback_is_told_when_there_is_nothing_else() -> None:
    assert told(["/ip4/127.0.0.1/tcp/1"]) == ["/ip4/127.0.0.1/tcp/1"]
    assert told(["/ip4/0.0.0.0/tcp/1"], ips=IPS[:1]) == ["/ip4/127.0.0.1/tcp/1"]
    assert told(["/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.7/tcp/1"]) == ["/ip4/192.168.1.7/tcp/1"]


def test_what_a_person_says_stands_in_place_of_all() -> None:
    assert told(["/ip4/0.0.0.0/tcp/1"], ["/dns4/node.example/tcp/9"]) == ["/dns4/node.example/tcp/9"]
    with pytest.raises(BadAddress):
        told([], ["node.example:9"])


def test_a_machine_without_ipv6_listens_on_ipv4_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = socket.socket

    def without_ip6(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return made(family, kind)

    monkeypatch.setattr("p2p.host.interfaces.socket.socket", without_ip6)
    assert [can_listen(each) for each in ("/ip6/::/tcp/4150", "/ip4/0.0.0.0/tcp/4150")] == [False, True]


def test_this_machine_has_a_loopback() -> None:
    assert any(one.is_loopback for one in local_ips())
