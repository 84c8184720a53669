"""Runs jobs at level ``container``: podman or docker, from an image that is named by digest and never fetched.

Podman keeps the digest of the manifest, docker only that of the configuration (its image id), so each is given the one
that it keeps; both are pinned by ``Image``. A container outlives the process that requested it, so its first process
reads the standard input that the node holds, and ends with it (``tether``).

``run --rm`` makes a container, then starts it, and removes it when it has ended. If it is killed between the first two,
nobody removes it: the next life does, by a label of the folder that it worked in, which keeps those of other nodes
apart. Whoever asks must hold the folder alone, and must have no container running.
"""

from __future__ import annotations

import hashlib
import os
import resource
import secrets
from collections.abc import Sequence, Set
from pathlib import Path, PurePosixPath
from typing import Final

import trio

from chain.errors import Environment
from engines.image.installed import ENVIRONMENT, JAVA_HOME, PYTHON, Image
from engines.sandbox.base import Job, Mount, SandboxCommand, SandboxLevel, tether_command
from engines.sandbox.bubblewrap import RUN_BYTES, TMP_BYTES
from engines.sandbox.seccomp import container_profile

LABEL: Final = "odfd.folder"
SECONDS: Final = 30.0
"""Seconds that the tool may take to list or to remove containers."""
END_SECONDS: Final = 5.0
"""The same for one container, while a node may be stopping."""
_TOOL_ENVIRONMENT: Final = (
    *("PATH", "HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST"),
    *("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
)
_SAID: Final = 300


def tool_environment() -> dict[str, str]:
    """Returns those environment variables that podman and docker need to find images and containers."""
    return {name: os.environ[name] for name in _TOOL_ENVIRONMENT if name in os.environ}


def label_of(folder: Path) -> str:
    """Returns the label of containers that work for a folder; it does not tell its path."""
    return f"{LABEL}={hashlib.sha3_256(os.fsencode(folder.resolve())).hexdigest()[:32]}"


async def remove_left(binary: str, label: str) -> int:
    """Removes all containers with a label, in whatever state. Returns how many there were. Raises Environment."""
    found = (await _run_tool(binary, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}")).split()
    if found:
        await _run_tool(binary, *_removal(binary), *found)
    return len(found)


async def remove_named(binary: str, name: str) -> None:
    """Removes a container that may be there. A tool that fails is left: the next life removes it by its label."""
    with trio.move_on_after(END_SECONDS):
        await trio.run_process(
            [binary, *_removal(binary), name],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=tool_environment(),
        )


def _removal(binary: str) -> tuple[str, ...]:
    """Returns the words that end and remove containers; podman would wait for their end, docker does not."""
    return ("rm", "--force", "--volumes", *(("--time=0",) if Path(binary).name == "podman" else ()))


async def _run_tool(binary: str, *words: str) -> str:
    tool = Path(binary).name
    try:
        with trio.fail_after(SECONDS):
            done = await trio.run_process(
                [binary, *words], capture_stdout=True, capture_stderr=True, check=False, env=tool_environment()
            )
    except trio.TooSlowError as error:
        raise Environment(
            f"{tool} {words[0]} gave no answer in {SECONDS:g} s", rule="containers-left", hint=f"does {tool} work?"
        ) from error
    except OSError as error:
        raise Environment(f"cannot start {tool}: {error.strerror}", rule="containers-left") from error
    if done.returncode:
        words_said = done.stderr.decode("utf-8", "replace").strip()[-_SAID:]
        raise Environment(f"{tool} {words[0]} failed: {words_said}", rule="containers-left")
    return done.stdout.decode("utf-8", "replace")


TOOLS: Final = ("podman", "docker")
NAME: Final = "odfd-engine"
"""Name of the image in the tool's own store; the digest decides, the name is only a handle."""
FILES: Final = 20_000
"""Most open files of a container."""
PROCESSES: Final = 4096
"""Most processes of a container's user at once; a job is allowed fewer, which its group enforces."""


class Container:
    """Level ``container``: runs jobs in containers of podman or docker."""

    level = SandboxLevel.CONTAINER

    def __init__(self, tool: str, binary: str, image: Image, label: str = "") -> None:
        """``label``: see ``label_of``; empty: none."""
        self._tool = tool
        self._label = ("--label", label) if label else ()
        self._binary = binary
        self._image = image

    @property
    def python(self) -> str:
        return PYTHON

    @property
    def java_home(self) -> Path | None:
        return Path(JAVA_HOME)

    @property
    def bounds(self) -> Set[str]:
        return frozenset({"exceed-memory", "exceed-memory-together", "exceed-processes"})

    def data(self) -> Sequence[bytes]:
        return (container_profile(),)

    def path_inside(self, mount: Mount, /) -> PurePosixPath:
        return mount.target

    @property
    def reference(self) -> str:
        image = self._image
        return f"localhost/{NAME}@{image.manifest}" if self._tool == "podman" else image.config

    def command(self, job: Job, files: Sequence[int], /) -> SandboxCommand:
        (profile,) = files
        environment = {**job.env, **ENVIRONMENT}
        bounds = {"--memory": job.total, "--memory-swap": job.total, "--pids-limit": job.processes}
        name = f"odfd-{secrets.token_hex(8)}"
        argv = (
            *(self._binary, "run", "--rm", "--interactive", "--pull=never", "--name", name, *self._label),
            *("--network=none", "--hostname=localhost", "--ipc=private", "--read-only"),
            *("--cap-drop=all", "--security-opt=no-new-privileges"),
            f"--security-opt=seccomp=/proc/self/fd/{profile}",
            *("--user", f"{os.geteuid()}:{os.getegid()}", *self._identity()),
            *(word for name, most in _ours().items() for word in ("--ulimit", f"{name}={most}:{most}")),
            *(("--ulimit", f"data={job.memory}:{job.memory}") if job.memory else ()),
            *(f"{option}={value}" for option, value in bounds.items() if value is not None),
            *("--tmpfs", f"/tmp:rw,nosuid,nodev,mode=1777,size={TMP_BYTES}"),  # noqa: S108  # inside
            *("--tmpfs", f"/run:rw,nosuid,nodev,size={RUN_BYTES}"),
            *(word for mount in job.mounts for word in _bind(mount)),
            *(word for name, value in environment.items() for word in ("--env", f"{name}={value}")),
            *("--workdir=/tmp", "--entrypoint="),
            self.reference,
            *tether_command(self.python, None, hold=True),
            *job.argv,
        )
        place = next((mount.source for mount in job.mounts if mount.writable), None)
        return SandboxCommand(argv, tool_environment(), limited=True, place=place, container=name)

    def _identity(self) -> tuple[str, ...]:
        """Returns the option by which podman without root maps the node's user to the same user inside."""
        return ("--userns=keep-id",) if self._tool == "podman" and os.geteuid() else ()


def _ours() -> dict[str, int]:
    """Returns limits of a container, capped at those of the node: the tools would set higher ones by
    default, and fail."""
    asked = {"nofile": (resource.RLIMIT_NOFILE, FILES), "nproc": (resource.RLIMIT_NPROC, PROCESSES)}
    most = {name: (resource.getrlimit(number)[1], wanted) for name, (number, wanted) in asked.items()}
    return {
        name: wanted if hard == resource.RLIM_INFINITY else min(hard, wanted) for name, (hard, wanted) in most.items()
    }


def _bind(mount: Mount) -> tuple[str, str]:
    return "--volume", f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}"
