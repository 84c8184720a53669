"""Another transform for a dataset that has rows, through apply and pull of a node with the small engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.data.parquet import write_slice
from chain.errors import Invalid
from engines.contract import InvalidQuery
from odfd.control import wire
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
MORE = ("2024-01-03T00:00:00Z,Wels,60000",)


def two_sources() -> tuple[str, str, str]:
    """The root, the same under another name, and one with another column."""
    other = ROOT.replace("name: cities", "name: villages")
    wider = other.replace("name: villages", "name: hamlets").replace("population BIGINT", "people BIGINT")
    return ROOT, other, wider


def derived(source: str, version: str = "") -> str:
    text = DERIVED.replace("datasetRef: cities, alias: cities", f"datasetRef: {source}, alias: {source}")
    text = text.replace("from cities", f"from {source}")
    return str(text.replace("engine: spark", f"engine: spark\n        version: '{version}'") if version else text)


async def made_by_another(alice: Node) -> str:
    """Its history is of an engine that was replaced since, as by an upgrade; returns the digest of that one."""
    here, alice.engine.digest = alice.engine.digest, "sha256:" + "7" * 64
    await alice.apply(ROOT, DERIVED)
    await alice.pull()
    old, alice.engine.digest = alice.engine.digest, here
    return str(old)


async def reproduced(alice: Node) -> bool:
    report = await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
    return bool(report.ok)


async def test_another_source_of_the_same_columns_takes_over(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(*two_sources(), derived("cities"))
        await alice.pull()
        (item,) = (await alice.apply(derived("villages"), dry_run=True)).items
        assert (item.action, item.changes) == ("updated", ("SetTransform",))
        size = alice.size("towns")
        (item,) = (await alice.apply(derived("villages"))).items
        assert (item.action, item.changes, alice.size("towns")) == ("updated", ("SetTransform",), size + 1)
        assert (await alice.apply(derived("villages"))).items[0].action == "unchanged"
        (item,) = await alice.pull("towns")
        assert (item.outcome, item.records) == ("updated", 2)
        world.write("alice", "b.csv", *MORE)
        await alice.pull("villages", "towns")
        assert (await alice.api.datasets.tail("towns", 10)).rows[-1][4:] == ("Wels", 60000)
        assert await reproduced(alice)


async def test_other_columns_are_refused_with_the_way_to_derive_anew(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    sources = two_sources()
    async with world.running("alice") as alice:
        await alice.apply(*sources[:2], derived("cities"))
        await alice.pull()
        await alice.apply(sources[2])
        size = alice.size("towns")
        (item,) = (await alice.apply(derived("hamlets"))).items
        assert (item.action, item.fault.rule, alice.size("towns")) == ("failed", "transform-evolution", size)
        assert "no 'population'" in item.fault.detail
        assert "odfctl reset towns '#1', then apply it again and odfctl pull towns" in item.fault.hint


async def test_the_pin_stays_until_somebody_writes_another(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await made_by_another(alice)
        assert (await alice.apply(derived("cities"))).items[0].action == "unchanged"
        (item,) = (await alice.apply(derived("cities", alice.engine.digest))).items
        assert item.action == "updated"


async def proof(alice: Node, **more: Any) -> wire.ProofReport:
    done: wire.ProofReport = await alice.done(alice.api.proving.prove("towns", wire.ProveRequest(**more)))
    return done


async def test_an_engine_that_gives_the_same_is_pinned_from_then_on(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        old = await made_by_another(alice)
        digest, size = (await alice.engine.identity()).digest, alice.size("towns")
        found = await proof(alice, dry_run=True)
        assert (found.ok, found.transforms, found.pinned, found.recorded) == (True, 1, (old,), None)
        found = await proof(alice)
        assert (found.ok, found.engine.digest, alice.size("towns")) == (True, digest, size + 1)
        assert found.before == old
        last = alice.home.chains.chain(alice.dataset("towns")).block_at(size)
        assert (found.recorded, last.event.transform.version) == (str(last.hash), digest)
        assert (await proof(alice)).recorded is None, "it is pinned already"
        world.write("alice", "b.csv", *MORE)
        await alice.pull()
        assert (await alice.api.datasets.tail("towns", 10)).rows[-1][4:] == ("Wels", 60000)
        assert (await proof(alice)).transforms == 2
        report = await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
        assert [(each.rule, each.block.sequence_number) for each in report.failures] == [("engine-not-here", 3)]
        assert "the one here gives the same" in report.failures[0].message, "the block before is of the other engine"


async def test_an_engine_that_gives_something_else_is_not_taken(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await made_by_another(alice)
        size = alice.size("towns")

        def lie(request: Any) -> None:
            path = Path(request.new_data_path)
            table = pq.read_table(path)
            path.unlink()
            write_slice(table.set_column(5, table.schema.field(5), pa.array([0] * table.num_rows, pa.int64())), path)

        alice.engine.wrong = lie
        found = await proof(alice)
        assert (found.ok, found.recorded, alice.size("towns")) == (False, None, size)
        assert [(each.rule, each.block.sequence_number) for each in found.failures] == [("transform-reproduced", 3)]


async def test_an_engine_that_refuses_the_query_is_not_taken(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await made_by_another(alice)

        async def refuse(*_: Any) -> InvalidQuery:
            return InvalidQuery(message="no such function", rule="function", hint="write another", place="line 1")

        alice.engine.transform = refuse
        found = await proof(alice)
        assert (found.ok, found.recorded, found.transforms) == (False, None, 0)
        assert [each.message for each in found.failures] == ["line 1: no such function; write another"]


async def test_a_refusal_of_the_engine_is_shown_in_its_parts(world: World) -> None:
    """By a pull, a verification, and when a transform is applied: rule, hint and place are no part of the message."""
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        await alice.pull()

        async def refuse(*_: Any) -> InvalidQuery:
            return InvalidQuery(message="no such day", rule="no-day", hint="name another", place="line 2, column 8")

        alice.engine.transform = alice.engine.migrate = alice.engine.derive_provenance = refuse
        with pytest.raises(
            Invalid, match="a step of towns cannot be re-run here: line 2, column 8: no such day"
        ) as told:
            await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
        assert (told.value.rule, told.value.hint) == ("no-day", "name another")
        with pytest.raises(Invalid, match="no such day") as told:
            await alice.done(alice.api.lineage.trace("towns", wire.LineageRequest(record=0)))
        assert (told.value.rule, told.value.hint, told.value.place) == (
            "no-day", "name another", "towns, line 2, column 8",
        )  # fmt: skip
        world.write("alice", "b.csv", *ROWS)
        (item,) = [each for each in await alice.pull() if each.ref == "towns"]
        assert item.fault is not None
        assert (item.fault.detail, item.fault.rule) == ("no such day", "no-day")
        assert (item.fault.hint, item.fault.place) == ("name another", "towns, line 2, column 8")
        (item,) = (await alice.apply(derived("cities", "sha256:" + "8" * 64), force=True)).items
        assert (item.fault.detail, item.fault.rule, item.fault.hint) == ("no such day", "no-day", "name another")


async def test_a_root_has_nothing_to_prove(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        with pytest.raises(Invalid, match="has no transform"):
            await alice.done(alice.api.proving.prove("cities", wire.ProveRequest()))
