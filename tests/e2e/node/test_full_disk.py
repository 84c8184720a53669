"""A node on a full disk starts, reads, serves, says what it cannot do, and goes on when there is room."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from worlds.manifests import BOTH
from worlds.ports import free_port

pytestmark = pytest.mark.e2e
SIZE = 24 << 20
VARIABLES = "$schema: VariableSet\nheaders: {name: v}\nspec: {variables: {x: '1'}}\n"


@pytest.fixture
def holder() -> Iterator[int]:
    """A process that has mounted a small file system at /mnt, where nobody else sees it."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("a small disk: only root can mount one")
    script = f"mount -t tmpfs -o size={SIZE} none /mnt && echo mounted && read end"
    command = ["unshare", "--mount", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip("a small disk: this kernel lets nobody mount one")
        yield process.pid
        process.communicate(b"end\n")


def fill(disk: Path) -> Path:
    """Takes every free byte."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                break
    assert shutil.disk_usage(disk).free == 0
    return filler


def readiness(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("end", ["killed", "stopped", "power"])
def test_a_node_starts_on_a_full_disk(make_daemon: Callable[..., Any], holder: int, end: str) -> None:
    """After a kill, a stop in order, and a power failure, which leaves no index of the database's log."""
    port, small_disk = free_port(), Path(f"/proc/{holder}/root/mnt")
    daemon = make_daemon("a", ODFD_METRICS_LISTEN=f"127.0.0.1:{port}", ODFD_LIMITS_DISK_RESERVE_BYTES="1048576")
    daemon.small, daemon.inside = True, [f"/proc/{holder}/ns/mnt"]
    daemon.state, daemon.socket = Path("/mnt/s"), small_disk / "s" / "control.sock"
    manifests, variables = daemon.folder / "m.yaml", daemon.folder / "v.yaml"
    manifests.write_text(BOTH)
    variables.write_text(VARIABLES)
    (daemon.folder / "1.csv").write_text("event_time,city,population\n2024-01-01T00:00:00Z,Graz,1\n")
    daemon.start()
    daemon.ask("apply", "-f", str(manifests))
    daemon.ask("pull", "cities")
    if end == "stopped":
        assert daemon.stop() == 0
    else:
        daemon.kill()
    if end == "power":
        for index in (small_disk / "s").glob("*-shm"):
            index.unlink()
    filler = fill(small_disk)

    daemon.start()
    assert daemon.dataset("cities")["records"] == 1
    assert daemon.ctl("log", "cities").code == 0
    assert daemon.ask("status")["disk"]["free"] < SIZE // 100
    probes = {probe["name"]: probe for probe in json.loads(daemon.ctl("doctor", "-o", "json").out)}
    assert probes["disk"]["result"] != "ok"
    assert "nothing new is written until there is room" in probes["last end"]["message"]
    assert "nothing new is written until there is room" in daemon.told()
    code, said = readiness(port)
    assert (code, "no disk: " in said) == (503, True)
    fill(small_disk)  # the reserve, and what the stop gave back
    assert "rule disk-full" in daemon.ctl("apply", "-f", str(variables)).err

    filler.unlink()
    assert daemon.ask("apply", "-f", str(variables))["items"][0]["action"] == "created"
    probes = {probe["name"]: probe for probe in json.loads(daemon.ctl("doctor", "-o", "json").out)}
    assert (probes["disk"]["result"], probes["database"]["result"]) == ("ok", "ok"), "there is room above the reserve"
    daemon.kill()
    daemon.start()
    assert {one["records"] for one in daemon.datasets()} >= {1}
    assert daemon.stop() == 0
