"""The Debian package in a clean Debian that systemd runs: installed, upgraded, removed and purged as people do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from package.__main__ import DEBIAN_ROOT, OUT
from worlds.eventually import PATIENCE, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TOOLS = ("systemd-nspawn", "nsenter", "dpkg-deb")
SECONDS = 120
"""A package of 110 MB is unpacked and compiled, on a disk that others use too."""
EXPOSURE = 2.6
EXTRAS = ("odfd-sql",)
ENGINE = "odfd-engine.deb"
DEMO = "odfd-demo.deb"
QUERY = "odfctl sql 'select 42 as x' -o ndjson"
MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: kept
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, header: true, ddlSchema: [event_time TIMESTAMP, n BIGINT]}
      merge: {kind: Append}
"""
DERIVED = """
kind: DatasetSnapshot
version: 1
content:
  name: doubled
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: kept, alias: kept}]
      transform: {kind: Sql, engine: spark, query: "select event_time, n * 2 as twice from kept"}
"""
ROWS = "event_time,n\n2024-01-01T00:00:00Z,42\n"
QUESTION = "Delete the node's state too?"
PURGE = """
import os, pty, sys
said = b""
def seen(terminal):
    global said
    data = os.read(terminal, 1024)
    said += data
    if said.rstrip().endswith(b"[yes/no]"):
        os.write(terminal, sys.argv[1].encode() + b"\\n")
        said = b""
    return data
os.environ["DEBIAN_FRONTEND"] = "teletype"
sys.exit(os.waitstatus_to_exitcode(pty.spawn(["apt-get", "purge", "-qq", "-y", "odfd"], seen)))
"""
"""A person at a terminal, who reads the question before they answer."""
PAGE = """
import re, sys, urllib.request
base = sys.argv[1].partition("/#")[0]
def read(path):
    with urllib.request.urlopen(base + path, timeout=60) as answer:
        return answer.headers["content-security-policy"], answer.read().decode()
policy, html = read("/")
files = re.findall(r'(?:src|href)="(/[^"]+)"', html)
print(*{policy, *(read(each)[0] for each in files)}, *files, sep="\\n")
"""
"""The policies of the page and of all that it begins with, and the names of these files."""


