"""Groups over a made-up hierarchy: which files are written where, and who is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engines.sandbox.cgroups import Groups, find_groups, limit_node

NOBODY = 2**22 + 1
"""Beyond any pid that Linux gives."""


@pytest.fixture
def version_1(tmp_path: Path) -> Groups:
    for controller in ("memory", "pids"):
        (tmp_path / controller / "node").mkdir(parents=True)
    membership = tmp_path / "membership"
    membership.write_text("9:name=systemd:/x\n4:memory:/node\n8:pids:/node\n3:cpu,cpuacct:/\n0::/\n")
    found = find_groups(tmp_path, membership)
    assert isinstance(found, Groups)
    return found


def test_version_1_has_a_folder_for_each_controller(version_1: Groups, tmp_path: Path) -> None:
    assert version_1.version == 1
    group = version_1.make(memory=1 << 20, processes=7)
    name = group.folders[0].name
    assert name.startswith(f"odfd-{os.getpid()}-")
    assert group.entrances == tuple(
        str(tmp_path / kind / "node" / name / "cgroup.procs") for kind in ("memory", "pids")
    )


def prepared(base: Path, offered: str, divided: str) -> Path:
    base.mkdir(parents=True, exist_ok=True)
    (base / "cgroup.controllers").write_text(offered)
    (base / "cgroup.subtree_control").write_text(divided)
    return base


def test_version_2_moves_this_process_aside_and_divides(tmp_path: Path) -> None:
    prepared(tmp_path, "cpu memory pids", "cpu")
    base = prepared(tmp_path / "system.slice" / "odfd.service", "cpu memory pids", "")
    membership = tmp_path / "membership"
    membership.write_text("0::/system.slice/odfd.service\n")
    found = find_groups(tmp_path, membership)
    assert isinstance(found, Groups)
    assert (base / "odfd-node" / "cgroup.procs").read_text() == "0"
    assert (base / "cgroup.subtree_control").read_text() == "+memory +pids"
    group = found.make(memory=1 << 20, processes=7)
    assert [folder.parent for folder in group.folders] == [base]
    assert {file.name: file.read_text() for file in group.folders[0].iterdir()} == {
        "memory.max": "1048576", "pids.max": "7"
    }  # fmt: skip


def test_version_2_finds_itself_divided_after_a_restart(tmp_path: Path) -> None:
    prepared(tmp_path, "memory pids", "")
    base = prepared(tmp_path / "odfd.service", "memory pids", "memory pids")
    (tmp_path / "membership").write_text("0::/odfd.service/odfd-node\n")
    found = find_groups(tmp_path, tmp_path / "membership")
    assert isinstance(found, Groups)
    assert set(found.parents.values()) == {base}
    assert not (base / "odfd-node").exists()


def test_the_node_has_a_limit_that_its_jobs_have_no_part_in(tmp_path: Path) -> None:
    prepared(tmp_path, "memory pids", "")
    base = prepared(tmp_path / "odfd.service", "memory pids", "")
    membership = tmp_path / "membership"
    membership.write_text("0::/odfd.service\n")
    assert limit_node(8 << 20, tmp_path, membership) == ""
    node = base / "odfd-node"
    assert {file.name: file.read_text() for file in node.iterdir()} == {
        "cgroup.procs": "0", "memory.max": str(8 << 20)
    }  # fmt: skip
    membership.write_text("0::/odfd.service/odfd-node\n")
    found = find_groups(tmp_path, membership)
    assert isinstance(found, Groups)
    assert {folder.parent for folder in found.make(memory=1 << 20, processes=7).folders} == {base}, "beside it"


def test_why_the_node_has_no_limit_is_said(tmp_path: Path, version_1: Groups) -> None:
    assert "version 1" in limit_node(1 << 20, tmp_path, tmp_path / "membership")
    assert "no control groups" in limit_node(1 << 20, tmp_path, tmp_path / "gone")
    prepared(tmp_path / "odfd.service", "memory pids", "memory pids")
    prepared(tmp_path, "memory pids", "")
    (tmp_path / "membership").write_text("0::/odfd.service\n")
    assert "takes no limit" in limit_node(1 << 20, tmp_path, tmp_path / "membership"), "divided by somebody else"


def test_a_group_that_others_share_is_not_divided(tmp_path: Path) -> None:
    prepared(tmp_path, "memory pids", "")
    base = prepared(tmp_path / "shell.scope", "memory pids", "")
    (base / "cgroup.subtree_control").unlink()
    (base / "cgroup.subtree_control").mkdir()  # writing to it fails, as the kernel's does when others are inside
    (tmp_path / "membership").write_text("0::/shell.scope\n")
    why = find_groups(tmp_path, tmp_path / "membership")
    assert isinstance(why, str)
    assert "cannot be divided" in why


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("0::/x\n", "offers no memory, pids"),
        ("8:pids:/\n", "kind memory"),
        ("4:memory:/gone\n8:pids:/\n", "kind memory"),
    ],
)
def test_why_there_are_none_is_said(tmp_path: Path, lines: str, why: str) -> None:
    prepared(tmp_path / "x", "cpu", "")
    if lines.startswith("0::"):
        prepared(tmp_path, "cpu", "")
    (tmp_path / "membership").write_text(lines)
    found = find_groups(tmp_path, tmp_path / "membership")
    assert isinstance(found, str)
    assert why in found
    assert isinstance(find_groups(tmp_path, tmp_path / "no-such-file"), str)


def test_what_a_killed_node_left_is_swept_and_what_lives_is_not(version_1: Groups, tmp_path: Path) -> None:
    pids = tmp_path / "pids" / "node"
    for name in (f"odfd-{NOBODY}-1", f"odfd-{os.getpid()}-1", "odfd-other", "somebody"):
        (pids / name).mkdir()
    assert version_1.sweep() == [f"odfd-{NOBODY}-1"]
    assert {folder.name for folder in pids.iterdir()} == {f"odfd-{os.getpid()}-1", "odfd-other", "somebody"}
