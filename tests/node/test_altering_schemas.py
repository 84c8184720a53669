"""Columns added to roots on whole nodes: old rows, derivations and mirrors go on; what is refused changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from chain.errors import Fault, NotFound, Refused
from chain.model.events import SetDataSchema, SetPollingSource
from chain.state import load_state
from odfd.control import wire
from odfd.queries.log_files import files_of_log
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World


async def altered(node: Node, *columns: str, ref: str = "cities", **more: Any) -> wire.AlterSchemaResult:
    request = wire.AlterSchemaRequest(**{"action": "add", "columns": columns, **more})
    result: wire.AlterSchemaResult = await node.done(node.api.flow.alter_schema(ref, request))
    return result


def begun(world: World) -> None:
    world.write("alice", "a.csv", *(f"2024-01-0{day}T00:00:00Z,c{day},{day}" for day in (1, 2, 3)))


async def test_it_is_shown_and_then_done(world: World) -> None:
    async with world.running("alice") as alice:
        begun(world)
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        chain = alice.home.chains.chain(alice.dataset("cities"))
        before = chain.head()
        plan = await altered(alice, "mayor STRING", dry_run=True)
        assert plan.outcome == "planned"
        assert plan.events == ("SetPollingSource", "SetDataSchema")
        assert [(column.name, column.optional) for column in plan.added] == [("mayor", True)]
        assert (plan.records, plan.derivations) == (3, ("towns",))
        assert chain.head() == before
        done = await altered(alice, "mayor STRING")
        assert (done.outcome, done.blocks) == ("altered", 2)
        assert chain.head().size == before.size + 2
        assert [type(chain.block_at(before.size + each).event) for each in (0, 1)] == [SetPollingSource, SetDataSchema]
        records = await alice.api.datasets.tail("cities", 10)
        assert [row[-1] for row in records.rows] == [None] * 3
        assert records.columns[-1].name == "mayor"
        with pytest.raises(Fault) as caught:
            await altered(alice, "mayor STRING")
        assert caught.value.rule == "schema-columns"
        assert chain.head().size == before.size + 2
        assert [item.outcome for item in await alice.pull("towns")] == ["up-to-date"]
        path = world.write("alice", "b.csv")
        path.write_text("event_time,city,population,mayor\n2024-01-04T00:00:00Z,c4,4,Ada\n")
        await alice.pull()
        assert (await alice.api.datasets.tail("cities", 1)).rows[0][-1] == "Ada"
        news = wire.SlicesRequest(dataset="cities", after=wire.LogPosition(offset=2))
        plan = alice.api.queries._planner.plan
        assert len(files_of_log(alice.home, plan, news).view.slices) == 1, "files with the newest columns are the rows"
        with pytest.raises(Refused, match="not a plain log"):
            files_of_log(alice.home, plan, wire.SlicesRequest(dataset="cities", after=wire.LogPosition(offset=1)))
        towns = await alice.api.datasets.tail("towns", 10)
        assert [column.name for column in towns.columns][-1] == "population"
        assert len(towns.rows) == 4


async def test_others_and_wrong_wishes_change_nothing(world: World) -> None:
    async with world.running("alice") as alice:
        begun(world)
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        heads = {name: alice.home.chains.chain(alice.dataset(name)).head() for name in ("cities", "towns")}
        for ref, columns, more, rule in (
            ("towns", ("a INT",), {}, "root-only"),
            ("cities", ("city", "town"), {"action": "rename"}, "schema-compatible"),
            ("cities", ("city",), {"action": "drop", "derived": "towns"}, "schema-as"),
            ("cities", ("population BIGINT",), {"action": "widen", "derived": "v2"}, "schema-widen"),
            ("cities", ("a INT NOT NULL",), {}, "schema-compatible"),
        ):
            with pytest.raises(Fault) as caught:
                await altered(alice, *columns, ref=ref, **more)
            assert caught.value.rule == rule
        with pytest.raises(NotFound):
            await altered(alice, "a INT", ref="nobody")
        assert {name: alice.home.chains.chain(alice.dataset(name)).head() for name in heads} == heads


async def test_a_mirror_follows_and_may_not_alter(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        begun(world)
        await alice.apply(ROOT)
        await alice.pull()
        await alice.publish()
        await bob.mirror(alice.dataset("cities"), "cities")
        await altered(alice, "mayor STRING")
        await bob.pull("cities")
        state = load_state(bob.home.chains.chain(alice.dataset("cities")))
        assert state.schema is not None
        assert state.schema.schema is not None
        assert state.schema.schema.fields[-1].name == "mayor"
        with pytest.raises(Refused) as caught:
            await altered(bob, "a INT")
        assert caught.value.rule == "schema-owner"


async def test_the_manifest_of_what_is_derived_is_made_and_nothing_else(world: World) -> None:
    async with world.running("alice") as alice:
        begun(world)
        await alice.apply(ROOT)
        await alice.pull()
        plan = await altered(alice, "city", "town", action="rename", derived="v2")
        assert plan.manifest is not None
        assert "`city` as `town`" in plan.manifest
        assert plan.outcome == "planned"
        with pytest.raises(NotFound):
            alice.dataset("v2")
