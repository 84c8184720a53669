"""Records the class data archive of the JVM, so that later starts need not load Spark's classes.

Recorded by an engine that is started once, without a sandbox, to run a few queries of its own (``warm_up``). A JVM
ignores an archive that does not fit, so an old one only costs its space; a lost one is recorded again on demand. The
digests of Spark's files are stored with it: a new node would have to hash half a gigabyte.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Final

from chain.terminal_text import visible
from config.paths import code_environment
from engines.errors import EngineLost
from engines.identity import FileDigests, host_manifest
from engines.spark.runtime.java import (
    archive_path,
    archives_of_other_jars,
    base_of,
    find_archive,
    find_java,
    install_folder,
    installed_digests,
)
from engines.spark.runtime.settings import manifest_settings

RECORD_SECONDS: Final = 600.0
"""Seconds for a cold start, a few queries, and writing 180 MB as the JVM ends."""


def record_archive(cache: Path, environ: Mapping[str, str]) -> Path:
    """Records the archive, which takes little longer than a cold start, and removes those that became useless.
    Synchronous. Raises EngineLost if that fails."""
    java = find_java(environ, cache)
    archive = archive_path(cache, java)
    staged = archive.with_suffix(".new")
    staged.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="odf-") as folder:
        argv = (sys.executable, "-P", *recording(staged, Path(folder)))
        env = {"PATH": "/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8", "JAVA_HOME": str(java.runtime)}
        env |= code_environment()
        try:
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=RECORD_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise EngineLost(f"no class data archive was made: {error}", rule="engine-archive") from error
    if done.returncode or not staged.is_file():
        said = done.stderr.strip()[-300:]
        raise EngineLost(f"no class data archive was made (exit code {done.returncode}): {said}", rule="engine-archive")
    if base_of(staged).is_file():
        base_of(staged).replace(base_of(archive))
    for useless in archives_of_other_jars(archive, java):
        useless.unlink(missing_ok=True)
    return staged.replace(archive)


def recording(archive: PurePath, scratch: PurePath) -> tuple[str, ...]:
    """Returns Python's arguments for an engine that records ``archive`` and exits."""
    return ("-m", "engines.spark", "--scratch", str(scratch), "--quick", "--archive", str(archive), "--record-archive")


def main() -> int:
    """Runs ``python -m engines.provision.archive``: records an archive for the whole installation, unless it exists."""
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
        sys.stderr.write(visible(f"engines will start without a class data archive: {fault}\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
