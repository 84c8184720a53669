"""Files that a person names: kept, replaced only on request, complete or absent, and one way to write them."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from chain.errors import Environment, Invalid
from odfd.cli.new_file import NewFile, check_distinct
from odfd.errors import Usage
from worlds.full_disk import room_for

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
