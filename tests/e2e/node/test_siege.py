"""Forty hostile identities of five addresses run every attack at once against three daemons with their own settings.

alice publishes; bob and carol mirror it, from her and from each other. The same is measured for a while without
attackers, in the same run, and printed beside. ``ODF_SOAK`` runs it for a minute, ``ODF_SIEGE_SECONDS`` for so long.

Not as a daemon is installed: the engine is the small one, so that a commit is no JVM's start, files are whole when they
are named, datasets are published at once, and a site is open. Network, budgets and limits have their defaults. Honest
nodes share 127.0.0.1, which makes it harder for them. Attackers have a lower priority, since real ones bring
machines of their own: what is printed says how long a loop waited for a processor, and how much was sent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from odfd.control import wire
from odfd.control.client import Client
from p2p.peers.book import UNRELIABLE
from worlds.hostile import processor_seconds
from worlds.manifests import ROOT
from worlds.siege_attacks import ANSWERS, NAMES, Plan

TREE = Path(__file__).parents[3]
SMALL = Path(__file__).with_name("small_node.py")
SECONDS = float(os.environ.get("ODF_SIEGE_SECONDS", "60"))
BEFORE = min(60.0, max(15.0, SECONDS / 10))
"""Seconds without attackers."""
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(SECONDS * 2 + 600),
    pytest.mark.skipif("ODF_SOAK" not in os.environ, reason="stands for a minute and more; ODF_SOAK=1 runs it"),
]
NETWORK = "siege"
ADDRESSES = tuple(f"127.0.{number}.1" for number in range(2, 7))
ANSWERING = 4
"""Identities that lie and drip when they are asked, and do nothing else."""
EVERY = 2.0
"""Seconds between two commits."""
COMMAND = 5.0
"""Seconds between two commands."""
PATIENCE = 300
MEMORY = 512 << 20
"""Bytes resident of a daemon."""
DISK = 64 << 20
"""Bytes that a siege may add beside what alice commits, on each node, its log included."""
LOST = 0.01
"""Part of the looks at a node in which an honest peer may be missing: it is there again at the next."""


def share(figures: list[float], part: float) -> float:
    """The figure that so many of them do not exceed."""
    return sorted(figures)[min(len(figures) - 1, int(part * len(figures)))] if figures else float("nan")


@dataclass
class Figures:
    """What was measured, in seconds and bytes."""

    status: list[float] = field(default_factory=list)
    """Over the socket."""
    commands: list[float] = field(default_factory=list)
    """``odfctl status``, a process of its own each time."""
    computed: list[float] = field(default_factory=list)
    """Of that, what it had of a processor: the rest it waited for one, or for the daemon."""
    commits: list[float] = field(default_factory=list)
    heads: list[float] = field(default_factory=list)
    memory: Counter[str] = field(default_factory=Counter)
    processor: dict[str, float] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    """Part of the time in which the loop could run and had no processor: others had them."""
    disk: dict[str, int] = field(default_factory=dict)
    logged: dict[str, int] = field(default_factory=dict)
    looks: int = 0
    missing: int = 0
    """Looks at a node's peers in which an honest one was not there."""
    load: list[float] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        for name in ("status", "commands", "computed", "commits", "heads"):
            said = getattr(self, name)
            shown = ", ".join(f"p{int(part * 100)} {share(said, part) * 1000:.0f}" for part in (0.5, 0.9, 0.99))
            yield f"{name}: {shown}, worst {max(said, default=0) * 1000:.0f} ms, of {len(said)}"
        for name in self.memory:
            disk, memory, logged = self.disk[name] / 2**20, self.memory[name] / 2**20, self.logged[name] / 2**20
            yield (
                f"{name}: {memory:.0f} MiB at most, {self.processor[name]:.2f} of a core, waited for one "
                f"{self.waited[name]:.2f} of the time, {disk:+.1f} MiB of disk, {logged:+.1f} MiB of log"
            )
        load = f"load {min(self.load):.0f} to {max(self.load):.0f}"
        yield f"honest peer missing in {self.missing} of {self.looks} looks; {load}"


