"""The client over what a node wrote: the same rows, pins and positions as at the node, and the same handovers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from odfd.control import wire
from odfd_client import HandedOver, Switched, Update, connect, open_repository
from worlds.manifests import ROOT
from worlds.node_world import Node, World
from worlds.served_node import away, served
from worlds.web_site import Site

ARCHIVE = "$schema: Repository\nheaders: {name: archive}\nspec: {url: %s}\n"


async def pushed(node: Node, ref: str, to: str) -> None:
    done = await node.done(node.api.pushing.push(wire.PushRequest(refs=(ref,), to=to)))
    assert done.items[0].fault is None, done.items


async def test_a_repository_is_followed_as_its_node(
    world: World, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows, then a handover to other rows, by a position that either gave; then rows of the next rendition."""
    ledger = ROOT.replace("{kind: Append}", "{kind: Ledger, primaryKey: [city]}")
    store = tmp_path / "archive"
    store.mkdir()
    async with world.running("alice") as alice:
        await alice.apply(ledger)
        await alice.apply(ARCHIVE % store.as_uri())
        await alice.keep_raw("cities")
        await brought(world, alice, 1, "Graz,1", "Linz,2")
        await pushed(alice, "cities", "archive/cities")
        async with served(alice, tmp_path_factory.mktemp("c")) as path:
            at_node = await away(lambda: connect(path).open("cities"))
            saved = await away(lambda: compared(at_node, store))
            await brought(world, alice, 2, "Graz,3", "Wels,4")
            await alice.apply(ROOT)
            await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest()))
            await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
            await brought(world, alice, 3, "Steyr,5")
            await pushed(alice, "cities.r0", "archive/cities")
            await pushed(alice, "cities", "archive/cities.r1")
            await away(lambda: crossed(at_node, store, saved))
            with Site(store).open() as site:
                await away(lambda: at_a_web_server(site.url, str(alice.dataset("cities"))))


async def brought(world: World, node: Node, day: int, *rows: str) -> None:
    world.write("alice", f"d{day}.csv", *(f"2024-01-0{day}T00:00:00Z,{row}" for row in rows))
    await node.pull("cities")


def compared(at_node: Any, store: Path) -> str:
    here = open_repository(store).open("cities")
    assert here.to_arrow().equals(at_node.to_arrow())
    assert here.pin == at_node.pin
    assert here.current().to_arrow().equals(at_node.current().to_arrow())
    (update,) = at_node.listen(follow=False)
    (same,) = here.listen(follow=False)
    assert (same.position, same.batch, same.complete) == (update.position, update.batch, True)
    return str(update.position)


def crossed(at_node: Any, store: Path, saved: str) -> None:
    """Each item is that of the node; nothing is lost or comes twice."""
    repository = open_repository(store)
    cities = repository.open("cities")
    with pytest.raises(HandedOver):
        list(cities.listen(saved, follow=False))
    ours, theirs = (list(each.cross(saved, follow=False)) for each in (cities, at_node))
    assert [(type(each), each.position) for each in ours] == [(type(each), each.position) for each in theirs]
    told = [each for each in (*ours, *theirs) if isinstance(each, Switched)]
    assert len(told) == 2
    assert told[0].time == told[1].time
    assert [content(each) for each in ours] == [content(each) for each in theirs]
    state = Counter({("Graz", 1): 1, ("Linz", 2): 1})
    for each in ours:
        for (op, *row), count in content(each).items():
            state[tuple(row)] += count if op in (0, 3) else -count
    now = connect_again(at_node).current().select("city", "population").to_arrow().to_pylist()
    assert +state == Counter(tuple(each.values()) for each in now)
    assert cities.current().to_arrow().num_rows == len(now), "the name means the active rendition"


def connect_again(dataset: Any) -> Any:
    return connect(dataset._transport.path).open("cities")


def content(item: Any) -> Counter[Any]:
    rows = item.batch if isinstance(item, Update) else item.changes.to_arrow()
    return Counter((row["op"], row["city"], row["population"]) for row in rows.to_pylist())


def at_a_web_server(url: str, active: str) -> None:
    """A static server lists nothing: a successor is found once its folder was opened."""
    repository = open_repository(url)
    assert repository.open("cities.r1").pin.id == active
    assert repository.open("cities").pin.id == active
