"""Histories begun anew with what they contain: the same rows at all times, and old data goes when nobody needs it."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import trio

from chain.errors import NotFound, Refused
from chain.instant import SECOND, from_millis, render, to_millis
from chain.model.events import AddData
from chain.store.shards import SEALED
from engines.query.frames import ROWS, AnswerFrameReader
from odfd.control import wire
from odfd.errors import Bug
from odfd.queries.log_files import files_of_log
from odfd.store import captures
from worlds.eventually import PATIENCE, became
from worlds.manifests import ROOT
from worlds.node_world import Node, World

LEDGER = "{kind: Ledger, primaryKey: [event_time, city]}"
HOUR = 3600 * SECOND


async def create(node: Node, origin: str = "snapshot", name: str | None = None) -> wire.RenditionView:
    request = wire.RenditionRequest(origin=origin, id=name)  # type: ignore[arg-type]
    made: wire.RenditionView = await node.done(node.api.renditions.create("cities", request))
    return made


async def hand_over(node: Node, number: int, name: str | None = None) -> wire.RenditionView:
    request = wire.HandoverRequest(id=name)
    done: wire.RenditionView = await node.done(node.api.renditions.hand_over("cities", number, request))
    return done


async def answered(node: Node, sql: str) -> list[dict[str, Any]]:
    said = bytearray()

    async def take(data: bytes) -> None:
        said.extend(data)

    with trio.fail_after(PATIENCE):
        await node.api.queries.answer(wire.QueryRequest(sql=sql), take)
    frames = list(AnswerFrameReader().feed(bytes(said)))
    stream = b"".join(content for kind, content in frames if kind == ROWS)
    rows: list[dict[str, Any]] = pa.ipc.open_stream(stream).read_all().to_pylist()
    return rows


async def standing(node: Node, ref: str) -> list[tuple[Any, ...]]:
    """The rows in force, without system columns, and their offsets in order."""
    rows = await answered(node, f'SELECT event_time, city, population FROM current."{ref}" ORDER BY ALL')
    return [tuple(row.values()) for row in rows]


async def pulled(world: World, node: Node, day: int, city: str, count: int) -> None:
    world.write("alice", f"d{day}.csv", f"2024-01-0{day}T00:00:00Z,{city},{count}")
    await node.pull("cities")


async def filled(world: World, node: Node, merge: str = LEDGER, *, raw: bool = False) -> None:
    await node.apply(ROOT.replace("{kind: Append}", merge))
    await node.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
    if raw:
        await node.keep_raw("cities")
    for day, city in ((1, "Graz"), (2, "Linz"), (3, "Wels")):
        await pulled(world, node, day, city, day)


async def test_rows_of_the_very_time_of_a_handover_are_in_its_difference(world: World) -> None:
    """The old rendition is read before that time, so a reader gets them from the new one alone: none is lost."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        await create(alice)
        world.clock.instant += HOUR
        await pulled(world, alice, 4, "Enns", 4)
        chain = alice.home.chains.chain(alice.dataset("cities"))
        last = chain.head()
        clock = SimpleNamespace(now=lambda: chain.block_at(last.sequence_number).system_time)
        with pytest.MonkeyPatch.context() as patched:
            for each in (alice.api.renditions, alice.api.renditions._effects):
                patched.setattr(each, "_clock", clock)
            await hand_over(alice, 1)
        reading = await alice.api.renditions.reading("cities.r0")
        assert reading.old.block != str(last.hash)
        assert not reading.equal
        world.clock.instant += HOUR // 2  # after an hour the old one is sealed
        await hand_over(alice, 0)
        assert (await alice.api.renditions.reading("cities.r1")).equal


async def correct(node: Node, city: str, day: int, count: int | None) -> None:
    key = {"event_time": f"2024-01-0{day}T00:00:00Z", "city": city}
    more = {"retract": True} if count is None else {"values": {"population": str(count)}}
    await node.done(node.api.flow.correct("cities", wire.CorrectRequest(key=key, **more)))


def state_of(node: Node, number: int = 0) -> str:
    service = node.api.renditions
    state = service._effects.state(node.dataset("cities"))
    view = service._view(state, state.member(number))
    return str(view.state)


def objects(node: Node, dataset: Any) -> list[bool]:
    chain = node.home.chains.chain(dataset)
    events = [chain.block_at(number).event for number in range(chain.head().size)]
    slices = [event.new_data for event in events if isinstance(event, AddData) and event.new_data]
    return [node.home.objects.has(each.physical_hash) for each in slices]


