"""Files that a person names, and what commands read of them."""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chain.errors import Environment, Invalid, NotFound, Remote
from chain.statements.keys import SigningKey
from odfd.cli.commands import support
from odfd.cli.commands.apply import read
from odfd.cli.commands.trust import rules_of
from odfd.cli.new_file import NewFile, check_distinct
from odfd.cli.offline.keyfile import KeyFile
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import ApiCall
from odfd.errors import Usage
from worlds.full_disk import room_for

# Files that a person names: kept, replaced only on request, complete or absent, and one way to write them.

CLI = Path(__file__).parents[4] / "odfd" / "cli"
OWN_WAYS = {
    "new_file.py",
    "commands/edit.py",  # a draft for the editor
    "commands/page.py",  # an address for a browser, in the user's own folder
    "offline/demo.py",  # the log of the demo's node
    "offline/new.py",  # a download in a folder that is removed
    "sql/output_file.py",  # drafts, which NewFile gives their names
    "sql/shell.py",  # the history, in the user's own folder
}


@pytest.mark.parametrize("is_private", [False, True])
def test_a_file_that_is_there_is_kept(tmp_path: Path, *, is_private: bool) -> None:
    place = tmp_path / "a"
    place.write_text("kept")
    with pytest.raises(Invalid, match="a is there already") as refused:
        NewFile(place, is_private=is_private)
    assert (refused.value.rule, "--replace" in (refused.value.hint or "")) == ("file-exists", not is_private)
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    with pytest.raises(Invalid, match="there already"):
        NewFile(tmp_path / "nowhere")
    assert place.read_text() == "kept"


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "a")
    with pytest.raises(Invalid, match="there already"), file.writing() as writing:
        writing.writelines([b"ours"] * (tmp_path / "a").write_text("theirs"))
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("a", "theirs")]


def test_it_is_replaced_on_request_where_it_lies_and_keeps_its_mode(tmp_path: Path) -> None:
    place, link = tmp_path / "a", tmp_path / "link"
    place.write_text("old")
    place.chmod(0o640)
    link.symlink_to(place)
    NewFile(link, replace=True).write("neü")
    assert (link.is_symlink(), place.read_bytes()) == (True, "neü".encode())
    assert stat.S_IMODE(place.stat().st_mode) == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "link"]


def test_an_empty_file_is_written_but_for_a_secret(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.touch(mode=0o600)
    NewFile(place).write("new")
    assert (place.read_text(), stat.S_IMODE(place.stat().st_mode)) == ("new", 0o600)
    with pytest.raises(Invalid, match="there already"):
        NewFile(place)
    (tmp_path / "b").touch()
    with pytest.raises(Invalid, match="there already"):
        NewFile(tmp_path / "b", is_private=True)


def test_of_a_failure_nothing_is_left(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("old")
    for file in (NewFile(tmp_path / "new"), NewFile(old, replace=True)):
        with room_for(0), pytest.raises(Environment, match="cannot write"):
            file.write("more")
        with pytest.raises(ValueError, match="closed"), file.writing() as writing:
            writing.writelines(b"more" for _ in range(2) if writing.close() is None)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("old", "old")]


def test_a_secret_is_its_owners_from_the_first_byte(tmp_path: Path) -> None:
    with NewFile(tmp_path / "key", is_private=True).writing() as writing:
        (draft,) = tmp_path.iterdir()
        writing.write(b"secret")
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_place_where_no_file_can_be_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "none" / "a", tmp_path / "file" / "a"):
        with pytest.raises(Usage, match="cannot write"):
            NewFile(place)


def test_a_device_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    NewFile(pipe).write("rows")
    NewFile(pipe, replace=True).write(" again")
    assert os.read(reader, 99) == b"rows again"
    os.close(reader)
    assert [each.is_fifo() for each in tmp_path.iterdir()] == [True]


def test_two_options_name_two_files(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="--save-pin and --prove name one file"):
        check_distinct(save_pin=NewFile(tmp_path / "a"), prove=NewFile(tmp_path / "a"))
    check_distinct(save_pin=NewFile(tmp_path / "a"), prove=None)


