"""Forty hostile identities of five addresses run every attack at once against three daemons with their own settings.

alice publishes; bob and carol mirror it, from her and from each other. She answers queries, pushes and webhooks too;
carol has chosen a relay that is hostile, and mirrors what it publishes; dave, who is in no network, has an engine of
Spark, and reads hostile files. The same is measured for a while without attackers, in the same run, and printed beside.
``ODF_SOAK`` runs it for a minute, ``ODF_SIEGE_SECONDS`` for so long.

Not as a daemon is installed: the engine is the small one, so that a commit is no JVM's start, files are whole when they
are named, datasets are published at once, and a site is open. Network, budgets and limits have their defaults. Honest
nodes share 127.0.0.1, which makes it harder for them. Attackers have a lower priority, since real ones bring
machines of their own: what is printed says how long a loop waited for a processor, and how much was sent.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from chain.instant import Instant
from odfd.cli.kinds import with_state
from odfd.control import calls, wire
from odfd.control.client import ControlClient
from odfd.network.invitation import read_invitation
from odfd.resources import registry
from p2p.identity import peer_of_did
from p2p.peers.book import UNRELIABLE
from worlds import siege_attacks, siege_doors, siege_host
from worlds.hostile import processor_seconds, sockets_at
from worlds.hostile_files import RECORD_BYTES, siege_files
from worlds.hostile_members import key_of
from worlds.manifests import HOOKED, ROOT
from worlds.ports import free_port
from worlds.siege_attacks import ANSWERS
from worlds.siege_host import HOST, WIDTHS, dataset_key
from worlds.siege_plan import OPENED, TOLD, Plan
from worlds.web_site import Site

TREE = Path(__file__).parents[3]
SECRET = "what only this machine knows"
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
NAMES = (*siege_attacks.NAMES, *siege_doors.NAMES, *siege_host.NAMES, "bursts of connections")
"""Attacks, each of which is sent while the siege lasts."""
WIDE = "wide blocks"
"""Sent when they are asked for."""
ANSWERING = 4
"""Identities that lie and drip when they are asked, and do nothing else."""
EVERY = 2.0
"""Seconds between two commits."""
COMMAND = 5.0
"""Seconds between two commands."""
PATIENCE = 300
WAIT = 45.0
"""Seconds for a mirror of a hostile chain."""
MEMORY = 512 << 20
"""Bytes resident of a daemon."""
DESCRIPTORS = 512
THREADS = 64
SOCKETS = 64 + 64
"""At the port of a network: ``p2p.max-peers``, and those in handshake."""
DISK = 64 << 20
"""Bytes that a siege may add beside what alice commits, on each node, its log included."""
BOUNDS = {"memory": MEMORY, "descriptors": DESCRIPTORS, "threads": THREADS, "sockets": SOCKETS}
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
    commits: list[float] = field(default_factory=list)
    heads: list[float] = field(default_factory=list)
    most: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in BOUNDS})
    """Of each of ``BOUNDS``, by node."""
    refused: Counter[str] = field(default_factory=Counter)
    """Hostile files by how they came and what they are, and hostile chains."""
    answered: int = 0
    """The owner's own queries."""
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
        for name in ("status", "commands", "commits", "heads"):
            said = getattr(self, name)
            shown = ", ".join(f"p{int(part * 100)} {share(said, part) * 1000:.0f}" for part in (0.5, 0.9, 0.99))
            yield f"{name}: {shown}, worst {max(said, default=0) * 1000:.0f} ms, of {len(said)}"
        for name in self.disk:
            disk, memory, logged = (each[name] / 2**20 for each in (self.disk, self.most["memory"], self.logged))
            yield (
                f"{name}: {memory:.0f} MiB at most, {self.processor[name]:.2f} of a core, waited for one "
                f"{self.waited[name]:.2f} of the time, {disk:+.1f} MiB of disk, {logged:+.1f} MiB of log; "
                + ", ".join(f"{kind} {self.most[kind][name]}" for kind in ("descriptors", "threads", "sockets"))
            )
        load = f"load {min(self.load):.0f} to {max(self.load):.0f}"
        yield f"honest peer missing in {self.missing} of {self.looks} looks; {load}"


