"""Engines in sandboxes: what they may do, use and leave."""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment
from engines.image.installed import Image
from engines.sandbox import container, seccomp
from engines.sandbox.base import Job, Mount, PlainProcess, SandboxCommand, SandboxLevel
from engines.sandbox.cgroups import Groups, find_groups, limit_node
from engines.sandbox.container import TOOLS, Container, label_of, remove_left
from engines.sandbox.process import ConfinedProcess, start
from engines.sandbox.seccomp import (
    ALLOW,
    ARCHITECTURES,
    DENIED,
    ERRNO,
    FAMILIES,
    KILL,
    NAMESPACES,
    assemble,
    container_profile,
    engine_filter,
)
from worlds.eventually import PATIENCE

# Groups over a made-up hierarchy: which files are written where, and who is left alone.

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
    """Attack T-PEER-04: memory use beyond the sum of all limits.

    Defence: under systemd the daemon has a control group beside that of its engines (`node.memory-mib`): it alone is
    ended and restarted; elsewhere the log warns that no limit applies.
    """
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


# The command lines of podman and docker, and the call filter in their language: pure, no tool is run.

IMAGE = Image("sha256:" + "a" * 64, "sha256:" + "b" * 64, Path("/cache/rootfs"), Path("/layout"), "4.3.0")
JOB = Job(
    argv=("/usr/bin/python3.11", "-m", "engines.spark"), env={"HOME": "/odf/tmp"}, memory=3, total=5, processes=7,
    mounts=(Mount(Path("/s/in"), PurePosixPath("/odf/in")), Mount(Path("/s/out"), PurePosixPath("/odf/out"), True)),
)  # fmt: skip


@pytest.fixture(params=TOOLS)
def tool_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_each_tool_is_asked_for_the_digest_that_it_keeps() -> None:
    assert Container("podman", "podman", IMAGE).reference == f"localhost/odfd-engine@{IMAGE.manifest}"
    assert Container("docker", "docker", IMAGE).reference == IMAGE.config


def test_a_container_has_no_way_out_and_all_limits(tool_name: str) -> None:
    sandbox = Container(tool_name, f"/bin/{tool}", IMAGE)
    command = sandbox.command(JOB, (9,))
    assert sandbox.level is SandboxLevel.CONTAINER
    assert command.limited
    assert command.place == Path("/s/out")
    assert set(command.argv) >= {
        "--pull=never", "--network=none", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--rm",
        "--security-opt=seccomp=/proc/self/fd/9", "--memory=5", "--memory-swap=5", "--pids-limit=7", "data=3:3",
        "/s/in:/odf/in:ro", "/s/out:/odf/out:rw", "HOME=/odf/tmp", "--interactive",
    }  # fmt: skip
    assert command.argv[-3:] == JOB.argv


def test_the_first_process_holds_the_input_that_the_node_holds(tool_name: str) -> None:
    argv = Container(tool_name, tool_name, IMAGE).command(JOB, (9,)).argv
    after = argv[argv.index(Container(tool_name, tool_name, IMAGE).reference) + 1 :]
    assert after[0] == "/usr/bin/python3.11"
    assert after[5:7] == ("-", "hold")


def refused(rules: list[dict[str, object]], call: str, argument: int) -> object:
    """What the profile answers, by its own words; ``None`` lets it pass."""
    tests = {
        "SCMP_CMP_EQ": lambda test: argument == test["value"],
        "SCMP_CMP_GT": lambda test: argument > test["value"],
        "SCMP_CMP_MASKED_EQ": lambda test: argument & test["value"] == test["valueTwo"],
    }
    for rule in rules:
        if call in rule["names"] and all(tests[test["op"]](test) for test in rule.get("args", ())):  # type: ignore
            return rule["errnoRet"]
    return None


def test_the_profile_is_the_filter() -> None:
    profile = json.loads(container_profile())
    rules = profile["syscalls"]
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    for family in range(64):
        passes = family in FAMILIES.values()
        assert refused(rules, "socket", family) == (None if passes else errno.EAFNOSUPPORT), family
    for bit in range(32):
        assert refused(rules, "clone", 1 << bit | 17) == (errno.EPERM if NAMESPACES >> bit & 1 else None), bit
    assert refused(rules, "clone3", 0) == errno.ENOSYS
    assert all(refused(rules, name, 0) == errno.EPERM for name in DENIED["x86_64"])
    assert refused(rules, "openat", 0) is None


# Containers that a killed life left: found by their label alone, and removed where the tool works.


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


# A process ends with all that it started, however it ends itself.


