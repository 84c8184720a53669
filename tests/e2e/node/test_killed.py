"""``kill -9`` at durable steps of what a node does: the next start finds all or nothing, and work goes on."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sqlite3
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from chain.store.objects import SMALL
from odfd.cli.kinds import with_state
from odfd.runtime.tasks import Report
from odfd.services.maintenance.backup import BackupFolder
from odfd.services.maintenance.restore import choose, read_description
from odfd.services.maintenance.upgrade import table_changes
from odfd.services.resources.types import TYPES
from odfd.store.directory import DATABASE, LOCK_NAME, RESERVE, ROOMS, open_state_directory
from p2p.identity import did_of_seed, peer_of_seed
from worlds.eventually import PATIENCE, until
from worlds.forked import Forking
from worlds.kamu_program import SECRETS, Node, started
from worlds.manifests import BOTH
from worlds.ports import free_port
from worlds.small_node import follow_steps

# ``kill -9`` at durable steps of pulling and mirroring: the next start finds all well, and work goes on.


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
    """Attack T-DISK-02: a kill while slices move to a volume or back.

    Defence: a copy is noted before it is written; one transaction makes it the object's place and deletes the note; the
    local file is deleted last.
    """
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


# ``kill -9`` in the middle of an apply of datasets, a network, a validator and a mirror: all is there, or none.


DATASETS: Final = 3
INTENTS: Final = ("network", "validator", "mirror")
"""What concerns others is in the same transaction; also a peer, of which ``get`` lists those that are met."""
WRITTEN, DURABLE = 4, 5
"""Steps of the one transaction: all is written and not committed; it is committed."""


@pytest.mark.parametrize("step", [WRITTEN, DURABLE])
def test_all_datasets_of_a_killed_apply_are_there_or_none(
    make_daemon: Callable[..., Any], tmp_path: Path, step: int
) -> None:
    names = [f"d{number}" for number in range(DATASETS)]
    spec = "spec: {kind: Root, metadata: []}"
    manifests = [f"$schema: Dataset\nheaders: {{name: {name}}}\n{spec}\n" for name in names]
    manifests.append("$schema: VariableSet\nheaders: {name: v}\nspec: {variables: {x: '1'}}\n")
    manifests += [kind.example for word in INTENTS if (kind := TYPES.word(word)) is not None]
    (tmp_path / "m.yaml").write_text("---\n".join(manifests))
    daemon = make_daemon("a", KILL_AT=str(step), small=True)
    daemon.start()
    assert daemon.said("apply", "-f", str(tmp_path / "m.yaml")).code, "it was killed before it could answer"
    assert daemon.process.wait(PATIENCE) == -signal.SIGKILL
    daemon.process = None
    del daemon.more["KILL_AT"]
    daemon.start()
    expected = names if step == DURABLE else []
    assert [each["name"] for each in daemon.datasets() if each["name"] != "covid"] == expected
    for kind in ("vs", *INTENTS):
        assert len(daemon.ask("get", kind)) == bool(expected), kind
    items = daemon.ask("apply", "-f", str(tmp_path / "m.yaml"))["items"]
    assert {each["action"] for each in items} == {"unchanged" if expected else "created"}


# ``kill -9`` before and after what a deleted resource made is undone: the next start does it.


KEY, PEER = did_of_seed(b"s" * 32), peer_of_seed(b"s" * 32)
DID: Final = f"did:odf:fed01{'ab' * 32}"
GONE: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "Dataset": ("{name: cities}\nspec: {kind: Root, metadata: []}", ("delete", "dataset", "cities", "--yes")),
    "Mirror": (f"{{name: theirs}}\nspec: {{source: '{DID}'}}", ("mirror", "remove", "theirs")),
    "Network": ("{name: demo}\nspec: {bootstrap: []}", ("network", "leave", "demo")),
    "Peer": (f"{{name: other}}\nspec: {{peerId: {PEER}, blocked: true}}", ("peer", "unblock", PEER)),
    "Validator": (f"{{name: v}}\nspec: {{did: '{KEY}', group: others}}", ("trust", "validator", "remove", str(KEY))),
}  # fmt: skip
"""Manifests, without their types, and the commands that delete what they declare."""


def ids(daemon: Any, table: str, type_: str) -> list[str]:
    """Lists the resources of a type in a table of the store."""
    with closing(sqlite3.connect(daemon.state / "odfd.sqlite")) as connection:
        return [row[0] for row in connection.execute(f"SELECT id FROM {table} WHERE {type_}")]


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_deleted_when_the_node_was_killed_is_undone_after_the_next_start(
    make_daemon: Callable[..., Any], tmp_path: Path, when: str
) -> None:
    daemon = make_daemon("a", listens=True, small=True)
    file = tmp_path / "m.yaml"
    file.write_text("\n---\n".join(f"$schema: {word}\nheaders: {text}" for word, (text, _) in GONE.items()))
    daemon.start()
    assert {each["action"] for each in daemon.ask("apply", "-f", str(file))["items"]} == {"created"}
    for word, (_, command) in reversed(GONE.items()):
        daemon.kill()
        daemon.more["KILL_FINALIZER"] = when
        daemon.start()
        del daemon.more["KILL_FINALIZER"]
        assert daemon.ctl(*command).code, "it was killed before it could answer"
        assert daemon.process.wait(PATIENCE) == -signal.SIGKILL
        daemon.process = None
        assert ids(daemon, "res_deleting", "TRUE")
        assert not ids(daemon, "declarations", f"type = '{word}' AND name <> 'theirs'")
        daemon.start()
        until(lambda: not ids(daemon, "res_deleting", "TRUE"))
    actions = [each["action"] for each in daemon.ask("apply", "-f", str(file))["items"]]
    assert actions == ["created"] * len(GONE)
    assert daemon.ask("get", "unmanaged")[0]["name"] == "cities"


# ``kill -9`` of real processes after each effect of a rendition and its handover: the next one goes on there.


SMALL_FILES: Final = 3
OVER: Final = ("rendition", "handover", "cities", "1", "--id", "over")
COMMANDS: Final = (("rendition", "create", "cities", "--id", "anew"), OVER)
MANIFEST: Final = """kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: 'FOLDER/*.csv', order: ByName}
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: MERGE
"""


def declared(daemon: Any, folder: Path, merge: str) -> None:
    (folder / "m.yaml").write_text(MANIFEST.replace("FOLDER", str(folder)).replace("MERGE", merge))
    daemon.ask("apply", "-f", str(folder / "m.yaml"))


def life(daemon: Any, effect: int, commands: Sequence[Sequence[str]] = COMMANDS) -> bool:
    """Starts, is asked for the commands, and ends by itself after an effect; whether it did, or did all of them."""
    daemon.more["KILL_EFFECT"] = str(effect)
    daemon.start()
    del daemon.more["KILL_EFFECT"]
    for words in commands:
        said = daemon.said(*words)
        if said.code:
            assert "rule rendition" not in said.err, said.err
            assert daemon.process.wait(PATIENCE) == -signal.SIGKILL
            daemon.process = None
            return True
    daemon.kill()
    return False


def test_each_effect_survives_the_process_that_made_it(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    daemon = make_daemon("a", ODFD_INGEST_SETTLE_SECONDS="0", ODFD_POLICY_PUBLISH_DATASETS="false", small=True)
    daemon.start()
    declared(daemon, tmp_path, "{kind: Ledger, primaryKey: [city]}")
    daemon.ask("annotate", "dataset", "cities", "keepRaw=true")
    for day in range(1, SMALL_FILES + 1):
        row = f"2024-01-0{day}T00:00:00Z,City {day},{day}"
        (tmp_path / f"d{day}.csv").write_text(f"event_time,city,population\n{row}\n")
        daemon.ask("pull", "cities")
    declared(daemon, tmp_path, "{kind: Append}")
    daemon.kill()
    kills = 0
    # What was done is told again at the start of each life: once in a creation, twice in a handover.
    while life(daemon, 2 if kills <= SMALL_FILES else 3):
        kills += 1
        assert kills < 2 * SMALL_FILES + 6, "no progress"
    assert kills >= SMALL_FILES
    daemon.start()
    found = {each["number"]: (each["dataset"], each["state"]) for each in daemon.ask("get", "renditions")}
    assert found == {0: ("cities.r0", "Superseded"), 1: ("cities", "Active")}
    old, new = (
        {each["time"] for each in daemon.ask("raw", "list", ref)["captures"]} for ref in ("cities.r0", "cities")
    )
    assert old == new
    assert len(new) == SMALL_FILES
    assert daemon.ask("raw", "replay", "cities")["ok"]
    assert daemon.ask("verify", "cities")["ok"]
    assert daemon.stop() == 0


def test_copying_what_came_after_a_snapshot_survives_the_process(
    make_daemon: Callable[..., Any], tmp_path: Path
) -> None:
    """Blocks are copied once each, whenever the process dies; both renditions contain the same rows in the end."""
    daemon = make_daemon("a", ODFD_INGEST_SETTLE_SECONDS="0", ODFD_POLICY_PUBLISH_DATASETS="true", small=True)
    daemon.start()
    declared(daemon, tmp_path, "{kind: Ledger, primaryKey: [city]}")
    for day in range(1, SMALL_FILES + 1):
        row = f"2024-01-0{day}T00:00:00Z,City {day},{day}"
        (tmp_path / f"d{day}.csv").write_text(f"event_time,city,population\n{row}\n")
        daemon.ask("pull", "cities")
        if day == 1:
            daemon.ask("rendition", "create", "cities", "--from", "snapshot", "--id", "anew")
    daemon.kill()
    kills = 0
    while life(daemon, 2 if kills < SMALL_FILES else 4, [OVER]):
        kills += 1
        assert kills < 2 * SMALL_FILES + 6, "no progress"
    assert kills >= SMALL_FILES
    daemon.start()
    found = {each["number"]: (each["dataset"], each["state"]) for each in daemon.ask("get", "renditions")}
    assert found == {0: ("cities.r0", "Superseded"), 1: ("cities", "Active")}
    old, new = ([row[4:] for row in daemon.ask("tail", ref, "-n", "9")["rows"]] for ref in ("cities.r0", "cities"))
    assert old == new
    assert len(new) == SMALL_FILES
    assert all(daemon.ask("verify", ref)["ok"] for ref in ("cities", "cities.r0"))
    assert daemon.stop() == 0


# ``kill -9`` of a publisher after each effect of a handover to shards, and of its mirror after each step to follow.


CROSSING: Final = (
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
    while life(alice, effects, CROSSING):
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


# What ``kill -9`` leaves at each step that lasts of a restore, and of the first start on a state of an older version. A
# process is stopped at each of them, as a kill would, and what lies on the disk then is copied. Work goes on once from
# each state that is left there: all steps within one transaction leave the same.


KEPT: Final = Path(__file__).parents[2] / "golden" / "state"
OLD: Final = KEPT / "before-resources.tar.gz"
STANDING: Final = ("name", "id", "kind", "blocks", "records", "head", "owner", "published")
OBJECTS: Final = 3
STEPS_OF_ROOMS: Final = {room.ROOM: room.STEPS for room in ROOMS}
PASSING: Final = (LOCK_NAME, RESERVE, f"{DATABASE}-shm")
"""What only a living process has, and a file of random bytes."""


def unpack(state: Path, old: Path = OLD) -> None:
    state.mkdir(mode=0o700)
    with tarfile.open(old) as archive:
        archive.extractall(state, filter="data")


def files_in(folder: Path) -> dict[str, str]:
    """Each file and its hash, apart from those that say nothing."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in PASSING
    }