@dataclass
class Town:
    """Three honest nodes of a network, and one that reads files. ``over``: what is being measured has ended."""

    daemons: list[Any]
    reader: Any
    host: str
    """The address of the hostile host that carol knows."""
    token: str
    """Of an invitation that was redeemed."""
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

    def client(self, number: int) -> ControlClient:
        return ControlClient(self.daemons[number].socket)

    def blocks(self, client: ControlClient) -> int:
        return client.do(calls.datasets_describe("cities")).value.dataset.blocks

    def commit(self, client: ControlClient) -> None:
        """One more file, and a pull over the socket."""
        self.files += 1
        file = self.daemons[0].folder / f"{self.files:05}.csv"
        file.write_text(f"event_time,city,population\n2024-01-01T00:00:00Z,c{self.files},{self.files}\n")
        task = client.do(calls.flow_pull(wire.PullRequest(refs=("cities",)))).value
        *_, last = client.stream(calls.tasks_follow(task.id))
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
        seen = first = self.blocks(client)
        arrived: dict[int, float] = {}
        while not (self.published.is_set() and seen >= max(self.signed)):
            now, blocks = time.monotonic(), self.blocks(client)
            arrived |= dict.fromkeys(range(seen + 1, blocks + 1), now)
            seen = max(seen, blocks)
            assert now < self.ends + PATIENCE, f"{self.daemons[number].folder.name} has {seen} of {max(self.signed)}"
            time.sleep(0.1)
        # A mirror may have a block before alice has told how many she has.
        self.figures.heads += [max(0.0, arrived[each] - at) for each, at in self.signed.items() if each > first]

    def ask(self, number: int) -> None:
        """What ``odfctl status`` asks, and whether the honest peers are there."""
        client = self.client(number)
        others = set(self.peers[1:]) if number == 0 else {self.peers[0]}
        while not self.over.is_set():
            began = time.monotonic()
            client.do(calls.about_status())
            self.figures.status.append(time.monotonic() - began)
            self.figures.looks += 1
            self.figures.missing += not others <= self.connected(number)
            self.over.wait(0.5)

    def command(self) -> None:
        while not self.over.is_set():
            for daemon in self.daemons:
                began = time.monotonic()
                assert daemon.ctl("status").code == 0
                self.figures.commands.append(time.monotonic() - began)
                self.over.wait(COMMAND)

    def connected(self, number: int) -> set[str]:
        told = self.client(number).do(calls.resources_all(registry.PEER)).value.items
        return {peer.name for peer in told if peer.state(wire.PeerState).connected}

    def weigh(self) -> None:
        while not self.over.is_set():
            for daemon in (*self.daemons, self.reader):
                name = daemon.folder.name
                for kind, size in weight(daemon).items():
                    self.figures.most[kind][name] = max(self.figures.most[kind][name], size)
            self.figures.load.append(os.getloadavg()[0])
            self.over.wait(1)

    def question(self) -> None:
        """The owner's queries are answered, whatever strangers ask."""
        while not self.over.is_set():
            said = self.daemons[0].ctl("sql", "select count(*) as n from cities", "-o", "json")
            assert said.code == 0, said.err
            self.figures.answered += 1
            self.over.wait(COMMAND)

    def adopt(self) -> None:
        """carol mirrors what the hostile host publishes, and gives it up."""
        carol = self.daemons[2]
        for turn, number in enumerate(cycle(range(len(WIDTHS)))):
            if self.over.is_set() and turn >= len(WIDTHS):
                break
            wide = str(dataset_key(number).dataset_id)
            self.figures.refused[f"chain of {WIDTHS[number]} columns {adopted(carol, wide)}"] += 1
            for words in (
                ("describe", "wide"),
                ("verify", "wide"),
                ("mirror", "remove", "wide"),
                ("delete", "wide", "-y"),
            ):
                carol.ctl(*words)
            self.over.wait(COMMAND)

    def read(self, site: Site) -> None:
        """dave reads hostile files of the web and of people who push, and takes an honest one after each."""
        files = siege_files(self.reader.folder / "secret")
        for number, file in enumerate(cycle(files)):
            if self.over.is_set() and number >= len(files):
                break
            for words in (
                ("pull", f"polled-{file.name}"),
                ("ingest", f"pushed-{file.name}", str(site.folder / file.name)),
            ):
                if words[0] == "pull" or file.prepare == "[]":
                    said = self.reader.ctl(*words)
                    assert said.code != 0, (words, said.out)
                    assert SECRET not in said.out + said.err
                    self.figures.refused[words[1]] += 1
            honest = self.reader.folder / "honest.csv"
            honest.write_text(f"n\n{number}\n")
            said = self.reader.ctl("ingest", "honest", str(honest), "--id", f"{self.files}-{number}")
            assert said.code == 0, said.err
            self.over.wait(1)

    def stand(self, seconds: float, *more: Callable[[], None]) -> Figures:
        """Everything is watched while it lasts; then all that was signed arrives. ``more``: what is done beside."""
        self.figures = figures = Figures()
        self.over, self.published = Event(), Event()
        began = time.monotonic()
        self.ends = began + seconds
        jobs: list[Callable[[], None]] = [self.publish, self.weigh, self.command, self.question, *more]
        jobs += [lambda number=number: self.follow(number) for number in (1, 2)]  # type: ignore[misc]
        jobs += [lambda number=number: self.ask(number) for number in (0, 1, 2)]  # type: ignore[misc]
        everybody = [*self.daemons, self.reader]
        before = {daemon.folder.name: spent(daemon) for daemon in everybody}
        with ThreadPoolExecutor(len(jobs)) as pool:
            running = [pool.submit(job) for job in jobs]
            while time.monotonic() < self.ends and not any(one.done() for one in running):
                time.sleep(0.2)
            self.over.set()
            broken = [fault for one in running if (fault := one.exception()) is not None]
        took = time.monotonic() - began
        for daemon in everybody:
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