async def test_a_snapshot_has_what_stands_in_one_slice_and_what_comes_after(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        await correct(alice, "Linz", 2, 20)
        await correct(alice, "Wels", 3, None)
        before, old = await standing(alice, "cities"), alice.dataset("cities")
        made = await create(alice)
        assert (made.number, made.dataset, made.state, made.origin) == (1, "cities.r1", "Building", "snapshot")
        assert made.since is not None
        assert len(objects(alice, alice.dataset("cities.r1"))) == 1
        assert await standing(alice, "cities.r1") == before
        await pulled(world, alice, 4, "Steyr", 4)
        await correct(alice, "Graz", 1, 10)
        await hand_over(alice, 1)
        now = await standing(alice, "cities")
        assert now == await standing(alice, "cities.r0")
        assert [row[1:] for row in now] == [("Graz", 10), ("Linz", 20), ("Steyr", 4)]
        assert alice.dataset("cities.r0") == old
        await pulled(world, alice, 5, "Krems", 5)
        assert len(await standing(alice, "cities")) == len(await standing(alice, "cities.r0")) + 1
        assert (await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest()))).ok


async def test_a_handover_back_brings_what_came_meanwhile(world: World) -> None:
    """Corrections too, which were never captured; and it may go on between three of one content."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        await create(alice)
        await create(alice)
        await hand_over(alice, 1)
        await pulled(world, alice, 4, "Steyr", 4)
        await correct(alice, "Graz", 1, 10)
        await hand_over(alice, 0)
        await pulled(world, alice, 5, "Krems", 5)
        await hand_over(alice, 2)
        shown = [await standing(alice, ref) for ref in ("cities", "cities.r0", "cities.r1")]
        assert shown[0] == shown[1] == shown[2]
        assert [row[1] for row in shown[0]] == ["Graz", "Linz", "Wels", "Steyr", "Krems"]


async def test_captured_bytes_go_on_across_a_snapshot(world: World) -> None:
    """A rendition from raw is made of all of them, also of those that came before the snapshot."""
    async with world.running("alice") as alice:
        await filled(world, alice, raw=True)
        await create(alice)
        await pulled(world, alice, 4, "Steyr", 4)
        await hand_over(alice, 1)
        await pulled(world, alice, 5, "Krems", 5)
        with alice.home.database.read() as connection:
            assert len(captures.of(connection, alice.dataset("cities"))) == 2
        await alice.apply(ROOT)
        await create(alice, "raw")
        assert await standing(alice, "cities.r2") == await standing(alice, "cities")
        await hand_over(alice, 2)
        await pulled(world, alice, 6, "Enns", 6)
        await hand_over(alice, 0)
        assert len(await standing(alice, "cities")) == 6
        assert await standing(alice, "cities.r1") == await standing(alice, "cities")


async def test_a_dataset_without_rows_begins_anew_without_any(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        await create(alice)
        await hand_over(alice, 1)
        await pulled(world, alice, 1, "Graz", 1)
        assert len(await standing(alice, "cities")) == 1


async def test_the_old_data_goes_when_no_reader_holds_it(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        old = alice.dataset("cities")
        held = await alice.api.holds.take(wire.HoldRequest(ref="cities", seconds=86_400))
        await create(alice)
        await hand_over(alice, 1)
        with trio.fail_after(PATIENCE):
            world.clock.instant += HOUR + SECOND
            alice.api.renditions.upkeep.loop.poke()
            await alice.heard("rendition.sealed")
            assert (state_of(alice), alice.home.chains.upper(old)) == ("Sealed", SEALED)
            for _ in range(8):
                world.clock.instant += 22 * HOUR
                await alice.api.holds.renew(held.id, wire.HoldRenewal(seconds=86_400))
            await alice.api.renditions.upkeep.loop._work()
            assert (state_of(alice), all(objects(alice, old))) == ("Sealed", True)
            await alice.api.holds.release(held.id)
            (event,) = await alice.heard("rendition.dropped")
            await became(lambda: not any(objects(alice, old)))
        assert (event.subject, event.data["rendition"]) == ("cities.r0", 0)
        assert state_of(alice) == "Dropped"
        assert all(objects(alice, alice.dataset("cities")))
        with pytest.raises(NotFound, match="let go after"):
            await alice.api.datasets.tail("cities.r0", 5)
        assert len(await alice.api.datasets.log("cities.r0", (), 50, None)) > 3, "its chain stays"
        with pytest.raises(Refused, match="active, or gone"):
            await hand_over(alice, 0)
        assert len(await standing(alice, "cities")) == 3


class Died(Exception):
    """The process ended after a durable effect."""


async def test_a_time_is_read_from_the_rendition_that_was_active_then(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        old = alice.dataset("cities")
        last = alice.home.chains.chain(old).block_at(alice.size("cities") - 1)
        early = render(from_millis(to_millis(last.system_time)))
        await pulled(world, alice, 4, "Steyr", 4)
        await create(alice)
        handed = await hand_over(alice, 1)
        held = await alice.api.holds.take(wire.HoldRequest(ref="cities", at=early))
        assert held.pin is not None
        assert held.pin.id == str(old)
        rows = await answered(alice, f"SELECT city FROM cities AS OF '{early}'")
        assert [row["city"] for row in rows] == ["Graz", "Linz", "Wels"]
        assert (await alice.api.holds.take(wire.HoldRequest(ref="cities"))).time == handed.active_since
        new = alice.dataset("cities")
        with pytest.raises(NotFound, match="nothing of cities was known"):
            await answered(alice, f"SELECT city FROM \"{new}\" AS OF '{early}'")


async def test_a_listener_that_a_handover_overtakes_gets_rows_of_its_own_rendition(world: World) -> None:
    """The name that its rows were to be planned by is another rendition's by then."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        await create(alice)
        old, plans = alice.dataset("cities"), []

        def plan(tables: Any, request: Any) -> Any:
            plans.append(tables[0].path)
            if len(plans) == 1:
                trio.from_thread.run(hand_over, alice, 1)
            return alice.api.queries._planner.plan(tables, request)

        asked = wire.SlicesRequest(dataset=str(old), together=True, after=wire.LogPosition(offset=-1))
        found = await trio.to_thread.run_sync(files_of_log, alice.home, plan, asked)
        assert plans == [("cities",), ("cities.r0",)]
        assert (found.view.dataset, found.ended) == (old, True)


