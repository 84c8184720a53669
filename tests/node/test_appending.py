"""The Python client appends rows: each append once by its id, and after a block that it names."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from odfd.control import wire
from odfd_client import Appended, Client, Conflict, Dataset, Invalid, NotFound, Refused, Unreachable, appending, connect
from worlds.manifests import ROOT
from worlds.node_world import Node, World
from worlds.served_node import away, served

DATASET = """$schema: Dataset
headers: {name: readings}
spec:
  kind: Root
  metadata:
  - kind: AddPushSource
    sourceName: gate
    read: {kind: Parquet}
    merge: {kind: Append}
"""
EMPTY = "$schema: Dataset\nheaders: {name: empty}\nspec: {kind: Root, metadata: []}\n"


def rows(*numbers: int) -> pa.Table:
    times = pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * len(numbers), pa.timestamp("ms", "UTC"))
    return pa.table({"event_time": times, "n": pa.array(numbers, pa.int64())})


def numbers(dataset: Dataset) -> list[int]:
    return [int(each) for each in dataset.select("n").to_arrow()["n"].to_pylist()]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a short name: a socket's may have 107 bytes."""
    return tmp_path_factory.mktemp("c")


async def test_an_append_counts_once_by_its_id(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await alice.apply(DATASET)
        async with served(alice, folder) as path:
            await away(lambda: append_by_ids(connect(path)))
    async with world.running("alice") as alice, served(alice, folder) as path:
        await away(lambda: repeat_after_a_restart(connect(path)))


def append_by_ids(c: Client) -> None:
    assert c.commit_point("readings").last_id is None
    first = c.append("readings", rows(1, 2), id="0-2")
    assert (first.id, first.records) == ("0-2", 2)
    again = c.append("readings", rows(1, 2), id="0-2")
    assert (again.block, again.records) == (first.block, 0)
    assert "before" in again.message
    with pytest.raises(Refused) as refused:
        c.append("readings", rows(3), id="0-2")
    assert refused.value.rule == "push-id"
    point = c.commit_point("readings")
    assert (point.block, point.last_id) == (first.block, "0-2")
    assert c.append("readings", rows(7)).records == c.append("readings", rows(7)).records == 1, "each call counts"
    assert numbers(c.open("readings")) == [1, 2, 7, 7]


def repeat_after_a_restart(c: Client) -> None:
    assert c.append("readings", rows(1, 2), id="0-2").records == 0
    batch = rows(3).to_batches()[0]
    assert c.append("readings", batch, id="2-3").records == 1
    assert c.append("readings", pa.RecordBatchReader.from_batches(batch.schema, [batch, batch])).records == 2
    assert numbers(c.open("readings")) == [1, 2, 7, 7, 3, 3, 3]


async def test_a_lost_answer_is_asked_for_again(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        await alice.apply(DATASET)
        async with served(alice, folder) as path:
            with monkeypatch.context() as patched:
                patched.setattr(appending, "_result", lost)
                with pytest.raises(Unreachable):
                    await away(lambda: connect(path).append("readings", rows(1), id="a"))
            assert (await away(lambda: connect(path).append("readings", rows(1), id="a"))).id == "a"
            assert await away(lambda: numbers(connect(path).open("readings"))) == [1]


def lost(*_: object) -> Any:
    raise Unreachable("cut off", rule="connection")


async def test_what_must_follow_a_block_is_refused_after_another(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await alice.apply(DATASET)
        async with served(alice, folder) as path:
            await away(lambda: follow_blocks(connect(path)))
            await away(lambda: race(path))


def follow_blocks(c: Client) -> None:
    start = c.commit_point("readings")
    first = c.append("readings", rows(1), id="a", after=start)
    with pytest.raises(Conflict) as refused:
        c.append("readings", rows(2), id="b", after=start)
    assert refused.value.rule == "append-after"
    assert numbers(c.open("readings")) == [1]
    assert c.append("readings", rows(1), id="a", after=start).block == first.block, "what was appended stays appended"
    second = c.append("readings", rows(2), id="b", after=first)
    assert c.commit_point("readings").block == second.block


def race(path: Path) -> None:
    """Programs that count up from the last row: each number is there once, as none builds on what it has not seen."""

    def count(name: str) -> None:
        c = connect(path)
        for turn in range(4):
            while True:
                point = c.commit_point("readings")
                following = numbers(c.open("readings").at_block(point.block))[-1] + 1
                try:
                    c.append("readings", rows(following), id=f"{name}-{turn}", after=point)
                except Conflict:
                    continue
                break

    threads = [threading.Thread(target=count, args=(name,)) for name in "xy"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert numbers(connect(path).open("readings")) == list(range(1, 11))


TURNS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 6)),
    st.tuples(st.just("late"), st.integers(0, 6)),
    st.tuples(st.just("over"), st.integers(1, 3)),
    st.tuples(st.just("back"), st.integers(0, 3)),
    st.tuples(st.just("restart"), st.just(0)),
)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(TURNS, min_size=2, max_size=9))
@example(
    [("over", 2), ("append", 1), ("append", 2), ("append", 3), ("append", 1), ("late", 4), ("over", 1), ("append", 3)]
)
@example([("append", 5), ("append", 6), ("append", 1), ("over", 3), ("restart", 0), ("append", 6), ("back", 0)])
def test_appends_to_any_shards_count_once_over_handovers(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[str, int]]
) -> None:
    """By id, after the commit point of all shards, and never after another block."""
    world = World(tmp_path_factory.mktemp("world"))
    trio.run(play, world, tmp_path_factory.mktemp("c"), turns)
    world.close()


