"""Runs a Spark cluster on this machine: a master and two workers from PySpark's own jars."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pyspark

from engines.sandbox import launch
from engines.spark.runtime.java import Java, base_of, find_archive, find_java, install_folder

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