async def started(command: str) -> tuple[ConfinedProcess, int]:
    """A shell, and the number of the process that it left in the background and printed."""
    job = Job(argv=("sh", "-c", command), env=dict(os.environ), mounts=())
    process = start(PlainProcess(), job)
    return process, int(await process.stdout.receive_some())


async def has_ended(process: int) -> None:
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        await trio.lowlevel.wait_readable(watched)
    finally:
        os.close(watched)


@pytest.mark.parametrize("last", ["exit 3", "kill -TERM $$"])
async def test_a_process_that_ends_by_itself_leaves_none_behind(last: str) -> None:
    """It was asked to end and did at once, before its group was killed: its children then stayed."""
    process, child = await started(f"sleep 1000 >/dev/null 2>&1 & echo $!; {last}")
    with trio.fail_after(PATIENCE):
        code = await process.wait()
        await has_ended(child)
    assert code in (3, -15)
    assert process.returncode == code
    assert await process.stop(0) == code


async def test_a_process_that_is_stopped_leaves_none_behind() -> None:
    process, child = await started("sleep 1000 & echo $!; wait")
    with trio.fail_after(PATIENCE):
        await process.stop(PATIENCE)
        await has_ended(child)


# The filter, run by an interpreter of our own against every call it speaks of.

SOCKET = {"x86_64": 41, "aarch64": 198}
CLONE = {"x86_64": 56, "aarch64": 220}
MACHINES = list(ARCHITECTURES)


def run(machine: str, number: int, argument: int = 0, architecture: int | None = None) -> int:
    """What the kernel would do with the assembled bytes."""
    raw = assemble(engine_filter(machine))
    program = [struct.unpack_from("=HBBI", raw, at) for at in range(0, len(raw), 8)]
    data = struct.pack(
        "=IIQ6Q", number, ARCHITECTURES[machine] if architecture is None else architecture, 0, argument, 0, 0, 0, 0, 0
    )
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        match code:
            case seccomp.LOAD:
                (accumulator,) = struct.unpack_from("=I", data, operand)
            case seccomp.JUMP_EQUAL:
                at += if_true if accumulator == operand else if_false
            case seccomp.JUMP_AT_LEAST:
                at += if_true if accumulator >= operand else if_false
            case seccomp.JUMP_ANY_BIT:
                at += if_true if accumulator & operand else if_false
            case seccomp.RETURN:
                return operand
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


@pytest.mark.parametrize("machine", MACHINES)
def test_denied_calls_fail_with_eperm(machine: str) -> None:
    for name, number in DENIED[machine].items():
        assert run(machine, number) == ERRNO | errno.EPERM, name


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("family", "passes"), [(1, 1), (2, 1), (10, 1), (16, 1), (40, 0), (17, 0), (38, 0), (0, 0)])
def test_only_four_families_of_sockets(machine: str, family: int, passes: int) -> None:
    expected = ALLOW if passes else ERRNO | errno.EAFNOSUPPORT
    assert run(machine, SOCKET[machine], family) == expected
    # The kernel looks at the low 32 bits; so must we.
    assert run(machine, SOCKET[machine], family | 1 << 32) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_may_be_made_and_namespaces_not(machine: str) -> None:
    threads = 0x00000100 | 0x00000200 | 0x00000400 | 0x00000800 | 0x00010000 | 0x00040000 | 0x00080000
    assert run(machine, CLONE[machine], threads) == ALLOW
    for bit in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert run(machine, CLONE[machine], threads | bit) == ERRNO | errno.EPERM
    assert run(machine, 435) == ERRNO | errno.ENOSYS


def test_other_numberings_do_not_pass() -> None:
    for machine in MACHINES:
        for architecture in (0x40000003, 0x40000028, 0, *(set(ARCHITECTURES.values()) - {ARCHITECTURES[machine]})):
            assert run(machine, 1, architecture=architecture) == KILL
    assert run("x86_64", seccomp.X32_BIT | 41, 40) == ERRNO | errno.ENOSYS


@given(machine=st.sampled_from(MACHINES), number=st.integers(0, 600), argument=st.integers(0, 2**64 - 1))
def test_everything_else_passes(machine: str, number: int, argument: int) -> None:
    if number not in {*DENIED[machine].values(), SOCKET[machine], CLONE[machine], 435}:
        assert run(machine, number, argument) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_jumps_fit_and_the_program_is_short(machine: str) -> None:
    program = engine_filter(machine)
    assert len(program) < 4096
    for at, each in enumerate(program):
        assert max(each.if_true, each.if_false) < 256
        assert at + 1 + max(each.if_true, each.if_false) < len(program) or each.code in (seccomp.RETURN, seccomp.LOAD)


def test_an_unknown_machine_is_said() -> None:
    with pytest.raises(Environment, match="s390x"):
        engine_filter("s390x")
