"""A daemon from its start to its end: what it loads, makes and says, on a full disk too, and that it stops."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.sandbox.container import TOOLS
from worlds.daemons import INSTALLED, around
from worlds.dripping import Dripping, Manner
from worlds.eventually import PATIENCE, until
from worlds.forked import Forking
from worlds.manifests import BOTH
from worlds.ports import free_port

# A real daemon under any umask: what it makes is for its owner alone, and usable by its owner.


pytestmark = pytest.mark.e2e
SETTINGS = '[p2p]\nlisten = ["/ip4/127.0.0.1/tcp/0"]\n'


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def answers(forking: Forking, state: Path) -> bool:
    asked = ["--socket", str(state / "control.sock"), "status", "-q", "--wait", "2m"]
    return forking.run("odfctl", asked, around()).returncode in (0, 1)


@pytest.mark.parametrize(
    ("umask", "existing"),
    [(0o000, None), (0o777, None), (0o077, 0o755), (0o000, 0o777), (0o777, 0o777)],
    ids=lambda value: "new" if value is None else oct(value),
)
def test_a_node_keeps_its_folder_to_itself(forking: Forking, tmp_path: Path, umask: int, existing: int | None) -> None:
    """Attack T-KEY-02: another user of the machine who reads keys and data through a lax umask or an open folder.

    Defence: each start restricts the state directory and its files to the owner; keys have mode 0600 whatever the
    umask.
    """
    state = tmp_path / "node"
    if existing is not None:
        state.mkdir()
        (state / "staged").mkdir()
        for folder in (state, state / "staged"):
            folder.chmod(existing)
    (tmp_path / "odfd.toml").write_text(SETTINGS)
    words = ["run", "--state", str(state), "--config", str(tmp_path / "odfd.toml")]
    daemon = forking.start("odfd", words, around(), out=subprocess.DEVNULL, umask=umask)
    try:
        until(lambda: (state / "control.sock").exists() or daemon.poll() is not None)
        assert daemon.poll() is None, "it did not start"
        assert answers(forking, state)
        assert mode(state) == 0o700
        assert mode(state / "control.sock") == 0o600
        assert mode(state / "keys") == 0o700
        keys = [path for path in (state / "keys").rglob("*") if path.is_file()]
        assert keys
        assert {mode(path) for path in keys} == {0o600}
        for path in state.iterdir():
            if path.is_dir():
                assert mode(path) == 0o700, path
            elif path.is_file():
                assert mode(path) & 0o677 == 0o600, path
        for path in state.rglob("*"):
            assert not mode(path) & 0o022, path
            if path.is_dir():
                assert mode(path) & 0o700 == 0o700, path
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE)


# A real daemon has in its memory only the libraries that its work needs: none of pandas, and Arrow not before rows.


PUSHED = """
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: NdJson
        schema:
          fields:
            - {name: city, type: String}
            - {name: founded, type: {kind: Timestamp, timezone: Europe/Vienna}}
      merge: {kind: Append}
