"""What a source let go of before it was taken stops a dataset, until a person accepts it by its name."""

from __future__ import annotations

from typing import Any

import pytest

from chain.errors import Refused
from chain.model.events import AddData
from odfd.control import wire
from odfd.ingest.clients.kafka import TopicPosition, decode_position, lost_ranges, missing_message, starts
from odfd.ingest.fetch.kafka import state_of
from odfd.ingest.fetch.source import AddressRange, Fetched, Unchanged
from odfd.ingest.gaps import EXTRA
from worlds.manifests import DERIVED, in_shards
from worlds.manifests import ROOT as FROM_FILES
from worlds.node_world import Node, World
from worlds.topics import ModelTopic, message

ROOT = """kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Kafka, url: 'kafka://127.0.0.1:1/towns'}
      read: {kind: NdJson, ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']}
      merge: {kind: Append}
"""
CITIES = ("Graz", "Linz", "Wels", "Steyr", "Enns", "Melk")


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> ModelTopic:
    """A topic in memory, in place of a broker."""
    made = ModelTopic(2)

    def after(job: Any) -> TopicPosition | None:
        return None if job.state is None else decode_position(job.state.value)

    async def fetch(_polled: object, job: Any, _trigger: object) -> Fetched | Unchanged:
        begin = starts(after(job), made.id, [0, 1])
        for each in begin:
            if after(job) is not None and begin[each] < made.low[each]:
                raise missing_message(each, begin[each])
        lines = [line for each, log in enumerate(made.logs) for line in log[begin[each] :]]
        if not lines:
            return Unchanged()
        path = job.folder / "messages.ndjson"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        state = state_of(TopicPosition(topic=made.id, next={str(each): len(log) for each, log in enumerate(made.logs)}))
        return Fetched(path=path, name="towns", identity=state.value, event_time=None, state=state)

    async def gaps(_source: object, job: Any) -> tuple[AddressRange, ...]:
        begin = starts(after(job), made.id, [0, 1])
        lost = lost_ranges(after(job), begin, made.bounds)
        return tuple(AddressRange(f"{made.id}/{each.partition}", each.start, each.end) for each in lost)

    monkeypatch.setattr("odfd.ingest.driver.fetch_for", fetch)
    monkeypatch.setattr("odfd.ingest.fetch.kafka.KafkaSource.find_lost", gaps)
    return made


async def asked(node: Node, accept: str | None = None, ref: str = "cities") -> wire.GapView:
    done: wire.GapView = await node.done(node.api.gaps.run(ref, wire.GapRequest(accept=accept)))
    return done


def send(topic: ModelTopic, *numbers: int, partition: int = 0) -> None:
    topic.send(*(message(CITIES[each % len(CITIES)], each) for each in numbers), partition=partition)


async def pulled(node: Node) -> str | None:
    """Pulls. Returns the rule of the fault, if any."""
    (item,) = await node.pull("cities")
    return None if item.fault is None else str(item.fault.rule)


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_gap_is_accepted_by_name_and_stays_in_the_chain(world: World, topic: ModelTopic, shards: int) -> None:
    """In that of each shard, in captures, and in what is decoded from them anew."""
    async with world.running("alice") as alice:
        await alice.apply(ROOT if shards == 1 else in_shards(ROOT))
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        await alice.keep_raw("cities")
        assert (await asked(alice)).name is None
        send(topic, 0, 1)
        assert await pulled(alice) is None
        with pytest.raises(Refused, match="let go of nothing that was not taken"):
            await asked(alice, "0" * 16)
        send(topic, 2, 3, 4, 5, 6)
        topic.forget(4)
        assert await pulled(alice) == "kafka-position"
        found = await asked(alice)
        assert [(each.partition, each.first, each.last, each.count) for each in found.lost] == [(0, 2, 3, 2)]
        assert (found.topic, found.count, found.accepted) == ("towns", 2, False)
        topic.forget(5)
        with pytest.raises(Refused, match=f"the gap {found.name} is another one now") as refused:
            await asked(alice, found.name)
        assert refused.value.rule == "gap-changed"
        assert await pulled(alice) == "kafka-position", "nothing was written"
        found = await asked(alice)
        done = await asked(alice, found.name)
        assert (done.accepted, done.count) == (True, 3)
        assert await asked(alice, found.name) == done, "it has one effect"
        lost = [
            each.value
            for each in alice.api.gaps._meter.samples(frozenset())
            if each.metric.name == "odfd_source_lost_total"
        ]
        assert lost == [3]
        for each in alice.home.shards_of(alice.dataset("cities")):
            chain = alice.home.chains.chain(each)
            event = chain.block_at(chain.head().sequence_number).event
            assert isinstance(event, AddData)
            assert event.new_data is None
            assert event.extra == {EXTRA: {"gap": found.name, "lost": [{"part": "topic-1/0", "from": 2, "to": 5}]}}
        assert await pulled(alice) is None
        assert len((await alice.api.datasets.tail("cities", 100)).rows) == 4
        result = await alice.done(alice.api.raw.replay("cities"))
        assert (result.ok, result.same) == (True, 3)
        await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest()))
        await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
        assert len((await alice.api.datasets.tail("cities", 100)).rows) == 4
        anew = await asked(alice, found.name)
        assert (anew.name, anew.lost, anew.time) == (done.name, done.lost, done.time), "the same, at the same time"
        assert anew.block != done.block


async def test_a_gap_is_only_of_what_is_ingested_here(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(FROM_FILES, DERIVED)
        assert (await asked(alice)).name is None, "files have no positions"
        with pytest.raises(Refused, match="not ingested by this node"):
            await asked(alice, ref="towns")
