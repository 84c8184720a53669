"""What a daemon refuses to start with, and what it leaves unloaded."""

from __future__ import annotations

import io
import os
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from chain import instant
from chain.errors import Environment, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.store.files import DAMAGED, ObjectDamaged
from config import schema
from config.load import load
from config.schema import ConfigError
from odfd.access.relations import Role
from odfd.cli.offline import restore
from odfd.cli.offline.restore import look_through
from odfd.daemon import main as daemon
from odfd.daemon.init import init, target
from odfd.node.settings_check import CHECKS, check_components
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore
from odfd.runtime.tasks import Report
from odfd.services.maintenance import upgrade as tables
from odfd.services.maintenance.backup import (
    DESCRIPTION,
    LAST,
    LISTING,
    SNAPSHOTS,
    BackupFolder,
    BackupSnapshot,
    LastBackup,
    SavedFile,
    hash_of,
    snapshots_in,
)
from odfd.services.maintenance.restore import restore as restore_backup
from odfd.store.access_tokens import TokenStore
from odfd.store.catalog import Catalog
from odfd.store.crash_recovery import OBJECTS
from odfd.store.damage import DamagedBlock
from odfd.store.directory import DATABASE, ROOMS, HomeTerms, StateDirectory, open_state_directory
from odfd.store.slice_files import MISSING, SliceFiles

# ``odfd config check`` refuses what ``odfd run`` refuses, with the setting and where it was made.

REFUSED = {
    "p2p.listen": ['[p2p]\nlisten = ["/ip4/0.0.0.0/udp/4150/quic-v1"]', '[p2p]\nlisten = ["/dns4/x.example/tcp/4150"]',
                   '[p2p]\nlisten = ["/ip4/0.0.0.0/tcp/99999"]'],
    "p2p.announce": ['[p2p]\nannounce = ["/ip4/192.0.2.1/udp/1"]'],
    "p2p.relays": ['[p2p]\nrelays = ["/ip4/192.0.2.1/tcp/1/p2p/x"]'],
    "p2p.bootstrap": ['[p2p]\nnetwork = "demo"\nbootstrap = ["/ip4/192.0.2.1/tcp/1/p2p/x"]',
                      '[p2p]\nnetwork = "a b"'],
    "p2p.inside": ['[p2p]\ninside = ["1.2.3"]'],
    "webhooks.inside": ['[webhooks]\ninside = ["x"]'],
    "http.listen": ['[http]\nlisten = ["127.0.0.1:99999"]'],
    "http.ui": ['[http]\nui = "127.0.0.1:99999"'],
    "metrics.listen": ['[metrics]\nlisten = ["127.0.0.1:99999"]'],
    "api.listen": ['[api]\nlisten = ["127.0.0.1:99999"]'],
    "flight.listen": ['[flight]\nlisten = ["127.0.0.1:99999"]'],
    "http.ui-certificate": ['[http]\nui-certificate = "/none"\nui-key = "/none"'],
    "api.certificate": ['[api]\ncertificate = "/none"\nkey = "/none"'],
    "flight.certificate": ['[flight]\ncertificate = "/none"\nkey = "/none"'],
    "http.ui-tokens": ['[http]\nui-tokens = "/none"'],
    "flight.tokens": ['[flight]\ntokens = "/none"'],
    "policy.network-key": ['[policy]\nnetwork-key = "did:key:zzz"'],
    "policy.use": ['[policy]\nuse = "data & bogus"'],
    "ipfs.api": ['[ipfs]\napi = "ftp://127.0.0.1"'],
}  # fmt: skip


def test_every_check_has_a_case() -> None:
    assert REFUSED.keys() == {check.setting for check in CHECKS} <= {key.name for key in schema.every()}


