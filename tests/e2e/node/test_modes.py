"""A real daemon under any umask: what it makes is for its owner alone, and usable by its owner."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from worlds.daemons import around
from worlds.eventually import PATIENCE, until
from worlds.forked import Forking

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
