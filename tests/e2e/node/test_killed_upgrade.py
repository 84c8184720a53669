"""``kill -9`` at each step that lasts of a restore, and of the first start on a state of an older version.

Steps are counted, and a process dies at each of them, until one comes to its end. Work goes on once from each state
that is left on the disk: all steps within one transaction leave the same.
"""

from __future__ import annotations

import hashlib
import signal
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from chain.store.objects import SMALL
from odfd.runtime.tasks import Report
from odfd.services.maintenance.backup import BackupFolder
from odfd.services.maintenance.restore import choose, read_description
from odfd.services.maintenance.upgrade import table_changes
from odfd.store.directory import DATABASE, LOCK_NAME, RESERVE, ROOMS, open_state_directory
from worlds.eventually import PATIENCE
from worlds.forked import Forking
from worlds.small_node import LAST_STEP

pytestmark = pytest.mark.e2e
KEPT: Final = Path(__file__).parents[2] / "golden" / "state"
OLD: Final = KEPT / "before-resources.tar.gz"
STANDING: Final = ("name", "id", "kind", "blocks", "records", "head", "owner", "published")
OBJECTS: Final = 3
STEPS: Final = {room.ROOM: room.STEPS for room in ROOMS}
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


def died_at(process: Any, log: Path) -> str:
    """The step that was its last."""
    assert process.wait(PATIENCE) == -signal.SIGKILL, log.read_text()
    return log.read_text().rpartition(LAST_STEP)[2].strip()


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
def test_an_upgrade_that_is_killed_anywhere_ends_as_one_that_is_not(make_daemon: Callable[..., Any], old: Path) -> None:
    def node(name: str, **environ: str) -> Any:
        made = make_daemon(name, small=True, **environ)
        unpack(made.state, old)
        return made

    whole = node("whole")
    changes = table_changes(whole.state)
    wanted = outcome(whole.start())
    steps: list[str] = []
    seen: set[frozenset[tuple[str, str]]] = set()
    for step in count(1):
        daemon = node(f"{step}", KILL_LASTING=str(step))
        if daemon.gets_ready() and daemon.said("get", "all").code == 0:
            break
        steps.append(died_at(daemon.process, daemon.log))
        left = frozenset(files_in(daemon.state).items())
        if left not in seen:
            seen.add(left)
            del daemon.more["KILL_LASTING"]
            assert outcome(daemon.start()) == wanted, steps
    assert changes
    for change in changes:
        # What is new to the state has nothing that a function could convert.
        run = [each for each in STEPS[change.room][change.here :] if isinstance(each, str) or change.here]
        assert steps.count(f"migrates {change.room}") == len(run), "it died in each script"
    assert steps.count(f"syncs {DATABASE}-wal") >= 2, "within the commit of all, and after it"
    assert len(seen) > 3


def test_a_restore_that_is_killed_anywhere_leaves_nothing_or_all(
    make_daemon: Callable[..., Any], forking: Forking, tmp_path: Path
) -> None:
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
    steps: list[str] = []
    seen: set[frozenset[tuple[str, str]]] = set()
    ends: list[bool] = []
    for step in count(1):
        folder, log = tmp_path / f"{step}", tmp_path / f"{step}.log"
        again = folder / "again"
        again.mkdir(parents=True)
        environ = {**command.environ, "KILL_LASTING": str(step)}
        with log.open("ab") as out:
            process = forking.start("odfctl", ["restore", str(backup), str(again)], environ, out=out)
        if process.wait(PATIENCE) == 0:
            break
        steps.append(died_at(process, log))
        ends.append(again.exists() and any(again.iterdir()))
        left = frozenset(files_in(folder).items())
        if left in seen:
            continue
        seen.add(left)
        if not ends[-1]:
            command.ask("restore", str(backup), str(again))
        assert content(again) == whole, steps
        assert [each.name for each in folder.iterdir()] == ["again"], "what was left of the first is gone"
    saved = read_description(choose(backup, None))
    assert saved.objects == OBJECTS
    assert steps.count("shutil.copyfile") == len(saved.files) - 1 + OBJECTS, "it died at each file but the list of them"
    assert steps[-2:] == ["os.rename", "syncs"]
    assert ends == [False] * (len(steps) - 1) + [True], "all appears at once, and last"
    assert len(seen) > OBJECTS