async def test_a_death_after_each_effect_loses_and_repeats_nothing(world: World) -> None:
    seen: list[str] = []

    def step(name: str) -> None:
        if seen.count(name) < 2:
            seen.append(name)
            raise Died(name)

    async with world.running("alice") as alice:
        await filled(world, alice, raw=True)
        before = len(await standing(alice, "cities"))
        await create(alice, name="anew")
        await pulled(world, alice, 4, "Steyr", 4)
        await correct(alice, "Graz", 1, 10)
    while "switched" not in seen or seen.count("copied") < 2:
        async with world.running("alice") as alice:
            alice.api.renditions._effects.step = step
            with contextlib.suppress(Bug):
                await create(alice, name="anew")
                await hand_over(alice, 1, "over")
    async with world.running("alice") as alice:
        await hand_over(alice, 1, "over")
        assert {"rendition-begun", "copied", "handover-asked", "switched"} <= set(seen)
        views = [(each.number, each.dataset, each.state) for each in await alice.api.renditions.list("cities")]
        assert views == [(0, "cities.r0", "Superseded"), (1, "cities", "Active")]
        assert await standing(alice, "cities") == await standing(alice, "cities.r0")
        assert len(await standing(alice, "cities")) == before + 1


async def test_a_death_between_mark_and_sweep_is_made_good(world: World) -> None:
    async with world.running("alice") as alice:

        def later(*_: object) -> float:
            return math.inf

        alice.api.renditions.upkeep._after = later  # the test is what drops it
        await filled(world, alice)
        old = alice.dataset("cities")
        await create(alice)
        await hand_over(alice, 1)
        world.clock.instant += 8 * 24 * HOUR
        effects, held = alice.api.renditions._effects, list[bool]()

        def step(name: str) -> None:
            held.extend(objects(alice, old))  # now: the node goes on, and sweeps what is marked
            raise Died(name)

        effects.step = step
        with pytest.raises(Died):
            await trio.to_thread.run_sync(lambda: effects.drop(effects.state(old).member(0)))
        assert held, "there are objects"
        assert all(held), "marked, and not swept"
        assert state_of(alice) == "Dropped"
    async with world.running("alice") as alice:
        alice.api.renditions.upkeep.loop.poke()
        await became(lambda: not any(objects(alice, old)))
        assert len(await standing(alice, "cities")) == 3


async def test_a_reader_that_comes_before_the_mark_keeps_the_data(world: World) -> None:
    """Also one that reads the former rendition by its own name, at whatever time."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        old = alice.dataset("cities")
        await create(alice)
        await hand_over(alice, 1)
        await alice.api.holds.take(wire.HoldRequest(ref="cities.r0"))
        effects = alice.api.renditions._effects
        with pytest.raises(Refused, match="held for a reader"):
            await trio.to_thread.run_sync(lambda: effects.drop(effects.state(old).member(0)))
        assert all(objects(alice, old))