def adopted(daemon: Any, dataset: str) -> str:
    """Returns how far a mirror came, in the time that a person would wait for it."""
    words = [sys.executable, "-m", "odfd.cli.main", "--socket", str(daemon.socket)]
    words += ["mirror", "add", dataset, "--as", "wide"]
    environ, nothing = {**os.environ, **daemon.environ}, subprocess.DEVNULL
    with subprocess.Popen(words, stdout=nothing, stderr=nothing, env=environ) as adding:
        try:
            code = adding.wait(WAIT)
        except subprocess.TimeoutExpired:
            adding.kill()
            return "waited for"
        return "current" if code == 0 else "refused"


def weight(daemon: Any) -> dict[str, int]:
    """What a daemon has now, of each of ``BOUNDS``."""
    pid = daemon.process.pid
    status = Path(f"/proc/{pid}/status").read_text()
    resident, threads = (int(status.partition(name)[2].split()[0]) for name in ("VmRSS:", "Threads:"))
    listens = re.search(r"/tcp/(\d+)/p2p/", str(daemon.listens))
    return {
        "memory": resident << 10, "threads": threads, "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "sockets": sockets_at(int(listens[1])) if listens else 0,
    }  # fmt: skip


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


SOURCE = """$schema: Dataset
headers: {{name: {name}}}
spec:
  kind: Root
  metadata: [{{kind: {event}, read: {read}, merge: {{kind: Append}}}}]
"""


def sources(site: Site, secret: Path) -> str:
    """Manifests of datasets that poll and that take each hostile file, and of an honest one."""
    pushed = "AddPushSource, sourceName: gate"
    manifests = [SOURCE.format(name="honest", event=pushed, read="{kind: Csv, header: true, ddlSchema: ['n BIGINT']}")]
    for file in siege_files(secret):
        (site.folder / file.name).write_bytes(file.content)
        fetch = f"fetch: {{kind: Url, url: '{site.url}/{file.name}'}}, prepare: {file.prepare}"
        manifests.append(SOURCE.format(name=f"polled-{file.name}", event=f"SetPollingSource, {fetch}", read=file.read))
        if file.prepare == "[]":
            manifests.append(SOURCE.format(name=f"pushed-{file.name}", event=pushed, read=file.read))
    return "---\n".join(manifests)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (folder := tmp_path / "web").mkdir()
    with Site(folder).open() as opened:
        yield opened


