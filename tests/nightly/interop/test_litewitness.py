"""A public witness that others wrote, on loopback, cosigns what we publish, and we cosign a log that others wrote."""

from __future__ import annotations

import hashlib
import os
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from chain.ids import DatasetId, KeyDid
from chain.statements import checkpoint, cosignature, submission
from chain.statements.checkpoint import COSIGNATURE_KEY, TreeCheckpoint
from chain.statements.keys import SigningKey
from config import model
from odfd.policy.witness_quorum import read_witness
from odfd.services.trust.witness_submission import PAUSE, WitnessSubmission
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.mirror_specs import MirrorSpec
from p2p.web.client import Posts
from worlds import foreign, node_world
from worlds.eventually import PATIENCE, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TORCHWOOD = "v0.9.0"
SEED = b"w" * 32
NAME = "witness.example/w1"
VKEY = checkpoint.verifier_key(NAME, COSIGNATURE_KEY, SigningKey(SEED).public)


def built(name: str, source: str | Path) -> Path:
    """A program of torchwood, or over it, built if need be. Skips where there is no Go, or it cannot be fetched."""
    folder: Path = foreign.cache() / f"torchwood-{TORCHWOOD}"
    made = "" if isinstance(source, str) else hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    binary = folder / f"{name}{made}"
    with foreign.alone(folder):
        if not binary.exists():
            go = foreign.needed("go", name)
            (folder / "go.mod").write_text(f"module made.here\ngo 1.24\nrequire filippo.io/torchwood {TORCHWOOD}\n")
            foreign.fetch(name, go, "mod", "download", f"filippo.io/torchwood@{TORCHWOOD}", cwd=folder)
            sources = (
                Path(foreign.run(go, "env", "GOMODCACHE", cwd=folder).strip()) / f"filippo.io/torchwood@{TORCHWOOD}"
            )
            (folder / "go.sum").write_bytes((sources / "go.sum").read_bytes())
            target = folder / f"{name}.new"
            build = ("build", "-mod=mod", "-buildvcs=false", "-p", "2", "-o", str(target), str(source))
            foreign.fetch(name, go, *build, cwd=folder)
            target.rename(binary)
    return binary


def until_open(place: str | tuple[str, int]) -> None:
    """Until something listens there."""

    def is_open() -> bool:
        with socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET) as tried:
            return tried.connect_ex(place) == 0

    until(is_open)


@dataclass
class Lite:
    """A running litewitness."""

    url: str
    database: Path

    def know(self, log_key: str) -> None:
        """As ``witnessctl add-log`` does."""
        origin = checkpoint.decode_verifier_key(log_key).name
        with sqlite3.connect(self.database) as connection:
            empty = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
            connection.execute("INSERT INTO log (origin, tree_size, tree_hash) VALUES (?, 0, ?)", (origin, empty))
            connection.execute("INSERT INTO key (origin, key) VALUES (?, ?)", (origin, log_key))
        connection.close()

    def stands_at(self, origin: str) -> int:
        connection = sqlite3.connect(self.database)
        ((size,),) = connection.execute("SELECT tree_size FROM log WHERE origin = ?", (origin,))
        connection.close()
        return int(size)


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Lite]:
    binary = built("litewitness", "filippo.io/torchwood/cmd/litewitness")
    agent, add = foreign.needed("ssh-agent", "litewitness"), foreign.needed("ssh-add", "litewitness")
    secret = tmp_path / "key"
    key = Ed25519PrivateKey.from_private_bytes(SEED)
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    secret.chmod(0o600)
    agent_socket, database = str(tmp_path / "a"), tmp_path / "db"
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    hashed = hashlib.sha256(SigningKey(SEED).public).hexdigest()
    command = [
        str(binary), "-name", NAME, "-db", str(database), "-ssh-agent", agent_socket, "-listen", f"127.0.0.1:{port}",
        "-key", hashed,
    ]  # fmt: skip
    running: list[subprocess.Popen[bytes]] = []
    with (tmp_path / "log").open("wb") as log:
        try:
            running.append(subprocess.Popen([agent, "-D", "-a", agent_socket], stdout=log, stderr=log))
            until_open(agent_socket)
            environ = {**os.environ, "SSH_AUTH_SOCK": agent_socket}
            subprocess.run([add, str(secret)], env=environ, check=True, capture_output=True)
            running.append(subprocess.Popen(command, stdout=log, stderr=log))
            until_open(("127.0.0.1", port))
            yield Lite(f"http://127.0.0.1:{port}", database)
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait(PATIENCE)