"""


def mapped(daemon: Any, library: str) -> bool:
    """Whether a file of the library's folder is in the memory of the daemon's process."""
    return f"/site-packages/{library}/" in Path(f"/proc/{daemon.process.pid}/maps").read_text()


def test_a_source_is_declared_without_arrow_and_rows_are_read_without_pandas(
    make_daemon: Callable[..., Any], golden: Path, tmp_path: Path
) -> None:
    daemon = make_daemon(small=True)
    daemon.start()
    (tmp_path / "cities.yaml").write_text(PUSHED)
    (tmp_path / "cities.json").write_text('{"city": "Graz", "founded": "1128-01-01T00:00:00Z"}\n')
    daemon.ask("import", str(golden / "airlines"), "--as", "airlines")
    daemon.ask("apply", "-f", str(tmp_path / "cities.yaml"))
    daemon.ask("ingest", "cities", str(tmp_path / "cities.json"))
    for words in (["describe", "ds", "airlines"], ["sql", "select carrier from airlines"], ["tail", "cities"]):
        assert daemon.said(*words).code == 0, words
    assert mapped(daemon, "pyarrow")
    assert not mapped(daemon, "pandas")


def test_arrow_is_loaded_with_the_first_rows(make_daemon: Callable[..., Any], golden: Path, tmp_path: Path) -> None:
    daemon = make_daemon()
    daemon.program = INSTALLED  # what is forked has all libraries from the beginning
    daemon.start()
    (tmp_path / "cities.yaml").write_text(PUSHED)
    daemon.ask("apply", "-f", str(tmp_path / "cities.yaml"))
    assert daemon.said("describe", "ds", "cities").code == 0
    assert not mapped(daemon, "pyarrow")
    assert not mapped(daemon, "numpy")
    daemon.ask("import", str(golden / "airlines"), "--as", "airlines")
    assert daemon.said("describe", "ds", "airlines").code == 0
    assert mapped(daemon, "pyarrow")
    assert not mapped(daemon, "pandas")


# A node on a full disk starts, reads, serves, says what it cannot do, and goes on when there is room.


SIZE = 24 << 20
VARIABLES = "$schema: VariableSet\nheaders: {name: v}\nspec: {variables: {x: '1'}}\n"


@pytest.fixture
def holder() -> Iterator[int]:
    """A process that has mounted a small file system at /mnt, where nobody else sees it."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("a small disk: only root can mount one")
    script = f"mount -t tmpfs -o size={SIZE} none /mnt && echo mounted && read end"
    command = ["unshare", "--mount", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip("a small disk: this kernel lets nobody mount one")
        yield process.pid
        process.communicate(b"end\n")


def fill(disk: Path) -> Path:
    """Takes every free byte."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                break
    assert shutil.disk_usage(disk).free == 0
    return filler


def readiness(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("end", ["killed", "stopped", "power"])
def test_a_node_starts_on_a_full_disk(make_daemon: Callable[..., Any], holder: int, end: str) -> None:
    """After a kill, a stop in order, and a power failure, which leaves no index of the database's log."""
    port, small_disk = free_port(), Path(f"/proc/{holder}/root/mnt")
    daemon = make_daemon("a", ODFD_METRICS_LISTEN=f"127.0.0.1:{port}", ODFD_LIMITS_DISK_RESERVE_BYTES="1048576")
    daemon.small, daemon.inside = True, [f"/proc/{holder}/ns/mnt"]
    daemon.state, daemon.socket = Path("/mnt/s"), small_disk / "s" / "control.sock"
    manifests, variables = daemon.folder / "m.yaml", daemon.folder / "v.yaml"
    manifests.write_text(BOTH)
    variables.write_text(VARIABLES)
    (daemon.folder / "1.csv").write_text("event_time,city,population\n2024-01-01T00:00:00Z,Graz,1\n")
    daemon.start()
    daemon.ask("apply", "-f", str(manifests))
    daemon.ask("pull", "cities")
    if end == "stopped":
        assert daemon.stop() == 0
    else:
        daemon.kill()
    if end == "power":
        for index in (small_disk / "s").glob("*-shm"):
            index.unlink()
    filler = fill(small_disk)

    daemon.start()
    assert daemon.dataset("cities")["records"] == 1
    assert daemon.ctl("log", "cities").code == 0
    assert daemon.ask("status")["disk"]["free"] < SIZE // 100
    probes = {probe["name"]: probe for probe in json.loads(daemon.ctl("doctor", "-o", "json").out)}
    assert probes["disk"]["result"] != "ok"
    assert "nothing new is written until there is space" in probes["last end"]["message"]
    assert "nothing new is written until there is space" in daemon.told()
    code, said = readiness(port)
    assert (code, "no disk: " in said) == (503, True)
    fill(small_disk)  # the reserve, and what the stop gave back
    assert "rule disk-full" in daemon.ctl("apply", "-f", str(variables)).err

    filler.unlink()
    assert daemon.ask("apply", "-f", str(variables))["items"][0]["action"] == "created"
    probes = {probe["name"]: probe for probe in json.loads(daemon.ctl("doctor", "-o", "json").out)}
    assert (probes["disk"]["result"], probes["database"]["result"]) == ("ok", "ok"), "there is room above the reserve"
    daemon.kill()
    daemon.start()
    assert {one["records"] for one in daemon.datasets()} >= {1}
    assert daemon.stop() == 0


# A real daemon whose source drips: asked to stop, it ends, whatever time it would give to work of its own.


DRAIN = "3600"
"""Seconds for what computes: who waited for the source through them would not end in this test."""
ROOT = """kind: DatasetSnapshot
version: 1
content:
  name: slow
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: '{url}/rows.csv'}}
      read: {{kind: Csv, header: true, ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']}}
      merge: {{kind: Ledger, primaryKey: [event_time, city]}}
"""


@pytest.mark.parametrize("manner", [Manner.DRIPS_BODY, Manner.DRIPS_HEAD, Manner.SILENT], ids=lambda each: each.name)
def test_a_daemon_ends_though_a_source_drips(make_daemon: Callable[..., Any], manner: Manner) -> None:
    daemon = make_daemon(ODFD_NODE_DRAIN_SECONDS=DRAIN, small=True)
    daemon.start()
    with Dripping(manner).open() as server:
        file = daemon.folder / "m.yaml"
        file.write_text(ROOT.format(url=server.url))
        daemon.ask("apply", "-f", str(file))
        pull = daemon.begin("pull", "slow", "-q")
        assert server.taken.wait(PATIENCE)
        assert daemon.datasets()[0]["blocks"] == 2, "others are answered meanwhile"
        assert daemon.stop() == 0
        pull.wait(PATIENCE)
    daemon.start()
    assert daemon.datasets()[0]["blocks"] == 2


# A real daemon that is asked to stop while its engine starts: at no moment of that does it wait for the engine.


HANGS = "#!/bin/sh\necho $$ >> {told}\nexec sleep 3600\n"
DERIVED = """kind: DatasetSnapshot
version: 1
content:
  name: derived
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: events, alias: a}]
      transform: {kind: Sql, engine: spark, query: select * from a}
---
kind: DatasetSnapshot
version: 1
content:
  name: events
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: gate
      read: {kind: Csv, ddlSchema: ['event_time TIMESTAMP, k BIGINT']}
      merge: {kind: Append}
"""
SANDBOXES = (*TOOLS, "bwrap")
"""What any level above none is made with: which of them is tried first is the machine's."""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def awaited(file: Path) -> None:
    """Until the program that hangs was started."""
    until(file.exists)


def check_ends(daemon: Any) -> None:
    """Nothing of it had to be cancelled when its time was up, and none of what it started stays."""
    told = daemon.told()
    assert daemon.stop() == 0
    ended = daemon.told()[len(told) :]
    assert '"event": "ended"' in ended
    assert '"event": "cancelled"' not in ended


def test_while_a_java_is_asked_for_its_version(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    told = tmp_path / "told"
    program(tmp_path / "java" / "bin" / "java", HANGS.format(told=told))
    daemon = make_daemon(JAVA_HOME=str(tmp_path / "java")).start()
    awaited(told)
    check_ends(daemon)


def test_while_a_level_of_the_sandbox_is_tried(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    told = tmp_path / "told"
    for name in SANDBOXES:
        program(tmp_path / "bin" / name, HANGS.format(told=told))
    daemon = make_daemon(PATH=f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin").start()
    awaited(told)
    check_ends(daemon)
    assert not any(Path("/proc", pid).exists() for pid in told.read_text().split())


def test_while_its_jvm_starts(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    """Somebody waits for the answer of an engine whose Java says nothing."""
    told, home = tmp_path / "told", tmp_path / "java"
    program(home / "bin" / "java", HANGS.format(told=told))
    (home / "release").write_text('JAVA_VERSION="17.0.1"\nMODULES="java.base jdk.incubator.vector"\n')
    for name in SANDBOXES:  # a process in a sandbox could not tell
        program(tmp_path / "bin" / name, "#!/bin/sh\nexit 1\n")
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    daemon = make_daemon(JAVA_HOME=str(home), ODFD_ENGINE_SANDBOX="none", PATH=path).start()
    file = tmp_path / "m.yaml"
    file.write_text(DERIVED)
    apply = daemon.begin("apply", "-f", str(file), "-q")
    awaited(told)
    check_ends(daemon)
    apply.wait(PATIENCE)
