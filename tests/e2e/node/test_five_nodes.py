"""Five daemons, each in a network namespace of its own, on a network that delays, loses and cuts what the test says.

alice (publisher) ── bob ── carol ── dave ── erin     each is told of the one before; who meets whom is theirs to find
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from odfd.control import calls, wire
from odfd.control.client import ControlClient
from worlds.eventually import until
from worlds.lan import NoLan, Switch, Weather, open_lan
from worlds.manifests import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
NAMES = ("alice", "bob", "carol", "dave", "erin")
FAIR, ROUGH = Weather(), Weather(delay=0.01, jitter=0.01, loss=0.01)
SOAK_SECONDS = int(os.environ.get("ODF_SOAK_SECONDS", "3600" if os.environ.get("ODF_SOAK") else "0"))
FILLING = 1500
"""Blocks until what is bounded by a number is full, as are pages of SQLite and events: a tenth of the memory."""
BUSY = 1000 if SOAK_SECONDS else 40
ROWS = 2000


@dataclass
class Five:
    """The daemons in the order of their places, which are numbered from 1."""

    switch: Switch
    daemons: Sequence[Any]
    files: int = 0
    id: str = ""

    def publish(self) -> str:
        """One more file; the head it leads to."""
        self._write()
        (item,) = self.daemons[0].ask("pull", "cities")["items"]
        assert item["outcome"] == "updated", item
        return self.head(self.daemons[0])

    def publish_many(self, times: int) -> str:
        """The same so many times, straight over the socket: a command takes ten times as long to start."""
        client = ControlClient(self.daemons[0].socket)
        request = wire.PullRequest(refs=("cities",))
        for _ in range(times):
            self._write()
            task = client.do(calls.flow_pull(request)).value
            *_, last = client.stream(calls.tasks_follow(task.id))
            assert [item["outcome"] for item in last.value.result["items"]] == ["updated"], last
        return self.head(self.daemons[0])

    def _write(self) -> None:
        self.files += 1
        rows = [f"2024-01-01T00:00:00Z,c{self.files},{row}" for row in range(ROWS)]
        file = self.daemons[0].folder / f"{self.files:05}.csv"
        file.write_text("\n".join(["event_time,city,population", *rows, ""]))

    def head(self, daemon: Any) -> str:
        return str(daemon.dataset("cities")["head"])

    def follow(self, daemons: Sequence[Any], head: str) -> None:
        """Until they have it."""
        until(lambda: all(self.head(daemon) == head for daemon in daemons))


@pytest.fixture
def five(make_daemon: Callable[..., Any]) -> Iterator[Five]:
    """Alice has published; the others are in her network and mirror nothing yet."""
    try:
        with open_lan(len(NAMES), seed=5) as switch:
            daemons = []
            for place, name in zip(switch.places, NAMES, strict=True):
                listen = f"/ip4/{place.address}/tcp/4150"
                daemon = make_daemon(name, ODFD_NODE_NAME=name, ODFD_P2P_LISTEN=listen)
                daemon.small, daemon.inside = True, place.namespaces
                daemons.append(daemon)
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda daemon: daemon.start(), daemons))
            told: list[str] = []
            for daemon in daemons:
                daemon.ask("network", "join", "five", *(word for each in told for word in ("--bootstrap", each)))
                told = daemon.ask("status")["listen"]
            alice = daemons[0]
            (alice.folder / "m.yaml").write_text(ROOT)
            alice.ask("apply", "-f", str(alice.folder / "m.yaml"))
            world = Five(switch, daemons)
            world.publish()
            world.id = alice.dataset("cities")["id"]
            switch.weather = ROUGH
            yield world
    except NoLan as reason:
        pytest.skip(f"no network namespaces here: {reason}")


def test_a_partition_heals_and_a_mirror_serves_on_when_the_publisher_is_dead(five: Five) -> None:
    alice, bob, carol, dave, erin = five.daemons
    for daemon in (bob, carol, dave):
        assert with_state(daemon.ask("mirror", "add", five.id, "--as", "cities"))["state"] == "current"
    before = five.head(alice)

    five.switch.part({1, 2}, {3, 4, 5})
    cut_off = five.publish()
    five.follow([bob], cut_off)
    assert {five.head(daemon) for daemon in (carol, dave)} == {before}
    five.switch.heal()
    five.follow([carol, dave], cut_off)

    last = five.publish()
    five.follow([bob, carol, dave], last)
    alice.kill()
    mirror = with_state(erin.ask("mirror", "add", five.id, "--as", "cities"))
    assert (mirror["state"], mirror["serving"]) == ("current", True)
    assert five.head(erin) == last
    report = erin.ask("verify", "cities", "--level", "data")
    assert (report["ok"], report["head"]) == (True, last)
    assert five.switch.lost > 0, "the weather was fair"


def test_a_busy_publisher_is_followed_and_nobody_is_blamed(five: Five) -> None:
    """Twenty blocks a second: each mirror asks the others for what they do not have yet either."""
    _, *mirrors = five.daemons
    five.switch.weather = FAIR
    for daemon in mirrors:
        daemon.ask("mirror", "add", five.id, "--as", "cities")
    five.follow(mirrors, five.publish_many(BUSY))
    blamed = [line for daemon in five.daemons for line in daemon.told().splitlines() if "peer penalised" in line]
    assert not blamed


@dataclass(frozen=True)
class Use:
    """What a process has taken."""

    memory: int
    """Bytes resident."""
    files: int
    """Descriptors."""


def use_of(daemon: Any) -> Use:
    process = Path(f"/proc/{daemon.process.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Use(int(status["VmRSS"].split()[0]) << 10, len(list((process / "fd").iterdir())))


def grew(uses: Sequence[Use]) -> tuple[float, float]:
    """Bytes and descriptors of the last sixth beyond those of a sixth in the middle, when all has been used once."""
    sixth = max(1, len(uses) // 6)
    early, late = uses[2 * sixth : 3 * sixth], uses[-sixth:]
    memory = statistics.median(use.memory for use in late) - statistics.median(use.memory for use in early)
    files = statistics.median(use.files for use in late) - statistics.median(use.files for use in early)
    return memory, files


def _is_steady(name: str, uses: Sequence[Use]) -> bool:
    """Says what became of it, too."""
    memory, files = grew(uses)
    last = uses[-1]
    shown = f"{name}: {memory / 2**20:+.1f} MiB of {last.memory >> 20}, {files:+.0f} descriptors of {last.files}"
    print(f"{shown}, {len(uses)} rounds")
    return memory <= 0.05 * last.memory and files <= 4


@pytest.mark.skipif(not SOAK_SECONDS, reason="an hour; ODF_SOAK=1 runs it, ODF_SOAK_SECONDS says how long")
def test_an_hour_of_bad_weather_leaves_memory_and_descriptors_flat(five: Five) -> None:
    """Each round: other weather, a partition or a kill, one more block; then all agree. Dave is who is killed."""
    rng = Random(7)
    alice, *mirrors = five.daemons
    dave = mirrors[2]
    for daemon in mirrors:
        daemon.ask("mirror", "add", five.id, "--as", "cities")
    five.switch.weather = FAIR
    five.follow(mirrors, five.publish_many(FILLING))
    uses: dict[str, list[Use]] = {daemon.folder.name: [] for daemon in five.daemons if daemon is not dave}
    end = time.monotonic() + SOAK_SECONDS
    while time.monotonic() < end:
        five.switch.weather = Weather(rng.uniform(0, 0.05), rng.uniform(0, 0.05), rng.choice((0, 0.01, 0.03)))
        numbers = [1, 2, 3, 4, 5]
        rng.shuffle(numbers)
        half = rng.randint(0, 3)
        five.switch.part(numbers[:half], numbers[half:])
        if rng.random() < 0.3:
            dave.kill()
            dave.start()
        head = five.publish()
        five.switch.heal()
        five.follow(mirrors, head)
        for name, said in uses.items():
            said.append(use_of(next(daemon for daemon in five.daemons if daemon.folder.name == name)))
    steady = [_is_steady(name, said) for name, said in uses.items()]
    assert all(steady), uses.keys()
    for daemon in mirrors:
        assert daemon.ask("verify", "cities", "--level", "data")["ok"]
    assert alice.lives