def content(state: Path) -> Any:
    """The files of a state, and the rows of its database."""
    with closing(sqlite3.connect(state / DATABASE)) as connection:
        rows = sorted(connection.iterdump())
    return {name: each for name, each in files_in(state).items() if not name.startswith(DATABASE)}, rows


def copies_of_steps(steps: Iterable[str], whole: Path, copies: Path) -> tuple[list[str], list[Path]]:
    """Copies what a folder of a process holds at its steps, each content once. Returns the steps, and the copies."""
    names: list[str] = []
    found: dict[frozenset[tuple[str, str]], Path] = {}
    for name in steps:
        names.append(name)
        left = frozenset(files_in(whole).items())
        if left not in found:
            found[left] = copies / f"{len(names)}"
            shutil.copytree(whole, found[left], symlinks=True, ignore=sockets_in)
    return names, list(found.values())


def sockets_in(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_socket()]


def outcome(daemon: Any) -> Any:
    """All that an upgrade must leave, and of what it tells once; stops the node."""
    datasets = [{key: each.get(key) for key in STANDING} for each in daemon.datasets()]
    mirrors = [
        (each["spec"]["source"], each["spec"].get("want"), each["spec"].get("priority"))
        for each in daemon.ask("get", "mirrors")
    ]
    headers = sorted((each["$schema"], each["headers"]["name"]) for each in daemon.ask("get", "all"))
    told = sorted((each["type"], each["name"]) for each in daemon.ask("events") if each["change"] == "Created")
    assert daemon.stop() == 0
    with closing(sqlite3.connect(daemon.state / DATABASE)) as connection:
        tables = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        versions = connection.execute("SELECT room, version FROM versions ORDER BY room").fetchall()
    return datasets, mirrors, headers, told, sorted(files_in(daemon.state / "keys")), tables, versions


