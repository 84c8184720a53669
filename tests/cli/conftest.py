"""What a document finds around it: its own folder, the golden files, no daemon, a bin folder with the programs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worlds import documents
from worlds.certificates import certified
from worlds.daemons import INSTALLED
from worlds.eventually import PATIENCE
from worlds.forked import Forked, Forking
from worlds.shared_spark import SOCKET

HERE = Path(__file__).parent
TREE = HERE.parents[1]
"""Whose programs run, wherever they are installed from."""
AS_INSTALLED = ("no-daemon", "first-steps")
"""Documents that run the programs themselves, as does the README; the others run forks of them."""
OWN_ENGINE = ("databases",)
"""Documents that say what their engine has started."""


@pytest.fixture(scope="session")
def forks(forking: Forking, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``odfd`` and ``odfctl`` as forks."""
    folder = tmp_path_factory.mktemp("bin")
    forking.write_shims(folder, odfd="odfd", odfctl="odfctl")
    return folder


@pytest.fixture(scope="session")
def small_forks(forking: Forking, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with an ``odfd`` that has the small engine."""
    folder = tmp_path_factory.mktemp("bin")
    forking.write_shims(folder, odfd="small", odfctl="odfctl")
    return folder


@pytest.fixture(scope="session")
def spark_forks(forking: Forking, tmp_path_factory: pytest.TempPathFactory, shared_spark: Path) -> Path:
    """The same with an ``odfd`` that shares an engine of Spark with others."""
    folder = tmp_path_factory.mktemp("bin")
    forking.write_shims(folder / "forks", odfd="shared", odfctl="odfctl")
    (folder / "odfctl").symlink_to("forks/odfctl")
    (folder / "odfd").write_text(f'#!/bin/sh\nexport {SOCKET}="{shared_spark}"\nexec "{folder}/forks/odfd" "$@"\n')
    (folder / "odfd").chmod(0o755)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Programs that the commands left in the background are ended: a lock file names the process that holds it."""
    yield tmp_path
    # A daemon may still delete what is below: ``os.walk`` passes over a folder that is gone, ``rglob`` does not.
    found = [Path(folder, name) for folder, _, names in os.walk(tmp_path) for name in names]
    for file in [each for each in found if (each.name == "lock" or each.suffix == ".pid") and each.is_file()]:
        where = Path(f"/proc/{file.read_text().strip()}/cwd")
        if where.exists() and where.readlink().is_relative_to(tmp_path):
            os.kill(int(where.parent.name), signal.SIGTERM)


@pytest.fixture
def play(forks: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    def run(document: Path, **more: str) -> int:
        # The address of a socket has room for 107 bytes; a test's own folder has the test's name in it.
        home = tmp_path_factory.mktemp("home")
        (tmp_path / "golden").symlink_to(HERE.parent / "golden")
        first = "" if document.stem in AS_INSTALLED else f"{forks}:"
        environ = {
            "PATH": f"{first}{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(home),
            "PYTHONPATH": str(TREE),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "ODFD_FLOWS_FOLLOW": "false",
            "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", ""),
            **more,
        }
        return documents.run(document, tmp_path, environ)

    return run


def _reached(folder: Path) -> dict[str, str]:
    """Settings of a daemon that answers over TLS, by a certificate that lies in the folder of the document."""
    certificate, key = certified(folder)
    return {
        "ODFD_API_LISTEN": "127.0.0.1:0",
        "ODFD_API_CERTIFICATE": str(certificate),
        "ODFD_API_KEY": str(key),
    }


@pytest.fixture
def daemon(tmp_path: Path, forking: Forking, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The socket of a daemon of its own, on free ports of the loopback. One document shows where it listens for peers;
    the others ask for no host of libp2p. Most share one engine.
    """
    state = tmp_path / "node"
    name = request.node.name.partition("[")[2].rstrip("]")
    api = _reached(tmp_path) if name in ("access", "accounts") else {}
    environ = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(TREE),
        "ODFD_NODE_NAME": "alice",
        "ODFD_P2P_LISTEN": "/ip4/127.0.0.1/tcp/0" if name == "first-steps" else "",
        "ODFD_HTTP_LISTEN": "127.0.0.1:0",
        "ODFD_ENGINE_QUICK_START": "true",
        "ODFD_INGEST_SETTLE_SECONDS": "0",
        "ODFD_FLOWS_FOLLOW": "false",
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        **api,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, (tmp_path / "log").open("wb") as log:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        process: subprocess.Popen[bytes] | Forked
        if name in AS_INSTALLED:
            process = subprocess.Popen([*INSTALLED, str(state)], env=environ, stdout=log, stderr=log)
        elif name in OWN_ENGINE:
            process = forking.start("odfd", ["run", "--state", str(state)], environ, out=log)
        else:
            environ[SOCKET] = str(request.getfixturevalue("shared_spark"))
            process = forking.start("shared", ["run", "--state", str(state)], environ, out=log)
        try:
            assert manager.recv(4096).startswith(b"READY=1")
            yield state / "control.sock"
        finally:
            process.terminate()
            code = process.wait(PATIENCE)
    assert code == 0, (tmp_path / "log").read_text()[-3000:]
