"""Where others may lead a node, by what its owner named."""

from __future__ import annotations

import pytest

from p2p.ip import parse_ip
from p2p.peers.directory import AddressFilter

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