def test_commands_write_files_in_no_other_way() -> None:
    ways = re.compile(r"\.write_text\(|\.write_bytes\(|O_CREAT|open\([^)]*[\"'][wxa]b?[\"']")
    found = {str(path.relative_to(CLI)) for path in CLI.rglob("*.py") if ways.search(path.read_text())}
    assert found <= OWN_WAYS, found - OWN_WAYS


# The file that a dataset's key is kept in away from the node.


@pytest.mark.parametrize("room", range(65))
def test_a_full_disk_leaves_no_part_of_a_key(tmp_path: Path, room: int) -> None:
    seed, path = b"k" * 32, tmp_path / "offline.key"
    with room_for(room), pytest.raises(Environment):
        KeyFile(str(path)).write(seed.hex())
    assert not path.exists()
    KeyFile(str(path)).write(seed.hex())
    assert KeyFile(str(path)).dataset() == str(SigningKey(seed).dataset_id)


# What a file of a network's policy says becomes a request, each part in its place.

KEY = "did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9"
GROUPS = f'groups = [{{name = "one", keys = ["{KEY}"]}}]\n'


def test_validators_and_witnesses_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(
        f'use = "data"\n[validators]\nf = 0\n{GROUPS}[witness]\nquorum = 1\n{GROUPS}[fresh]\nmax-stale = "7d"\n'
    )
    expected = wire.NetworkRulesRequest(
        use="data", f=0, groups={"one": (KEY,)}, max_stale="7d",
        witness=wire.WitnessRulesRequest(quorum=1, groups={"one": KEY}),
    )  # fmt: skip
    assert msgspec.json.encode(rules_of(str(file))) == msgspec.json.encode(expected)


# Manifests that are named by ``-f``: files, folders, pipes, and what cannot be read.

TEXT = "$schema: VariableSet\nheaders: {name: a}\nspec: {variables: {x: '1'}}\n"


def test_a_pipe_is_read_like_standard_input() -> None:
    """As the shell's ``<(…)`` and /dev/stdin are: relative paths in it begin at the working folder."""
    reading, writing = os.pipe()
    try:
        os.write(writing, TEXT.encode())
        os.close(writing)
        (found,) = read(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    assert (found.text, found.base) == (TEXT, str(Path.cwd()))


def test_a_folder_is_its_manifests_in_order(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "notes.txt"):
        (tmp_path / name).write_text(TEXT)
    assert [Path(each.source).name for each in read(str(tmp_path))] == ["a.yml", "b.yaml"]
    with pytest.raises(NotFound, match="there is no file"):
        list(read(str(tmp_path / "c.yaml")))


@pytest.mark.parametrize("what", ["iterdir", "open"])
def test_what_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    (tmp_path / "a.yaml").write_text(TEXT)

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, what, denied)
    with pytest.raises(Environment, match=r"cannot read .*: Permission denied"):
        list(read(str(tmp_path)))


# What is sent to those who are asked for help: all that can be had, without secrets, or no file at all.

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


def read_archive(file: Path) -> dict[str, Any]:
    with tarfile.open(file) as archive:
        return {Path(each.name).name: json.load(archive.extractfile(each)) for each in archive}  # type: ignore[arg-type]


def test_it_holds_what_the_daemon_tells_and_no_secret(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "alice.tar.gz"
    assert run(monkeypatch, file, Daemon()) == 0
    found = read_archive(file)
    assert set(found) == {"machine.json", *support._PARTS}
    assert found["tasks.json"]["source"] == "https://********@example.org/a.csv?token=********&day=1#x"
    assert "2 secrets in it masked" in capsys.readouterr().err
    assert file.stat().st_mode & 0o077 == 0


def test_what_cannot_be_had_is_named(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    assert run(monkeypatch, tmp_path / "a.tgz", Daemon("/node/v1alpha1/doctor")) == 1
    assert read_archive(tmp_path / "a.tgz")["missing.json"] == {"doctor.json": "it is asleep"}
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
