"""Azurite, Microsoft's own emulator of Azure's blobs, on loopback. ``make azurite`` brings it."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

PROGRAM = Path(__file__).parents[2] / ".venv/share/odfd/azurite/node_modules/azurite/dist/src/blob/main.js"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of the emulator, known to everybody."""
_LISTENS = "successfully listens on "
_VERSION = "2021-12-02"


@contextmanager
def azurite_served() -> Iterator[str]:
    """Its address. Skips where the emulator is not here."""
    node = shutil.which("node")
    if node is None or not PROGRAM.is_file():
        pytest.skip("no emulator of Azure is here: make azurite")
    with tempfile.TemporaryDirectory(prefix="odfd-azurite-") as folder:
        command = [node, str(PROGRAM), "--inMemoryPersistence", "--blobPort", "0", "--disableTelemetry", "--silent"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            address = next(line for line in process.stdout if _LISTENS in line).partition(_LISTENS)[2].strip()
            yield address
            process.terminate()
            process.communicate()


def new_container(server: str, name: str, *, is_public: bool = True) -> str:
    """One that anybody reads where it is public, and who has the key writes; its URL as a repository."""
    headers = {
        "x-ms-date": dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "x-ms-version": _VERSION,
    }
    if is_public:
        headers["x-ms-blob-public-access"] = "container"
    named = "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
    text = "PUT" + "\n" * 12 + f"{named}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
    assert httpx.put(f"{server}/{ACCOUNT}/{name}?restype=container", headers=headers).status_code == 201
    return f"az+{server}/{ACCOUNT}/{name}"
