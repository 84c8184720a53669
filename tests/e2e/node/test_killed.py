"""``kill -9`` at durable steps of pulling and mirroring: the next start finds all well, and work goes on."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from worlds.eventually import PATIENCE, until
from worlds.manifests import BOTH

pytestmark = pytest.mark.e2e
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))
FILES = 12
ROWS = 3000
STEPS = 30
"""Durable steps of a pull of all files, of which some are left to a second one."""
VOLUME = """
$schema: PersistentVolume
headers: {{name: cellar, annotations: {{volumePolicy: {{datasets: [{datasets}]}}}}}}
spec: {{kind: HostPath, path: {path}}}
"""


def interrupted(daemon: Any, step: int, *words: str) -> bool:
    """Starts, is asked for a command, and dies at a durable step of it; whether there were so many steps."""
    daemon.more["KILL_AT"] = str(step)
    daemon.start()
    del daemon.more["KILL_AT"]
    said = daemon.said(*words)
    if said.code == 0:
        daemon.kill()
        return False
    assert daemon.process.wait(PATIENCE) == -signal.SIGKILL, said.err
    daemon.process = None
    return True


def is_well(daemon: Any, *names: str) -> None:
    probes = {probe["name"]: probe["result"] for probe in daemon.ask("doctor", "--deep")}
    state = ("disk", "last end", "database", "rows", "trust ledger", "chains", "keys", "damage")
    assert {probes[name] for name in state} == {"ok"}, probes
    for name in names:
        report = daemon.ask("verify", name)
        assert report["ok"], report


def write_files(folder: Path, rows: int) -> None:
    for number in range(FILES):
        lines = [f"2024-01-{number + 1:02}T00:00:00Z,c{row * 7919 % 10007},{row}" for row in range(rows)]
        (folder / f"{number:02}.csv").write_text("\n".join(["event_time,city,population", *lines, ""]))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_is_killed_goes_on(make_daemon: Callable[..., Any], seed: int) -> None:
    rng = random.Random(seed)
    alice, bob = (make_daemon(name, listens=True, ODFD_NODE_NAME=name) for name in ("a", "b"))
    for daemon in (alice, bob):
        daemon.small = True
    (alice.folder / "m.yaml").write_text(BOTH)
    kills = interrupted(alice, rng.randint(1, 4), "apply", "-f", str(alice.folder / "m.yaml"))
    alice.start()
    assert {item["action"] for item in alice.ask("apply", "-f", str(alice.folder / "m.yaml"))["items"]} <= {
        "created",
        "unchanged",
    }
    write_files(alice.folder, ROWS)
    for _ in range(2):
        alice.kill()
        kills += interrupted(alice, rng.randint(1, STEPS), "pull", "--all")
        alice.start()
        is_well(alice, "cities", "towns")
    while any(item["outcome"] == "updated" for item in alice.ask("pull", "--all")["items"]):
        pass
    held = {one["name"]: one for one in alice.datasets()}
    assert {one["records"] for one in held.values()} == {FILES * ROWS}
    assert {(one["state"], one["relyOn"]["blocks"]) for one in held.values()} == {
        ("fresh", held["cities"]["blocks"]),
        ("fresh", held["towns"]["blocks"]),
    }
    alice.ask("network", "join", "n")
    bob.start()
    bob.ask("network", "join", "n", "--bootstrap", alice.ask("status")["listen"][0])
    for name in held:
        bob.kill()
        kills += interrupted(bob, rng.randint(1, 4), "mirror", "add", held[name]["id"], "--as", name)
        bob.start()
    assert kills >= 4, "most lives ended before their step"
    for name in held:
        assert with_state(bob.ask("mirror", "add", held[name]["id"], "--as", name))["state"] == "current"
    is_well(bob, "cities", "towns")
    assert {one["name"]: one["head"] for one in bob.datasets()} == {name: one["head"] for name, one in held.items()}
    assert bob.stop() == alice.stop() == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_is_killed_while_slices_move_to_a_volume_and_back_loses_none(
    make_daemon: Callable[..., Any], seed: int
) -> None:
    rng = random.Random(seed)
    daemon = make_daemon("a", small=True)
    manifests, volume, disk = daemon.folder / "m.yaml", daemon.folder / "volume.yaml", daemon.folder / "disk"
    manifests.write_text(BOTH)
    write_files(daemon.folder, 12_000)
    daemon.start()
    daemon.ask("apply", "-f", str(manifests))
    while any(item["outcome"] == "updated" for item in daemon.ask("pull", "--all")["items"]):
        pass
    held = {one["name"]: one["head"] for one in daemon.datasets()}

    def copies() -> int:
        return sum(1 for each in disk.glob("??/*") if each.suffix != ".part")

    def dies_of_moving(datasets: str, step: int) -> None:
        volume.write_text(VOLUME.format(datasets=datasets, path=disk))
        daemon.kill()  # also since what was verified counts as being read, until the collection after next
        daemon.more["KILL_MOVE"] = str(step)
        daemon.start()
        del daemon.more["KILL_MOVE"]
        daemon.said("apply", "-f", str(volume))  # it may die before it answers, and not before that is durable
        assert daemon.process.wait(PATIENCE) == -signal.SIGKILL
        daemon.process = None
        daemon.start()

    dies_of_moving("'%'", rng.randrange(3, 2 * FILES))
    assert copies() in range(1, FILES + 1)
    is_well(daemon, *held)
    daemon.kill()
    daemon.start()
    until(lambda: copies() >= FILES)
    dies_of_moving("", rng.randrange(1, 2 * FILES))
    until(lambda: copies() == 0)
    is_well(daemon, *held)
    assert {one["name"]: one["head"] for one in daemon.datasets()} == held
    assert daemon.stop() == 0
