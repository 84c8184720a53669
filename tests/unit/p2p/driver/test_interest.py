"""In a network too large for all to hear all, words on a dataset reach those who want it, and cost others little.

Budgets for what nobody wants here are used up from the start: that is how a node of a large network stands.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from chain.ids import DatasetId
from p2p.budget.buckets import Rate
from p2p.driver import forwarding
from p2p.driver.statements import WIDE
from p2p.machines.holder_connections import ENOUGH
from p2p.ports import Concern, Judgement, PeerId, Topic

WANTED = DatasetId.from_public_key(b"w" * 32)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody passes on what it does not want."""
    monkeypatch.setattr(forwarding, "UNWANTED", Rate(per_second=0.0, burst=0.0))


def indifferent(*nodes: Any) -> None:
    """They want nothing, and rounds over all are used up."""
    for node in nodes:
        node.board.wants_all = False
        node.driver._statements._scope.cost(100 * int(WIDE.burst), trio.current_time())


def wanting(town: Any, *nodes: Any, serves: bool = True) -> None:
    indifferent(*nodes)
    for node in nodes:
        node.board.wanted.add(WANTED)
        if serves:
            node.shelf.chains[WANTED] = town.made_chain("w", 5)
            node.driver.look_again()


def heard(node: Any) -> list[bytes]:
    return sorted(envelope for _, envelope, _ in node.board.held.values())


async def until(look: Callable[[], object], seconds: float = 120) -> None:
    with trio.fail_after(seconds):
        while not look():  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.5)


async def test_what_nobody_wants_goes_to_those_who_asked_for_it_alone(
    autojump_clock: Any, town: Any, large: None
) -> None:
    """publisher - hub; mirror and idler know the hub alone, and the mirror has nothing yet that it could serve."""
    hub = await town.known(1, degree=0)
    publisher, mirror, idler = [await town.known(seed, connect=[hub], degree=0) for seed in (2, 3, 4)]
    indifferent(hub, idler)
    await mirror.driver.pull_statements(hub.peer, [WANTED])
    await publisher.driver.announce(Topic.HEADS, b"okw head")
    await trio.testing.wait_all_tasks_blocked()
    assert (heard(hub), heard(mirror), heard(idler)) == ([b"okw head"], [b"okw head"], [])
    await publisher.driver.announce(Topic.HEADS, b"okx of another dataset")
    await trio.testing.wait_all_tasks_blocked()
    assert heard(mirror) == [b"okw head"]
    assert hub.driver.figures().unwanted == 2
    assert hub.driver.figures().kept_back == 0


@pytest.mark.slow
async def test_what_nobody_wants_goes_to_those_who_say_they_serve_it(
    autojump_clock: Any, town: Any, large: None
) -> None:
    hub = await town.known(1, degree=0)
    publisher, holder, idler = [await town.known(seed, connect=[hub], degree=0) for seed in (2, 3, 4)]
    indifferent(hub, idler)
    wanting(town, holder)
    await until(lambda: holder.peer in hub.driver._discovery.naming([WANTED]))
    await publisher.driver.announce(Topic.HEADS, b"okw head")
    await trio.testing.wait_all_tasks_blocked()
    assert (heard(holder), heard(idler)) == ([b"okw head"], [])


@pytest.mark.slow
async def test_in_a_small_network_all_hear_all(autojump_clock: Any, town: Any) -> None:
    hub = await town.known(1, degree=0)
    publisher, idler = [await town.known(seed, connect=[hub], degree=0) for seed in (2, 4)]
    hub.board.wants_all = idler.board.wants_all = False
    for number in range(200):
        await publisher.driver.announce(Topic.HEADS, b"okw head %03d" % number)
        await trio.sleep(1)
    assert len(heard(idler)) == 200


