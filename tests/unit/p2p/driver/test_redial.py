"""A bootstrap peer that is connected but has not said in which network it is: waited for, and dialled when it goes."""

from __future__ import annotations

from typing import Any

import trio

from p2p.ports import PeerId


async def test_who_goes_before_it_said_where_it_is_is_dialled_again_at_once(autojump_clock: Any, town: Any) -> None:
    """The node was without peers until its next round of anti-entropy, a minute later."""
    hub = town.bare("hub")
    hub.reachable = False
    a = await town.node("a", bootstrap=(hub.address,), entropy_interval=1e9)
    silent: set[PeerId] = {hub.peer_id}
    counted = type(a.host).peers
    a.host.peers = lambda: {peer: at for peer, at in counted(a.host).items() if peer not in silent}
    tell = a.host.tell
    a.host.tell = lambda peer, up: None if up and peer in silent else tell(peer, up)
    hub.reachable = True
    await trio.sleep(30.0)
    dials = len(a.host.dials)
    await trio.sleep(30.0)
    assert (len(a.host.dials), hub.peer_id in a.host.links) == (dials, True), "it is waited for"
    assert not any(view.connected for view in a.driver.peers()), "it has not said that it is in the network"
    town.fabric.part(a.host, hub)
    await trio.sleep(0.1)
    assert len(a.host.dials) == dials + 1
    silent.clear()
    tell(hub.peer_id, up=True)
    await trio.sleep(0.1)
    assert [view.peer for view in a.driver.peers() if view.connected] == [hub.peer_id]


async def test_who_hangs_up_again_and_again_is_dialled_ever_less_often(autojump_clock: Any, town: Any) -> None:
    hub = town.bare("hub")
    a = await town.node("a", bootstrap=(hub.address,), entropy_interval=1e9, degree=0)
    with trio.move_on_after(60.0):
        while True:
            await trio.sleep(0.02)
            town.fabric.part(a.host, hub)
    waits = [after - before for (before, _), (after, _) in zip(a.host.dials, a.host.dials[1:], strict=False)]
    assert len(waits) < 10, waits
    assert max(waits) > 8.0, waits
