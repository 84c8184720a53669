"""Connects to a Spark cluster in place of local threads: checks its address, its settings, and its workers.

Answers do not depend on how work is distributed (docs/spec/engine-semantics.md#determinism, #clusters), so a cluster is
no part of the engine's identity; the software on it is. So every setting that answers could depend on stays pinned, and
executors with another Java, Spark, Python or code of ours are refused before the first request.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from engines.errors import EngineLost
from engines.identity import FileDigests, code_digest
from engines.spark.runtime.settings import CONFINEMENT, EXECUTOR_SECONDS, JVM, MEANING, QUICK

TRIALS_PER_CORE: Final = 4
"""Small tasks started per core, so that each executor that is there gets at least one."""
_SAYS: Final = pa.schema([("said", pa.string())])
_PROPERTIES: Final = ("java.runtime.version", "user.language", "user.country", "user.timezone", "file.encoding")
_MAX_SETTINGS: Final = 1 << 16
"""Most bytes of a file of settings."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The address of a Spark cluster, our address for its executors, and its settings."""

    master: str
    """``spark://host:port``, ``yarn`` or ``k8s://…``, as Spark knows it."""
    address: str = "127.0.0.1"
    """Address of this machine, as executors reach it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings of Spark for the cluster: queues, images, secrets, how work is distributed."""


def read_settings(path: Path) -> dict[str, str]:
    """Reads a file like ``spark-defaults.conf``: a name and a value in each line. Raises EngineLost."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise EngineLost(f"cannot read {path}: {error.strerror}", rule="cluster-settings") from error
    if len(raw) > _MAX_SETTINGS:
        raise EngineLost(f"{path} has {len(raw)} bytes", rule="cluster-settings", hint=f"at most {_MAX_SETTINGS}")
    found = {}
    for number, line in enumerate(raw.decode(errors="replace").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if not name.startswith("spark.") or not value.strip():
            raise EngineLost(
                f"{path}, line {number}: not a setting of Spark: {line.strip()[:80]!r}",
                rule="cluster-settings",
                hint="write it like spark.executor.memory 4g",
            )
        found[name] = value.strip()
    return found


def cluster_settings(cluster: Cluster, heap: str, quick: bool = False) -> dict[str, str]:
    """Returns the settings of a session on ``cluster`` that differ from usual. Raises EngineLost for pinned ones."""
    pinned = {name for name, _, _ in (*MEANING, *CONFINEMENT)} | {"spark.executor.extraJavaOptions", "spark.master"}
    for name in cluster.settings:
        if name in pinned or name.startswith("spark.sql.legacy."):
            raise EngineLost(
                f"{name} is pinned: answers, or what a query can reach, could depend on it",
                rule="cluster-settings",
                hint="leave it out; how work is spread may be set, like spark.sql.shuffle.partitions",
            )
    options = [option for option, _ in JVM if not option.startswith("-Xlog")] + [QUICK] * quick
    return {
        "spark.executor.memory": heap,
        "spark.driver.host": cluster.address,
        "spark.driver.bindAddress": cluster.address,
        **cluster.settings,
        "spark.executor.extraJavaOptions": " ".join(options),
    }


def check_executors(spark: SparkSession, seconds: float = EXECUTOR_SECONDS) -> None:
    """Checks the software of executors. Raises EngineLost when none comes, or one differs from this process.

    Checks those that are there now; later ones are expected to be started from the same installation.
    """
    context = spark.sparkContext
    group = "odf-executors"
    timer = threading.Timer(seconds, context.cancelJobGroup, (group,))
    timer.start()
    try:
        context.setJobGroup(group, "what executors are", interruptOnCancel=True)
        tasks = TRIALS_PER_CORE * context.defaultParallelism
        facts = [f"coalesce(java_method('java.lang.System', 'getProperty', '{name}'), '')" for name in _PROPERTIES]
        # Instants become hours by the JVM's own table of zones, and releases of Java differ in it.
        zones = "java_method('java.time.zone.ZoneRulesProvider', 'getVersions', 'UTC')"
        asked = spark.range(0, tasks, 1, tasks).selectExpr(
            f"concat_ws(' ', version(), {', '.join(facts)}, {zones}, id - id) as said"
        )
        theirs = {row["said"] for row in asked.collect()}
        workers = {row["said"] for row in spark.range(0, tasks, 1, tasks).mapInArrow(_say, "said string").collect()}
    except (PySparkException, Py4JError) as fault:
        raise EngineLost(
            f"no executor of {context.master} answered within {seconds:.0f} s: {str(fault).strip().splitlines()[0]}",
            rule="cluster-alive",
            hint="are there workers with enough free memory and cores, and can they reach this machine?",
        ) from fault
    finally:
        timer.cancel()
        context.setLocalProperty("spark.jobGroup.id", None)
    _compare("Java and Spark", theirs, _driver(spark))
    _compare("Python and the engine's code", workers, _this_python())


def _compare(what: str, theirs: set[str], ours: str) -> None:
    others = sorted(theirs - {ours})
    if others:
        raise EngineLost(
            f"executors have other {what}: {others[0]!r}, here {ours!r}",
            rule="cluster-alike",
            hint="install the same release of odfd, Java and Python on every worker",
        )


def _driver(spark: SparkSession) -> str:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    stated = [jvm.java.lang.System.getProperty(name) or "" for name in _PROPERTIES]
    zones = jvm.java.time.zone.ZoneRulesProvider.getVersions("UTC").toString()
    version = spark.sql("select version()").collect()[0][0]
    return " ".join([version, *stated, zones, "0"])


def _this_python() -> str:
    return f"{platform.python_version()} pyarrow {pa.__version__} code {code_digest(FileDigests(None))}"


def _say(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.record_batch([[_this_python()]], schema=_SAYS)
