"""Measures a pull of a whole dataset from a bucket, verified and committed, against s5cmd, which copies the same files.

Both ask one server of S3 on this machine, moto, which is slower than a real one: it bounds both sides. ``make s5cmd``
builds s5cmd; without it the row is left out, and says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from bench.measure import Row, Side, Size
from bench.node import TREE, daemon, odfctl, settle
from bench.python_client import fill
from odfd.store.directory import open_state_directory

PROGRAM: Final = TREE / ".venv/share/odfd/s5cmd/s5cmd"
_KEYS: Final = {"AWS_ACCESS_KEY_ID": "AKIABENCH", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
_SECRETS: Final = """$schema: SecretSet
headers: {name: keys}
spec: {secrets: {accessKeyId: AKIABENCH, secretAccessKey: bench}}
"""
_SERVE: Final = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


def measure_bucket(size: Size, folder: Path) -> list[Row]:
    """Measures a dataset of ten slices; each round pulls it anew into a node that has nothing of it."""
    if not PROGRAM.is_file():
        print("bucket: left out, no s5cmd is here: make s5cmd", file=sys.stderr)
        return []
    rounds = size.pick(1, 3)
    with open_state_directory(folder / "giver" / "node" / "state") as home:
        total = sum(Path(each).stat().st_size for each in fill(home, size.pick(1_000, 10_000), text=1_000))
    secrets = folder / "keys.yaml"
    secrets.write_text(_SECRETS)
    ours, peer = [], []
    with _served() as server:
        assert httpx.put(f"{server}/house").is_success
        add = ("repo", "add", "house", f"s3+{server}/house/odf", "--credentials", "keys")
        with daemon(folder / "giver") as node:
            odfctl(node, "apply", "-f", str(secrets))()
            odfctl(node, *add)()
            odfctl(node, "push", "large", "--to", "house", "--private")()
        for number in range(rounds + 1):
            with daemon(folder / f"taker-{number}") as node:
                odfctl(node, "apply", "-f", str(secrets))()
                odfctl(node, *add)()
                settle(node)
                ours.append(_seconds(odfctl(node, "pull", "house/large")))
            peer.append(_copied(server, folder / f"copy-{number}"))
            shutil.rmtree(folder / f"taker-{number}")
            shutil.rmtree(folder / f"copy-{number}")
    megabytes = total / 1e6
    return [
        Row(
            name="pull from S3",
            measures=f"a dataset of {megabytes:,.0f} MB in ten slices, from one server of S3 on this machine",
            ours=Side(name="odfctl pull, verified", costs=tuple(ours[1:]), amount=megabytes, unit="MB"),
            peer=Side(name="s5cmd cp", costs=tuple(peer[1:]), amount=megabytes, unit="MB"),
            goal="1.25",
        )
    ]


def _seconds(work: object) -> float:
    assert callable(work)
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def _copied(server: str, target: Path) -> float:
    command = [str(PROGRAM), "--endpoint-url", server, "cp", "s3://house/odf/large/*", f"{target}/"]
    return _seconds(lambda: subprocess.run(command, check=True, capture_output=True, env={**os.environ, **_KEYS}))


@contextmanager
def _served() -> Iterator[str]:
    command = [sys.executable, "-c", _SERVE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()
