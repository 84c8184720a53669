"""What is declared of a collection, and what refers to it, stays with its name over any number of handovers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import SECOND
from engines.query.frames import ROWS, AnswerFrameReader
from odfd.access.relations import Role
from odfd.control import wire
from odfd.errors import Bug
from odfd.renditions import handover
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore
from odfd.store.access_state import AccessReader
from odfd.store.catalog import Catalog
from odfd.store.read_holds import ReadHolds
from odfd.store.visibility import Visibility
from worlds.depth import share
from worlds.eventually import PATIENCE
from worlds.flow_world import flows
from worlds.node_world import Node, World, run_apart

DECLARED = """$schema: Account
headers: {name: bob}
spec: {email: bob@example.org}
---
$schema: Dataset
headers: {name: cities, labels: {env: prod}, annotations: {schedule: {every: 1min}}}
spec:
  kind: Root
  metadata:
  - kind: SetPollingSource
    fetch: {kind: FilesGlob, path: '*.csv', order: ByName}
    read: {kind: Csv, header: true, ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']}
    merge: {kind: Append}
---
$schema: Flow
headers: {name: every}
spec:
  target: "Dataset:%"
  triggers: [{kind: Schedule, cron: '@yearly'}]
  tasks: [{kind: Compaction}]
---
$schema: Projection
headers: {name: counted}
spec:
  inputs: [{datasetRef: cities}]
  project: {kind: Sql, query: 'SELECT count(*) AS n FROM cities'}
---
$schema: Relations
headers: {name: team}
spec: {relations: [{subject: "Account:bob", relation: role, value: reader, object: "Dataset:cities"}]}
"""


LATE = "$schema: Flow\nheaders: {name: late}\nspec: {target: 'DID', triggers: [{kind: Interval, interval: 1h}]}\n"


class Died(Exception):
    """The process ended after a durable effect."""


async def begin(world: World, node: Node) -> None:
    await node.apply(DECLARED)
    await node.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
    world.write("alice", "d1.csv", "2024-01-01T00:00:00Z,Graz,1")
    await node.pull("cities")


async def create(node: Node, command: str | None = None, shards: int = 1) -> int:
    by = ("city",) if shards > 1 else ()
    wanted = wire.RenditionRequest(origin="snapshot", shards=shards, by=by, id=command)
    made: wire.RenditionView = await node.done(node.api.renditions.create("cities", wanted))
    return made.number


async def hand_over(node: Node, number: int, command: str | None = None) -> None:
    await node.done(node.api.renditions.hand_over("cities", number, wire.HandoverRequest(id=command)))


def resources(node: Node) -> dict[tuple[str, str], Resource]:
    with node.home.database.read() as connection:
        return {(each.type, each.name): each for each in ResourceStore(connection).all()}


def said(node: Node) -> dict[tuple[str, str], Any]:
    """What is declared of each resource, who has it, and which resources its references mean."""
    return {
        key: (each.id, each.account, each.spec, dict(each.labels), dict(each.annotations),
              {ref: held and held.id for ref, held in each.references.items()})
        for key, each in resources(node).items()
        if each.type != "FlowRun"
    }  # fmt: skip


async def settled(node: Node) -> None:
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()


async def counted(node: Node) -> int:
    """The rows of the dataset by its projection, once that is up to date."""
    await settled(node)
    sent = bytearray()

    async def take(data: bytes) -> None:
        sent.extend(data)

    await node.api.queries.answer(wire.QueryRequest(sql="select n from projection.counted"), take)
    frames = AnswerFrameReader().feed(bytes(sent))
    (row,) = pa.ipc.open_stream(b"".join(each for kind, each in frames if kind == ROWS)).read_all().to_pylist()
    return int(row["n"])


async def ingested(world: World, node: Node, day: int) -> None:
    """The schedule takes a new file in, and nobody pulls."""
    world.write("alice", f"d{day}.csv", f"2024-01-{day:02}T00:00:00Z,Graz,{day}")
    wanted = (await node.dataset_view("cities")).records + 1
    await node.parts.flows.look(())
    node.clock.instant += 60 * SECOND
    node.parts.flows.loop.poke()
    with trio.fail_after(PATIENCE):
        while (await node.dataset_view("cities")).records < wanted:
            turned = node.parts.flows.turned
            if (await node.dataset_view("cities")).records < wanted:
                await turned.wait()


async def check(node: Node, before: dict[tuple[str, str], Any], rows: int) -> None:
    """What was declared stands as before, for the active rendition, and what uses the dataset finds all its rows."""
    active = node.dataset("cities")
    await settled(node)
    assert said(node) == before
    cities = resources(node)["Dataset", "cities"]
    assert cities.did == str(active)
    for each in resources(node).values():
        assert {held.did for held in each.references.values() if held and held.id == cities.id} <= {str(active)}
    assert [each.name for each in await node.dataset_views()] == ["cities"]
    listed = await node.api.declarations.list("dataset", "env=prod")
    assert [(each.name, each.headers["did"]) for each in listed] == [("cities", str(active))]
    found = {each.name: (each.target, each.state in ("waiting", "running")) for each in await flows(node)}
    assert found["cities"] == ("cities", True)
    await node.parts.flows.look(())
    targets = {entry.plan.target for _, entry in node.parts.flows.scheduler.entries() if entry.plan.name == "every"}
    assert targets == {active}, "a pattern of all names selects no chain inside"
    assert (await node.dataset_view("cities")).records == rows
    assert await counted(node) == rows
    with node.home.database.read() as connection:
        bob = ResourceStore(connection).find_named("Account", "bob", None)
        inner = [each.id for each in Catalog(connection).chains() if each.is_inner]
    assert bob is not None
    reader = AccessReader(node.home.database, lambda _: ())
    assert reader.role(bob.id, cities.id) is Role.READER
    assert {reader.read().id_of(str(each)) for each in (active, *inner)} == {cities.id}


@pytest.mark.parametrize("shards", [1, 3])
async def test_all_that_was_declared_stays_with_the_name(
    world: World, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    monkeypatch.setattr(handover, "KEEP_WARM", 10**12)  # the clock moves at each look at it, however many there are
    async with world.running("alice") as alice:
        await begin(world, alice)
        before, first = said(alice), alice.dataset("cities")
        await check(alice, before, 1)
        chains = {first}
        for number in (1, 2, 3):
            assert await create(alice, shards=shards) == number
            await hand_over(alice, number)
            chains.add(alice.dataset("cities"))
            await check(alice, before, number)
            await ingested(world, alice, number + 1)
            await check(alice, before, number + 1)
        assert len(chains) == 4, "each is a chain of its own"
        abandoned = await create(alice, shards=shards)
        await check(alice, before, 4)
        await alice.api.renditions.abandon("cities", abandoned)
        await check(alice, before, 4)
        await hand_over(alice, 0)
        assert alice.dataset("cities") == first
        await check(alice, before, 4)
    async with world.running("alice") as alice:
        await check(alice, before, 4)
        await ingested(world, alice, 9)
        await alice.api.applying.rename("Dataset", "cities", "towns")
        assert alice.home.name_of(alice.dataset("towns.r3")) == "towns.r3"
        with pytest.raises(NotFound, match=r"no Dataset 'towns\.r3'"):
            await alice.api.applying.rename("Dataset", "towns.r3", "other")
        with pytest.raises(Invalid, match="inside towns"):
            await alice.api.applying.rename("Dataset", str(alice.dataset("towns.r3")), "other")
        for each in ("every", "counted", "team"):
            await alice.api.declarations.delete({"every": "flow", "counted": "projection"}.get(each, "relations"), each)
        await alice.api.declarations.delete("Dataset", "towns", purge=True)
        assert not [key for key in resources(alice) if key[0] == "Dataset"]
        assert alice.home.chains.heads() == {}, "all renditions go with it"


async def test_a_handover_that_dies_leaves_all_with_the_name(world: World) -> None:
    seen: list[str] = []

    def step(name: str) -> None:
        if name not in seen:
            seen.append(name)
            raise Died(name)

    before: dict[tuple[str, str], Any] = {}
    for _ in range(10):
        async with world.running("alice") as alice:
            if not before:
                await begin(world, alice)
                before = said(alice)
            await check(alice, before, 1)
            alice.api.renditions._effects.step = step
            try:
                await create(alice, "made")
                await hand_over(alice, 1, "over")
            except Bug:
                continue  # the next start finds it so
            break
    assert "switched" in seen
    async with world.running("alice") as alice:
        await check(alice, before, 1)
        assert alice.home.name_of(alice.dataset("cities.r0")) == "cities.r0"
        await ingested(world, alice, 2)
        await check(alice, before, 2)


async def test_holds_and_the_publication_stay_with_the_name(world: World) -> None:
    async with world.running("alice") as alice:
        await begin(world, alice)
        held = await alice.api.holds.take(wire.HoldRequest(ref="cities", owner="reader"))
        await alice.publish("cities")
        visible: Callable[[DatasetId], bool] = Visibility.is_told.__get__(alice.parts.visibility)
        for number in (1, 2):
            await create(alice)
            await hand_over(alice, number)
            assert visible(alice.dataset("cities"))
            assert (await alice.dataset_view("cities")).published
            assert [each.id for each in await alice.api.holds.list("cities")] == [held.id]
            state = alice.api.renditions._effects.state(alice.dataset("cities"))
            assert [each.id for each in alice.api.renditions._effects.holds(state)] == [held.id]
            again = await alice.api.holds.take(wire.HoldRequest(ref="cities", owner="reader"))
            assert (again.id, again.fence) == (held.id, number + 1), "its owner has one for the dataset"
        with alice.home.database.read() as connection:
            assert [each.id for each in ReadHolds(connection).all(alice.clock.now())] == [held.id]


async def test_the_id_of_a_former_rendition_means_the_dataset(world: World) -> None:
    """In what is declared after a handover too, by references and by the dataset's own manifest."""
    async with world.running("alice") as alice:
        await begin(world, alice)
        first = alice.dataset("cities")
        await create(alice)
        await hand_over(alice, 1)
        (item,) = (await alice.apply(LATE.replace("DID", str(first)))).items
        assert (item.action, item.fault) == ("created", None)
        await settled(alice)
        assert {each.name: each.target for each in await flows(alice)}["late"] == "cities"
        assert (
            resources(alice)["Flow", "late"].references[f"Dataset:{first}"].id
            == resources(alice)["Dataset", "cities"].id
        )
        assert (await alice.api.declarations.get("dataset", str(first))).name == "cities"
        own = (
            DECLARED.split("---\n")[1].replace("spec:\n", f"spec:\n  did: {first}\n").replace("env: prod", "env: test")
        )
        (item,) = (await alice.apply(own)).items
        assert (item.action, item.fault) == ("updated", None)
        assert alice.home.resolve("cities").id != first
        await hand_over(alice, 0)
        assert {each.name: each.target for each in await flows(alice)}["late"] == "cities"


async def test_a_name_by_which_a_rendition_is_found_is_no_other_datasets(world: World) -> None:
    named = DECLARED.split("---\n")[1].replace("name: cities", "name: cities.r1")
    async with world.running("alice") as alice:
        await begin(world, alice)
        (item,) = (await alice.apply(named)).items
        assert item.action == "created"
        with pytest.raises(Invalid, match=r"cities\.r1 is already the name"):
            await create(alice)
        await alice.api.applying.rename("Dataset", "cities.r1", "other")
        await create(alice)
        with pytest.raises(Invalid, match=r"cities\.r1 is already the name"):
            await alice.api.applying.rename("Dataset", "other", "cities.r1")


MIRRORED = """$schema: Mirror
headers: {name: theirs, labels: {topic: health}}
spec: {source: SOURCE, priority: PRIORITY}
"""
PLAIN = DECLARED.split("---\n")[1].replace(", annotations: {schedule: {every: 1min}}", "")


async def test_a_mirror_stays_one_resource_with_its_terms_whatever_its_owner_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(PLAIN)
        world.write("alice", "d1.csv", "2024-01-01T00:00:00Z,Graz,1", "2024-01-01T00:00:00Z,Linz,2")
        await alice.pull("cities")
        first = alice.dataset("cities")
        declared = MIRRORED.replace("SOURCE", str(first))
        await bob.apply(declared.replace("PRIORITY", "5"))
        ids = {key: each.id for key, each in resources(bob).items()}
        assert set(ids) == {("Dataset", "theirs"), ("Mirror", "theirs")}

        def check_mirror(priority: int) -> None:
            assert {key: each.id for key, each in resources(bob).items()} == ids
            mirror = resources(bob)["Mirror", "theirs"]
            assert (mirror.did, mirror.spec["source"]) == (str(bob.dataset("theirs")),) * 2
            assert mirror.labels == {"topic": "health"}
            assert {each.spec.priority for each in bob.parts.scheduler.all()} == {priority}

        for number, shards in ((1, 1), (2, 3)):
            await create(alice, shards=shards)
            await hand_over(alice, number)
            await bob.heard("rendition.followed", number)
            assert bob.dataset("theirs") == alice.dataset("cities")
            check_mirror(5)
            assert [each.name for each in await bob.mirrors()] == ["theirs"]
            assert [each.name for each in await bob.dataset_views()] == ["theirs"]
            (item,) = (await bob.apply(declared.replace("PRIORITY", "5"))).items
            assert (item.action, item.fault) == ("unchanged", None), "by the did from before the handovers too"
        names = {"theirs", "theirs.r0", "theirs.r1", "theirs.r2.s1", "theirs.r2.s2"}
        assert {each.spec.name for each in bob.parts.scheduler.all()} == names
        (item,) = (await bob.apply(declared.replace("PRIORITY", "7"))).items
        assert (item.action, item.fault) == ("updated", None)
        check_mirror(7)
        await bob.mirror(first, "theirs", priority=9)
        check_mirror(9)
        await bob.api.mirrors.pause("theirs")
        assert all(each.spec.paused for each in bob.parts.scheduler.all())
    async with world.running("bob") as bob:
        assert {each.spec.name for each in bob.parts.scheduler.all()} == names
        assert all(each.spec.paused for each in bob.parts.scheduler.all())
        mirrors = bob.api.mirrors
        whole_of, before = mirrors.whole_of, [first]
        # As if the handover came after this was read, and before the resource is.
        monkeypatch.setattr(mirrors, "whole_of", lambda each: before.pop() if before else whole_of(each))
        shown = await mirrors.resume("theirs")
        assert not before
        assert shown.headers["name"] == "theirs"
        check_mirror(9)
        await bob.api.declarations.delete("Mirror", "theirs")
        assert bob.parts.scheduler.all() == []
    async with world.running("bob") as bob:
        assert bob.parts.scheduler.all() == []
        assert [key for key in resources(bob) if key[0] == "Mirror"] == []


NAMES = ("cities", "towns")
STEPS = st.one_of(
    st.tuples(st.just("pull"), st.integers(1, 3)),
    st.tuples(st.just("label"), st.sampled_from(("prod", "test"))),
    st.tuples(st.just("role"), st.sampled_from(("reader", "editor"))),
    st.tuples(st.just("flow"), st.sampled_from(("@yearly", "@monthly"))),
    st.tuples(st.just("hold"), st.sampled_from(("reader", "writer"))),
    st.tuples(st.just("show"), st.sampled_from((True, False))),
    st.tuples(st.just("correct"), st.integers(1, 3)),
    st.tuples(st.just("late"), st.just(0)),
    st.tuples(st.just("rename"), st.just(0)),
    st.tuples(st.just("make"), st.sampled_from((1, 2))),
    st.tuples(st.just("decode"), st.just(0)),
    st.tuples(st.just("over"), st.integers(0, 5)),
    st.tuples(st.just("abandon"), st.just(0)),
)


class Plays:
    """Performs the steps of a program at a node; without handovers, those of renditions are left out."""

    def __init__(self, world: World, node: Node, folder: str, *, hands_over: bool) -> None:
        self.world, self.node, self.folder, self.hands_over = world, node, folder, hands_over
        self.name, self.day, self.label, self.role, self.flow = NAMES[0], 0, "prod", "reader", "@yearly"
        self.first, self.watermark = "", 0

    def declared(self) -> str:
        said = DECLARED.replace("name: cities", f"name: {self.name}").replace(":cities", f":{self.name}")
        said = said.replace("datasetRef: cities", f"datasetRef: {self.name}").replace(
            "FROM cities", f"FROM {self.name}"
        )
        said = said.replace("{schedule: {every: 1min}}", "{keepRaw: true}").replace("env: prod", f"env: {self.label}")
        return said.replace("value: reader", f"value: {self.role}").replace("'@yearly'", f"'{self.flow}'")

    async def do(self, kind: str, value: Any) -> None:
        match kind:
            case "pull":
                self.day += 1
                lines = [f"2024-01-{self.day:02}T00:00:00Z,Graz,{row}" for row in range(value)]
                self.world.write(self.folder, f"d{self.day:02}.csv", *lines)
                await self.node.pull(self.name)
            case "label" | "role" | "flow":
                setattr(self, kind, value)
                result = await self.node.apply(self.declared())
                assert [each.fault for each in result.items if each.fault is not None] == []
            case "hold":
                await self.node.api.holds.take(wire.HoldRequest(ref=self.name, owner=value))
            case "show":
                change = self.node.publish if value else self.node.unpublish
                await change(self.name)
            case "correct":
                self.watermark += value  # it never goes back
                request = wire.WatermarkRequest(time=f"2024-02-{self.watermark:02}T00:00:00Z")
                await self.node.done(self.node.api.flow.set_watermark(self.name, request))
            case "late":  # by the id that the dataset had at first
                result = await self.node.apply(LATE.replace("DID", self.first))
                assert [each.fault for each in result.items if each.fault is not None] == []
            case "rename":
                other = NAMES[self.name == NAMES[0]]
                await self.node.api.applying.rename("Dataset", self.name, other)
                self.name = other
            case _ if self.hands_over:
                await self.renditions(kind, value)

    async def renditions(self, kind: str, value: int) -> None:
        api, name = self.node.api.renditions, self.name
        there = await api.list(name)
        if kind == "decode":
            with contextlib.suppress(Refused):  # of several shards, or after a correction, which no bytes have
                await self.node.done(api.create(name, wire.RenditionRequest()))
            return
        if kind == "make":
            wanted = wire.RenditionRequest(origin="snapshot", shards=value, by=("city",) if value > 1 else ())
            await self.node.done(api.create(name, wanted))
            return
        numbers = [each.number for each in there if each.state in ("Building", "Superseded")]
        building = [each.number for each in there if each.state == "Building"]
        if kind == "over" and numbers:
            number = numbers[value % len(numbers)]
            await self.node.done(api.hand_over(name, number, wire.HandoverRequest(difference=True)))
        elif kind == "abandon" and building:
            await api.abandon(name, building[0])

    async def state(self) -> Any:
        """All that can be read by names."""
        await settled(self.node)
        tail = await self.node.api.datasets.tail(self.name, 100)
        first = [column.name for column in tail.columns].index("event_time")
        named = {each.id: key for key, each in resources(self.node).items()}
        said_of = {
            key: (each.spec, dict(each.labels), dict(each.annotations),
                  {ref: named[held.id] for ref, held in each.references.items() if held is not None})
            for key, each in resources(self.node).items()
        }  # fmt: skip
        api = self.node.api
        listed = [(each.name, each.records, each.published, each.watermark) for each in await self.node.dataset_views()]
        holds = sorted((each.owner, each.fence) for each in await api.holds.list(self.name))
        # A run that goes on is seen or not, as it happens.
        found = sorted((each.name, each.target, each.state == "paused") for each in await flows(self.node))
        active = self.node.dataset(self.name)
        with self.node.home.database.read() as connection:
            bob = ResourceStore(connection).find_named("Account", "bob", None)
        assert bob is not None
        role = AccessReader(self.node.home.database, lambda _: ()).role(
            bob.id, resources(self.node)["Dataset", self.name].id
        )
        visible = self.node.parts.visibility.is_told(active)
        rows = sorted(map(str, (row[first:] for row in tail.rows)))
        return rows, await counted(self.node), said_of, listed, holds, found, role, visible


def without_ids(state: Any, players: Sequence[Plays]) -> Any:
    """Names the dataset of the second node as that of the first, where a did was declared."""
    ours, theirs = (each.first for each in players)
    rows, count, said, *rest = state

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {renamed(key): renamed(each) for key, each in value.items()}
        return value.replace(theirs, ours) if isinstance(value, str) else value

    return rows, count, {key: tuple(map(renamed, parts)) for key, parts in said.items()}, *rest


async def play(world: World, steps: Sequence[tuple[str, Any]]) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        players = [Plays(world, alice, "alice", hands_over=True), Plays(world, bob, "bob", hands_over=False)]
        for each in players:
            await each.node.apply(each.declared())
            await each.node.api.visibility.unpublish(wire.VisibilityRequest(refs=(each.name,)))
            await each.do("pull", 2)
            each.first = str(each.node.dataset(each.name))
        for kind, value in steps:
            for each in players:
                await each.do(kind, value)
        assert await players[0].state() == without_ids(await players[1].state(), players)


@pytest.mark.slow
@settings(max_examples=share(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=2, max_size=8))
@example([("make", 1), ("over", 0), ("label", "test"), ("rename", 0), ("pull", 1), ("over", 0), ("role", "editor")])
@example(
    [
        ("show", True),
        ("hold", "reader"),
        ("make", 2),
        ("over", 0),
        ("late", 0),
        ("flow", "@monthly"),
        ("hold", "reader"),
    ]
)
@example(
    [("make", 1), ("over", 0), ("show", True), ("correct", 2), ("make", 2), ("over", 0), ("show", False), ("pull", 2)]
)
@example([("decode", 0), ("over", 0), ("pull", 1), ("rename", 0), ("over", 0), ("pull", 2)])
@example(
    [("make", 2), ("over", 0), ("pull", 3), ("make", 1), ("make", 1), ("over", 0), ("abandon", 0), ("label", "test")]
)
def test_handovers_change_nothing_that_is_read_by_names(tmp_path: Path, steps: list[tuple[str, Any]]) -> None:
    """A random program leaves the same state as the same one without its renditions."""
    run_apart(tmp_path, play, steps)
