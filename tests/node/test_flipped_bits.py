"""One bit flips somewhere in a node's state directory: it is found and named, or it changed nothing anyone can ask for.

Whichever it is, nothing wrong is given to others, and nothing ends in a traceback. ODFD_FLIPS=5000 makes it a long run.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import trio

from chain.errors import Fault
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.state import load_state
from odfd.control import wire
from odfd.services.maintenance.doctor import Doctor
from odfd.store.references import objects_of
from odfd.verify.verify import VerificationRequest, verify_chain
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

FLIPS = int(os.environ.get("ODFD_FLIPS", "40"))
GOLDEN = Path(__file__).parents[1] / "golden" / "kamu"
BIG = tuple(f"2024-01-01T00:00:{number % 60:02}Z,{number * 7919 % 10**9:x}-{number},{number}" for number in range(8000))
KILLED = "killed"
"""Alice, at the end of a life that has not ended in order: what she did last is in the database's log alone."""
IDLE = ("lock", "control.token", "reserve")
"""Files that a life writes anew, or of which nothing is read."""
MISSED = "a fault"
"""In place of an answer that a fault was given for."""
Answers: TypeAlias = dict[str, Any]


class Truth:
    """What two nodes said before anything was spoilt: an owner with datasets of all kinds, and a mirror of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.datasets: dict[str, list[DatasetId]] = {}
        self.objects: dict[str, list[Multihash]] = {}
        self.answers: dict[str, Answers] = {}


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    made = Truth(tmp_path_factory.mktemp("truth"))

    async def live() -> None:
        world = World(made.folder)
        async with world.running("alice") as alice, world.running("bob") as bob:
            await alice.apply(ROOT, DERIVED)
            for name, rows in (("a.csv", BIG), ("b.csv", ("2024-01-03T00:00:00Z,Wels,60000",))):
                world.write("alice", name, *rows)
                await alice.pull()
            await alice.done(alice.api.flow.import_(wire.ImportRequest(source=str(GOLDEN / "airlines"))))
            await world.spread(alice, "cities", "towns")
            for name in ("cities", "towns"):
                await bob.mirror(alice.dataset(name), name)
            for node in (alice, bob):
                for name in ("cities", "towns"):
                    assert (await node.done(node.api.verification.verify(name, wire.VerifyRequest()))).ok
            shutil.copytree(made.folder / "alice" / "state", made.folder / KILLED / "state")

    trio.run(live)
    # Being opened, it would be put in order.
    shutil.copytree(made.folder / KILLED, made.folder / "kept" / KILLED)
    for name in ("alice", "bob", KILLED):
        with opened(made.folder, name) as node:
            chains = node.home.chains
            made.datasets[name] = list(chains.datasets())
            made.objects[name] = [
                named
                for dataset in made.datasets[name]
                for number in range(chains.chain(dataset).snapshot().head.size)
                for named, _ in objects_of(chains.chain(dataset).block_at(number))
            ]
            made.answers[name] = answers(node, made, name)
            assert findings(node, made, name) == []
            assert node.home.recovery.was_killed is (name == KILLED)
    shutil.rmtree(made.folder / KILLED)
    shutil.move(made.folder / "kept" / KILLED, made.folder / KILLED)
    return made


class opened:
    """A node on a state directory, not running."""

    def __init__(self, folder: Path, name: str) -> None:
        self._world = World(folder)
        self._name = name

    def __enter__(self) -> Any:
        try:
            return self._world.node(self._name)
        except BaseException:
            self._world.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._world.close()


def answers(node: Node, truth: Truth, name: str) -> Answers:
    """Everything that others, and the parts of the node itself, can ask; MISSED where a fault is the answer."""
    found: Answers = {}

    def ask(what: str, question: Callable[[], Any]) -> None:
        try:
            found[what] = question()
        except Fault:
            found[what] = MISSED

    library, board = node.parts.library, node.parts.board
    told = truth.answers.get(name)
    for dataset in truth.datasets[name]:
        chain = node.home.chains.chain(dataset)
        ask(f"blocks {dataset}", lambda d=dataset: library.blocks(d, 0, 10**9))
        served = len((told or found)[f"blocks {dataset}"])
        if served:
            ask(f"proof {dataset}", lambda d=dataset, s=served: library.prove(d, s, old=2))
        ask(f"view {dataset}", lambda d=dataset: node.parts.views.dataset(entry(node, d)))
        ask(f"state {dataset}", lambda c=chain: load_state(c))
        ask(f"owned {dataset}", lambda d=dataset: node.home.keys.has_dataset_key(d))
    for each in truth.objects[name]:
        ask(f"object {each}", lambda o=each: (library.object_size(o), library.read_object(o, 0, 10**9)))
    ask("refs", lambda: sorted((bytes(ref.sid), bytes(ref.dataset)) for ref in board.refs()))
    for sid, _ in (told or found)["refs"]:
        ask(f"envelope {sid.hex()}", lambda s=sid: board.envelope(Multihash(s)))
    ask("names", lambda: [(each.name, each.id) for each in catalog(node)])
    ask("key", lambda: node.home.keys.node_seed())
    return found


def catalog(node: Node) -> list[Any]:
    with node.home.catalog() as catalog:
        return list(catalog.entries())


def entry(node: Node, dataset: DatasetId) -> Any:
    with node.home.catalog() as catalog:
        return catalog.resolve(str(dataset))


def findings(node: Node, truth: Truth, name: str) -> list[str]:
    """What verification and the doctor say."""
    found: list[str] = []
    for dataset in truth.datasets[name]:
        try:
            report = verify_chain(
                node.home.chains.chain(dataset), node.home.objects, VerificationRequest(ref="x", workers=1)
            )
            found += [f"verify: {failure.rule}: {failure.message}" for failure in report.failures]
        except Fault as fault:
            found.append(f"verify: {fault.rule}: {fault}")
    clock = wire.Probe(name="clock", result="ok", message="")
    for probe in Doctor(node.home, node.parts.visibility, dict, {"clock": lambda: clock}).deep():
        if probe.result == "failed":
            assert probe.hint, probe
            found.append(f"{probe.name}: {probe.message}")
    return found


def check_given(got: Answers, truth: Answers, story: str) -> None:
    """What leaves is true, or does not leave."""
    for what, answer in got.items():
        kind = what.split(" ", maxsplit=1)[0]
        if answer == MISSED or kind not in ("blocks", "proof", "object", "envelope"):
            continue
        if kind == "blocks":
            assert answer == truth[what][: len(answer)], f"{story}: {what} is wrong"
        else:
            assert answer in (truth[what], None), f"{story}: {what} is wrong"


def victims(folder: Path, only: str) -> Iterator[tuple[Path, int]]:
    """Files, with their weights: much of what could be wrong is in few bytes."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size]
    for file in files:
        if ".small" not in file.parts and file.name not in IDLE and file.name.startswith(only):
            yield file, {"keys": 400, "objects": 1500}.get(file.relative_to(folder).parts[0], 12_000)


