"""Coordinator, client, sandbox, service and Spark together: what one node derives, the same code re-derives.

With an engine of its own; a daemon with its engine goes this way in each run: ``e2e/node/test_datasets.py``, where a
new query takes over and every range is reproduced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from chain.ids import DatasetId
from chain.model.events import ExecuteTransform
from engines.contract import RawQueryRequest, RawQuerySuccess
from engines.provision.host import SparkOptions, spark_engine
from engines.provision.settings import WarmthLimits
from engines.sandbox.base import SandboxLevel
from odfd.transform.driver import Committed, run_transform
from odfd.transform.plan import Rejected
from odfd.transform.recovery import run_recovering
from odfd.transform.replay import Replayed, replay
from worlds import transform_world
from worlds.eventually import ENGINE_START

pytestmark = [pytest.mark.engine, pytest.mark.slow]

DERIVED = DatasetId.from_public_key(b"d" * 32)
DAY = 86_400
DAILY = """
select window.start as event_time, count(*) as n, sum(k) as total from x group by window(event_time, '1 day')
"""


async def test_a_window_is_derived_and_reproduced_and_chance_refused(tmp_path: Path) -> None:
    events: list[str] = []
    options = SparkOptions(
        scratch=tmp_path / "scratch",
        cache=tmp_path / "cache",
        cores=2,
        heap="1g",
        quick=True,
        minimum=SandboxLevel.NONE,
        limits=WarmthLimits(start=ENGINE_START),
    )
    host = await spark_engine(options, os.environ, lambda name, _: events.append(name))
    async with trio.open_nursery() as nursery:
        await nursery.start(host.engine.run)
        world = transform_world.World(tmp_path, host.engine)
        world.found(DAILY)
        # Two days in four blocks; a row of the first day comes in the third block, still in time.
        world.add_rows([10, 20, 30], watermark=0)
        first = await run_transform(world.deps, DERIVED)
        assert isinstance(first, Committed), first
        assert first.records == 0
        world.add_rows([40, DAY + 5], watermark=40_000)
        await run_transform(world.deps, DERIVED)
        world.add_rows([50, DAY + 6], watermark=DAY * 1000)
        closing = await run_transform(world.deps, DERIVED)
        assert isinstance(closing, Committed)
        assert closing.event is not None
        day = world.rows(closing.event.new_data).to_pylist()
        assert [(each["n"], each["total"]) for each in day] == [(5, 150)]
        world.add_rows([], watermark=2 * DAY * 1000)
        world.objects.remove(closing.event.new_checkpoint.physical_hash)
        last = await run_recovering(world.deps, DERIVED)
        assert isinstance(last, Committed)
        assert last.event is not None
        assert [each["n"] for each in world.rows(last.event.new_data).to_pylist()] == [2]
        assert last.event.new_data.offset_interval.start == 1

        outcomes = [each async for each in replay(world.deps, DERIVED)]
        assert all(isinstance(each, Replayed) and each.is_reproduced for each in outcomes), outcomes
        assert len(outcomes) == 4
        for each in outcomes:
            recorded = each.block.event
            assert isinstance(recorded, ExecuteTransform)
            assert recorded.new_checkpoint is not None
            assert world.objects.read(recorded.new_checkpoint.physical_hash) == each.checkpoint

        output = tmp_path / "out.parquet"
        answer = await host.engine.raw_query(
            RawQueryRequest(
                input_data_paths=(str(world.objects.path(last.event.new_data.physical_hash)),),
                transform=world.chains.chain(DERIVED).block_at(1).event.transform,
                output_data_path=str(output),
            )
        )
        assert not isinstance(answer, RawQuerySuccess)  # its view is called `input`, not `x`
        assert await host.engine.identity() == host.identity

        other = transform_world.World(tmp_path / "other", host.engine)
        other.found("select event_time, rand() as r from x")
        other.add_rows([1, 2], watermark=1)
        refused = await run_transform(other.deps, DERIVED)
        assert isinstance(refused, Rejected)
        assert "rand" in str(refused)
        nursery.cancel_scope.cancel()
    assert events.count("engine-started") == 1
    assert events[-1] == "engine-exited"
