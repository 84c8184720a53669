"""A bootstrap peer that is connected but has not said in which network it is: waited for, and dialled when it goes."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from p2p.ports import PeerId


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("is_dialled", [True, False], ids=["met-by-being-dialled", "met-by-dialling"])
async def test_a_network_is_joined_by_who_was_met_before_when_every_bootstrap_is_gone(
    autojump_clock: Any, town: Any, is_dialled: bool
) -> None:
    """Also by a node that never dialled anybody: what its peers signed of where they are is remembered."""
    hubs = [await town.known(seed, degree=0) for seed in (1, 2)]
    where = tuple(hub.host.address for hub in hubs)
    node = await town.known(3, degree=0, bootstrap=where)
    friends = [await town.known(seed, degree=0, bootstrap=where) for seed in (4, 5, 6)]
    for friend in friends:
        one, other = (friend, node) if is_dialled else (node, friend)
        await one.driver.connect(other.host.address)
    await trio.sleep(5.0)
    kept = node.driver.book.snapshot(trio.current_time())
    for hub in hubs:
        hub.host.reachable = False
    node.host.reachable = False
    for other in (*hubs, *friends):
        town.fabric.part(node.host, other.host)
    again = await town.known(3, degree=4, bootstrap=where)
    again.driver.book.restore(kept, trio.current_time())
    await trio.sleep(240.0)  # a dial at a time, each after a random pause
    assert again.host.links == {friend.peer for friend in friends}


@pytest.mark.slow
async def test_a_node_that_moved_dials_those_it_knew_at_once(autojump_clock: Any, town: Any) -> None:
    """One connection is back; the others came one by one, each some seconds after the last one."""
    took = {}
    for has_moved, (first, seeds) in {False: (10, (11, 12, 13)), True: (20, (21, 22, 23))}.items():
        node = await town.known(first)
        others = [await town.known(seed, degree=0) for seed in seeds]
        for other in others:
            await node.driver.connect(other.host.address)
        await trio.sleep(1.0)
        for other in others[1:]:
            town.fabric.part(node.host, other.host)
        begun = trio.current_time()
        if has_moved:
            node.driver.redial()
        for _ in range(1000):
            await trio.sleep(0.05)
            if all(other.host.peer_id in node.host.links for other in others):
                break
        took[has_moved] = trio.current_time() - begun
    assert took[True] < 2.5 < took[False], took
