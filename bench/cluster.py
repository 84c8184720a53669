"""Measures a transaction on a Spark cluster: a master and two workers of one core each on this machine.

Against a bare session on the same cluster, with the engine's settings, which writes the same Parquet to the same place.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

import pyspark
import trio
from pyspark.sql import SparkSession

from bench.engine import stop_quick_spark, warm_engine
from bench.measure import Row, Side, Size
from bench.transactions import map_in_turns
from engines.provision.host import OnCluster
from engines.sandbox import launch
from engines.spark.runtime.cluster import Cluster
from engines.spark.runtime.java import Java, base_of, find_archive, find_java, install_folder
from engines.spark.runtime.session import SessionOptions, start_session, stop_session

PYSPARK = Path(pyspark.__file__).parent
OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto")
URL = re.compile(r"spark://[\w.]+:\d+")


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2, environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """Starts a cluster; yields its master's URL, once all workers have registered, each with two cores; ``environ``:
    additional variables of the workers and their executors."""
    folder.mkdir(parents=True)
    java = find_java(os.environ, folder)
    shared = _shared_classes(java)
    of_workers = dict(environ or {})
    of_workers["JAVA_TOOL_OPTIONS"] = f"{of_workers.get('JAVA_TOOL_OPTIONS', '')} {shared}"
    env = {
        "PATH": "/usr/bin:/bin", "HOME": str(folder), "SPARK_HOME": str(PYSPARK), "SPARK_SCALA_VERSION": "2.13",
        "JAVA_HOME": str(java.home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder), "JAVA_TOOL_OPTIONS": shared,
    }  # fmt: skip
    with ExitStack() as running:
        ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = running.enter_context(_daemon(java.home, "master.Master", ports, env))
        url = _until(master, "Starting Spark master at")
        for number in range(workers):
            place = ("--cores", "2", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}"), url)
            worker = running.enter_context(_daemon(java.home, "worker.Worker", (*ports, *place), env | of_workers))
            _until(worker, "Successfully registered with master")
        yield url


def _shared_classes(java: Java) -> str:
    """The option by which a JVM, and an executor that a worker starts, finds the class data archive of engines, which
    halves the CPU of a start."""
    archive = find_archive(install_folder(), java)
    layers = [] if archive is None else [str(each) for each in (base_of(archive), archive) if each.is_file()]
    return f"-XX:SharedArchiveFile={':'.join(layers)}" if layers else ""


@contextmanager
def _daemon(home: Path, name: str, arguments: tuple[str, ...], env: Mapping[str, str]) -> Iterator[IO[str]]:
    jars = PYSPARK / "jars"
    # As Spark's own launcher has it: an archive is of one class path.
    places = ":".join(map(str, (PYSPARK / "conf", *jars.glob("slf4j-api-*.jar"), jars / "*")))
    java = (str(home / "bin" / "java"), *OPTIONS, "-cp", places, f"org.apache.spark.deploy.{name}")
    argv = (sys.executable, "-I", "-S", str(launch.__file__), str(os.getpid()), "-", "--", *java, *arguments)
    with subprocess.Popen(argv, env=dict(env), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as daemon:
        assert daemon.stderr is not None
        try:
            yield daemon.stderr
        finally:
            daemon.terminate()
            daemon.wait(30)


def _until(log: IO[str], words: str) -> str:
    """Reads until a line with ``words``, and on in the background; the URL in that line."""
    said = []
    for line in log:
        said.append(line)
        if words in line:
            threading.Thread(target=lambda: [None for _ in log], daemon=True).start()
            found = URL.search(line)
            return found[0] if found else ""
    raise AssertionError("".join(said[-20:]))


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
