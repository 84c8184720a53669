"""Containers that a killed life left: found by their label alone, and removed where the tool works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chain.errors import Environment
from engines.sandbox import container
from engines.sandbox.base import Job, PlainProcess, SandboxCommand
from engines.sandbox.container import label_of, remove_left
from engines.sandbox.process import start


def tool(folder: Path, script: str, name: str = "podman") -> str:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{script}\n')
    path.chmod(0o755)
    return str(path)


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


@pytest.mark.parametrize(("name", "words"), [("podman", " --time=0"), ("docker", "")])
async def test_all_that_have_the_label_are_removed(tmp_path: Path, name: str, words: str) -> None:
    binary = tool(tmp_path, 'case "$1" in ps) echo one; echo two;; esac', name)
    label = label_of(tmp_path / "state")
    assert await remove_left(binary, label) == 2
    listed = f"ps --all --quiet --no-trunc --filter label={label}"
    assert asked(tmp_path) == [listed, f"rm --force --volumes{words} one two"]


async def test_where_nothing_was_left_nothing_is_removed(tmp_path: Path) -> None:
    assert await remove_left(tool(tmp_path, ":"), label_of(tmp_path)) == 0
    assert len(asked(tmp_path)) == 1


def test_each_folder_has_a_label_that_does_not_tell_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert label_of(tmp_path / "a") == label_of(tmp_path / "link") != label_of(tmp_path / "b")
    assert str(tmp_path) not in label_of(tmp_path / "a")


async def test_a_tool_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(Environment, match="podman ps failed: no storage"):
        await remove_left(tool(tmp_path, "echo no storage >&2; exit 125"), label_of(tmp_path))
    with pytest.raises(Environment, match="cannot start podman"):
        await remove_left(str(tmp_path / "none" / "podman"), label_of(tmp_path))


async def test_a_tool_that_is_silent_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "SECONDS", 0.01)
    monkeypatch.setattr(container, "END_SECONDS", 0.01)
    silent = tool(tmp_path, "exec sleep 1000")
    with pytest.raises(Environment, match="gave no answer"):
        await remove_left(silent, label_of(tmp_path))
    await container.remove_named(silent, "odfd-a")


class Made(PlainProcess):
    """A level whose tool makes a container."""

    def __init__(self, binary: str) -> None:
        self._binary = binary

    def command(self, job: Job, _: Any, /) -> SandboxCommand:
        return SandboxCommand((self._binary, *job.argv), {"PATH": "/usr/bin:/bin"}, container="odfd-a")


@pytest.mark.parametrize(("script", "removed"), [("exec sleep 1000", True), ("exit 0", False)])
async def test_a_start_that_is_given_up_leaves_no_container(tmp_path: Path, script: str, removed: bool) -> None:
    binary = tool(tmp_path, f'[ "$1" = rm ] || {script}')
    process = start(Made(binary), Job(argv=("run",), env={}, mounts=()))
    if removed:
        process.kill()
    else:
        await process.wait()
    await process.stop(0)
    words = [] if not removed else ["rm --force --volumes --time=0 odfd-a"]
    assert [line for line in asked(tmp_path) if line != "run"] == words
