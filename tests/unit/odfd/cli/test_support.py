"""What is sent to those who are asked for help: all that can be had, without secrets, or no file at all."""

from __future__ import annotations

import argparse
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from chain.errors import Environment, Invalid, Remote
from odfd.cli.commands import support
from odfd.cli.session import Session
from odfd.control.client import ApiCall

SOURCE = "https://ann:hunter2@example.org/a.csv?token=abc123&day=1#x"


class Daemon:
    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    def raw(self, call: ApiCall[Any]) -> bytes:
        path = call.path
        if path == self.fails:
            raise Remote("it is asleep")
        said: dict[str, Any] = {"path": path, "source": SOURCE} if path == "/flow/v1alpha1/tasks" else {"path": path}
        return json.dumps(said).encode()


def run(monkeypatch: pytest.MonkeyPatch, file: Path, daemon: Daemon) -> int:
    monkeypatch.setattr(support.Session, "client", daemon)
    args = argparse.Namespace(output="table", quiet=False, verbose=False, socket=None, file=file)
    return support._support(Session(args), args)


def read(file: Path) -> dict[str, Any]:
    with tarfile.open(file) as archive:
        return {Path(each.name).name: json.load(archive.extractfile(each)) for each in archive}  # type: ignore[arg-type]


def test_it_holds_what_the_daemon_tells_and_no_secret(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "alice.tar.gz"
    assert run(monkeypatch, file, Daemon()) == 0
    found = read(file)
    assert set(found) == {"machine.json", *support._PARTS}
    assert found["tasks.json"]["source"] == "https://********@example.org/a.csv?token=********&day=1#x"
    assert "2 secrets in it masked" in capsys.readouterr().err
    assert file.stat().st_mode & 0o077 == 0


def test_what_cannot_be_had_is_named(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    assert run(monkeypatch, tmp_path / "a.tgz", Daemon("/node/v1alpha1/doctor")) == 1
    assert read(tmp_path / "a.tgz")["missing.json"] == {"doctor.json": "it is asleep"}
    assert "doctor.json is not in it: it is asleep" in capsys.readouterr().err


def test_there_is_a_whole_file_or_none(monkeypatch: Any, tmp_path: Path) -> None:
    (tmp_path / "there.tgz").write_text("mine")
    with pytest.raises(Invalid, match="there already"):
        run(monkeypatch, tmp_path / "there.tgz", Daemon())
    assert (tmp_path / "there.tgz").read_text() == "mine"
    monkeypatch.setattr(tarfile.TarFile, "addfile", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(Environment, match="No space left"):
        run(monkeypatch, tmp_path / "full.tgz", Daemon())
    assert [each.name for each in tmp_path.iterdir()] == ["there.tgz"]
