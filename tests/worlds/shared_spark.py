"""``odfd`` whose engine of Spark is one process that all daemons of a test session share: to start one takes seconds of
the processor, and another one for each daemon proves nothing about documents.

A daemon starts a program that stands in for its engine, and leads it to the socket of the other. Everything else is
real: requests, folders, results. The engine runs without a sandbox, since it reads the folders of all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final
from unittest.mock import patch

from engines.listen_address import READY, SESSION
from engines.provision import host
from engines.provision.host import SparkOptions
from engines.sandbox.base import Sandbox, SandboxLevel
from engines.sandbox.probe import SandboxChoice, choose_unconfined
from engines.spark.runtime.java import Java, find_archive, find_java, install_folder
from engines.spark.runtime.settings import spark_settings
from odfd.daemon import main

SOCKET: Final = "SHARED_SPARK"
"""The variable with the path of the engine's socket."""
INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Queries over a few rows are over before they would have been compiled."""
_STANDS_IN: Final = f'ln -s "$1" "$2"; printf "%s\\n" "{READY}unix:$2" "{SESSION}ready"; exec cat > /dev/null'
"""Ends with the daemon, which holds its standard input."""


@contextmanager
def open_engine(folder: Path) -> Iterator[Path]:
    """Starts the engine; yields its socket when it listens. Java starts with the first request that needs it."""
    place = folder / "s"
    java = find_java(os.environ, folder)
    archive = find_archive(install_folder(), java)
    words = [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()", "--listen", f"unix:{place}"]
    words += ["--scratch", str(folder), "--heap", "1g", "--quick", *(("--archive", str(archive)) if archive else ())]
    paths = os.pathsep.join(map(str, (Path(__file__).parents[2], Path(__file__).parents[1])))
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONPATH": paths}
    environ |= {"JAVA_HOME": str(java.runtime), "PYTHONWARNINGS": "ignore"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, env=environ, text=True)
    assert process.stdout is not None
    with process:
        try:
            ready = process.stdout.readline()
            assert ready.startswith(READY), (folder / "log").read_text()
            yield place
        finally:
            process.terminate()


def serve() -> None:
    """The engine, as a program."""
    from engines.spark import __main__ as engine
    from engines.spark.runtime import session

    def settings(scratch: Path, heap: str) -> dict[str, str]:
        return spark_settings(scratch, heap) | INTERPRETED

    with patch.object(session, "spark_settings", settings):
        sys.exit(engine.main())


def odfd(words: Sequence[str] | None = None) -> None:
    """The program."""
    socket = os.environ[SOCKET]

    async def share(options: SparkOptions, _java: Java) -> SandboxChoice:
        return await choose_unconfined(SandboxLevel.NONE, "all daemons share it")

    def program(
        _options: SparkOptions, _sandbox: Sandbox, _archive: PurePosixPath | None
    ) -> Callable[[str, PurePosixPath], tuple[str, ...]]:
        def argv(listen: str, _scratch: PurePosixPath) -> tuple[str, ...]:
            return ("/bin/sh", "-c", _STANDS_IN, "-", socket, listen.removeprefix("unix:"))

        return argv

    with patch.multiple(host, _isolation=share, _program=program):
        sys.exit(main.main(words))
