"""Measures a transaction on a Spark cluster: a master and two workers of one core each on this machine.

Against a bare session on the same cluster, with the engine's settings, which writes the same Parquet to the same place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio
from pyspark.sql import SparkSession

from bench.engine import stop_quick_spark, warm_engine
from bench.measure import Row, Side, Size
from bench.standalone import standalone_cluster
from bench.transactions import map_in_turns
from engines.provision.host import OnCluster
from engines.spark.runtime.cluster import Cluster
from engines.spark.runtime.session import SessionOptions, start_session, stop_session

HEAP: Final = "512m"
"""Of each driver and executor: two of these have room on a worker."""
_SHARE: Final = {"spark.cores.max": "2"}
"""Of the four that the workers offer: engine and peer are there at once and work in turns."""


def measure_cluster(size: Size, folder: Path) -> list[Row]:
    """Measures a large map whose rows executors read and write."""
    rows = size.pick(50_000, 4_000_000)
    stop_quick_spark()
    with standalone_cluster(folder / "cluster", workers=size.pick(1, 2)) as master:
        spark = start_session(
            SessionOptions(folder / "spark", heap=HEAP, quick=size.quick, cluster=Cluster(master, settings=_SHARE))
        )
        try:
            return [trio.run(_measure_cluster, size, folder, rows, (master, spark))]
        finally:
            stop_session(spark)


async def _measure_cluster(size: Size, folder: Path, rows: int, cluster: tuple[str, SparkSession]) -> Row:
    master, spark = cluster
    settings = folder / "cluster.conf"
    settings.write_text("".join(f"{name} {value}\n" for name, value in _SHARE.items()))
    on_cluster = OnCluster(master, settings=settings)
    async with warm_engine(size, folder, HEAP, on_cluster, spark) as (engine, sandbox):
        costs, peer = await map_in_turns(size, folder, rows, engine, spark)
    return Row(
        name="cluster",
        measures=f"{rows:,} rows through a map and a filter into one file, on a cluster",
        ours=Side(name=f"request to both hashes, sandbox {sandbox}", costs=costs, amount=rows, unit="rows"),
        peer=Side(name="a bare session on the same workers", costs=peer, amount=rows, unit="rows"),
        goal="≤ 1.15",
    )
