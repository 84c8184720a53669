"""What a node does, as the traces that a collector gets: which spans lie in which, and what is not in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from config import model
from odfd.obs import span_exporter
from odfd.obs.meter import NodeMeter
from odfd.obs.span_exporter import SpanExporter
from odfd.runtime.spans import Tracer, trace_by
from odfd.runtime.supervision import Life
from worlds.collector import Collector, collecting
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Lines, Ticking, World

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
ATTESTS = model.Policy(profile="validator", publish=model.Publish(attest=True))


@asynccontextmanager
async def traced(url: str, meter: NodeMeter) -> AsyncIterator[None]:
    """Everything that is started inside is traced; what was recorded is sent at the end."""
    exporter, life = SpanExporter(url, "test", meter, Lines()), Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporter.run, life)
        trace_by(Tracer(Ticking(), exporter.take))
        try:
            yield
        finally:
            trace_by(None)
            life.stopping.set()


def tree(collector: Collector, root: Any) -> list[Any]:
    """Names, each with a list of what lies in it where there is something."""
    found: list[Any] = []
    for each in collector.below(root):
        found.append(each.name)
        if inner := tree(collector, each):
            found.append(inner)
    return found


def roots(collector: Collector, name: str) -> list[Any]:
    return [span for span in collector.spans() if span.name == name and not span.parent_span_id]


def words(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.mark.slow
async def test_pulls_syncs_and_validations_are_traced_and_name_nothing(world: World) -> None:
    with collecting() as collector:
        async with (
            traced(collector.url, NodeMeter()),
            world.running("alice") as alice,
            world.running("bob", ATTESTS) as bob,
        ):
            world.write("alice", "a.csv", *ROWS)
            await alice.apply(ROOT, DERIVED)
            await alice.pull()
            await world.spread(alice, "cities", "towns")
            ids = [str(alice.dataset(name)) for name in ("cities", "towns")]
            for name in ("cities", "towns"):
                await bob.mirror(alice.dataset(name), name)
            with trio.fail_after(PATIENCE):
                await bob.parts.validator.validate(alice.dataset("towns"))
        pulls = {tuple(tree(collector, root)): words(root) for root in roots(collector, "pull")}
        root = pulls["fetch", "read", "engine", "commit"]
        assert root["odfd.rows"] == 2
        assert any(found[:3] == ("read", "engine", "commit") for found in pulls), pulls
        syncs = [tree(collector, root) for root in roots(collector, "sync")]
        assert ["negotiate", "blocks", "verify", "objects", "commit"] in syncs
        steps = [tree(collector, root) for root in roots(collector, "validation")]
        assert ["plan", "run"] in steps
        assert any("sign" in each for each in steps), steps
        (run, *_) = [span for span in collector.spans() if span.name == "run"]
        assert words(run)["odfd.reproduced"] is True
        sent = b"".join(collector.bodies)
        for private in (*ids, "cities", "towns", "Graz", "alice", "bob", str(alice.home.directory)):
            assert private.encode() not in sent, private


@pytest.mark.slow
async def test_a_failed_pull_says_its_rule_and_nothing_of_the_row(world: World) -> None:
    with collecting() as collector:
        async with traced(collector.url, NodeMeter()), world.running("alice") as alice:
            world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Secretville,not-a-number")
            await alice.apply(ROOT)
            (item,) = await alice.pull("cities")
            assert item.fault is not None
        (root,) = roots(collector, "pull")
        assert root.status.code == 2
        assert words(root)["odfd.fault"] == item.fault.rule
        assert b"Secretville" not in b"".join(collector.bodies)


@pytest.mark.slow
async def test_a_dead_collector_changes_nothing_and_its_spans_are_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_exporter, "GATHER_SECONDS", 0)
    with collecting() as collector:
        gone = collector.url
    meter = NodeMeter()
    async with traced(gone, meter), world.running("alice") as alice:
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT)
        await alice.pull("cities")
        assert alice.size("cities")
    counted = {each.labels[0]: each.value for each in meter.samples(frozenset()) if "spans" in each.metric.name}
    assert counted["sent"] == counted["full"] == 0
    assert counted["unsent"] >= 5
