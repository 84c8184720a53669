"""The first file of settings: asked for on a terminal, whole and checked or not there."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest

from chain.errors import Environment, Refused
from config.schema import ConfigError
from odfd.daemon.init import init, target

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
