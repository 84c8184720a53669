"""Addresses of peers, grouped by whom they lead to."""

from __future__ import annotations

from p2p.address import by_peer

ALICE = "12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh"
RELAY = "12D3KooWMbbPVGsZYh3ChQjue712NHHGNybRRXwnuSpezYjGbCDS"


def test_addresses_are_grouped_by_the_peer_that_they_lead_to() -> None:
    ip4, ip6 = f"/ip4/192.0.2.1/tcp/1/p2p/{ALICE}", f"/ip6/2001:db8::1/tcp/1/p2p/{ALICE}"
    relay, circuit = f"/ip4/192.0.2.2/tcp/1/p2p/{RELAY}", f"/ip4/192.0.2.2/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/{ALICE}"
    nobody, elsewhere = "/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.1/tcp/2"
    told = [ip4, relay, nobody, ip6, ip4, circuit, elsewhere]
    assert by_peer(told) == [(ip4, ip6, circuit), (relay,), (nobody,), (elsewhere,)]
    assert by_peer([]) == []
