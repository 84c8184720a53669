"""Manifests that are named by ``-f``: files, folders, pipes, and what cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chain.errors import Environment, NotFound
from odfd.cli.commands.apply import read

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
