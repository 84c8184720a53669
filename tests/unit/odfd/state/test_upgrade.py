"""What a new version would do to a state directory is told before it does it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from chain.errors import Environment, NotFound
from odfd.cli.offline import restore
from odfd.cli.offline.restore import look_through
from odfd.services.maintenance import upgrade as tables
from odfd.services.maintenance.backup import LAST, LastBackup
from odfd.store.directory import DATABASE, ROOMS, open_state_directory

NOW = 1_700_000_000.0
ROOM = ROOMS[-1]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with open_state_directory(tmp_path / "state"):
        pass
    return tmp_path / "state"


def results(state: Path) -> dict[str, tuple[str, str]]:
    return {probe.name: (probe.result, probe.message) for probe in look_through(state, NOW)}


def set_version(state: Path, room: str, version: int) -> None:
    with closing(sqlite3.connect(state / DATABASE)) as connection, connection:
        connection.execute("UPDATE versions SET version = ? WHERE room = ?", (version, room))


def forget(state: Path, room: str) -> None:
    """As an older program left it, that had no such tables."""
    with closing(sqlite3.connect(state / DATABASE)) as connection, connection:
        connection.execute("DELETE FROM versions WHERE room = ?", (room,))
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if any(f"CREATE TABLE {name} " in step for step in ROOM.STEPS):
                connection.execute(f"DROP TABLE {name}")


def test_a_state_of_this_version_is_as_it_should_be(state: Path) -> None:
    assert results(state)["database"] == ("ok", "its tables are those of this version")


def test_what_is_brought_forward_is_tried_and_nothing_is_changed(state: Path) -> None:
    forget(state, ROOM.ROOM)
    before = {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()}
    result, message = results(state)["database"]
    assert result == "ok"
    assert f"{ROOM.ROOM} 0 to {len(ROOM.STEPS)}" in message
    assert {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()} == before
    with open_state_directory(state):
        pass
    assert results(state)["database"] == ("ok", "its tables are those of this version")


def test_beside_a_running_node(state: Path) -> None:
    with open_state_directory(state):
        assert results(state)["database"][0] == "ok"
        forget(state, ROOM.ROOM)
        assert f"{ROOM.ROOM} 0 to" in results(state)["database"][1]


def test_what_would_fail_at_the_start_fails_on_the_copy(state: Path) -> None:
    set_version(state, ROOM.ROOM, len(ROOM.STEPS) - 1)  # its last step was taken
    result, message = results(state)["database"]
    assert (result, "are not those that its version says" in message) == ("failed", True)
    with pytest.raises(Environment), open_state_directory(state):
        pass


def test_a_state_of_a_newer_version_is_refused(state: Path) -> None:
    set_version(state, ROOM.ROOM, 99)
    result, message = results(state)["database"]
    assert (result, "a newer odfd wrote it" in message) == ("failed", True)


def test_without_disk_nothing_is_tried(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(state, ROOM.ROOM)
    monkeypatch.setattr(tables, "has_room_for_copy", lambda _: False)
    monkeypatch.setattr(tables, "try_on_copy", None)
    assert results(state)["database"][0] == "warning"


@pytest.mark.parametrize(
    ("age", "result"), [(3600, "ok"), (restore.FRESH_SECONDS + 3600, "warning"), (None, "warning")]
)
def test_a_backup_to_go_back_to(state: Path, age: int | None, result: str) -> None:
    if age is not None:
        # 2023-11-14T22:13:20Z is NOW
        time = {3600: "2023-11-14T21:13:20Z"}.get(age, "2023-11-13T21:13:20Z")
        (state / LAST).write_bytes(msgspec.json.encode(LastBackup(time=time, place="/mnt/b")))
    assert results(state)["backup"][0] == result


def test_no_state_directory_and_no_database(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no state directory"):
        list(look_through(tmp_path, NOW))
    (tmp_path / DATABASE).write_bytes(b"garbage" * 1000)
    with pytest.raises(Environment, match="cannot read"):
        list(look_through(tmp_path, NOW))