@pytest.mark.parametrize(("setting", "text"), [(name, text) for name, texts in REFUSED.items() for text in texts])
def test_what_a_part_cannot_take_is_refused_with_its_place(
    setting: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odfd.toml"
    file.write_text(text)
    loaded = load({"HOME": str(tmp_path)}, file)
    with pytest.raises(ConfigError) as refused:
        check_components(loaded)
    (problem,) = refused.value.problems
    assert problem.place == loaded.origins.get(setting, f"setting {setting}")
    assert problem.hint
    assert daemon.main(["config", "check", "--config", str(file)]) == 5
    assert problem.message in capsys.readouterr().err


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "odfd.toml"
    file.write_text('[p2p]\nlisten = ["/ip4/0.0.0.0/udp/1"]\ninside = ["x"]\n[webhooks]\ninside = ["y"]\n')
    with pytest.raises(ConfigError) as refused:
        check_components(load({"HOME": str(tmp_path)}, file))
    assert [problem.place for problem in refused.value.problems] == [f"{file}:{line}" for line in (2, 3, 5)]


def test_defaults_are_what_all_parts_take(tmp_path: Path) -> None:
    loaded = load({"HOME": str(tmp_path)})
    assert check_components(loaded) is loaded


# Modules that a daemon never uses, or not before it works with rows, stay out of its memory at the start.

LOADED = """
import sys
from odfd.daemon.unused_modules import lean_imports
with lean_imports():
    from odfd.daemon import wiring
from odfd.daemon.main import _services
from chain.struct_types import learn_struct_types
_services(), learn_struct_types()
from odfd.network.membership import load_libp2p
load_libp2p()
import p2p.driver.replication, p2p.host.host
print(*sorted({names} & set(sys.modules)), "httpx" in sys.modules, "libp2p" in sys.modules)
"""
NEVER = {
    "rich",
    "click",
    "pygments",
    "dns",
    "charset_normalizer",
    "httpx._main",
    "greenlet",
    "pycparser",
    "duckdb",
    "pyspark",
}
LATER = {"numpy", "pyarrow", "pyarrow.lib", "pyarrow.fs", "pandas", "grpc"}


@pytest.mark.slow
def test_a_daemon_with_a_host_loads_none_of_them() -> None:
    """A stray ``import pyarrow`` at the top of a module costs an idle node 46 MiB: take it from chain.libraries."""
    program = LOADED.replace("{names}", repr(NEVER | LATER))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.slow
def test_arrow_works_and_finds_no_pandas() -> None:
    """Without the refusal, the first ``pa.array`` of a process imports pandas if it is installed, as it is here."""
    program = """
import sys
from odfd.daemon.unused_modules import refuse_pandas
refuse_pandas()
from chain.libraries import np, pa, pc
print(pa.array([1, None]).null_count, pc.sum(pa.array(np.arange(3))), pa.table({"a": [1]}).to_pylist())
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 3 [{'a': 1}]", "False"]


# The first file of settings: asked for on a terminal, whole and checked or not there.


NOTHING = {"node.name": None, "policy.profile": None, "node.state-dir": None}


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def said(file: Path) -> dict[str, Any]:
    return {
        name: table for name, table in tomllib.loads(file.read_text()).items() if table and name in ("node", "policy")
    }


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("bo\nfoo\nmirror\nhere\n", {"name": "bo", "profile": "mirror", "state-dir": "here"}),
        ("\n\n\n", {"name": "box", "profile": "laptop"}),
    ],
)
def test_answers_are_asked_for_until_they_can_be_taken(
    home: dict[str, str], monkeypatch: Any, capsys: Any, answers: str, expected: dict[str, str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answers))
    monkeypatch.setattr("platform.node", lambda: "box.example.org")
    file = target(home, None)
    settings = init(home, file, NOTHING, (), ask=True).settings
    node, policy = said(file)["node"], said(file)["policy"]
    assert (node["name"], policy["profile"]) == (expected["name"], expected["profile"])
    place = expected.get("state-dir")
    assert node.get("state-dir") == (str(Path(place).absolute()) if place else None)
    assert settings.node.name == expected["name"]
    assert ("not 'foo'" in capsys.readouterr().err) == ("foo" in answers)
    assert file.stat().st_mode & 0o077 == 0


def test_nothing_is_written_when_answers_end(home: dict[str, str], monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("bo\n"))
    with pytest.raises(Refused, match="the answers ended"):
        init(home, target(home, None), NOTHING, (), ask=True)
    assert list(Path(home["HOME"]).rglob("*.toml*")) == []


def test_settings_that_do_not_go_together_leave_no_file(home: dict[str, str]) -> None:
    file = target(home, None)
    with pytest.raises(ConfigError) as caught:
        init(home, file, NOTHING, ("p2p.bootstrap=/ip4/127.0.0.1/tcp/1/p2p/x",), ask=False)
    assert [each.place.partition(":")[0] for each in caught.value.problems] == [str(file)]
    assert list(file.parent.iterdir()) == []


def test_a_file_that_is_there_is_never_touched(home: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "odfd.toml"
    file.symlink_to(tmp_path / "nowhere")
    with pytest.raises(Refused, match="is there already"):
        init(home, file, NOTHING, (), ask=False)
    with pytest.raises(Environment, match="cannot write"):
        init(home, Path("/proc/1/odfd.toml"), NOTHING, (), ask=False)


# The state directory: what it tells of itself, what is removed, restored or upgraded.


# What the state directory tells of itself.


def test_the_size_of_the_database_has_what_its_log_has(tmp_path: Path) -> None:
    """What is new is in the log alone until a checkpoint: a node of a megabyte said that it had 4 kB."""
    with open_state_directory(tmp_path / "state") as home:
        before = home.database_size()
        with home.database.write() as connection:
            connection.execute("CREATE TABLE large (content)")
            connection.execute("INSERT INTO large VALUES (zeroblob(1000000))")
        assert home.database_size() - before >= 1_000_000
    assert (tmp_path / "state" / DATABASE).stat().st_size > 1_000_000, "the end of the block leaves no log"


def test_copies_of_collections_that_several_nodes_ingested_are_removed_and_told(tmp_path: Path) -> None:
    with open_state_directory(tmp_path / "state") as home:
        assert home.recovery.converted == ()
    for each in ("one", "two"):
        (tmp_path / "state" / "reclock" / each / "objects").mkdir(parents=True)
        (tmp_path / "state" / "reclock" / each / "chains.sqlite").write_bytes(b"x")
    with open_state_directory(tmp_path / "state") as home:
        (line,) = home.recovery.converted
        assert line.startswith("2 copies of collections that several nodes ingested (reclock/) were removed")
    assert not (tmp_path / "state" / "reclock").exists()


# A start tells how the run before it ended, and whether there was one.


@pytest.mark.slow
def test_a_first_start_follows_no_end(tmp_path: Path) -> None:
    with open_state_directory(tmp_path / "state") as home:
        assert str(home.recovery) == "none: this is the first start"
    with open_state_directory(tmp_path / "state") as home:
        assert str(home.recovery) == "the node was stopped in order"


# What was pushed to Sources that are gone is removed at the start; what may be of one that is here is not.

STARTED: Final = Instant(10**18)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_damaged_row_lets_no_push_be_taken_for_that_of_a_deleted_source(tmp_path: Path, is_damaged: bool) -> None:
    with open_state_directory(tmp_path / "state") as state:
        with state.database.write() as connection:
            here = Resource(id="here", type="Source", name="a", spec={}, created_at=STARTED, updated_at=STARTED)
            ResourceStore(connection).put(here, STARTED)
            if is_damaged:
                connection.execute("UPDATE declarations SET name = 'b' WHERE id = 'here'")
        for source in ("here", "gone"):
            assert state.spool.add(source, b"{}", 1, STARTED, None).durable
    with open_state_directory(tmp_path / "state") as state:
        kept = {source: len(state.spool.after(source, 0, 9, 99)[0]) for source in ("here", "gone")}
    assert kept == {"here": 1, "gone": int(is_damaged)}


# A backup that somebody made to write or read outside of it is refused before anything is copied.

RESTORED_AT = instant.parse("2026-11-20T08:00:00Z")
SECRET = b"a file of this machine"


def crafted(folder: Path, files: list[str], objects: list[str]) -> Path:
    """A snapshot whose sums all hold; its places are written as they are, and lead to ``SECRET``."""
    snapshot = folder / SNAPSHOTS / "2026-11-20T080000Z"
    (folder / OBJECTS).mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (snapshot / LISTING).write_text("".join(f"{place} {len(SECRET)}\n" for place in objects))
    listed = (snapshot / LISTING).stat().st_size
    saved = [SavedFile(path=LISTING, size=listed, hash=hash_of(snapshot / LISTING))]
    saved += [SavedFile(path=place, size=len(SECRET), hash=str(Multihash.sha3_256(SECRET))) for place in files]
    described = BackupSnapshot(
        time="2026-11-20T08:00:00Z", node="n", version="1", files=tuple(saved), objects=len(objects), bytes=0
    )
    (snapshot / DESCRIPTION).write_bytes(msgspec.json.encode(described))
    return snapshot


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "objects"])
@pytest.mark.parametrize("way", ["up", "deep", "absolute"])
def test_a_backup_that_names_a_place_outside_of_itself_is_refused(tmp_path: Path, kind: str, way: str) -> None:
    """Attack T-BYTES-02: a backup whose lists name places outside of it, to read or write other files of the machine.

    Defence: an absolute path, or one with `..`, is refused, of files and of objects, before anything is written.

    Objects are named by their hash, files by anything; neither is read nor written elsewhere.
    """
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    name = str(Multihash.sha3_256(SECRET))
    (outside / name).write_bytes(SECRET)
    up = f"../elsewhere/{name}" if kind == "objects" else f"../../../elsewhere/{name}"
    place = {
        "up": f"../{up}" if kind == "objects" else up,
        "deep": f"keys/../../{up}",
        "absolute": str(outside / name),
    }[way]
    lists: dict[str, Any] = {"files": [], "objects": [], kind: [place]}
    snapshot = crafted(tmp_path / "backup", **lists)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Invalid, match="outside of itself") as caught:
        restore_backup(snapshot, tmp_path / "again", lambda _: [], Report())
    assert caught.value.rule == "backup-outside"
    assert sorted(tmp_path.rglob("*")) == before, "nothing was written anywhere"


def test_what_is_restored_admits_no_token_binds_no_number_twice_and_is_looked_through(tmp_path: Path) -> None:
    """Tokens may have been revoked since, and pushes after the backup had numbers that chains may name."""
    with open_state_directory(tmp_path / "state") as home:
        store = TokenStore(home.database, lambda: RESTORED_AT, os.urandom)
        token, _ = store.make("ann", Role.READER, "", Instant(RESTORED_AT + 10**18))
        assert store.admit(token)
        source = Resource(id="source", type="Source", name="a", created_at=RESTORED_AT, updated_at=RESTORED_AT)
        with home.database.write() as connection:
            ResourceStore(connection).put(source, RESTORED_AT)
        number = home.spool.add("source", b"pushed", 1, RESTORED_AT, None).number
        home.keys.node_key()
        BackupFolder(tmp_path / "backup", "node").add(home, RESTORED_AT, "1", 7, Report())
    (snapshot,) = snapshots_in(tmp_path / "backup")
    with pytest.raises(Invalid, match="a head is not here") as caught:
        restore_backup(snapshot, tmp_path / "again", lambda _: ["a head is not here"], Report())
    assert caught.value.rule == "backup-damaged"
    assert not (tmp_path / "again").exists()
    told = restore_backup(snapshot, tmp_path / "again", lambda _: [], Report())
    assert told.keys == 1, "the node's key signs nothing until peers were asked"
    with open_state_directory(tmp_path / "again") as home:
        with pytest.raises(Refused):
            TokenStore(home.database, lambda: RESTORED_AT, os.urandom).admit(token)
        assert home.spool.add("source", b"pushed after", 1, RESTORED_AT, None).number > number + 1000


# Files of slices: no reader gets one whose bytes do not match its hash.

_DATASET = DatasetId.parse("did:odf:" + "fed01" + "7f" * 32)
_DATA = bytes(range(256)) * 400


def _fault(home: StateDirectory, name: Multihash) -> Environment:
    with pytest.raises(Environment) as told:
        home.slices.path(name, _DATASET, 7)
    return told.value


def test_a_slice_is_hashed_again_when_its_file_changed(tmp_path: Path) -> None:
    found: list[tuple[DatasetId, DamagedBlock]] = []
    terms = HomeTerms(found_damaged=lambda dataset, spot: found.append((dataset, spot)))
    with open_state_directory(tmp_path / "state", terms=terms) as home:
        with home.database.write() as connection:
            Catalog(connection).add("cities", _DATASET, home.clock.now())
        name = home.objects.add_bytes(_DATA)
        path = home.slices.of(_DATASET).path(name, 7)
        assert path == home.slices.path(name, _DATASET, 7)
        path.chmod(0o600)
        path.write_bytes(_DATA[:-1] + b"\x00")
        fault = _fault(home, name)
        assert (fault.rule, fault.place) == (DAMAGED, "cities block #7")
        assert "odfctl pull cities --repair" in fault.hint
        assert "AT BLOCK '#6'" in fault.hint
        assert [(dataset, spot.sequence, spot.rule) for dataset, spot in found] == [(_DATASET, 7, DAMAGED)]
        path.unlink()
        assert (_fault(home, name).rule, _fault(home, name).place) == (MISSING, "cities block #7")
        assert len(found) == 1, "a mirror may still fetch it"
        home.objects.add_bytes(_DATA)
        assert home.slices.path(name, _DATASET, 7).read_bytes() == _DATA


def test_bytes_that_a_disk_lost_are_found_on_suspicion_and_after_a_day(tmp_path: Path) -> None:
    """Attack T-DISK-01: a slice whose bytes a disk loses after they were hashed, or that no decoder finds at fault.

    Defence: it is hashed again after a day, and when a reader cannot read it.
    """
    now = 1000.0
    with open_state_directory(tmp_path / "state") as home:
        files = SliceFiles(home.objects, home.catalog, lambda *_: None, lambda: now)
        name = home.objects.add_bytes(_DATA)
        path = files.path(name, _DATASET, 7)
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        path.chmod(0o600)
        path.write_bytes(_DATA[:-1] + b"\x00")
        os.utime(path, ns=times)
        assert files.path(name, _DATASET, 7) == path, "its mark is the same"
        now += 86_400
        with pytest.raises(ObjectDamaged):
            files.path(name, _DATASET, 7)
        path.write_bytes(_DATA)
        files.path(name, _DATASET, 7)
        path.write_bytes(_DATA[:-1] + b"\x00")
        with pytest.raises(ObjectDamaged):
            files.of(_DATASET).check_again(name, 7)


# What a new version would do to a state directory is told before it does it.

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
