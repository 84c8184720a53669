"""Tables made of tables: what one transform writes the next one reads, corrections and retractions among it.

The oracle is the one of tables, at each step of the way. Spec: docs/spec/engine-semantics.md#table-mode, #changelogs,
#output.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
import trio

from chain.ids import DatasetId
from chain.model.changelog import says_changelog
from chain.model.events import DatasetKind, Seed, SetTransform, TransformInput
from chain.model.source import SqlQueryStep, TransformSql
from chain.state import load_state
from conformance.histories import few_at_a_time
from engines.contract import ignore_progress
from engines.request_control import RequestControl
from engines.spark.execution.transform import SharedCaches, run_transform
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.sql.queries import Analyst
from odfd.transform import driver
from odfd.transform.driver import Committed
from odfd.transform.inputs import is_changelog
from odfd.transform.replay import Replayed, replay
from worlds.depth import share
from worlds.fake_engine import FakeEngine
from worlds.table_history import history, seen
from worlds.transform_world import ROOT, World

pytestmark = pytest.mark.engine
SEEDS = range(int(os.environ.get("ODF_SOAK") or share(2)))
BLOCKS = 10


def grouped(key, value):
    """What the oracle makes of standing rows: the greatest time, and a value, by key."""

    def query(rows):
        by_key = {}
        for row in rows:
            by_key.setdefault(key(row), []).append(row)
        return {
            (found,): [(max(row[0] for row in of), found, value([row[2] for row in of]))]
            for found, of in by_key.items()
        }

    return query


STEPS = (
    ("select max(event_time) as event_time, k, sum(v) as v from a group by k",
     grouped(lambda row: row[1], sum)),
    ("select max(event_time) as event_time, concat('m', v % 3) as k, count(*) as v from a group by concat('m', v % 3)",
     grouped(lambda row: f"m{row[2] % 3}", len)),
    ("select max(event_time) as event_time, k, max(v) as v from a group by k",
     grouped(lambda row: row[1], max)),
)  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_each_table_is_the_whole_query_over_the_one_before(lab, seed):
    stream, changelogs, retracted = lab.stream(7000 + seed, days=30, blocks=BLOCKS), (), 0
    for number, (sql, query) in enumerate(STEPS):
        streams = {"a": stream}
        blocks = len(stream.blocks)
        expected = history(lab, streams, query)
        pieces = lab.run(sql, streams, few_at_a_time(blocks, seed, streams), restart=True, changelogs=changelogs)
        whole = lab.run(sql, streams, [{"a": blocks}], changelogs=changelogs)
        assert seen(pieces, ("k", "v")) == expected
        assert (whole.rows, whole.state) == (pieces.rows, pieces.state)
        stream, changelogs = lab.written(f"step{number}-{seed}", pieces), ("a",)
        retracted += sum(row["op"] in (1, 2) for row in pieces.rows)
    assert retracted > 5


class InProcess(FakeEngine):
    """The real engine without a process of its own."""

    def __init__(self, spark):
        super().__init__()
        self.spark, self.caches = spark, SharedCaches(Analyst(), SliceReader())

    async def transform(self, request, on_progress=ignore_progress):
        session = self.spark.newSession()
        return await trio.to_thread.run_sync(run_transform, session, request, RequestControl(), self.caches)


CHAIN = (
    "select max(event_time) as event_time, k % 4 as g, count(*) as c from x group by k % 4",
    "select max(event_time) as event_time, c, count(*) as n from x group by c",
    "select event_time, c, n from x where n > 1",
    "select max(event_time) as event_time, n, count(*) as m, sum(c) as s from x group by n",
)


async def test_coordinator_and_replay_know_a_derived_changelog(spark_root, tmp_path):
    """Root, table, table of it, filter of that, table of that: derived, and derived again to the same hashes."""
    world = World(tmp_path, InProcess(spark_root))
    world.append(ROOT, Seed(dataset_id=ROOT, dataset_kind=DatasetKind.ROOT))
    ids = [DatasetId.from_public_key(bytes([65 + at]) * 32) for at in range(len(CHAIN))]
    for dataset, above, sql in zip(ids, [ROOT, *ids], CHAIN, strict=False):
        transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),))
        inputs = (TransformInput(dataset_ref=str(above), alias="x"),)
        world.append(dataset, Seed(dataset_id=dataset, dataset_kind=DatasetKind.DERIVATIVE))
        world.append(dataset, SetTransform(inputs=inputs, transform=transform))
    numbers: list[int] = []
    for step, values in enumerate([[1, 2], [5, 6, 9], [3, 7], [13, 4], []]):
        numbers += values
        world.add_rows(values, watermark=60_000 * (step + 1))
        for dataset in ids:
            assert isinstance(await driver.run_transform(world.deps, dataset), Committed)
    for dataset in ids:
        state = load_state(world.chains.chain(dataset))
        assert is_changelog(state) is True
        assert says_changelog(state.schema.schema) is True
        outcomes = [each async for each in replay(world.deps, dataset)]
        assert len(outcomes) == 5
        assert all(isinstance(each, Replayed) and each.is_reproduced for each in outcomes), outcomes
    assert is_changelog(load_state(world.chains.chain(ROOT))) is False
    counts = Counter(number % 4 for number in numbers)
    kinds = Counter(counts.values())
    left = Counter(n for n in kinds.values() if n > 1)
    sums = {n: sum(c for c, n_ in kinds.items() if n_ == n) for n in left}
    assert standing(world, ids[-1], ("n", "m", "s")) == {(n, m, sums[n]): 1 for n, m in left.items()}


def standing(world, dataset, names):
    """Rows asserted and not taken back."""
    found = Counter()
    reader = world.chains.chain(dataset)
    for number in range(load_state(reader).size):
        data = getattr(reader.block_at(number).event, "new_data", None)
        for row in world.rows(data).to_pylist() if data is not None else ():
            found[tuple(row[name] for name in names)] += 1 if row["op"] in (0, 3) else -1
    return {row: count for row, count in found.items() if count}
