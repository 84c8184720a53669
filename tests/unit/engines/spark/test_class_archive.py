"""Which class data archives a JVM is given, and the one that is made where a runtime brings none of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from engines.errors import EngineLost
from engines.spark.runtime.java import Java, archive_path, archives_of_other_jars, base_of, dump_base, find_archive
from engines.spark.runtime.settings import jvm_options

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