@pytest.mark.parametrize(
    "old",
    [OLD, pytest.param(KEPT / "before-one-store.tar.gz", marks=pytest.mark.nightly)],
    ids=lambda old: old.name.partition(".")[0],
)
def test_an_upgrade_that_is_killed_anywhere_ends_as_one_that_is_not(
    make_daemon: Callable[..., Any], tmp_path: Path, old: Path
) -> None:
    """Attack T-DISK-02: a kill while a newer version upgrades a state.

    Defence: all tables change in one transaction; the next start repeats the steps after it.
    """

    def node(name: str, **environ: str) -> Any:
        made = make_daemon(name, small=True, **environ)
        unpack(made.state, old)
        return made

    whole = node("whole")
    changes = table_changes(whole.state)
    wanted = outcome(whole.start())
    os.mkfifo(tmp_path / "steps")
    upgraded = node("upgraded", STOP_LASTING=str(tmp_path / "steps"))

    def upgrade() -> bool:
        """Returns whether it came to its end; kills it there."""
        try:
            return bool(upgraded.gets_ready() and upgraded.said("get", "all").code == 0)
        finally:
            upgraded.kill()

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(upgrade)
        told = follow_steps(tmp_path / "steps")
        steps, left = copies_of_steps(told, upgraded.state, tmp_path / "left")
        assert ended.result()
    for state in left:
        daemon = make_daemon(f"again-{state.name}", small=True)
        state.rename(daemon.state)
        assert outcome(daemon.start()) == wanted, steps
    assert changes
    for change in changes:
        # What is new to the state has nothing that a function could convert.
        run = [each for each in STEPS_OF_ROOMS[change.room][change.here :] if isinstance(each, str) or change.here]
        assert steps.count(f"migrates {change.room}") == len(run), "it was stopped in each script"
    assert steps.count(f"syncs {DATABASE}-wal") >= 2, "within the commit of all, and after it"
    assert len(left) > 3