@pytest.fixture
def town(make_daemon: Callable[..., Any], site: Site) -> Town:
    host = f"/ip4/127.0.9.1/tcp/{free_port()}/p2p/{peer_of_did(key_of(HOST).did)}"
    doors = {f"ODFD_HTTP_{name}": "true" for name in ("QUERY", "PROVE", "PUSH")}
    common = {"ODFD_HTTP_LISTEN": "127.0.0.1:0", "ODFD_P2P_LOOKUP": "on"}
    alice = make_daemon("alice", listens=True, ODFD_API_LISTEN="127.0.0.1:0", **doors, **common)
    bob = make_daemon("bob", listens=True, **common)
    carol = make_daemon("carol", listens=True, ODFD_P2P_RELAYS=host, **common)
    dave = make_daemon("dave", ODFD_INGEST_RECORD_BYTES=str(RECORD_BYTES))
    daemons = [alice, bob, carol]
    for daemon in daemons:
        daemon.small = True
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda daemon: daemon.start(), [*daemons, dave]))
    for daemon in (*daemons, dave):
        daemon.listens = daemon.ask("status")["listen"]
    (dave.folder / "secret").write_text(SECRET)
    (dave.folder / "m.yaml").write_text(sources(site, dave.folder / "secret"))
    dave.ask("apply", "-f", str(dave.folder / "m.yaml"))
    alice.ask("network", "join", NETWORK)
    line = alice.said("network", "invite", NETWORK, "--uses", "1").out.strip()
    assert bob.said("join", "-y", line).code == 0
    carol.ask("network", "join", NETWORK, "--bootstrap", alice.listens[0])
    (alice.folder / "m.yaml").write_text(f"{ROOT}---\n{HOOKED}")
    alice.ask("apply", "-f", str(alice.folder / "m.yaml"))
    token = read_invitation(line, Instant(time.time_ns())).token
    assert token is not None
    made = Town(daemons, dave, host, token)
    made.commit(made.client(0))
    dataset = alice.dataset("cities")["id"]
    for daemon in (bob, carol):
        assert with_state(daemon.ask("mirror", "add", dataset, "--as", "cities"))["state"] == "current"
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
    alice = town.daemons[0]
    told = alice.ask("status")
    site, api = (told[each][0].rstrip("/").rpartition("/")[2] for each in ("http", "api"))
    dataset = alice.dataset("cities")["id"]
    targets = tuple(daemon.listens[0] for daemon in town.daemons)
    path = os.pathsep.join(map(str, (TREE, TREE / "tests")))
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    army = Besiegers([], [])

    def attack(address: str, name: str, least: int, **more: Any) -> None:
        plan = Plan(
            address=address, network=NETWORK, dataset=dataset, targets=targets, site=site, name="cities", api=api,
            token=town.token, secrets=(str(alice.state), str(Path.home())), **more,
        )  # fmt: skip
        said = msgspec.json.encode(plan).decode()
        words = ["nice", "-n", str(least), sys.executable, "-m", "worlds.besieger", said]
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
        attack(ADDRESSES[0], "answers", 0, identities=ANSWERING, role="answers")
        attack("127.0.9.1", "host", 0, role="host", listen=town.host)
        until_sent(ANSWERS)
        for address in ADDRESSES:
            attack(address, address, 10, identities=8 - ANSWERING * (address == ADDRESSES[0]))
        attack("127.1.0.1", "bursts", 10, role="bursts")
        until_sent(set(NAMES) - {WIDE})
        yield army
    finally:
        for process in army.processes:
            process.kill()
            process.wait()


def test_forty_identities_of_five_addresses_stop_nobody(town: Town, site: Site, tmp_path: Path) -> None:
    """Attack T-PEER-03: all kinds of floods at once: forty identities of five addresses, with a new key every half a
    minute, for any time.

    Defence: the node keeps its limits, with a daemon's defaults; the cost is measured against the same time without the
    attack.
    """
    calm = town.stand(BEFORE)
    print(f"\n{BEFORE:.0f} s without attackers", *calm.lines(), sep="\n", flush=True)
    with besieged(town, tmp_path) as army:
        before = army.sent()
        asked = len(site.asked)
        figures = town.stand(SECONDS, town.adopt, partial(town.read, site))
        print(f"{SECONDS:.0f} s of siege", *figures.lines(), sep="\n", flush=True)
        sent = army.sent() - before
    for counted in (sent, figures.refused):
        print(", ".join(f"{name} {count}" for name, count in sorted(counted.items())))
    # Answers wait for a question: that those who lie and drip are asked no more is what a node is to do. Before
    # the siege begins each of them was sent once.
    assert not [name for name in NAMES if name not in ANSWERS and not sent[name]]
    assert len(site.asked) > asked
    assert not [file.name for file in siege_files(tmp_path) if not figures.refused[f"polled-{file.name}"]]
    assert not figures.refused[f"chain of {WIDTHS[0]} columns current"]
    assert (sent[OPENED], sent[TOLD]) == (0, 0)
    assert figures.answered > 0
    assert all(daemon.lives for daemon in (*town.daemons, town.reader))
    for told in (calm, figures):
        assert len(told.heads) == 2 * len(told.commits) > 0, "each mirror has each head"
    assert not town.blamed()
    assert town.connected(0) >= set(town.peers[1:])
    assert all(town.peers[0] in town.connected(number) for number in (1, 2))
    for kind, most in BOUNDS.items():
        assert max(figures.most[kind].values()) < most, kind
    assert max(figures.disk[name] + figures.logged[name] for name in figures.disk) < DISK + 64 * 2**10 * town.files
    assert figures.missing <= LOST * figures.looks
    had = 1.0 - max(figures.waited.values())  # of the time that a loop wanted a processor, which others want too
    assert share(figures.status, 0.99) < 0.5 / had
    assert share(figures.heads, 0.99) < 5 / had
