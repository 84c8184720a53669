"""The units are accepted by systemd itself, and hold what the daemon counts on."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from config.load import load
from worlds.eventually import PATIENCE

UNITS = Path(__file__).parents[3] / "systemd"
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not on this machine")
EXPOSURE = 30
"""Of 100, as `systemd-analyze security` counts; bwrap and a JVM inside leave some."""


def installed(tmp_path: Path, *names: str) -> list[str]:
    """Copies whose programs exist here: an executable path of this machine in place of the installed one."""
    made = []
    for name in names:
        target = tmp_path / Path(name).name
        target.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", (UNITS / name).read_text()))
        made.append(str(target))
    return made


def complaints(units: list[str], *options: str) -> str:
    assert ANALYZE is not None
    command = [ANALYZE, "verify", "--man=no", *options, *units]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")


@needs_systemd
def test_systemd_accepts_the_system_units(tmp_path: Path) -> None:
    assert complaints(installed(tmp_path, "odfd.service", "odfd.socket")) == ""


@needs_systemd
def test_systemd_accepts_the_user_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert complaints(installed(tmp_path, "user/odfd.service"), "--user") == ""


@needs_systemd
def test_a_mistake_in_a_unit_is_seen(tmp_path: Path) -> None:
    units = installed(tmp_path, "odfd.service", "odfd.socket")
    service = Path(units[0])
    service.write_text(service.read_text().replace("ProtectSystem=strict", "ProtectSystem=perhaps"))
    assert "ignoring: perhaps" in complaints(units)


@needs_systemd
def test_the_service_is_closed_enough(tmp_path: Path) -> None:
    (unit,) = installed(tmp_path, "odfd.service")
    assert ANALYZE is not None
    done = subprocess.run(
        [ANALYZE, "security", "--offline=true", f"--threshold={EXPOSURE}", unit],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_socket_state_and_drain_are_those_of_the_settings() -> None:
    service = (UNITS / "odfd.service").read_text()
    unit = configparser.RawConfigParser(strict=False)
    unit.read_string((UNITS / "odfd.socket").read_text())
    settings = load({"STATE_DIRECTORY": "/var/lib/odfd", "RUNTIME_DIRECTORY": "/run/odfd"}).settings
    assert unit["Socket"]["ListenStream"] == settings.control.socket
    assert unit["Socket"]["FileDescriptorName"] == "control"
    stop = re.search(r"(?m)^TimeoutStopSec=(\d+)$", service)
    assert stop is not None
    assert f"Environment=ODFD_CONTROL_GROUP={unit['Socket']['SocketGroup']}\n" in service
    assert int(stop[1]) > settings.node.drain_seconds + 10
    for broken in ("MemoryDenyWriteExecute", "ProtectHostname", "ProcSubset", "PrivateUsers", "ProtectControlGroups"):
        assert not re.search(rf"(?m)^{broken}=", service)


# The kernel keeps ``node.memory-mib`` in a delegated control group: a real one, under Linux in user mode. Skipped
# where ``linux.uml`` is not installed (Debian: user-mode-linux): machines have version 1, or no delegated group.


UML = shutil.which("linux.uml")
BOOTED = """#!/bin/sh
mount -t proc proc /proc; mount -t cgroup2 none /sys/fs/cgroup
echo "+memory +pids" > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/odfd.service
chown -R 1000:1000 /sys/fs/cgroup/odfd.service
{python} -B -c '{tries}' > /dev/console 2>&1
echo o > /proc/sysrq-trigger; sleep 60
"""
TRIES = """
import json, os, sys
sys.path.insert(0, "{root}")
from engines.sandbox import cgroups
open("/sys/fs/cgroup/odfd.service/cgroup.procs", "w").write("0")
os.setgid(1000); os.setuid(1000)
def take(mib, entrance=None):
    pid = os.fork()
    if not pid:
        if entrance:
            open(entrance, "w").write("0")
        held = bytearray(mib << 20)
        held[::4096] = bytes(len(held[::4096]))
        os._exit(0)
    return os.waitpid(pid, 0)[1]
why = cgroups.limit_node(64 << 20)
job = cgroups.find_groups().make(96 << 20, 16)
(inside,) = job.entrances
found = [why, open("/proc/self/cgroup").read().strip(), take(80, inside), take(128, inside), take(40), take(80)]
job.end()
print("FOUND " + json.dumps(found), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(UML is None, reason="no Linux in user mode on this machine")
def test_a_node_has_its_memory_and_its_engines_theirs() -> None:
    """As an ordinary user: an engine may hold more than the node may, and neither pays for the other."""
    assert UML is not None
    tries = TRIES.replace("{root}", str(Path(__file__).parents[3]))
    assert "'" not in tries
    with TemporaryDirectory(dir="/var/tmp") as folder:  # what is below /dev here, Linux inside does not see
        init = Path(folder) / "init"
        init.write_text(BOOTED.replace("{python}", sys.executable).replace("{tries}", tries))
        init.chmod(0o755)
        boot = [UML, "rootfstype=hostfs", "rootflags=/", "ro", "mem=512M", f"init={init}", "con=null", "con0=fd:0,fd:1"]
        done = subprocess.run(boot, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800, check=False)
    found = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    killed = 9
    told = ["", "0::/odfd.service/odfd-node", 0, killed, 0, killed]
    assert [json.loads(each) for each in found] == [told], done.stdout[-2000:]
