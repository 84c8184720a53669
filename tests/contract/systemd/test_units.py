"""The units are accepted by systemd itself, and hold what the daemon counts on."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

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
