"""The format ``odf`` on a Spark cluster: executors, which are other processes, read by Flight with TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import OPTIONS, standalone_cluster
from config import model
from engines.spark.runtime.java import find_java
from worlds import node_world
from worlds.certificates import certified
from worlds.served_node import away

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
CLIENT = Path(__file__).parents[3] / "client"
TOKEN = "owner-token-of-sixteen"
ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000", "2024-01-03T00:00:00Z,Wels,62000")
MORE = ("2024-01-04T00:00:00Z,Steyr,38000", "2024-01-05T00:00:00Z,Enns,")
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from odfd_client.spark import OdfDataSource

settings, options, folder = (json.loads(each) for each in sys.argv[1:])
builder = SparkSession.builder.config(map=settings)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(OdfDataSource)
for _ in sys.stdin:
    try:
        found = spark.read.format("odf").options(partitions=2, **options).load("cities")
    except Exception as error:
        print(json.dumps({"error": str(error)}), flush=True)
        continue
    rows = spark.readStream.format("odf").options(partitions=2, **options).load("cities")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
    writer.trigger(availableNow=True).start(folder + "/out").awaitTermination()
    said = {
        "batch": sorted((row.city, row.population) for row in found.collect()),
        "stream": sorted((row.city, row.population) for row in spark.read.parquet(folder + "/out").collect()),
    }
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    said["tasks"] = {executors.apply(at).id(): executors.apply(at).totalTasks() for at in range(executors.size())}
    print(json.dumps(said), flush=True)
spark.stop()
"""
pytestmark = pytest.mark.engine


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Any]:
    made = node_world.World(tmp_path)
    yield made
    made.close()


async def test_executors_of_a_cluster_read_a_private_dataset(world: Any, tmp_path: Path) -> None:
    certificate, key = certified(tmp_path, addresses=[IPv4Address("127.0.0.1")])
    tokens = tmp_path / "tokens"
    tokens.write_text(f"owner {TOKEN}\n")
    tokens.chmod(0o600)
    door = model.Flight(listen=("127.0.0.1:0",), tokens=str(tokens), certificate=str(certificate), key=str(key))
    async with world.running("alice", private=True, flight=door) as alice:
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(node_world.ROOT)
        await alice.pull()
        (node,) = alice.parts.doors["flight"].urls
        with (
            standalone_cluster(tmp_path / "cluster") as master,
            application(master, {"node": node, "token": TOKEN, "caFile": str(certificate)}, tmp_path) as spark,
        ):
            first = await away(lambda: asked(spark))
            world.write("alice", "b.csv", *MORE)
            await alice.pull("cities")
            second = await away(lambda: asked(spark))
            place = damage(alice)
            third = await away(lambda: asked(spark))
    assert first["batch"] == first["stream"] == [["Graz", 300_000], ["Linz", 210_000], ["Wels", 62_000]]
    more = [["Enns", None], *first["batch"][:2], ["Steyr", 38_000], ["Wels", 62_000]]
    assert second["batch"] == second["stream"] == more, "each row is there once"
    assert second["tasks"].pop("driver") == 0
    assert sum(second["tasks"].values()) > 3, "executors read, and never the driver"
    assert f"cities block #{place}: " in third["error"]
    assert "odfctl pull cities --repair" in third["error"]
    assert str(tmp_path / "alice") not in third["error"].partition("cities block")[2], "others see no path of the node"


def damage(alice: Any) -> int:
    """Writes other bytes to the newest slice; the number of its block."""
    last = alice.home.chains.chain(alice.dataset("cities")).last_of(("AddData",))
    name = last.event.new_data.physical_hash
    with alice.home.database.write() as connection:
        done = connection.execute("UPDATE small_objects SET data = zeroblob(length(data)) WHERE name = ?", (name,))
        assert done.rowcount == 1
    return int(last.sequence_number)


@contextmanager
def application(master: str, options: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """An application of the cluster, which reads the dataset for each line that it is sent."""
    java = find_java(os.environ, folder)
    settings = {
        "spark.master": master, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false", "spark.cores.max": "2", "spark.executor.cores": "1",
        "spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": str(CLIENT), "spark.sql.shuffle.partitions": "1",
        "spark.local.dir": str(folder), **INTERPRETED,
    }  # fmt: skip
    environ = os.environ | {
        "JAVA_HOME": str(java.home), "PYTHONPATH": str(CLIENT), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": " ".join(OPTIONS[1:]),
    }  # fmt: skip
    argv = [sys.executable, "-c", PROGRAM, *map(json.dumps, (settings, options, str(folder / "stream")))]
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            argv, env=environ, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def asked(application: subprocess.Popen[str]) -> Any:
    """What the application says that it read, with a stream that goes on from its checkpoint."""
    assert application.stdin
    assert application.stdout
    application.stdin.write("\n")
    application.stdin.flush()
    said = application.stdout.readline()
    assert said, "the application ended; its folder has `errors`"
    return json.loads(said)