async def play(world: World, folder: Path, turns: list[tuple[str, int]]) -> None:
    known, left = Appends(), list(turns)
    while True:
        async with world.running("alice") as alice:
            if not known.numbers:
                await alice.apply(DATASET)
                await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("readings",)))
            async with served(alice, folder) as path:
                if not known.numbers:
                    await away(lambda: known.append(connect(path), 0))
                while left:
                    kind, value = left.pop(0)
                    if kind == "restart":
                        break
                    if kind in ("append", "late"):
                        await away(partial(play_one, known, kind, path, value))
                    else:
                        await rendition(alice, kind, value)
                    await away(lambda: known.check(connect(path)))
                if not left:
                    return


def play_one(known: Appends, kind: str, path: Path, value: int) -> None:
    getattr(known, kind)(connect(path), value)


async def rendition(node: Node, kind: str, value: int) -> None:
    api = node.api.renditions
    if kind == "over":
        wanted = wire.RenditionRequest(origin="snapshot", shards=value, by=("n",) if value > 1 else ())
        number = (await node.done(api.create("readings", wanted))).number
    else:
        former = [each.number for each in await api.list("readings") if each.state == "Superseded"]
        if not former:
            return
        number = former[value % len(former)]
    await node.done(api.hand_over("readings", number, wire.HandoverRequest()))


class Appends:
    """What was appended to ``readings``, with the ids of appends in order."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.last = ""

    def append(self, c: Client, number: int) -> None:
        """Appends one row under its own id; what is repeated is there already."""
        before = c.commit_point("readings")
        done = c.append("readings", rows(number), id=f"{number}", after=before)
        assert done.records == int(number not in self.numbers)
        if number not in self.numbers:
            self.numbers.append(number)
            self.last = f"{number}"
            assert c.commit_point("readings").block == done.block != before.block
        again = c.append("readings", rows(number), id=f"{number}")
        assert (again.records, again.block) == (0, done.block)

    def late(self, c: Client, number: int) -> None:
        """What would not follow the last block of all shards is not taken in, whatever shard its row is for."""
        point, other = c.commit_point("readings"), 100 + len(self.numbers)
        self.append(c, other)
        if number not in self.numbers:
            with pytest.raises(Conflict) as refused:
                c.append("readings", rows(number), id=f"{number}", after=point)
            assert refused.value.rule == "append-after"

    def check(self, c: Client) -> None:
        assert sorted(numbers(c.open("readings"))) == sorted(self.numbers)
        assert c.commit_point("readings").last_id == self.last


async def test_what_cannot_be_appended_is_refused_and_nothing_is_written(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await alice.apply(DATASET)
        await alice.apply(EMPTY)
        await alice.apply(ROOT)
        async with served(alice, folder) as path:
            c = await away(lambda: connect(path))
            assert (await away(lambda: c.append("empty", rows(1)))).records == 1, "a source for Parquet is made"
            for given, family, rule in (
                (("none", rows(1)), NotFound, None),
                (("readings", [1, 2]), Invalid, "append-rows"),
                (("readings", rows(1), "x" * 300), Refused, "push-id"),
                (("readings", rows(1), "a", Appended("", "f1620" + "0" * 64, 0, "")), Conflict, "append-after"),
                (("cities", rows(1)), Refused, "push-source"),
            ):
                with pytest.raises(family) as refused:
                    await away(lambda given=given: appending.append(c._transport, *(given + (None,) * 4)[:5]))
                assert rule in (None, refused.value.rule), refused.value
            assert alice.size("readings") == 2
