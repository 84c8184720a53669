"""What a document finds around it: its own folder, the golden files, no daemon, a bin folder with the programs."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worlds.certificates import certified
from worlds.eventually import PATIENCE

HERE = Path(__file__).parent
TREE = HERE.parents[1]
"""Whose programs run, wherever they are installed from."""


@pytest.fixture(scope="session")
def documents() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cli_documents", HERE / "documents.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cli_documents"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def play(documents: ModuleType, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], int]:
    def run(document: Path, **more: Any) -> int:
        # The address of a socket has room for 107 bytes; a test's own folder has the test's name in it.
        home = tmp_path_factory.mktemp("home")
        (tmp_path / "golden").symlink_to(HERE.parent / "golden")
        environ = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(home),
            "PYTHONPATH": str(TREE),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "ODFD_FLOWS_FOLLOW": "false",
            "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", ""),
            **more,
        }
        return int(documents.run(document, tmp_path, environ))

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
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The socket of a daemon of its own: no engine started, on free ports of the loopback. One document shows where it
    listens for peers; the others ask for no host of libp2p.
    """
    state = tmp_path / "node"
    listens = "first-steps" in request.node.name
    api = _reached(tmp_path) if request.node.name.endswith("[access]") else {}
    environ = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(TREE),
        "ODFD_NODE_NAME": "alice",
        "ODFD_P2P_LISTEN": "/ip4/127.0.0.1/tcp/0" if listens else "",
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
        command = [sys.executable, "-m", "odfd.daemon.main", "run", "--state", str(state)]
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        try:
            assert manager.recv(4096).startswith(b"READY=1")
            yield state / "control.sock"
        finally:
            process.terminate()
            code = process.wait(PATIENCE)
    assert code == 0, (tmp_path / "log").read_text()[-3000:]
