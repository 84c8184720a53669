"""The command lines of podman and docker, and the call filter in their language: pure, no tool is run."""

from __future__ import annotations

import errno
import json
from pathlib import Path, PurePosixPath

import pytest

from engines.image.installed import Image
from engines.sandbox.base import Job, Mount, SandboxLevel
from engines.sandbox.container import TOOLS, Container
from engines.sandbox.seccomp import DENIED, FAMILIES, NAMESPACES, container_profile

IMAGE = Image("sha256:" + "a" * 64, "sha256:" + "b" * 64, Path("/cache/rootfs"), Path("/layout"), "4.3.0")
JOB = Job(
    argv=("/usr/bin/python3.11", "-m", "engines.spark"), env={"HOME": "/odf/tmp"}, memory=3, total=5, processes=7,
    mounts=(Mount(Path("/s/in"), PurePosixPath("/odf/in")), Mount(Path("/s/out"), PurePosixPath("/odf/out"), True)),
)  # fmt: skip


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_each_tool_is_asked_for_the_digest_that_it_keeps() -> None:
    assert Container("podman", "podman", IMAGE).reference == f"localhost/odfd-engine@{IMAGE.manifest}"
    assert Container("docker", "docker", IMAGE).reference == IMAGE.config


def test_a_container_has_no_way_out_and_all_limits(tool: str) -> None:
    sandbox = Container(tool, f"/bin/{tool}", IMAGE)
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


def test_the_first_process_holds_the_input_that_the_node_holds(tool: str) -> None:
    argv = Container(tool, tool, IMAGE).command(JOB, (9,)).argv
    after = argv[argv.index(Container(tool, tool, IMAGE).reference) + 1 :]
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
