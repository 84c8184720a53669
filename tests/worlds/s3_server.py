"""A real S3 server of others (moto) on loopback, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

_SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def s3_server(page: int = 1000) -> Iterator[str]:
    """Its address; ``page`` keys are in one answer of a listing."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(page)},
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


def new_bucket(server: str, name: str) -> str:
    """One that anybody reads, and who has keys writes; its URL as a repository."""
    anybody = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{name}/*"}
    policy = {"Version": "2012-10-17", "Statement": [anybody]}
    assert httpx.put(f"{server}/{name}").status_code == 200
    assert httpx.put(f"{server}/{name}?policy", json=policy).status_code in (200, 204)
    return f"s3+{server}/{name}"