@pytest.mark.slow
async def test_a_flood_of_what_nobody_wants_uses_up_no_room_of_what_is_wanted(autojump_clock: Any, town: Any) -> None:
    """Strangers sign on and on of datasets of their own; the mirror behind the hub hears of its own at once."""
    hub = await town.known(1, degree=0)
    publisher, mirror, idler = [await town.known(seed, connect=[hub], degree=0) for seed in (2, 3, 4)]
    indifferent(hub, idler)
    wanting(town, mirror)
    await until(lambda: mirror.peer in hub.driver._discovery.naming([WANTED]))
    before = town.fabric.carried[idler.peer]
    strangers = [town.bare(f"s{number}") for number in range(3)]
    for one in strangers:
        town.fabric.join(one, hub.host)
    padding = b"." * 20_000
    for number in range(400):
        for one in strangers:
            await one.publish(
                "/odf/1/test/heads", b"ok%c %d" % (97 + number % 20, number) + one.peer_id.encode() + padding
            )
        await trio.sleep(0.1)
    await publisher.driver.announce(Topic.HEADS, b"okw head")
    await trio.sleep(1)
    assert b"okw head" in heard(mirror)
    carried = town.fabric.carried[idler.peer] - before
    assert carried <= forwarding.UNWANTED.within_limit().burst + 100 * forwarding.UNWANTED.per_second, (
        "and the rest hears little"
    )
    assert hub.driver.figures().unwanted > 500


@pytest.mark.slow
async def test_a_mirror_that_lost_its_publisher_hears_from_others(autojump_clock: Any, town: Any, large: None) -> None:
    """A crowd that wants nothing, a publisher, five mirrors. Each head is known to all within two minutes, also after
    the publisher is lost to all but one of them, and when that one is lost too and another comes."""
    first = await town.known(1, degree=4)
    crowd = [first, *[await town.known(seed, connect=[first], degree=4) for seed in range(2, 14)]]
    publisher, *mirrors = [await town.known(seed, connect=[crowd[seed % 13]], degree=1) for seed in range(20, 26)]
    indifferent(*crowd)
    wanting(town, publisher, *mirrors)
    await until(lambda: all(len(one.driver._discovery.naming([WANTED])) >= ENOUGH for one in mirrors), 900)
    said = 0

    async def tell(times: int, *whom: Any) -> None:
        nonlocal said
        for _ in range(times):
            said += 1
            head = b"okw head %03d" % said
            await publisher.driver.announce(Topic.HEADS, head)
            await until(lambda head=head: all(head in heard(mirror) for mirror in whom))
            await trio.sleep(30)

    await tell(3, *mirrors)
    publisher.host.reachable = False
    for peer in sorted(publisher.host.links - {mirrors[0].peer}):
        town.fabric.part(publisher.host, town.fabric.hosts[peer])
    town.fabric.join(publisher.host, mirrors[0].host)
    await tell(3, *mirrors)
    town.fabric.part(publisher.host, mirrors[0].host)
    town.fabric.join(publisher.host, mirrors[3].host)
    await tell(3, *mirrors)
    idle = [len(heard(node)) for node in crowd]
    assert sum(idle) < 13 * said, f"the crowd is not told all: {idle}"


async def test_cards_that_nobody_wants_take_no_room_of_heads(autojump_clock: Any) -> None:
    """However many come, by whomever: what is short and urgent goes on."""
    sender = PeerId("sender")
    host: Any = SimpleNamespace(share_of=lambda _: "192.0.2.0/24", peers=list)
    room = forwarding.Forwarding(host, lambda _: set(), Rate(per_second=1e6, burst=1e6))
    cards, head = Concern((WANTED,), is_wanted=False, is_bulky=True), Concern((WANTED,), is_wanted=False)
    passed = [room.verdict(sender, cards, 8 << 10).judgement for _ in range(2000)]
    assert 0 < passed.count(Judgement.ACCEPT) * (8 << 10) < forwarding.BULKY.burst
    assert passed[-1] is Judgement.IGNORE
    assert [room.verdict(sender, head, 1 << 10).judgement for _ in range(1000)].count(Judgement.ACCEPT) == 1000
