"""The class data archive of the JVM: Spark's classes as one start left them, so that later starts need not load them.
What Spark's files hash to is remembered with it: a new node would hash half a gigabyte.

Recorded by starting the engine once, without a sandbox, for a few queries of its own (``warm_up``), and asking it to
leave. A JVM that does not fit an archive passes over it, so an old one costs nothing but its place; one that is lost is
recorded again when asked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from engines.errors import EngineLost
from engines.identity import FileDigests, host_manifest
from engines.service import READY
from engines.spark.runtime.class_archive import archive_path, find_archive, install_folder, installed_digests
from engines.spark.runtime.java import find_java
from engines.spark.runtime.settings import manifest_settings

LEAVE_SECONDS: Final = 180.0
"""For leaving: the JVM writes 180 MB on its way out."""


def record_archive(cache: Path, environ: Mapping[str, str]) -> Path:
    """Takes as long as a cold start and a bit. Synchronous. Raises EngineLost when nothing comes of it."""
    java = find_java(environ, cache)
    archive = archive_path(cache, java)
    staged = archive.with_suffix(".new")
    staged.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="odf-") as folder:
        argv = (
            *(sys.executable, "-P", "-m", "engines.spark", "--listen", f"unix:{folder}/s", "--scratch", folder),
            *("--quick", "--archive", str(staged), "--record-archive"),
        )
        env = {"PATH": "/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8", "JAVA_HOME": str(java.runtime)}
        with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as engine:
            assert engine.stdout is not None
            is_ready = any(line.startswith(READY) for line in engine.stdout)
            engine.terminate()
            try:
                code = engine.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                engine.kill()
                code = engine.wait()
    if code or not is_ready or not staged.is_file():
        raise EngineLost(f"no class data archive was made (exit code {code})", rule="engine-archive")
    return staged.replace(archive)


def main() -> int:
    """``python -m engines.provision.archive``: record one for the whole installation, unless it is there."""
    folder = install_folder()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        java = find_java(os.environ, folder)
        digests = FileDigests(installed_digests())
        host_manifest(manifest_settings(), java.runtime, digests)
        digests.save()
        if find_archive(folder, java) is None:
            record_archive(folder, os.environ)
    except EngineLost as fault:
        sys.stderr.write(f"engines will start without a class data archive: {fault}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