def cosigned(node: Any, dataset: DatasetId) -> list[cosignature.Cosignature]:
    with node.home.database.read() as connection:
        return Cosignatures(connection).of(dataset)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Any]:
    made = node_world.World(tmp_path)
    yield made
    made.close()


async def test_a_litewitness_cosigns_what_we_publish(lite: Lite, world: Any) -> None:
    """Unknown first, then from nothing, then from where it stands, then once more; a newcomer counts what it signed."""
    witness = read_witness(f"{VKEY} {lite.url}")
    lists = model.Policy(witness=model.Witness(quorum=1, groups=(model.Group(name="w1", keys=(VKEY,)),)))

    def write(number: int) -> None:
        world.write("alice", f"{number}.csv", f"2024-02-0{number}T00:00:00Z,Wels,{number}")

    world.clock.instant = time.time_ns()  # cosignatures are dated by the machine's clock
    write(1)
    async with world.running("alice") as alice, Posts() as posts:
        await alice.apply(node_world.ROOT)
        await alice.pull()
        cities = alice.dataset("cities")
        made = alice.submissions()
        submissions = WitnessSubmission(
            made._home, lambda: (witness,), world.clock, made._cosigned, alice.logger, posts
        )  # fmt: skip
        tree = TreeCheckpoint(cities, 0, 1, b"r" * 32)

        async def round_after(seconds: float) -> list[tuple[KeyDid, int]]:
            world.clock.instant += int(seconds * 1e9)
            submissions.loop.touch(cities)
            await submissions._round()
            return [(each.witness, each.checkpoint.size) for each in cosigned(alice, cities)]

        assert await round_after(0) == []
        assert "does not know this log" in submissions.miss(tree.origin, witness.did).why
        (told,) = [str(values["log_key"]) for said, values in alice.logger.said if "public witness" in said]
        assert told == submission.log_key(tree, alice.home.keys.dataset_key(cities).public).encode()
        lite.know(told)

        assert await round_after(2 * 3600) == [(witness.did, alice.size("cities"))]
        for number in (2, 3):
            write(number)
            await alice.pull("cities")
        assert await round_after(PAUSE) == [(witness.did, alice.size("cities"))]
        assert lite.stands_at(tree.origin) == alice.size("cities")
        with alice.home.database.write() as connection:
            connection.execute("DELETE FROM trust_cosignatures")
        write(4)
        await alice.pull("cities")
        assert await round_after(PAUSE) == [(witness.did, alice.size("cities"))], "it told where it stands"
        assert submissions.miss(tree.origin, witness.did).why == ""

        async with world.running("carol", lists) as carol:
            await carol.parts.scheduler.add(MirrorSpec(dataset=str(cities), name="theirs"))
            with trio.fail_after(PATIENCE):
                await carol.parts.scheduler.pass_now(cities)
            assert (await carol.api.trust.show("theirs")).facts.met == "witnessed"


async def test_we_cosign_a_log_that_others_wrote(world: Any) -> None:
    """It has the dataset's key and knows our protocol by its specification; torchwood verifies what it is given."""
    log = await trio.to_thread.run_sync(built, "log", Path(__file__).with_name("log.go"))
    seed = SigningKey(b"d" * 32)
    policy = model.Policy(publish=model.Publish(witness=(str(seed.dataset_id),)))
    world.clock.instant = time.time_ns()
    http = model.Http(listen=("127.0.0.1:0",), witness=True)
    async with world.running("witness", policy, http=http) as witness:
        key = witness.home.keys.node_key()
        vkey = checkpoint.verifier_key(str(key.did), COSIGNATURE_KEY, key.public)
        url = f"{witness.parts.site.urls[0]}/witness"
        command = [str(log), url, f"{seed.dataset_id}/0", (b"d" * 32).hex(), vkey]
        with trio.fail_after(PATIENCE):
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert done.stdout.decode().splitlines() == [
            "1 200", "3 200", "7 200", "12 200", "12 409 12", "15 422",
        ], done.stderr.decode()  # fmt: skip
        (kept,) = cosigned(witness, seed.dataset_id)
        assert (kept.witness, kept.checkpoint.size) == (key.did, 12)