def test_a_restore_that_is_killed_anywhere_leaves_nothing_or_all(
    make_daemon: Callable[..., Any], forking: Forking, tmp_path: Path
) -> None:
    """Attack T-DISK-02: a kill of a restore, after which a node would start on a part of a state.

    Defence: all is written, examined and synced under a hidden name; one rename gives it the folder's, and a repetition
    removes what was left.
    """
    backup = tmp_path / "backup"
    unpack(tmp_path / "old")
    with open_state_directory(tmp_path / "old") as home:
        for number in range(OBJECTS):
            home.objects.add_bytes(bytes([number]) * (SMALL + 1))
        home.spool.add("source", b"pushed", 1, home.clock.now(), None)
        BackupFolder(backup, "node").add(home, home.clock.now(), "1", 1, Report())
    command = make_daemon("odfctl")
    command.ask("restore", str(backup), str(tmp_path / "whole"))
    whole = content(tmp_path / "whole")
    os.mkfifo(tmp_path / "steps")
    again = tmp_path / "folder" / "again"
    again.mkdir(parents=True)
    environ = {**command.environ, "STOP_LASTING": str(tmp_path / "steps")}
    with (tmp_path / "log").open("ab") as out:
        process = forking.start("odfctl", ["restore", str(backup), str(again)], environ, out=out)
    ends: list[bool] = []

    def followed() -> Iterator[str]:
        for step in follow_steps(tmp_path / "steps"):
            ends.append(again.exists() and any(again.iterdir()))
            yield step

    steps, left = copies_of_steps(followed(), again.parent, tmp_path / "left")
    assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()
    for folder in left:
        there = folder / "again"
        if not (there.exists() and any(there.iterdir())):
            command.ask("restore", str(backup), str(there))
        assert content(there) == whole, steps
        assert [each.name for each in folder.iterdir()] == ["again"], "what was left of the first is gone"
    saved = read_description(choose(backup, None))
    assert saved.objects == OBJECTS
    assert steps.count("shutil.copyfile") == len(saved.files) - 1 + OBJECTS, "each file but the list of them"
    assert steps[-2:] == ["os.rename", "syncs"]
    assert ends == [False] * (len(steps) - 1) + [True], "all appears at once, and last"
    assert len(left) > OBJECTS