class Debian:
    """A container with an init of its own and no network."""

    def __init__(self, root: Path, leader: int) -> None:
        self.root = root
        self._inside = ["nsenter", "-t", str(leader), "-m", "-p", "-u", "-i", "-n", "-C", "--", "/bin/bash", "-ec"]

    def run(self, command: str) -> str:
        """Standard output of a shell command that ends with 0."""
        done = subprocess.run(
            [*self._inside, f"cd; {command}"], capture_output=True, text=True, timeout=SECONDS,
            stdin=subprocess.DEVNULL, check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"},
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
        return done.stdout

    def is_up(self) -> bool:
        command = [*self._inside, "systemctl is-system-running"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        return done.stdout.strip() in ("running", "degraded")

    def install(self, *packages: str) -> None:
        names = " ".join(f"./{each}" for each in packages)
        self.run(f"DEBIAN_FRONTEND=noninteractive apt-get install -qq -y {names}")

    def node_id(self) -> str:
        found = json.loads(self.run(f"odfctl status --wait {PATIENCE:.0f}s -o json"))["nodeId"]
        assert isinstance(found, str)
        return found

    def state_is_left(self) -> bool:
        return (self.root / "var/lib/odfd/odfd.sqlite").exists()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that were built, and with the same as a later version."""
    built = {name: sorted(OUT.glob(f"{name}_*.deb")) for name in ("odfd", *EXTRAS)}
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not all(built.values()) or not DEBIAN_ROOT.is_file():
        pytest.skip("the package or a Debian to try it in was not built: make deb debian-root")
    if missing or os.geteuid() != 0:
        pytest.skip(f"a container takes root and {', '.join(TOOLS)}")
    folder = tmp_path_factory.mktemp("packages")
    tree = folder / "tree"
    for name, files in built.items():
        shutil.copyfile(files[-1], folder / f"{name}.deb")
        subprocess.run(["dpkg-deb", "-R", folder / f"{name}.deb", tree], check=True, timeout=SECONDS)
        control = tree / "DEBIAN" / "control"
        control.write_text(
            control.read_text().replace("\nVersion: ", "\nVersion: 1:").replace("odfd (= ", "odfd (= 1:")
        )
        command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, folder / f"later-{name}.deb"]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
        shutil.rmtree(tree)
    for name in (ENGINE, DEMO):
        for each in OUT.glob(f"{name.removesuffix('.deb')}_*.deb"):
            (folder / name).symlink_to(each)
    return folder


@pytest.fixture
def demo(packages: Path) -> str:
    if not (packages / DEMO).is_file():
        pytest.skip("the recorded node was not packed: make demo-node deb")
    return DEMO


@pytest.fixture
def debian(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debian]:
    root = tmp_path_factory.mktemp("debian")
    with tarfile.open(DEBIAN_ROOT) as archive:
        devices = (each for each in archive if each.isfile() or each.isdir() or each.issym() or each.islnk())
        archive.extractall(root, members=devices, filter="fully_trusted")
    for each in packages.iterdir():
        shutil.copyfile(each, root / "root" / each.name)
    written = {"kept.yaml": MANIFEST, "derived.yaml": DERIVED, "rows.csv": ROWS, "purge.py": PURGE, "page.py": PAGE}
    for name, text in written.items():
        (root / "root" / name).write_text(text)
    command = ("systemd-nspawn", "-q", "-D", str(root), "--register=no", "--keep-unit", "--private-network")
    console = root.with_name("console.log")
    with console.open("wb") as said, subprocess.Popen(
        [*command, "--console=pipe", "--boot"], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        start_new_session=True,
    ) as container:  # fmt: skip
        try:
            children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
            until(lambda: container.poll() is not None or bool(children.read_text()))
            if container.poll() is not None:
                pytest.skip(f"systemd does not start in a container here: {console.read_text()[-300:]}")
            found = Debian(root, int(children.read_text().split()[0]))
            until(found.is_up)
            yield found
        finally:
            with suppress(OSError):  # the end of nspawn alone would leave the container's init behind
                for each in children.read_text().split():
                    os.kill(int(each), signal.SIGKILL)
            container.send_signal(signal.SIGKILL)
    shutil.rmtree(root, ignore_errors=True)


def test_the_package_lives_and_goes_as_its_page_says(debian: Debian) -> None:
    debian.install("odfd.deb")
    first = debian.node_id()
    assert debian.run("systemctl is-active odfd.service odfd.socket").split() == ["active", "active"]
    assert debian.run("systemd-analyze verify odfd.service odfd.socket 2>&1") == ""
    debian.run(f"systemd-analyze security --threshold={EXPOSURE * 10:.0f} odfd.service")
    places = debian.run("dpkg -L odfd").split()
    assert "/usr/share/zsh/vendor-completions/_odfctl" in places, "Debian's zsh looks there, and not in site-functions"
    debian.run("odfctl apply -q -f kept.yaml")
    assert "sql-missing" in debian.run(f"{QUERY} 2>&1 || test $? = 7")
    debian.install("odfd-sql.deb")
    assert json.loads(debian.run(QUERY)) == {"x": 42}
    assert debian.run("find /usr/lib/odfd -newer /usr/bin/odfctl -name '*.pyc'") == "", "all was compiled before"

    debian.install(ENGINE)
    debian.run(
        "odfctl apply -q -f derived.yaml -f kept.yaml && odfctl ingest -q kept rows.csv && odfctl pull -q doubled"
    )
    assert json.loads(debian.run("odfctl sql 'select twice from doubled' -o ndjson")) == {"twice": 84}
    debian.run("apt-get remove -qq -y odfd-engine")
    assert "engine-missing" in debian.run("odfctl ingest --again kept rows.csv 2>&1 || test $? = 7")

    debian.install("later-odfd.deb", "later-odfd-sql.deb")
    assert debian.node_id() == first
    assert "1:" in debian.run("dpkg-query -W -f '${Version}' odfd")
    assert "kept" in debian.run("odfctl get datasets -o name")
    assert json.loads(debian.run(QUERY)) == {"x": 42}

    debian.run("apt-get remove -qq -y odfd")
    assert debian.state_is_left()
    assert not (debian.root / "usr/lib/odfd").exists()
    until(
        lambda: debian.run("systemctl list-units --all --plain --no-legend 'odfd*'") == ""
    )  # forgotten when it is idle

    debian.install("odfd.deb")
    assert debian.node_id() == first

    assert QUESTION in debian.run("python3 purge.py no")
    assert debian.state_is_left()

    debian.install("odfd.deb")
    assert debian.node_id() == first
    assert QUESTION in debian.run("python3 purge.py yes")
    assert not debian.state_is_left()
    assert debian.run("systemctl is-system-running").strip() == "running"


def test_any_user_sees_in_the_recorded_node_who_was_refuted_and_why(demo: str, debian: Debian) -> None:
    assert "demo-missing" in debian.run("dpkg -i odfd.deb >/dev/null; odfctl demo 2>&1 || test $? = 5")
    debian.install(demo)
    debian.run("useradd -m anna")
    debian.run("su anna -c 'cd; nohup odfctl demo --folder carol > said.txt 2>&1 & echo $! > pid'")
    until(lambda: "Ctrl+C" in (debian.root / "home/anna/said.txt").read_text())
    ask = "su anna -c 'odfctl --socket ~/carol/control.sock {}'"
    trust = json.loads(debian.run(ask.format("trust show nyc.flights.bad -o json")))
    assert [each["group"] for each in trust["dissent"]] == ["eve"]
    (cell,) = trust["evidence"][0]["cells"]
    assert (cell["column"], cell["published"], cell["computed"]) == ("delay", "1980.00", "2980.00")
    address = debian.run(ask.format("ui -q")).split()[0]
    policy, *files = debian.run(f"python3 page.py '{address}'").splitlines()
    assert "default-src 'none'; script-src 'self'" in policy, "one for all"
    assert {"/first.js", "/main.js", "/datasets.js", "/style.css"} <= {*files}
    debian.run("kill $(cat /home/anna/pid)")
    until(lambda: not (debian.root / "home/anna/carol/control.sock").exists())
