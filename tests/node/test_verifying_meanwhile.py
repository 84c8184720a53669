"""Verification while others write: it finds what is damaged, and nothing that is not; and so does mending."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.errors import Conflict
from chain.ids import DatasetId
from chain.model.events import SetInfo
from chain.store import sqlite
from chain.store.sqlite import SqliteChain
from config import model
from odfd.control import wire
from odfd.datasets.commit import Commit, CommitPart
from odfd.services.datasets import damage as registry
from odfd.store.damage import Damage, DamagedBlock
from odfd.store.ledger.log import Ledger
from worlds.manifests import ROOT
from worlds.node_world import Node, World

NUMBERS = itertools.count()
SOAKS = "ODF_SOAK" in os.environ
ROUNDS = 1000 if SOAKS else 34
"""Changes of a dataset that is verified all the while, at least half as often."""


def write(world: World, count: int = 1) -> None:
    for _ in range(count):
        number = next(NUMBERS)
        seconds = f"2024-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
        world.write("alice", f"{number:06}.csv", f"{seconds},town {number},{number}")


async def published(world: World, node: Node, files: int = 6) -> DatasetId:
    write(world, files)
    await node.apply(ROOT)
    await node.pull()
    found: DatasetId = node.dataset("cities")
    return found


async def verified(node: Node, ref: str, level: str = "data") -> Any:
    return await node.done(node.api.verification.verify(ref, wire.VerifyRequest(level=level, full=True)))


async def append(world: World, node: Node) -> None:
    write(world)
    await node.pull("cities")


async def describe(node: Node, dataset: DatasetId, number: int) -> None:
    """The cheapest append there is."""
    head = node.home.chains.chain(dataset).head()
    events = [SetInfo(description=f"{number}")]
    part = CommitPart(dataset=dataset, expected=head, events=events, time=node.clock.now())
    await node.parts.committer.commit(Commit(parts=(part,)))


async def reset(world: World, node: Node) -> None:
    """To where it was a block ago, and another one in its place."""
    size = node.size("cities")
    if size > 4:
        await node.done(node.api.rewriting.rewrite("cities", wire.RewriteRequest(action="reset", to=f"#{size - 2}")))
        await append(world, node)


async def compact(world: World, node: Node) -> None:
    await node.done(node.api.rewriting.rewrite("cities", wire.RewriteRequest(action="compact")))
    await node.done(node.api.collection.collect(wire.CollectRequest()))
    await node.done(node.api.collection.collect(wire.CollectRequest()))


ACTIONS = {"append": append, "reset": reset, "compact": compact}


def believed(node: Node, dataset: DatasetId) -> tuple[list[DamagedBlock], int, int]:
    """Damage that is noted; how many blocks are there, and how many are relied on."""
    with node.home.database.read() as connection:
        checked = Ledger(connection).chain(dataset)
        return Damage(connection).of(dataset), checked.frontier.size, checked.data


class Between:
    """Does something on the event loop before pages of blocks are read, while the reader's thread waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
        self.waiting: list[Callable[[], Any]] = []
        self._is_busy = False
        page = SqliteChain._page
        monkeypatch.setattr(sqlite, "PAGE_BLOCKS", blocks)
        monkeypatch.setattr(sqlite, "_HANDFUL", blocks)
        monkeypatch.setattr(sqlite, "PAGE_BYTES", 1)

        def look(chain: SqliteChain, start: int, stop: int) -> Any:
            if self.waiting and not self._is_busy:
                self._is_busy = True
                try:
                    trio.from_thread.run(self.waiting.pop(0))
                finally:
                    self._is_busy = False
            return page(chain, start, stop)

        monkeypatch.setattr(SqliteChain, "_page", look)


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("level", ["chain", "data"])
async def test_a_verification_ends_where_it_began(
    world: World, monkeypatch: pytest.MonkeyPatch, action: str, level: str
) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        between = Between(monkeypatch, 2)
        for place in range(4):
            between.waiting = [trio.lowlevel.checkpoint] * place + [lambda: ACTIONS[action](world, alice)]
            report = await verified(alice, "cities", level)
            between.waiting = []
            assert report.ok, report.failures
            damage, size, relied = believed(alice, cities)
            assert (damage, relied) == ([], size)
        assert "damage.found" not in alice.kinds()


@pytest.mark.slow
@settings(max_examples=12 if SOAKS else 4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(["", *ACTIONS]), max_size=5), min_size=1, max_size=4))
def test_whatever_happens_between_two_pages(tmp_path_factory: pytest.TempPathFactory, lots: list[list[str]]) -> None:
    async def lives() -> None:
        world = World(tmp_path_factory.mktemp("world"))
        with pytest.MonkeyPatch.context() as monkeypatch:
            async with world.running("alice") as alice:
                cities = await published(world, alice)
                between = Between(monkeypatch, 2)
                for lot in lots:
                    between.waiting = [
                        (lambda name=name: ACTIONS[name](world, alice)) if name else trio.lowlevel.checkpoint
                        for name in lot
                    ]
                    report = await verified(alice, "cities")
                    between.waiting = []
                    assert report.ok, report.failures
                    damage, size, relied = believed(alice, cities)
                    assert (damage, relied) == ([], size)
        world.close()

    trio.run(lives)


