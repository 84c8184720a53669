"""A node whose engine has its tasks done by a Spark cluster: ``engine.master``."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from bench.cluster import standalone_cluster
from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from engines.errors import EngineLost
from engines.provision.host import OnCluster, SparkOptions, spark_engine
from engines.provision.settings import WarmthLimits
from engines.sandbox.base import SandboxLevel
from odfd.transform.driver import Committed, run_transform
from worlds import transform_world
from worlds.eventually import ENGINE_START

pytestmark = [pytest.mark.engine, pytest.mark.slow]

DERIVED = DatasetId.from_public_key(b"d" * 32)


def options(folder: Path, master: str, **more: Any) -> SparkOptions:
    settings = folder / "cluster.conf"
    settings.write_text("spark.cores.max 2\n")
    return SparkOptions(
        scratch=folder / "scratch", cache=folder / "cache", cores=1, heap="512m", quick=True,
        cluster=OnCluster(master, settings=settings), limits=WarmthLimits(start=ENGINE_START), **more,
    )  # fmt: skip


@pytest.mark.nightly
async def test_a_dataset_is_derived_by_a_cluster_and_a_lost_cluster_is_told(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path / "cluster", workers=1) as master:
        host = await spark_engine(options(tmp_path, master), os.environ, lambda *_: None)
        assert host.identity.sandbox == "none"
        assert "need the network" in str(host.choice.passed_over[0])
        async with trio.open_nursery() as nursery:
            await nursery.start(host.engine.run)
            world = transform_world.World(tmp_path, host.engine)
            world.found("select event_time, sum(k) as total from x group by event_time")
            world.add_rows([1, 2, 3, 3], watermark=2500)
            done = await run_transform(world.deps, DERIVED)
            assert isinstance(done, Committed), done
            assert done.event is not None
            assert [row["total"] for row in world.rows(done.event.new_data).to_pylist()] == [1, 2]
            executors = list((tmp_path / "cluster" / "worker-0").glob("app-*/*/stderr"))
            assert executors, "nobody but this machine's own process worked"
            nursery.cancel_scope.cancel()


@pytest.mark.nightly
async def test_a_master_where_nobody_is_is_told_to_whoever_asks(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and never listening
        master = f"spark://127.0.0.1:{nobody.getsockname()[1]}"
        host = await spark_engine(options(tmp_path, master), os.environ, lambda *_: None)
        async with trio.open_nursery() as nursery:
            await nursery.start(host.engine.run)
            world = transform_world.World(tmp_path, host.engine)
            world.found("select event_time, k from x")
            world.add_rows([1], watermark=1)
            with pytest.raises(EngineLost, match=f"no master of the Spark cluster {master} can be reached"):
                await run_transform(world.deps, DERIVED)
            nursery.cancel_scope.cancel()


async def test_isolation_and_other_masters_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """Attack T-QUERY-01: a cluster that silently removes the sandbox.

    Defence: its executors need the network: a cluster is refused wherever isolation is required.
    """
    with pytest.raises(Refused, match="executors of a cluster need the network"):
        await spark_engine(options(tmp_path, "yarn", minimum=SandboxLevel.HOST), os.environ, lambda *_: None)
    with pytest.raises(Invalid, match="local"):
        await spark_engine(options(tmp_path, "local[4]"), os.environ, lambda *_: None)