def flip(lot: random.Random, folder: Path, home: Path, only: str) -> str:
    files = list(victims(home, only))
    chosen = lot.choices([file for file, _ in files], [weight for _, weight in files])[0]
    victim = folder / chosen.relative_to(home)
    victim.chmod(0o644)
    raw, bit = victim.read_bytes(), lot.randrange(8)
    # Most of a small database is room for more.
    used = np.flatnonzero(np.frombuffer(raw, np.uint8))
    at = int(used[lot.randrange(len(used))]) if lot.random() < 0.8 else lot.randrange(len(raw))
    with victim.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    return f"{chosen.relative_to(home)}, byte {at}, bit {bit}"


def outcomes(seeds: range, name: str, only: str, truth: Truth, folder: Path) -> Counter[str]:
    """One flip a seed in a file of a copy of this node's state, whose name begins so; how each ended."""
    ends: Counter[str] = Counter()
    for seed in seeds:
        lot = random.Random(f"flip/{seed}")
        copy = folder / name / "state"
        shutil.copytree(truth.folder / name / "state", copy)
        story = f"seed {seed}: {name}: {flip(lot, copy, truth.folder / name / 'state', only)}"
        try:
            with opened(folder, name) as node:
                got = answers(node, truth, name)
                check_given(got, truth.answers[name], story)
                found = findings(node, truth, name)
                if not found:
                    wrong = [what for what, answer in got.items() if answer != truth.answers[name][what]]
                    assert not wrong, f"{story}: nothing is found, and {wrong[:3]} changed"
                ends["found" if found else "harmless"] += 1
        except Fault as fault:
            unclear = not ((fault.rule and fault.hint and "odfd.sqlite" in str(fault)) or ".key" in str(fault))
            ends[f"at start: {story}: {fault!r}" if unclear else "at start"] += 1
        finally:
            shutil.rmtree(folder / name)
    unclear = [end for end in ends if end.startswith("at start:")]
    assert not unclear, unclear
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4))
def test_every_flip_is_found_or_harmless(batch: int, truth: Truth, tmp_path: Path) -> None:
    ends: Counter[str] = Counter()
    for half, name in enumerate(("alice", "bob")):
        ends += outcomes(range(batch + 4 * half, FLIPS, 8), name, "", truth, tmp_path)
    assert ends["found"] > sum(ends.values()) / 3, "most flips hit nothing: the nodes are too empty to prove anything"


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(2))
def test_a_flip_in_the_log_of_a_killed_node_is_told(batch: int, truth: Truth, tmp_path: Path) -> None:
    """SQLite believes its log up to there and is silent about the rest: an older state is not taken for the newest."""
    ends = outcomes(range(batch, max(2, FLIPS // 4), 2), KILLED, "odfd.sqlite-wal", truth, tmp_path)
    assert ends["found"] > sum(ends.values()) / 3, ends
