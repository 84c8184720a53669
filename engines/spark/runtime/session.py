"""Starts and stops the one Spark session of an engine process.

Uses classic PySpark: the JVM is a child of this process and plans can be inspected. Made once per process, lives as
long as it; each request works in a session of its own derived from it (``newSession``), so that no request sees the
views of another. Kept plans (``sql.queries``), whose names are resolved already, share one session.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.java_gateway import JavaClass, JavaPackage, JVMView
from py4j.protocol import Py4JError
from pyspark import SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from engines.errors import EngineLost
from engines.spark.runtime.cluster import Cluster, check_executors, cluster_settings
from engines.spark.runtime.java import Java, find_java
from engines.spark.runtime.settings import check_reachable, jvm_options, parse_master, spark_settings

_NAME: Final = "jvm"


class RememberedNames(JVMView):  # type: ignore[misc]
    """Replaces a gateway's view of its JVM, and remembers the classes and packages that were looked up by name."""

    def __init__(self, view: Any) -> None:
        super().__init__(view._gateway_client, _NAME, id=view._id)

    def __getattr__(self, name: str) -> Any:
        return _remember(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _remember(self, name, super().__getattr__(name))


def _remember(place: Any, name: str, found: Any) -> Any:
    if isinstance(found, JavaPackage):
        found = _Package(found._fqn, found._gateway_client, found._jvm_id)
    if isinstance(found, JavaPackage | JavaClass):
        vars(place)[name] = found
    return found


def remember_names(spark: SparkSession) -> None:
    spark._jvm = SparkContext._jvm = RememberedNames(spark._jvm)


OpenSession = Callable[[], SparkSession]
"""Returns the session of a request; only the first call costs round trips to the JVM."""
_FOREIGN: Final = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "SPARK_SUBMIT_OPTS",
    "SPARK_DIST_CLASSPATH",
    "PYSPARK_SUBMIT_ARGS",
    "PYSPARK_DRIVER_PYTHON",
    "HADOOP_CONF_DIR",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "JDK_JAVA_OPTIONS",
)
"""Environment variables by which another installation, or a person's settings, would change what runs here."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a session."""

    scratch: Path
    """A directory of our own; Spark spills there."""
    cores: int = 2
    heap: str = "2g"
    quick: bool = False
    """Compile with the JVM's first compiler alone: a few small queries never repay the CPU that the second takes."""
    archive: Path | None = None
    """Class data archive of the JVM."""
    record: bool = False
    """Make the archive when this session stops, instead of using it."""
    cluster: Cluster | None = None
    """The cluster on which tasks run; ``None``: in threads of the local JVM."""


def _start_jvm(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts the JVM as PySpark does, ignoring ^C, but without running Python in the forked child.

    Another thread may hold a lock of gRPC at that moment, and then the child dies (seen: signal 11) before it becomes
    Java.
    """
    options.pop("preexec_fn", None)
    return subprocess.Popen(["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command], **options)


def start_session(options: SessionOptions) -> SparkSession:
    """Starts a session with all pinned settings. Changes the environment of this process.

    Raises EngineLost with the reason, Invalid for an invalid master.

    Refuses a second session in a process: PySpark would return the existing one, with other settings, and the next
    ``stop_session`` would end both.
    """
    if getattr(SparkContext._active_spark_context, "_jsc", None) is not None:
        raise EngineLost("this process runs Spark already", rule="spark-start", hint="stop that session first")
    scratch = options.scratch.resolve()
    try:
        for part in ("spark", "tmp", "warehouse"):
            (scratch / part).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineLost(
            f"cannot use {scratch} as scratch: {error.strerror}", rule="scratch", hint="name a writable directory"
        ) from error
    java = find_java(os.environ, scratch)
    _clean_environment(java, scratch)
    # PySpark would log each wrong query on standard error, with its text; the fault is in the answer.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    cluster = options.cluster
    if cluster is not None:
        check_reachable(parse_master(cluster.master))
    settings = spark_settings(scratch, options.heap)
    if cluster is not None:
        settings |= cluster_settings(cluster, options.heap, options.quick)
        os.environ["SPARK_LOCAL_IP"] = cluster.address
    master = f"local[{options.cores}]" if cluster is None else cluster.master
    builder = SparkSession.builder.master(master).appName("odf-engine")
    for name, value in settings.items():
        builder = builder.config(name, value)
    jvm = jvm_options(scratch, options.archive, options.record, options.quick)
    builder = builder.config("spark.driver.extraJavaOptions", jvm)
    java_gateway.Popen = _start_jvm
    try:
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        remember_names(spark)
    except (PySparkException, Py4JError, OSError) as error:
        raise EngineLost(
            f"Spark did not start with the Java at {java.runtime}: {str(error).strip().splitlines()[0]}",
            rule="spark-start",
            hint="see the lines above; is there memory for the heap?",
        ) from error
    # The class path may lead to another installation's jars, whose analyser the lists of analysis do not describe.
    if spark.version != pyspark.__version__:
        spark.stop()
        raise EngineLost(f"the JVM runs Spark {spark.version}, this is PySpark {pyspark.__version__}", rule="spark")
    if cluster is not None:
        try:
            check_executors(spark)
        except EngineLost:
            stop_session(spark)
            raise
    return spark


def stop_session(spark: SparkSession) -> None:
    """Stops Spark and its JVM. Idempotent."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    process: Any = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is not None:
        # PySpark's JVM ends when its standard input does; the shutdown of the gateway alone leaves it running.
        process.stdin.close()
        process.wait()
    # PySpark keeps both in its classes, and would hand the dead gateway to the next session of this process.
    type(spark.sparkContext)._gateway = None
    type(spark.sparkContext)._jvm = None


def _clean_environment(java: Java, scratch: Path) -> None:
    for name in _FOREIGN:
        os.environ.pop(name, None)
    os.environ["JAVA_HOME"] = str(java.home)
    # Workers would run the python3 that PATH has, perhaps of another version and without Arrow.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Spark would look up the name of this machine, which the sandbox cannot, and bind what it finds.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch / "spark")