@dataclass
class Town:
    """Three honest nodes. ``over``: what is being measured has ended."""

    daemons: list[Any]
    files: int = 0
    over: Event = field(default_factory=Event)
    published: Event = field(default_factory=Event)
    """The last commit has ended."""
    figures: Figures = field(default_factory=Figures)
    signed: dict[int, float] = field(default_factory=dict)
    """When alice had so many blocks."""
    ends: float = 0.0

    def __post_init__(self) -> None:
        self.peers = [daemon.ask("status")["listen"][0].rpartition("/")[2] for daemon in self.daemons]

    def client(self, number: int) -> Client:
        return Client(self.daemons[number].socket)

    def blocks(self, client: Client) -> int:
        return client.get("/node/v1alpha1/datasets/cities", wire.DatasetView).value.blocks

    def commit(self, client: Client) -> None:
        """One more file, and a pull over the socket."""
        self.files += 1
        file = self.daemons[0].folder / f"{self.files:05}.csv"
        file.write_text(f"event_time,city,population\n2024-01-01T00:00:00Z,c{self.files},{self.files}\n")
        task = client.post("/node/v1alpha1/pull", wire.TaskRef, wire.PullRequest(refs=("cities",))).value
        *_, last = client.stream(f"/node/v1alpha1/tasks/{task.id}", wire.TaskView, {"follow": "1"})
        assert [item["outcome"] for item in last.value.result["items"]] == ["updated"], last

    def publish(self) -> None:
        client = self.client(0)
        while not self.over.is_set():
            began = time.monotonic()
            self.commit(client)
            ended = time.monotonic()
            self.figures.commits.append(ended - began)
            self.signed[self.blocks(client)] = ended
            self.over.wait(max(0.0, EVERY - (ended - began)))
        self.published.set()

    def follow(self, number: int) -> None:
        """When a mirror has the blocks of a head, which is later than when it knows of it."""
        client = self.client(number)
        seen = self.blocks(client)
        while not (self.published.is_set() and seen >= max(self.signed)):
            now, blocks = time.monotonic(), self.blocks(client)
            for size in range(seen + 1, blocks + 1):
                if size in self.signed:
                    self.figures.heads.append(max(0.0, now - self.signed[size]))
            seen = max(seen, blocks)
            assert now < self.ends + PATIENCE, f"{self.daemons[number].folder.name} has {seen} of {max(self.signed)}"
            time.sleep(0.1)

    def ask(self, number: int) -> None:
        """What ``odfctl status`` asks, and whether the honest peers are there."""
        client = self.client(number)
        others = set(self.peers[1:]) if number == 0 else {self.peers[0]}
        while not self.over.is_set():
            began = time.monotonic()
            client.get("/node/v1alpha1/status", wire.Status)
            self.figures.status.append(time.monotonic() - began)
            self.figures.looks += 1
            self.figures.missing += not others <= self.connected(number)
            self.over.wait(0.5)

    def command(self) -> None:
        while not self.over.is_set():
            for daemon in self.daemons:
                began, before = time.monotonic(), os.times()
                assert daemon.ctl("status").code == 0
                self.figures.commands.append(time.monotonic() - began)
                now = os.times()
                self.figures.computed.append(
                    now.children_user + now.children_system - before.children_user - before.children_system
                )
                self.over.wait(COMMAND)

    def connected(self, number: int) -> set[str]:
        told = self.client(number).get("/node/v1alpha1/peers", list[wire.PeerInfo]).value
        return {peer.peer_id for peer in told if peer.connected}

    def weigh(self) -> None:
        while not self.over.is_set():
            for daemon in self.daemons:
                name, size = daemon.folder.name, resident(daemon.process.pid)
                self.figures.memory[name] = max(self.figures.memory[name], size)
            self.figures.load.append(os.getloadavg()[0])
            self.over.wait(1)

    def stand(self, seconds: float) -> Figures:
        """Everything is watched while it lasts; then all that was signed arrives."""
        self.figures = figures = Figures()
        self.over, self.published = Event(), Event()
        began = time.monotonic()
        self.ends = began + seconds
        jobs: list[Callable[[], None]] = [self.publish, self.weigh, self.command]
        jobs += [lambda number=number: self.follow(number) for number in (1, 2)]  # type: ignore[misc]
        jobs += [lambda number=number: self.ask(number) for number in (0, 1, 2)]  # type: ignore[misc]
        before = {daemon.folder.name: spent(daemon) for daemon in self.daemons}
        with ThreadPoolExecutor(len(jobs)) as pool:
            running = [pool.submit(job) for job in jobs]
            while time.monotonic() < self.ends and not any(one.done() for one in running):
                time.sleep(0.2)
            self.over.set()
            broken = [fault for one in running if (fault := one.exception()) is not None]
        took = time.monotonic() - began
        for daemon in self.daemons:
            name = daemon.folder.name
            processor, waited, size, logged = (
                now - then for now, then in zip(spent(daemon), before[name], strict=True)
            )
            figures.processor[name], figures.waited[name] = processor / took, waited / took
            figures.disk[name], figures.logged[name] = int(size), int(logged)
        if broken:
            print(*figures.lines(), sep="\n", flush=True)
            raise broken[0]
        return figures

    def blamed(self) -> list[str]:
        """What honest nodes hold against honest nodes, but an answer that was late."""
        lines = [line for daemon in self.daemons for line in daemon.told().splitlines() if "peer penalised" in line]
        told = [json.loads(line) for line in lines if line.startswith("{")]
        assert len(told) == len(lines), "the log is one of JSON"
        return [str(line) for line in told if line["peer"] in self.peers and line["weight"] > UNRELIABLE]


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def spent(daemon: Any) -> tuple[float, float, float, float]:
    """Seconds of processors, seconds in which the loop waited for one, bytes of the state directory and of the log."""
    pid = daemon.process.pid
    waited = int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
    return processor_seconds(pid), waited, float(size_of(daemon.state)), float(daemon.log.stat().st_size)