@pytest.mark.slow
async def test_what_is_damaged_is_found_all_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        with alice.home.database.write() as connection:
            connection.execute("DELETE FROM small_objects WHERE name IN (SELECT object FROM object_references"
                               " WHERE dataset = ? AND sequence = 4)", (cities,))  # fmt: skip
        between = Between(monkeypatch, 2)
        between.waiting = [lambda: append(world, alice)] * 3
        report = await verified(alice, "cities")
        assert [failure.rule for failure in report.failures] == ["slice-missing"]
        damage, size, relied = believed(alice, cities)
        assert ([spot.sequence for spot in damage], relied) == ([4], 4)
        assert size > 9
        await append(world, alice)
        assert believed(alice, cities)[2] == 4
        between.waiting = [lambda: ACTIONS["reset"](world, alice)]
        report = await verified(alice, "cities")
        assert [failure.rule for failure in report.failures] == ["slice-missing"]


async def test_damage_of_a_history_that_is_gone_is_not_noted(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        with alice.home.database.read() as connection:
            seen = registry.conditions(connection, cities)
        spots = [DamagedBlock(7, "slice-missing", "it is not here")]
        await reset(world, alice)
        assert not alice.parts.damage.record(cities, spots, seen)
        assert believed(alice, cities)[0] == []
        with alice.home.database.read() as connection:
            seen = registry.conditions(connection, cities)
        await append(world, alice)
        assert alice.parts.damage.record(cities, spots, seen)
        alice.parts.damage.whole(cities, 7, seen)
        assert believed(alice, cities)[0] == spots
        await reset(world, alice)
        alice.parts.damage.whole(cities, 99, seen)
        assert believed(alice, cities)[0] == spots
        # What is given away is found damaged by its bytes; but it may have been given up since they were read.
        assert not alice.parts.damage.record(cities, [DamagedBlock(99, "stored-block-damaged", "its bytes")])


async def test_a_dataset_that_never_rests_is_looked_at_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is overtaken by another history and finds blocks of both, until those who write it have to wait."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        looked, look = [], registry.verify_chain

        def torn(*args: Any) -> Any:
            found = look(*args)
            looked.append(1)
            if len(looked) <= registry.ATTEMPTS:
                trio.from_thread.run(reset, world, alice)
                failure = [wire.Failure(block=wire.FailedBlock(hash="", sequence_number=3), rule="r", message="m")]
                return type(found)(**{**{f: getattr(found, f) for f in found.__struct_fields__}, "ok": False,
                                      "failures": tuple(failure)})  # fmt: skip
            return found

        monkeypatch.setattr(registry, "verify_chain", torn)
        assert (await verified(alice, "cities")).ok
        assert len(looked) == registry.ATTEMPTS + 1
        assert believed(alice, cities)[0] == []


async def test_a_mirror_is_not_damaged_while_its_data_is_on_its_way(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        async with world.running("bob") as bob:
            await bob.mirror(cities, "theirs", want="chain")
            size = bob.size("theirs")
            world.wires.cut.add(alice.member.peer_id)
            await bob.api.mirrors.add(wire.MirrorRequest(source=str(cities), as_name="theirs", want="data"))
            report = await verified(bob, "theirs")
            assert (report.ok, report.checked.slices, report.checked.to_come) == (True, 0, 6)
            assert believed(bob, cities) == ([], size, 0)
            world.wires.cut.clear()
            await bob.pull("theirs")
            report = await verified(bob, "theirs")
            assert (report.ok, report.checked.slices, report.checked.to_come) == (True, 6, 0)
            with bob.home.database.write() as connection:
                connection.execute("DELETE FROM small_objects")
            report = await verified(bob, "theirs")
            assert (report.ok, len(report.failures)) == (False, 6)


async def test_mending_takes_nothing_back(world: World) -> None:
    """A chain that grew while it was looked at keeps what came."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        chains = alice.home.chains
        mark, head = chains.mark(cities), chains.chain(cities).head()
        await append(world, alice)
        with pytest.raises(Conflict):
            chains.mend(cities, mark, head, [])
        assert chains.chain(cities).head().size == head.size + 1


async def test_the_doctor_and_proofs_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        await published(world, alice)
        between = Between(monkeypatch, 2)
        for action in (append, reset, compact):
            between.waiting = [lambda action=action: action(world, alice)]
            found = {probe.name: probe async for probe in alice.api.about.examine()}
            assert found["chains"].result == "ok", found["chains"]


@pytest.mark.slow
async def test_many_verifications_during_many_changes(world: World) -> None:
    follow = model.Policy(rewrite=model.Rewrite(follow="follow"))
    async with world.running("alice") as alice, world.running("bob", follow) as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")
        done = trio.Event()
        looks = {"cities": 0, "theirs": 0}
        wrong: list[Any] = []

        async def change() -> None:
            for number in itertools.count():
                if number >= ROUNDS and min(looks.values()) >= ROUNDS // 2:
                    break
                if number % 50 == 49:
                    await compact(world, alice)
                elif number % 25 == 24:
                    await reset(world, alice)
                elif number % 20 == 19:
                    await append(world, alice)
                else:
                    await describe(alice, cities, number)
            done.set()

        async def look(node: Node, name: str) -> None:
            while not done.is_set():
                report = await verified(node, name, "data" if looks[name] % 2 else "chain")
                wrong.extend(report.failures)
                looks[name] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            nursery.start_soon(look, alice, "cities")
            nursery.start_soon(look, bob, "theirs")
        assert wrong == []
        for node in (alice, bob):
            damage, size, relied = believed(node, cities)
            assert (damage, relied) == ([], size)
            assert "damage.found" not in node.kinds()
