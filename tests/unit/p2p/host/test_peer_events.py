"""What is reported of connections: one notice a peer, and one more when a connection took the place of a silent one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from p2p.host.host import Notices, PeerConnected, PeerDisconnected


def connection(address: str, *, is_replaced: bool = False) -> Any:
    muxed = SimpleNamespace(peer_id="a", is_initiator=True, is_replaced=is_replaced, fault=None)
    return SimpleNamespace(muxed_conn=muxed, get_transport_addresses=lambda: [address])


async def told(notices: Notices) -> list[Any]:
    found = []
    while True:
        try:
            found.append(notices.channel.receive_nowait())
        except trio.WouldBlock:
            return found


async def test_who_comes_by_another_connection_is_met_again_if_the_first_was_silent() -> None:
    """A machine that moved is connected anew before anybody knows that its old connection is dead: what was sent there
    is lost, and both ends have to exchange it again."""
    notices = Notices(8)
    old, new = connection("/ip4/192.0.2.1/tcp/1", is_replaced=True), connection("/ip4/192.0.2.2/tcp/2")
    await notices.connected(None, old)
    await notices.connected(None, new)
    assert [type(each) for each in await told(notices)] == [PeerConnected], "one notice for all its connections"
    await notices.disconnected(None, old)
    assert [type(each) for each in await told(notices)] == [PeerConnected]
    await notices.connected(None, connection("/ip4/192.0.2.3/tcp/3"))
    await notices.disconnected(None, connection("/ip4/192.0.2.3/tcp/3"))
    assert await told(notices) == [], "one that ends in order loses nothing"
    await notices.disconnected(None, new)
    assert [type(each) for each in await told(notices)] == [PeerDisconnected]
