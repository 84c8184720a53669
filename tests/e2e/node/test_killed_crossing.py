"""``kill -9`` of a publisher after each effect of a handover to shards, and of its mirror after each step to follow."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final

import pytest
from e2e.node.test_killed_handover import declared, life

from worlds.eventually import PATIENCE, until
from worlds.ports import free_port

pytestmark = pytest.mark.e2e
COMMANDS: Final = (
    ("rendition", "create", "cities", "--from", "snapshot", "--shards", "2", "--by", "city", "--id", "anew"),
    ("rendition", "handover", "cities", "1", "--id", "over"),
)
QUERY: Final = "select city, population from cities order by city"


def rows(daemon: Any) -> Any:
    said = daemon.said("sql", "-q", "-o", "csv", QUERY)
    return said.out if said.code == 0 else said.err


def written(daemon: Any, day: int) -> None:
    lines = "".join(f"2024-01-{day:02}T00:00:00Z,City {number} of {day},{day}\n" for number in range(4))
    (daemon.folder / f"d{day}.csv").write_text(f"event_time,city,population\n{lines}")
    daemon.ask("pull", "cities")


def crossing_killed(daemon: Any, step: int, new: str) -> bool:
    """Starts, and follows until it kills itself after a step; returns false if it crossed before that."""
    daemon.more["KILL_EFFECT"] = str(step)
    daemon.gets_ready()  # a step may come before it says so
    process = daemon.process

    def crossed() -> bool:
        return new in daemon.said("get", "dataset", "cities", "-o", "json").out

    until(lambda: process.poll() is not None or crossed())
    if process.poll() is None and crossed():
        return False
    assert process.wait(PATIENCE) == -signal.SIGKILL
    daemon.process = None
    return True


def test_a_crossing_survives_the_death_of_each_side(make_daemon: Callable[..., Any]) -> None:
    alice, bob = (
        make_daemon(name, ODFD_NODE_NAME=name, ODFD_P2P_LISTEN=f"/ip4/127.0.0.1/tcp/{free_port()}") for name in "ab"
    )
    for daemon in (alice, bob):
        daemon.small = True
    alice.start()
    declared(alice, alice.folder, "{kind: Ledger, primaryKey: [city]}")
    written(alice, 1)
    alice.ask("network", "join", "village")
    cities = alice.dataset("cities")["id"]
    bob.start()
    bob.ask("network", "join", "village", "--bootstrap", alice.ask("status")["listen"][0])
    bob.ask("mirror", "add", cities, "--as", "cities")
    assert rows(bob) == rows(alice)
    bob.kill()  # its own deaths come later
    alice.kill()
    kills, effects = 0, 1
    while life(alice, effects, COMMANDS):
        kills, effects = kills + 1, effects + 1
        assert kills < 12, "no progress"
    assert kills >= 3  # a handover is two transactions: it is asked for at a time, and it is made
    alice.start()
    written(alice, 2)
    new = alice.dataset("cities")
    assert len(new["shards"]) == 2
    kills = 0
    while crossing_killed(bob, kills + 1, new["id"]):  # each life gets a step further: some tell once more what stands
        kills += 1
        assert kills < 9, "no progress"
    assert kills >= 2, "the last step may be seen from outside before the process dies after it"
    until(lambda: rows(bob) == rows(alice))
    assert len(bob.dataset("cities")["shards"]) == 2
    for daemon in (alice, bob):
        assert all(daemon.ask("verify", each)["ok"] for each in (*new["shards"], cities))
        assert daemon.stop() == 0