def size_of(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += file.lstat().st_size
    return total


@pytest.fixture
def town(make_daemon: Callable[..., Any]) -> Town:
    listens = {"ODFD_HTTP_LISTEN": "127.0.0.1:0"}
    daemons = [make_daemon(name, listens=True, **listens) for name in ("alice", "bob", "carol")]
    for daemon in daemons:
        daemon.program = [sys.executable, str(SMALL)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda daemon: daemon.start(), daemons))
    alice, *mirrors = daemons
    alice.ask("network", "join", NETWORK)
    for daemon in mirrors:
        daemon.ask("network", "join", NETWORK, "--bootstrap", alice.ask("status")["listen"][0])
    (alice.folder / "m.yaml").write_text(ROOT)
    alice.ask("apply", "-f", str(alice.folder / "m.yaml"))
    made = Town(daemons)
    made.commit(made.client(0))
    dataset = alice.ask("get", "dataset", "cities")["id"]
    for daemon in mirrors:
        assert daemon.ask("mirror", "add", dataset, "--as", "cities")["state"] == "current"
    return made


@dataclass
class Besiegers:
    """A process for each address."""

    processes: list[subprocess.Popen[bytes]]
    logs: list[Path]

    def sent(self) -> Counter[str]:
        """So far, as far as they have told."""
        assert all(process.poll() is None for process in self.processes), self.told()
        total: Counter[str] = Counter()
        for log in self.logs:
            lines = [line for line in log.read_text(errors="replace").split("\n")[:-1] if line.startswith("{")]
            total.update(json.loads(lines[-1]) if lines else {})
        return total

    def told(self) -> list[str]:
        return [log.read_text(errors="replace")[-2000:] for log in self.logs]


@contextmanager
def besieged(town: Town, folder: Path) -> Iterator[Besiegers]:
    """From the moment on at which each attack was sent at least once, until the block is left.

    alice commits meanwhile: some attacks are answers, and wait for mirrors to ask.
    """
    told = [daemon.ask("status") for daemon in town.daemons]
    site = told[0]["http"][0].rstrip("/").rpartition("/")[2]
    dataset = town.daemons[0].ask("get", "dataset", "cities")["id"]
    targets = tuple(each["listen"][0] for each in told)
    path = os.pathsep.join(map(str, (TREE, TREE / "tests")))
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    army = Besiegers([], [])

    def attack(address: str, name: str, least: int, **more: Any) -> None:
        plan = msgspec.json.encode(Plan(address, NETWORK, dataset, targets, site, "cities", **more)).decode()
        words = ["nice", "-n", str(least), sys.executable, "-m", "worlds.besieger", plan]
        army.logs.append(folder / f"{name}.log")
        with army.logs[-1].open("wb") as out:
            army.processes.append(subprocess.Popen(words, env=environ, stdout=out, stderr=out))

    def until_sent(names: Collection[str]) -> None:
        deadline = time.monotonic() + PATIENCE
        while unsent := {name for name in names if not army.sent()[name]}:
            assert time.monotonic() < deadline, f"never sent: {unsent}; {army.told()}"
            town.commit(town.client(0))
            time.sleep(1)

    try:
        # Those who answer come first, are asked as often as anybody, and do not wait for a processor behind the rest.
        attack(ADDRESSES[0], "answers", 0, identities=ANSWERING, answers=True)
        until_sent(ANSWERS)
        for address in ADDRESSES:
            attack(address, address, 10, identities=8 - ANSWERING * (address == ADDRESSES[0]))
        until_sent(NAMES)
        yield army
    finally:
        for process in army.processes:
            process.kill()
            process.wait()


def test_forty_identities_of_five_addresses_stop_nobody(town: Town, tmp_path: Path) -> None:
    calm = town.stand(BEFORE)
    print(f"\n{BEFORE:.0f} s without attackers", *calm.lines(), sep="\n", flush=True)
    with besieged(town, tmp_path) as army:
        before = army.sent()
        figures = town.stand(SECONDS)
        print(f"{SECONDS:.0f} s of siege", *figures.lines(), sep="\n", flush=True)
        sent = army.sent() - before
    print(", ".join(f"{name} {count}" for name, count in sorted(sent.items())))
    # Answers wait for a question: that those who lie and drip are asked no more is what a node is to do. Before
    # the siege begins each of them was sent once.
    assert not [name for name in NAMES if name not in ANSWERS and not sent[name]]
    assert all(daemon.lives for daemon in town.daemons)
    for told in (calm, figures):
        assert len(told.heads) == 2 * len(told.commits) > 0, "each mirror has each head"
    assert not town.blamed()
    assert town.connected(0) >= set(town.peers[1:])
    assert all(town.peers[0] in town.connected(number) for number in (1, 2))
    assert max(figures.memory.values()) < MEMORY
    assert max(figures.disk[name] + figures.logged[name] for name in figures.disk) < DISK + 64 * 2**10 * town.files
    assert figures.missing <= LOST * figures.looks
    assert share(figures.status, 0.99) < 0.5
    assert share(figures.commands, 0.99) < 0.5
    assert share(figures.heads, 0.99) < 5
