"""What all nodes of an installation share, so that whoever starts an engine finds it: the class data archive of the
JVM, and the digests of Spark's files. Nothing is made here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from pathlib import Path

from engines.spark.runtime.java import Java


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
