"""The Python client reads, holds and follows a collection of several shards by its name as it does one chain."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest
import trio

from engines.query.reader import QueryProcesses
from odfd.control import wire
from odfd.store.read_holds import HistoryHeld
from odfd_client import HandedOver, NotFound, Position, Snapshot, Switched, Update, connect
from worlds.manifests import ROOT
from worlds.node_world import Node, World
from worlds.served_node import away, served

LEDGER = "{kind: Ledger, primaryKey: [event_time, city]}"
CITIES = ("Graz", "Linz", "Wels", "Enns", "Melk", "Krems", "Steyr", "Bregenz", "Villach")


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a short name: a socket's may have 107 bytes."""
    return tmp_path_factory.mktemp("c")


async def brought(world: World, node: Node, day: int, *cities: str) -> None:
    world.write("alice", f"d{day}.csv", *(f"2024-01-{day:02}T00:00:00Z,{city},{day}" for city in cities))
    await node.pull("cities")


async def rendition(node: Node, number: int, shards: int, origin: Literal["snapshot", "raw"] = "snapshot") -> None:
    request = wire.RenditionRequest(origin=origin, shards=shards, by=("city",) if shards > 1 else ())
    await node.done(node.api.renditions.create("cities", request))
    await node.done(node.api.renditions.hand_over("cities", number, wire.HandoverRequest()))


async def sharded(world: World, node: Node) -> None:
    await node.apply(ROOT.replace("{kind: Append}", LEDGER))
    await node.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
    await brought(world, node, 1, *CITIES[:5])
    await rendition(node, 1, 3)


def names(items: Any) -> list[str]:
    return [name for item in items for name in item.batch.column("city").to_pylist()]


async def test_all_shards_are_followed_as_one(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row once from any saved position on; the last of a cut says that it is complete, in every shard.

    The rows come from the slices: no query process is started for them.
    """

    def none(_: object) -> None:
        raise AssertionError("a query process was started")

    monkeypatch.setattr(QueryProcesses, "one", none)
    async with world.running("alice") as alice:
        await sharded(world, alice)
        async with served(alice, folder) as path:
            cities = await away(lambda: connect(path).open("cities"))
            found = await away(lambda: list(cities.listen(follow=False)))
            assert sorted(names(found)) == sorted(CITIES[:5])
            assert [each.complete for each in found] == [False] * (len(found) - 1) + [True]
            assert len(found) > 1
            for place, each in enumerate(found):
                start = Position.parse(str(each.position))
                rest = await away(lambda start=start: list(cities.listen(str(start), follow=False)))
                assert sorted(names(rest)) == sorted(names(found[place + 1 :]))
            live, heard = cities.listen(found[-1].position, seconds=1e6), []
            listening = threading.Event()

            def hear() -> None:
                listening.set()
                while not heard or not heard[-1].complete:
                    heard.append(next(live))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(away, hear)
                await trio.to_thread.run_sync(listening.wait)
                await brought(world, alice, 2, *CITIES[5:])
            await away(live.close)
            assert sorted(names(heard)) == sorted(CITIES[5:])
            one = await away(lambda: connect(path).open(found[0].position.id))
            with pytest.raises(NotFound, match="not of did:odf"):
                await away(lambda: list(one.listen(found[0].position, follow=False)))


async def test_a_hold_and_a_subscription_are_of_all_shards_at_one_time(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await sharded(world, alice)
        async with served(alice, folder) as path:
            c = await away(lambda: connect(path))
            items = await away(lambda: c.open("cities").subscribe(follow=False))
            snapshot = await away(lambda: next(items))
            assert isinstance(snapshot, Snapshot)
            await brought(world, alice, 2, *CITIES[5:])
            rows = await away(lambda: snapshot.rows.to_arrow()["city"].to_pylist())
            assert sorted(rows) == sorted(CITIES[:5])
            with pytest.raises(HistoryHeld):
                await alice.api.declarations.delete("Dataset", "cities")
            later = await away(lambda: list(items))
            assert sorted(names(later)) == sorted(CITIES[5:])
            assert not await alice.api.holds.list()
            together = await away(lambda: c.at(None, "cities"))
            with together:
                await brought(world, alice, 3, "Graz")
                (hold,) = await alice.api.holds.list()
                assert len({pin.id for pin in hold.shards}) == 3
                assert await away(lambda: together["cities"].current().to_arrow().num_rows) == 9
                await away(lambda: together.__exit__(None, None, None))


def applied(state: Counter[str], item: Update | Switched) -> None:
    if isinstance(item, Switched):
        rows = [] if item.changes is None else item.changes.to_arrow().to_pylist()
    else:
        rows = item.batch.to_pylist()
    for row in rows:
        state[row["city"]] += 1 if row["op"] in (0, 3) else -1


@pytest.mark.parametrize("origin", ["snapshot", "raw"])
async def test_a_reader_crosses_from_one_chain_to_shards_and_back(
    world: World, folder: Path, origin: Literal["snapshot", "raw"]
) -> None:
    """From each position that was ever saved, the reader has in the end what the collection contains.

    Decoded from raw, every other rendition has other rows, as another decoder makes them.
    """
    async with world.running("alice") as alice:
        await alice.apply(ROOT.replace("{kind: Append}", LEDGER))
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        await alice.keep_raw("cities")
        await brought(world, alice, 1, *CITIES[:2])
        async with served(alice, folder) as path:
            c = await away(lambda: connect(path))
            cities = await away(lambda: c.open("cities"))
            has: Counter[str] = Counter()
            saved: list[tuple[str | None, Counter[str]]] = [(None, Counter())]

            async def read(start: str | None, state: Counter[str]) -> str | None:
                end = start
                for item in await away(lambda: list(cities.cross(start, follow=False))):
                    await away(lambda item=item: applied(state, item))
                    end = str(item.position)
                return end

            at: str | None = None
            for number, (shards, day) in enumerate(((3, 2), (5, 3), (1, 4)), start=1):
                at = await read(at, has)
                saved.append((at, has.copy()))
                await brought(world, alice, day, CITIES[day], "Graz")
                if origin == "raw":
                    merge = "{kind: Append}" if number % 2 else "{kind: Ledger, primaryKey: [city]}"
                    await alice.apply(ROOT.replace("{kind: Append}", merge))
                await rendition(alice, number, shards, origin)
            await brought(world, alice, 5, *CITIES[5:])
            rows = Counter(await away(lambda: c.open("cities").current().to_arrow()["city"].to_pylist()))
            for start, state in saved:
                await read(start, state)
                assert +state == rows
            with pytest.raises(HandedOver):
                await away(lambda: list(cities.listen(saved[2][0], follow=False)))
            assert not await alice.api.holds.list()