# A node is killed while it gives or takes a dataset: nothing is half there, and little comes again.


SENT_FILES: Final = 16
LARGE: Final = 80 << 10
"""Bytes of each slice at least. Smaller ones than 64 KiB are not on the disk before a block names them."""
CUT_AT: Final = 11
"""The object whose request is not passed on; up to eight are under way then."""


@pytest.fixture
def source(make_daemon: Callable[..., Any]) -> Node:
    """A node with a dataset of several large slices."""
    made = started(make_daemon, "source")
    made.begin_files("cities")
    made.add_files("cities", range(SENT_FILES), LARGE)
    return made


@pytest.fixture
def other(make_daemon: Callable[..., Any]) -> Node:
    return started(make_daemon, "other")


@pytest.mark.slow
def test_who_gives_is_killed_while_it_is_pulled_from(source: Node, other: Node) -> None:
    asked = r"GET /cities/data/(\w+)"
    with source.behind_proxy() as (url, lines):
        lines.when(b"GET /cities/data/", CUT_AT, source.daemon.kill)
        assert other.daemon.said("pull", f"{url}/cities").code != 0
        assert not other.has("cities")
        lines.sprung()
        source.daemon.start()
        first, since = set(lines.seen(asked)), lines.mark()
        other.daemon.ask("pull", f"{url}/cities")
        again = lines.seen(asked, since)
    assert len(first | set(again)) == SENT_FILES
    assert len(again) < SENT_FILES, "what came is not asked for again"
    assert other.head("cities") == source.head("cities")
    assert other.holds("cities")


@pytest.mark.slow
def test_who_takes_is_killed_while_it_is_pushed_to(source: Node, other: Node) -> None:
    sent = r"PUT /cities/data/(\w+)"
    with other.behind_proxy() as (url, lines):
        source.apply("secrets.yaml", SECRETS.format(token=other.token()))
        source.daemon.ask("repo", "add", "house", url, "--credentials", "token")
        lines.when(b"PUT /cities/data/", CUT_AT, other.daemon.kill)
        assert source.daemon.said("push", "cities", "--to", "house/cities", "--private").code != 0
        lines.sprung()
        other.daemon.start()
        assert not other.has("cities")
        first, since = set(lines.seen(sent)), lines.mark()
        source.push("cities", "house")
        again = lines.seen(sent, since)
    assert len(first | set(again)) == SENT_FILES
    assert len(again) < SENT_FILES, "what was there is not sent again"
    assert other.head("cities") == source.head("cities")
    assert other.holds("cities")
